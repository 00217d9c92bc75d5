"""Lines of soft-RoCE (rxe) that are changed before the kernel is built: part of the recipe, as `kernel_patches` is.

As it comes, a queue pair may have 128 packets on their way, which is what one building needs: 512 KiB, or 0.2 Gbit/s
over 10 ms each way. Here it is a parameter of the module, and a quarter of the sequence numbers unless said otherwise,
which is what reliable connections allow for: an acknowledgement may be half of the numbers behind.

As it comes before 7.2, rxe looks for routes and listens in the first network namespace only. Here each namespace has a
socket of its own for its port, 4791, and routes are looked for where the device's interface is.
"""

from __future__ import annotations

from pathlib import Path

Changes = dict[Path, dict[str, str]]

NAMESPACES_SINCE = (7, 2)
"""The oldest version looked at in which rxe knows namespaces."""

_RXE = Path("drivers/infiniband/sw/rxe")

WINDOW: Changes = {
    _RXE / "rxe_req.c": {
        r'#include "rxe_queue\.h"\n': (
            '#include "rxe_queue.h"\n'
            "#include <linux/moduleparam.h>\n"
            "\n"
            "static unsigned int rxe_max_unacked_psns = 1 << 22;\n"
            "module_param_named(max_unacked_psns, rxe_max_unacked_psns, uint, 0644);\n"
        ),
        r"\bRXE_MAX_UNACKED_PSNS\b": "rxe_max_unacked_psns",
    },
}

NAMESPACES: Changes = {
    _RXE / "rxe_net.c": {
        r"static struct rxe_recv_sockets recv_sockets;": (
            "#include <net/netns/generic.h>\n\nstatic unsigned int rxe_sockets_id;"
        ),
        r"ip_route_output_key\(&init_net, ": "ip_route_output_key(dev_net(ndev), ",
        r"lookup_flow\(sock_net\(recv_sockets\.sk6->sk\),\s*recv_sockets\.sk6->sk, ": (
            "lookup_flow(dev_net(ndev), NULL, "
        ),
        r"static int rxe_net_ipv4_init\(void\)\n\{(.|\n)*?\n\}\n": (
            "static void rxe_sockets_close(struct net *net)\n"
            "{\n"
            "\tstruct rxe_recv_sockets *sockets = net_generic(net, rxe_sockets_id);\n"
            "\n"
            "\trxe_release_udp_tunnel(sockets->sk6);\n"
            "\trxe_release_udp_tunnel(sockets->sk4);\n"
            "}\n"
        ),
        r"static int rxe_net_ipv6_init\(void\)\n\{(.|\n)*?\n\}\n": (
            "static int rxe_sockets_open(struct net *net)\n"
            "{\n"
            "\tstruct rxe_recv_sockets *sockets = net_generic(net, rxe_sockets_id);\n"
            "\tstruct socket *made = rxe_setup_udp_tunnel(net, htons(ROCE_V2_UDP_DPORT), false);\n"
            "\n"
            "\tif (IS_ERR(made))\n"
            "\t\treturn PTR_ERR(made);\n"
            "\tsockets->sk4 = made;\n"
            "#if IS_ENABLED(CONFIG_IPV6)\n"
            "\tmade = rxe_setup_udp_tunnel(net, htons(ROCE_V2_UDP_DPORT), true);\n"
            "\tsockets->sk6 = IS_ERR(made) ? NULL : made;\n"
            "#endif\n"
            "\treturn 0;\n"
            "}\n"
            "\n"
            "static struct pernet_operations rxe_sockets_ops = {\n"
            "\t.init = rxe_sockets_open,\n"
            "\t.exit = rxe_sockets_close,\n"
            "\t.id = &rxe_sockets_id,\n"
            "\t.size = sizeof(struct rxe_recv_sockets),\n"
            "};\n"
        ),
        r"\trxe_release_udp_tunnel\(recv_sockets\.sk6\);\n\trxe_release_udp_tunnel\(recv_sockets\.sk4\);\n": (
            "\tunregister_pernet_subsys(&rxe_sockets_ops);\n"
        ),
        r"\trecv_sockets\.sk6 = NULL;\n\n\terr = rxe_net_ipv4_init\(\);\n\tif \(err\)\n\t\treturn err;\n"
        r"\terr = rxe_net_ipv6_init\(\);\n\tif \(err\)\n\t\tgoto err_out;\n": (
            "\terr = register_pernet_subsys(&rxe_sockets_ops);\n\tif (err)\n\t\treturn err;\n"
        ),
    },
}
"""Only where the source is older than NAMESPACES_SINCE."""

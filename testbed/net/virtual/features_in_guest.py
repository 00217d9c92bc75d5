"""Feature test that runs in a guest: prints {feature: "" or error message} as JSON. Standard library only."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable

QDISCS = {
    "netem": "delay 5ms loss 1%",
    "htb": "",
    "hfsc": "",
    "tbf": "rate 1mbit burst 10k latency 10ms",
    "prio": "",
    "red": "limit 400000 min 30000 max 90000 avpkt 1000 ecn",
    "choke": "limit 1000 bandwidth 10Mbit ecn",
    "sfb": "",
    "sfq": "",
    "drr": "",
    "qfq": "",
    "ets": "bands 3",
    "fq": "",
    "fq_codel": "ecn",
    "codel": "ecn",
    "pie": "ecn",
    "fq_pie": "ecn",
    "cake": "",
    "skbprio": "",
    "plug": "",
    "pfifo": "limit 10",
    "bfifo": "limit 10000",
}
SLEEP_TOLERANCE_NS = 5_000
CONGESTION_CONTROLS = ("reno", "cubic", "bbr", "dctcp")
LINKS = {
    "dummy": "link add try0 type dummy",
    "ifb": "link add try0 type ifb",
    "veth": "link add try0 type veth",
    "bridge": "link add try0 type bridge",
    "macvlan": "link add link d0 try0 type macvlan",
    "vlan": "link add link d0 try0 type vlan id 5",
    "vxlan": "link add try0 type vxlan id 5 dev d0 dstport 4789",
    "bond": "link add try0 type bond",
    "vrf": "link add try0 type vrf table 10",
    "tun": "tuntap add try0 mode tap",
}
FILTERS = ("matchall", "u32 match u32 0 0", "flower", "basic")
ACTIONS = ("mirred egress redirect dev lo", "police rate 1mbit burst 10k", "skbedit priority 1", "gact drop")


def run_commands(*commands: str) -> str:
    """Run commands up to the first that fails; return its error message, or "" if all succeed."""
    for command in commands:
        program, *arguments = command.split()
        try:
            done = subprocess.run(
                [program, *arguments], capture_output=True, text=True, check=False, timeout=60
            )
        except FileNotFoundError:
            return f"{program} is not installed"
        if done.returncode != 0:
            return done.stderr.strip() or f"status {done.returncode}"
    return ""


def try_filter(words: str, action: str) -> str:
    """Add and remove an ingress filter with an action."""
    parent = "dev d0 parent ffff:"
    return run_commands(
        f"tc filter add {parent} protocol all prio 1 {words} action {action}", f"tc filter del {parent}"
    )


def try_clock() -> str:
    """Check that computing takes no virtual time, and a sleep its exact time within microseconds.

    Reading the clock and going to sleep cost a little. Without time travel a sleep is late by 50 us or more.
    """
    began = time.monotonic_ns()
    sum(range(2_000_000))
    computed_ns = time.monotonic_ns() - began
    began = time.monotonic_ns()
    time.sleep(0.02)
    slept_ns = time.monotonic_ns() - began
    if computed_ns > 1000:
        return f"computing took {computed_ns} ns of virtual time"
    return "" if abs(slept_ns - 20_000_000) <= SLEEP_TOLERANCE_NS else f"a sleep of 20 ms took {slept_ns} ns"


def try_mptcp() -> str:
    """Open an MPTCP socket."""
    try:
        socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262).close()
    except OSError as error:
        return str(error)
    return ""


def try_open_vswitch() -> str:
    """Create and remove a switch on the kernel's datapath; without its tool only the configuration is known."""
    if shutil.which("ovs-dpctl") is None:
        return ""
    return run_commands("ovs-dpctl add-dp try0", "ovs-dpctl del-dp try0")


def try_rdma(kind: str, number: int, program: str, exchange: Callable[[str, str, str], str]) -> str:
    """Give two hosts in namespaces RDMA NICs of this kind; if the program is installed, exchange messages."""
    names = client, server = f"{kind}1", f"{kind}2"
    net = f"10.9.{number}"
    steps = [f"ip netns add {name}" for name in names]
    steps.append(f"ip link add eth0 netns {client} mtu 9000 type veth peer name eth0 netns {server} mtu 9000")
    for host, name in enumerate(names, 1):
        steps += [
            f"ip -n {name} address add {net}.{host}/24 dev eth0",
            f"ip -n {name} link set eth0 up",
            f"ip netns exec {name} rdma link add card_{name} type {kind} netdev eth0",
        ]
    for step in steps:
        if message := run_commands(step):
            return f"{step}: {message}"
    time.sleep(0.5)  # until the NICs have the addresses of their interfaces
    message = "" if shutil.which(program) is None else exchange(client, server, f"{net}.2")
    for name in names:  # the NIC first: while a namespace removes one, no other namespace can be created
        message = message or run_commands(f"rdma link del card_{name}", f"ip netns del {name}")
    return message


def run_pingpong(client: str, server: str, address: str) -> str:
    """Exchange messages over a reliable connection."""
    for index in ("0", "1"):  # the IPv4 address is the second one if there is an IPv6 address
        command = f"ibv_rc_pingpong -e -g {index} -n 10 -m 4096 -d card_"
        client_command = f"{command}{client} {address}"
        message = run_client_and_server(server, command + server, client, client_command)
        if not message:
            return ""
    return message


def run_rping(client: str, server: str, address: str) -> str:
    """Connect with the connection manager, which iWARP needs, and exchange messages, reads and writes."""
    return run_client_and_server(
        server, f"rping -s -a {address} -C 10", client, f"rping -c -a {address} -C 10"
    )


def run_client_and_server(server: str, server_command: str, client: str, command: str) -> str:
    """Run a server in one host and a client in another; return the result of the client."""
    words = ["ip", "netns", "exec", server, *server_command.split()]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        time.sleep(0.2)
        message = run_commands(f"ip netns exec {client} {command}")
        process.kill()
    return message


def try_isolation() -> str:
    """Check that there is no interface to the host's network."""
    others = [name for _, name in socket.if_nameindex() if name not in ("lo", "d0")]
    return f"there are {others}" if any(name.startswith(("eth", "vec", "ens")) for name in others) else ""


def main() -> None:
    """Try all features and print the results."""
    ctypes.CDLL(None).prctl(29, 1)
    with open("/proc/sys/net/ipv4/tcp_available_congestion_control") as file:
        available = file.read().split()
    found = {
        "virtual clock": try_clock(),
        "namespaces": run_commands("unshare --net --mount --pid --fork true"),
        "no way out": try_isolation(),
        "dummy": run_commands("ip link add d0 type dummy", "ip link set d0 up"),
    }
    for kind, words in LINKS.items():
        found[kind] = run_commands(f"ip {words}", "ip link del try0")
    for kind, options in QDISCS.items():
        found[kind] = run_commands(f"tc qdisc add dev d0 root {kind} {options}", "tc qdisc del dev d0 root")
    found["ingress"] = run_commands("tc qdisc add dev d0 ingress")
    for words in FILTERS:
        found[words.split()[0]] = try_filter(words, ACTIONS[0])
    for action in ACTIONS:
        found[action.split()[0]] = try_filter(FILTERS[0], action)
    for name in CONGESTION_CONTROLS:
        found[name] = "" if name in available else f"not among {' '.join(available)}"
    found["Open vSwitch"] = try_open_vswitch()
    found["MPTCP"] = try_mptcp()
    if os.path.exists("/sys/module/rdma_rxe"):  # older kernels have neither soft-RoCE nor soft-iWARP
        found["soft-RoCE"] = try_rdma("rxe", 9, "ibv_rc_pingpong", run_pingpong)
        found["soft-iWARP"] = try_rdma("siw", 10, "rping", run_rping)
    found["socket diagnostics"] = run_commands("ss -tin")
    print(json.dumps(found))


main()

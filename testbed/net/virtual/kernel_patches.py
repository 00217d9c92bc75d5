"""Patches of the kernel's source: part of the recipe, like the configuration.

Reading the clock
    By default each reading advances the clock by one count of its counter, 256 ns, so that a program that polls the
    clock does not loop forever. All ranks share one clock: 64 of them, with some hundred readings per step each, made a
    step ten milliseconds longer. Python also reads the clock whenever it takes a lock, ten times per imported module,
    so the set of imported or newly compiled modules shifted everything after it. With the patch a reading is free. A
    task that reads the clock 65,536 times without sleeping (as iperf3 does) pays one microsecond for each further
    reading; no program reads it as often while it starts. The counter counts nanoseconds.

Timers and rounding
    By default no timer expires sooner than 500 ns from now. A frame of 9000 bytes takes 180 ns at 400 Gbit/s, so the
    patched minimum is one nanosecond. netem rounds the time of a frame to whole nanoseconds (180.28 ns at 400 Gbit/s);
    with the patch the remainder is added to the next frame. The patched netem also draws the bit of a frame to corrupt
    from its own seed, like its other random decisions.

Tick
    By default this kernel ticks at 100 Hz, and TCP counts its timers and CUBIC its window in ticks. The patched kernel
    ticks at 1000 Hz while it is not idle.

AMX registers
    A processor with AMX keeps 11 kB of registers per program. Before 6.13 the kernel supports at most 2.7 kB and sets
    them with a size that such a host refuses: the first program ends with a panic. The patched kernel asks the host for
    the size and has room for 12 kB, on its stacks, too (`CONFIG_KERNEL_STACK_ORDER`).

Failing system calls
    From 6.12 on a failing system call takes a microsecond, so that a program does not retry forever. Python tries
    several names per imported module, and a rank reads its sockets until nothing is left. With the patch such a call
    counts as a reading of the clock.

Scheduler
    From 6.16 on every ten-thousandth stop of a program advances the scheduler's clock by a tick, so that a program
    cannot starve others; by default that clock then stands still until time has caught up. Meanwhile a spinning program
    kept its processor for seconds. With the patch the scheduler's clock stays ahead. Python's imports cause about ten
    thousand stops. Their number depends on the user, on what is compiled already and on whether programs are traced,
    and it changed the order in which ranks run. With the patch the limit is 200,000 stops, more than any program makes
    while it starts.

Counted computing
    Where computing is counted, a reading advances the clock by the time that has passed on the host since the last one
    (at most a second, because a host may sleep). By default that mode notices computing only by its ticks, so a
    spinning program would wait for hours. By default a late tick counts as one tick, too: half of the computing on two
    idle cores, and nine tenths on busy ones, were not counted. With the patch all time up to the tick is counted.

Random generator
    By default the generator mixes the kernel's command line into its pool, and the time and interrupted instruction of
    each interrupt. With seccomp the end of each program is an interrupt, with ptrace it is not. So one more program, or
    the other way of interception, changed all later random numbers. The patched kernel mixes in neither: the pool
    contains what the host provides, which comes from the seed.

    By default programs and the kernel draw from one stream. A program with one more draw, such as another Python,
    changed all later ports, sequence numbers and keys, also the names of Open vSwitch's rows and with them its order of
    work. With the patch each process has its own stream, from the seed and its place in the tree of processes (such as
    the second child of the first). The 16 random bytes that the C library gets at the start of a program are constant.

Soft-RoCE (rxe)
    By default a queue pair may have 128 packets in flight, enough for one building: 512 KiB, or 0.2 Gbit/s over 10 ms
    each way. With the patch this is a module parameter. Its default is a quarter of the sequence numbers, the limit of
    reliable connections: an acknowledgement may be half of the numbers behind.

    Before 7.2 rxe looks up routes and listens in the first network namespace only. With the patch each namespace has
    its own socket on port 4791, and routes are looked up in the namespace of the device's interface.
"""

from __future__ import annotations

from pathlib import Path

from testbed.clock import KERNEL_TICK_HZ

Patches = dict[Path, dict[str, str]]
"""For each file, regular expressions and their replacements."""

RANDOM_PATCHES: Patches = {
    Path("drivers/char/random.c"): {
        r"\t_mix_pool_bytes\(command_line, strlen\(command_line\)\);\n": "",
        # in 6.1 the state is an array, and handed on without `&`
        r"\tcrng_make_state\((&?chacha_state), \(u8 \*\)&chacha_state(\.x)?\[4\],\s+CHACHA_KEY_SIZE\);\n": (
            "\tif (!programs_keyed) {\n"
            "\t\t_get_random_bytes(programs_key, sizeof(programs_key));\n"
            "\t\tprograms_keyed = true;\n"
            "\t}\n"
            "\tmemcpy(key, programs_key, sizeof(key));\n"
            "\tkey[0] ^= current->signal->random_place;\n"
            "\tkey[1] ^= ++current->signal->random_draws;\n"
            "\tcrng_fast_key_erasure((u8 *)key, \\1, (u8 *)&chacha_state\\2[4], CHACHA_KEY_SIZE);\n"
        ),
        r"(?m)^(static ssize_t get_random_bytes_user\(.*\n\{\n)": (
            "static u8 programs_key[CHACHA_KEY_SIZE];\nstatic bool programs_keyed;\n\n"
            r"\1\tu64 key[CHACHA_KEY_SIZE / sizeof(u64)];"
            "\n"
        ),
    },
    Path("include/linux/sched/signal.h"): {
        r"(?m)^(struct signal_struct \{)\n": r"\1" "\n\tu64 random_place, random_children, random_draws;\n"
    },
    Path("kernel/fork.c"): {
        r"\n\tsig->nr_threads = 1;\n": (
            "\n\tsig->nr_threads = 1;\n"
            "\tsig->random_place =\n"
            "\t\t(current->signal->random_place + ++current->signal->random_children) * 0x9e3779b97f4a7c15ull;\n"
        )
    },
    Path("kernel/irq/handle.c"): {r"\n\tadd_interrupt_randomness\(desc->irq_data\.irq\);": ""},
    Path("fs/binfmt_elf.c"): {
        r"get_random_bytes\(k_rand_bytes, sizeof\(k_rand_bytes\)\);": (
            "memset(k_rand_bytes, 0x5a, sizeof(k_rand_bytes));"
        )
    },
}
"""Patches of the random generator for all versions."""

RXE_NAMESPACES_SINCE = (7, 2)
"""The oldest version known in which rxe supports namespaces."""

_RXE = Path("drivers/infiniband/sw/rxe")

RXE_WINDOW_PATCHES: Patches = {
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

RXE_NAMESPACE_PATCHES: Patches = {
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
"""Patches of rxe for versions before RXE_NAMESPACES_SINCE."""

HOST_REGISTER_SIZE_SINCE = (6, 13)
"""From this version on the kernel asks the host for the size of the registers."""

SCHEDULER_CLOCK_SINCE = (6, 16)
"""From this version on the scheduler's clock may run ahead and then stand still."""

MAX_ITERATIONS = 200_000
"""Stops of a program without sleeping after which the scheduler's clock advances by a tick."""

SYSCALL_ERROR_DELAY_SINCE = (6, 12)
"""The oldest tested version in which a failing system call takes time."""

NETEM_SEED_SINCE = (6, 6)
"""From this version on netem has a seed."""

_USED, _SIZE = r"(\n\t\tif \(ptrace\(PTRACE_", r"iov_len = FP_SIZE \* sizeof\(unsigned long\);"
PATCHES_BEFORE: dict[tuple[int, int], Patches] = {
    HOST_REGISTER_SIZE_SINCE: {
        Path("arch/x86/um/user-offsets.c"): {
            r"DEFINE_LONGS\(HOST_FP_SIZE, 2696\);": "DEFINE_LONGS(HOST_FP_SIZE, 12288);"
        },
        Path("arch/x86/um/os-Linux/registers.c"): {
            r"(?m)^(static )?int have_xstate_support;\n": (
                r"\1int have_xstate_support;" "\nstatic unsigned long host_fp_bytes;\n"
            ),
            rf"{_SIZE}{_USED}GETREGSET\b)": r"iov_len = host_fp_bytes;\1",
            rf"{_SIZE}{_USED}SETREGSET\b)": r"iov_len = host_fp_bytes;\1",
            r" == 0\)\n\t\thave_xstate_support = 1;": (
                " == 0) {\n\t\thave_xstate_support = 1;\n\t\thost_fp_bytes = iov.iov_len;\n\t}"
            ),
        },
    },
    RXE_NAMESPACES_SINCE: RXE_NAMESPACE_PATCHES,
}
"""Patches for versions before the key."""

_CONSTANT = r"\n\tif \(tt_extra_sched_jiffies > 0\)\n\t\ttt_extra_sched_jiffies -= 1;\n"
PATCHES_SINCE: dict[tuple[int, int], Patches] = {
    SCHEDULER_CLOCK_SINCE: {
        Path("arch/um/Kconfig"): {
            r"(config UML_MAX_USERSPACE_ITERATIONS\n\tint\n(?:\t.*\n)*?\tdefault) 10000\b": rf"\1 {MAX_ITERATIONS}"
        },
        Path("arch/um/kernel/time.c"): {
            rf"(time_travel_{kind}_timer\(struct time_travel_event \*e\)\n\{{[^}}]*?){_CONSTANT}": r"\1\n"
            for kind in ("periodic", "oneshot")
        },
    },
    NETEM_SEED_SINCE: {
        Path("net/sched/sch_netem.c"): {
            r"get_random_u32_below\((skb->len|skb_headlen\(skb\))\)": (
                r"reciprocal_scale(prandom_u32_state(&q->prng.prng_state), \1)"
            ),
            r"get_random_u32_below\(8\)": "(prandom_u32_state(&q->prng.prng_state) & 7)",
        }
    },
    SYSCALL_ERROR_DELAY_SINCE: {
        Path("arch/um/kernel/skas/syscall.c"): {
            r"#include <asm/delay\.h>\n": "#include <linux/timekeeping.h>\n",
            r"\bum_udelay\(1\);": "ktime_get();",
        }
    },
}
"""Patches for versions from the key on."""

PATCHES: Patches = {
    **RXE_WINDOW_PATCHES,
    **RANDOM_PATCHES,
    Path("arch/um/Kconfig"): {r"(config HZ\n\tint\n\tdefault) 100\b": rf"\1 {KERNEL_TICK_HZ}"},
    Path("net/sched/sch_netem.c"): {
        r"\n\tu64(\s+)rate;\n": r"\n\tu64\1rate;\n\tu64\1rounded_off;\n",
        r"packet_time_ns\(u64 len, const struct": "packet_time_ns(u64 len, struct",
        r"return div64_u64\(len \* NSEC_PER_SEC, q->rate\);": (
            "return div64_u64_rem(len * NSEC_PER_SEC + q->rounded_off, q->rate, &q->rounded_off);"
        ),
    },
    Path("arch/um/include/linux/time-internal.h"): {
        r"#define TIMER_MULTIPLIER\s+256\b": "#define TIMER_MULTIPLIER 1",
        r"#define TIMER_MIN_DELTA\s+500\b": "#define TIMER_MIN_DELTA 1",
    },
    Path("arch/um/kernel/time.c"): {
        r"time_travel_update_time(_rel)?\((time_travel_time \+ )?TIMER_MULTIPLIER(, false)?\);": (
            r"{ u64 gone = time_since_read(); if (gone) time_travel_update_time\1(\2gone\3); }"
        ),
        r"(?m)^void time_travel_sleep\(": (
            "/* what has passed on the host while programs ran, and has not been counted yet */\n"
            "static u64 owed, host_seen;\n"
            "\n"
            "static void look_at_host(void)\n"
            "{\n"
            "\tu64 now = os_nsecs();\n"
            "\n"
            "\towed = min_t(u64, owed + now - host_seen, NSEC_PER_SEC);\n"
            "\thost_seen = now;\n"
            "}\n"
            "\n"
            "static u64 towards_host(void)\n"
            "{\n"
            "\tstruct time_travel_event *next = time_travel_first_event();\n"
            "\tu64 gone;\n"
            "\n"
            "\tlook_at_host();\n"
            "\tgone = owed;\n"
            "\t/* what is due next comes by the host's timer, which must not find itself in the past */\n"
            "\tif (next && next->time <= time_travel_time + gone)\n"
            "\t\tgone = next->time > time_travel_time + 1 ? next->time - time_travel_time - 1 : 0;\n"
            "\towed -= gone;\n"
            "\treturn gone;\n"
            "}\n"
            "\n"
            "void time_travel_sleep("
        ),
        r"\ttime_travel_update_time\(next, true\);\n": (
            "\ttime_travel_update_time(next, true);\n\tlook_at_host();\n\towed = 0;\n"
        ),
        r"\n\ttime_travel_set_time\(time_travel_next_event\);\n((?:.*\n)*?)\}\n": (
            "\n\tu64 before = time_travel_time;\n"
            "\n"
            "\ttime_travel_set_time(time_travel_next_event);\n"
            "\tlook_at_host();\n"
            "\towed -= min_t(u64, owed, time_travel_time - before);\n"
            r"\1"
            "\ttime_travel_set_time(time_travel_time + towards_host());\n"
            "}\n"
        ),
        r"(?m)^static u64 timer_read\(": (
            "static u64 time_since_read(void)\n"
            "{\n"
            "\tstatic struct { pid_t pid; unsigned int looks; unsigned long slept; } readers[1024], *own;\n"
            "\n"
            "\tif (time_travel_mode != TT_MODE_BASIC) {\n"
            "\t\town = &readers[current->pid % ARRAY_SIZE(readers)];\n"
            "\t\tif (own->pid != current->pid || own->slept != current->nvcsw) {\n"
            "\t\t\town->pid = current->pid;\n"
            "\t\t\town->slept = current->nvcsw;\n"
            "\t\t\town->looks = 0;\n"
            "\t\t}\n"
            "\t\treturn own->looks++ < 65536 ? 0 : NSEC_PER_USEC;\n"
            "\t}\n"
            "\treturn towards_host();\n"
            "}\n"
            "\n"
            "static u64 timer_read("
        ),
    },
}

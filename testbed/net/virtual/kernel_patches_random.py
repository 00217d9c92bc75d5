"""Lines of the kernel's random generator that are changed before the kernel is built, so that only the seed counts.

As it comes, the generator mixes the kernel's command line into its pool, and each interrupt: when it came and which
instruction it interrupted. Where programs stop by a filter (seccomp), the end of each is an interrupt; where they are
traced (ptrace), it is none. So one program more, or the other way to stop them, changed every number that was drawn
afterwards. Here neither is mixed in: the pool has what the host gives, which comes from the seed.

As it comes, programs and the kernel draw from one stream of numbers. A program that draws once more, such as another
Python, would change every port, sequence number and key that is drawn afterwards, and so would Open vSwitch's names for
its rows, and with them the order in which it works. Here each process has a stream of its own, by the seed and its
place in the tree of processes: the second child of the first, say. And each program that starts gets 16 random bytes,
for its C library: here they are constant.
"""

from __future__ import annotations

from pathlib import Path

Changes = dict[Path, dict[str, str]]

RANDOM: Changes = {
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
"""Of all versions."""

"""Lines of the kernel's random generator that are changed before the kernel is built, so that only the seed counts.

As it comes, the generator mixes into its pool the kernel's command line, and with every interrupt the address of the
instruction that was interrupted. That address is another one where programs stop by a filter (seccomp) than where they
are traced (ptrace), and with another C library. Here neither is mixed in: the pool has what the host gives, which comes
from the seed, and the times of interrupts, which are virtual.

As it comes, programs and the kernel draw from one stream of numbers. A program that draws once more, such as another
Python, would change every port, sequence number and key that the kernel draws afterwards. Here programs have a stream
of their own. And each program that starts gets 16 random bytes, for its C library: here they are constant.
"""

from __future__ import annotations

from pathlib import Path

Changes = dict[Path, dict[str, str]]

RANDOM: Changes = {
    Path("drivers/char/random.c"): {
        r"\t_mix_pool_bytes\(command_line, strlen\(command_line\)\);\n": "",
        r"\(regs \? instruction_pointer\(regs\) : _RET_IP_\) \^ swab\(irq\)": "((void)regs, swab(irq))",
        # in 6.1 the state is an array, and handed on without `&`
        r"\tcrng_make_state\((&?chacha_state), \(u8 \*\)&chacha_state(\.x)?\[4\],\s+CHACHA_KEY_SIZE\);\n": (
            "\tif (!programs_keyed) {\n"
            "\t\t_get_random_bytes(programs_key, sizeof(programs_key));\n"
            "\t\tprograms_keyed = true;\n"
            "\t}\n"
            "\tcrng_fast_key_erasure(programs_key, \\1, (u8 *)&chacha_state\\2[4], CHACHA_KEY_SIZE);\n"
        ),
        r"(?m)^(static ssize_t get_random_bytes_user\()": (
            "static u8 programs_key[CHACHA_KEY_SIZE];\nstatic bool programs_keyed;\n\n" r"\1"
        ),
    },
    Path("fs/binfmt_elf.c"): {
        r"get_random_bytes\(k_rand_bytes, sizeof\(k_rand_bytes\)\);": (
            "memset(k_rand_bytes, 0x5a, sizeof(k_rand_bytes));"
        )
    },
}
"""Of all versions."""

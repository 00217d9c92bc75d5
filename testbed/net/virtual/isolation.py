"""How a guest's programs are stopped at their system calls, and what keeps them from the guest's own memory.

A guest's kernel either traces its programs (ptrace, of all versions), which keeps their memory apart as any kernel
does, or, from Linux 6.16 on, has them stop themselves by a filter (seccomp): fewer switches, a third less time. The
filter does not keep a program that wants to from the memory of the whole guest: of its kernel, and of its other
programs. It does keep it in the guest's user: either way a guest's programs are processes of whoever started it, with
the rights that this user has anyway, and what they may write of this machine's files is what that user may. So a
program that one would start by oneself can be started in a guest; for one that one would not trust with one's own
files, neither is a fence. Step times agree; samples are not equal to the last byte, and a run's fingerprint says which.
"""

from __future__ import annotations

import os

from testbed.errors import BadInput
from testbed.net.virtual.versions import SECCOMP_SINCE, numbers

SECCOMP_VARIABLE = "TESTBED_GUEST_SECCOMP"
WORDS = ("auto", "on", "off")


def seccomp_argument(version: str) -> list[str]:
    """The guest kernel's argument for it: as the environment variable says, else where the machine allows it. BadInput.

    A kernel that knows no such thing gets none, and traces.
    """
    word = os.environ.get(SECCOMP_VARIABLE) or WORDS[0]
    if word not in WORDS:
        raise BadInput(where=SECCOMP_VARIABLE, got=word, expected=", ".join(WORDS))
    return [f"seccomp={word}"] if numbers(version) >= SECCOMP_SINCE else []

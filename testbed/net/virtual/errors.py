"""What goes wrong with the virtual clock."""

from __future__ import annotations

from testbed.errors import TestbedError


class VirtualClockError(TestbedError):
    """The kernel cannot be built, or a guest did not do what it should; the message is meant for people."""


class NoKernelError(VirtualClockError):
    """There is no kernel for the virtual clock on this machine yet."""

    def __init__(self, looked: str) -> None:
        super().__init__(
            f"the virtual clock needs its kernel, which is not built yet (looked in {looked})",
            hint="build it once, in about five minutes: make virtual",
        )

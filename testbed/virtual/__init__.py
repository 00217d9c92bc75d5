"""The virtual clock: a Linux kernel as an ordinary process, whose time moves only when all in it is idle."""

from testbed.virtual.clock import CpuTime, clock_here, sleep_until
from testbed.virtual.errors import NoKernelError, VirtualClockError
from testbed.virtual.guest import GUEST_PROGRAMS, Ended, Guest, GuestSettings
from testbed.virtual.image import KernelImage, find_image

__all__ = [
    "GUEST_PROGRAMS",
    "CpuTime",
    "Ended",
    "Guest",
    "GuestSettings",
    "KernelImage",
    "NoKernelError",
    "VirtualClockError",
    "clock_here",
    "find_image",
    "sleep_until",
]

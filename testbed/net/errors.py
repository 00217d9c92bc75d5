"""Errors of the emulated network: links, fabric, controller and virtual clock."""

from __future__ import annotations

import os
from collections.abc import Sequence

from testbed.errors import BadInput, TestbedError, did_you_mean


class LinkError(TestbedError):
    """A link could not be set up, or it broke while in use."""


class SettingMismatch(LinkError):
    """A setting read back from the system differs from the requested one."""

    def __init__(self, where: str, setting: str, asked: object, found: object) -> None:
        super().__init__(
            f"{where}: {setting}: asked for {asked}, the system has {found}",
            where=f"{where}: {setting}",
            got=str(found),
            expected=str(asked),
        )


class FabricError(TestbedError):
    """The network could not be built as requested, or it broke."""


class UnknownHost(BadInput, ValueError):
    """A network has no host of that name."""


class ProgramNotFound(FabricError):
    """A host has no such program; `status` is the exit status that shells use for this."""

    status = 127


def need_root(doing: str) -> None:
    """Raise FabricError unless this process runs as root; `doing` names the operation, such as "changing a link"."""
    if os.geteuid() != 0:
        raise FabricError(f"{doing} needs root: run it through sudo")


def check_host(name: str, hosts: Sequence[str], where: str = "host") -> None:
    """Raise UnknownHost, with the nearest name, unless the name is one of these; `where` names the argument."""
    if name not in hosts:
        raise UnknownHost(where=where, got=name, expected=f"one of {did_you_mean(name, hosts)}")


class ControllerError(TestbedError):
    """Rules could not be computed, or the controller could not install them in the switches."""


class NoPathError(ControllerError):
    """A topology has no path between two buildings."""


class PolicyError(ControllerError, BadInput):
    """A policy cannot be loaded, or its result does not fit the network. The network keeps its last rules."""


class VirtualClockError(TestbedError):
    """The kernel cannot be built, or a guest failed; the message is for people."""


class NoKernelError(VirtualClockError):
    """There is no kernel for the virtual clock on this machine yet."""

    def __init__(self, looked: str) -> None:
        super().__init__(
            f"the virtual clock needs its kernel, which is not built yet (looked in {looked})",
            hint="build it once, in about five minutes: make virtual",
        )

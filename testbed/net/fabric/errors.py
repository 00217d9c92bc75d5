"""Errors of the fabric room."""

from __future__ import annotations

import os
from collections.abc import Sequence

from testbed.errors import BadInput, TestbedError, did_you_mean


class FabricError(TestbedError):
    """The network could not be built as asked, or it broke."""


class UnknownHost(BadInput, ValueError):
    """A network has no host of that name."""


class ProgramNotFound(FabricError):
    """A host has no such program; status as shells have it."""

    status = 127


def need_root(doing: str) -> None:
    """FabricError unless this process is root's. doing: such as "changing a link"."""
    if os.geteuid() != 0:
        raise FabricError(f"{doing} needs root: run it through sudo")


def check_host(name: str, hosts: Sequence[str], where: str = "host") -> None:
    """UnknownHost, with the nearest name, unless it is one of these. where: the argument that names it."""
    if name not in hosts:
        raise UnknownHost(where=where, got=name, expected=f"one of {did_you_mean(name, hosts)}")

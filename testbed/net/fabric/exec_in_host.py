"""Programs of anybody inside the hosts of a network that is up."""

from __future__ import annotations

import shutil
from collections.abc import Sequence

from testbed.net.fabric.errors import ProgramNotFound, check_host, need_root
from testbed.net.fabric.ownership import FabricState
from testbed.net.links.namespace_commands import inside


def command_inside(state: FabricState, host: str, command: Sequence[str], where: str = "host") -> list[str]:
    """The command line that runs a program inside a host, as root.

    Args:
        state: The network's.
        host: Its name, such as "east1".
        command: The program and its arguments.
        where: The argument that names the host, for its error.

    Raises:
        UnknownHost: The network has none of that name.
        FabricError: Without root.
        ProgramNotFound: There is no such program.
    """
    check_host(host, [entry["name"] for entry in state.details["hosts"]], where)
    need_root("entering a host")
    if shutil.which(command[0]) is None:
        raise ProgramNotFound(f"{command[0]}: command not found")
    return inside(state.pids[host], list(command))

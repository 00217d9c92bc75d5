"""Mininet's switches in the two forms that a fabric uses."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from typing import Any

from mininet.node import Switch

from testbed.fabric.errors import FabricError
from testbed.links.command import run_script

OVS_TIMEOUT_S = 20


class KernelBridge(Switch):  # type: ignore[misc]  # Mininet has no types
    """A Linux bridge in a namespace of its own; `commands` build it."""

    def __init__(self, name: str, commands: Iterable[str] = (), **parameters: Any) -> None:
        super().__init__(name, dpid="1", **{**parameters, "inNamespace": True})
        self.commands = list(commands)

    def start(self, controllers: object) -> None:
        """Build the bridge."""
        run_script(self.pid, self.commands)


class EdgeSwitch(Switch):  # type: ignore[misc]  # Mininet has no types
    """An Open vSwitch bridge in the root namespace; all edges of a fabric start in one transaction.

    `ports` maps interface names to OpenFlow port numbers; `controller` is such as "tcp:127.0.0.1:40001".
    """

    def __init__(
        self, name: str, bridge: str, datapath: str, ports: dict[str, int], controller: str, **parameters: Any
    ) -> None:
        super().__init__(name, **{**parameters, "inNamespace": False})
        self.bridge = bridge
        self.datapath = datapath
        self.ofports = ports
        self.controller = controller

    def start(self, controllers: object) -> None:
        """Nothing alone: see batchStartup."""

    @classmethod
    def batchStartup(cls, switches: Iterable[EdgeSwitch]) -> list[EdgeSwitch]:
        """Create the bridges of all edges at once and read their port numbers back."""
        started = list(switches)
        transaction: list[str] = []
        for switch in started:
            transaction += [
                *("--", "add-br", switch.bridge),
                *(
                    "--",
                    "set",
                    "bridge",
                    switch.bridge,
                    f"datapath_type={switch.datapath}",
                    "fail_mode=secure",
                ),
                *("protocols=OpenFlow13", f"other_config:datapath-id={switch.dpid}", "stp_enable=false"),
                *("other_config:disable-in-band=true", "mcast_snooping_enable=false"),
            ]
            for interface, number in switch.ofports.items():
                transaction += ["--", "add-port", switch.bridge, interface]
                transaction += ["--", "set", "interface", interface, f"ofport_request={number}"]
            transaction += ["--", "set-controller", switch.bridge, switch.controller]
        vsctl(*transaction)
        for switch in started:
            for interface, number in switch.ofports.items():
                found = vsctl("get", "interface", interface, "ofport").strip()
                if found != str(number):
                    why = vsctl("get", "interface", interface, "error").strip()
                    raise FabricError(
                        f"Open vSwitch gave {interface} port {found}, asked for {number}"
                        + (f": {why}" if why != "[]" else "")
                    )
            found = vsctl("get", "bridge", switch.bridge, "datapath_type").strip().strip('"')
            if found != switch.datapath:
                raise FabricError(f"bridge {switch.bridge}: datapath {found}, asked for {switch.datapath}")
        return started


def vsctl(*arguments: str) -> str:
    """Run `ovs-vsctl`; returns what it printed. FabricError with its own words when it fails."""
    command = ["ovs-vsctl", f"--timeout={OVS_TIMEOUT_S}", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise FabricError("Open vSwitch is not installed (ovs-vsctl not found)") from error
    if done.returncode != 0:
        raise FabricError(f"Open vSwitch refused: {done.stderr.strip() or f'status {done.returncode}'}")
    return done.stdout

"""Mininet hosts, links and switches for fabrics, whose settings come from the plan."""

from __future__ import annotations

import os
import shutil
import subprocess
import zlib
from collections.abc import Collection, Iterable
from typing import Any

from mininet.link import Intf, Link
from mininet.node import Host, Node, Switch

from testbed.net.errors import FabricError
from testbed.net.fabric.namespaces import MachineOperations
from testbed.net.links.setup import Setup

OVS_TIMEOUT_S = 20


class NamespaceNode(Node):  # type: ignore[misc]  # Mininet has no types
    """A node in existing namespaces, those of process `namespace_pid`.

    Its shell starts on demand. So Mininet's `cmd`, `popen` and other methods work, but most nodes never start a shell,
    which takes 8 ms each.
    """

    shell_options = "-cd"  # mnexec: close other files, detach from the terminal

    def __init__(
        self, name: str, operations: MachineOperations, namespace_pid: int | None = None, **parameters: Any
    ) -> None:
        self.operations = operations
        self.namespace_pid = namespace_pid
        super().__init__(name, **parameters)

    def startShell(self, mnopts: str | None = None) -> None:
        """Record the node's process id without starting a shell; Mininet calls this when it creates the node."""
        self.pid = os.getpid() if self.namespace_pid is None else self.namespace_pid
        self.waiting = False

    @classmethod
    def setup(cls) -> None:
        """Check that mnexec is installed, in place of Mininet's slower checks; raises FabricError if it is not."""
        if shutil.which("mnexec") is None:
            raise FabricError("Mininet is not installed (mnexec not found)")

    def need_shell(self) -> None:
        """Start the shell in the node's namespaces, if it is not running yet."""
        if self.shell:
            return
        pid, in_namespace = self.pid, self.params.get("inNamespace", True)
        self.inNamespace = False  # the namespaces exist already
        try:
            super().startShell(self.shell_options + ("" if self.namespace_pid is None else f"a{pid}"))
        finally:
            self.pid, self.inNamespace = pid, in_namespace

    def cmd(self, *arguments: Any, **options: Any) -> Any:
        """Run a command in the node's shell; return its output."""
        self.need_shell()
        return super().cmd(*arguments, **options)

    def sendCmd(self, *arguments: Any, **options: Any) -> Any:
        """Start a command in the node's shell."""
        self.need_shell()
        return super().sendCmd(*arguments, **options)


class PlannedHost(NamespaceNode, Host):  # type: ignore[misc]
    """A host that records its address for Mininet's own methods; the plan configures it."""

    def config(self, mac: str | None = None, ip: str | None = None, **parameters: Any) -> dict[str, Any]:
        """Record the addresses without running commands."""
        interface = self.defaultIntf()
        if interface is not None and ip:
            interface.ip, _, length = ip.partition("/")
            interface.prefixLen = length
            interface.mac = mac
        return {}


class PlannedInterface(Intf):  # type: ignore[misc]
    """An interface that the plan configures."""

    def config(self, **parameters: Any) -> dict[str, Any]:
        """Do nothing."""
        return {}


class VethLink(Link):  # type: ignore[misc]
    """A veth pair, created in both namespaces by one netlink message, where Mininet starts several programs."""

    @classmethod
    def makeIntfPair(
        cls,
        intfname1: str,
        intfname2: str,
        addr1: str | None = None,
        addr2: str | None = None,
        node1: Node = None,
        node2: Node = None,
        deleteIntfs: bool = True,
    ) -> None:
        """Create the pair, with each end in its node's namespace."""
        node1.operations.veth(
            [
                {"ifname": name, "net_ns_pid": node.pid, **({"address": address} if address else {})}
                for name, node, address in ((intfname1, node1, addr1), (intfname2, node2, addr2))
            ]
        )


class KernelBridge(NamespaceNode, Switch):  # type: ignore[misc]
    """A Linux bridge in its own namespace, built by `settings`."""

    def __init__(self, name: str, settings: Setup, **parameters: Any) -> None:
        super().__init__(name, dpid="1", **{**parameters, "inNamespace": True})
        self.settings = settings

    def start(self, controllers: object) -> None:
        """Build the bridge."""
        self.operations.apply(self.settings, self.pid)


class EdgeSwitch(NamespaceNode, Switch):  # type: ignore[misc]
    """An Open vSwitch bridge in the root namespace; all edges of a fabric start in one transaction.

    `ports` maps interface names to OpenFlow port numbers; an example of `controller` is "tcp:127.0.0.1:40001".
    """

    def __init__(
        self, name: str, bridge: str, datapath: str, ports: dict[str, int], controller: str, **parameters: Any
    ) -> None:
        super().__init__(name, **{**parameters, "inNamespace": False})
        self.bridge = bridge
        self.datapath = datapath
        self.ofports = ports
        self.controller = controller

    @property
    def tunnel_number(self) -> int:
        """The VXLAN id of the edge's tunnel: 24 bits derived from the bridge's name."""
        return zlib.crc32(self.bridge.encode()) >> 8

    def start(self, controllers: object) -> None:
        """Do nothing: `batchStartup` starts all edges."""

    @classmethod
    def batchStartup(cls, switches: Iterable[EdgeSwitch]) -> list[EdgeSwitch]:
        """Create the bridges of all edges in one transaction and read their port numbers back."""
        started = list(switches)
        transaction: list[str] = []
        for switch in started:
            bridge = switch.bridge
            transaction += ["--", "add-br", bridge, "--", "set", "bridge", bridge]
            transaction += [f"datapath_type={switch.datapath}", "fail_mode=secure", "protocols=OpenFlow13"]
            transaction += [f"other_config:datapath-id={switch.dpid}", "stp_enable=false"]
            transaction += ["other_config:disable-in-band=true", "mcast_snooping_enable=false"]
            for interface, number in switch.ofports.items():
                transaction += ["--", "add-port", bridge, interface]
                transaction += ["--", "set", "interface", interface, f"ofport_request={number}"]
            transaction += ["--", "set-controller", bridge, switch.controller]
        vsctl(*transaction)
        ports = {name: str(number) for switch in started for name, number in switch.ofports.items()}
        for interface, port in column_of("interface", "ofport", ports).items():
            if port != ports[interface]:
                why = vsctl("get", "interface", interface, "error").strip()
                raise FabricError(
                    f"interface {interface}: got OpenFlow port {port}, expected {ports[interface]}"
                    + (f": {why}" if why != "[]" else "")
                )
        bridges = {switch.bridge: switch.datapath for switch in started}
        for bridge, datapath in column_of("bridge", "datapath_type", bridges).items():
            if datapath != bridges[bridge]:
                raise FabricError(f"bridge {bridge}: got datapath {datapath}, expected {bridges[bridge]}")
        return started


def column_of(table: str, column: str, records: Collection[str]) -> dict[str, str]:
    """Return a column of several Open vSwitch records, with one program run, since each takes 40 ms in a guest."""
    asked = [word for record in records for word in ("--", "get", table, record, column)]
    found = vsctl(*asked).splitlines() if asked else []
    return {record: value.strip().strip('"') for record, value in zip(records, found, strict=True)}


def vsctl(*arguments: str) -> str:
    """Run `ovs-vsctl` and return its output; raises FabricError with its error message if it fails."""
    command = ["ovs-vsctl", f"--timeout={OVS_TIMEOUT_S}", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise FabricError("Open vSwitch is not installed (ovs-vsctl not found)") from error
    if done.returncode != 0:
        raise FabricError(f"Open vSwitch refused: {done.stderr.strip() or f'status {done.returncode}'}")
    return done.stdout

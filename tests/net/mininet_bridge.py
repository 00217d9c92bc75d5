"""Custom file for `mn` in tests: a learning switch that needs no more than `ip`, and no sweeping cleanup.

Mininet's own Linux bridge needs bridge-utils, its Open vSwitch needs a kernel module. And when `mn` fails, its
cleanup removes every Open vSwitch bridge of the machine and kills by name: here it ends with what was made here.
"""

from __future__ import annotations

import sys
from typing import Any

from mininet.node import Switch


class IpBridge(Switch):  # type: ignore[misc]
    """A kernel bridge made with iproute2."""

    def start(self, controllers: Any) -> None:
        self.cmd(f"ip link add {self} type bridge && ip link set {self} up")
        for interface in self.intfNames():
            if interface != "lo":
                self.cmd(f"ip link set {interface} master {self}")

    def stop(self, deleteIntfs: bool = True) -> None:
        self.cmd(f"ip link del {self}")
        super().stop(deleteIntfs)


def cleanup() -> None:
    sys.exit("mn failed")


switches = {"ipbridge": IpBridge}

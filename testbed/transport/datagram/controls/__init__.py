"""How much a datagram transport sends, and when, by the name that a scenario has for it."""

from testbed.transport.datagram.controls.aimd import Aimd
from testbed.transport.datagram.controls.base import LEAST_PACKETS, Control, Limits, Window
from testbed.transport.datagram.controls.credits import Credits, Granter
from testbed.transport.datagram.controls.dcqcn import Dcqcn
from testbed.transport.datagram.controls.swift import Swift

CONTROLS: dict[str, type[Control]] = {
    "none": Control,
    "window": Window,
    "credits": Credits,
    "aimd": Aimd,
    "dcqcn": Dcqcn,
    "swift": Swift,
}

__all__ = ["CONTROLS", "LEAST_PACKETS", "Control", "Credits", "Granter", "Limits"]

"""Congestion-control algorithms of the datagram transport, by the names that scenarios use."""

from testbed.comm.transport.datagram.controls.aimd import Aimd
from testbed.comm.transport.datagram.controls.base import MIN_WINDOW_PACKETS, Control, Limits, Window
from testbed.comm.transport.datagram.controls.credits import Credits, Granter
from testbed.comm.transport.datagram.controls.dcqcn import Dcqcn
from testbed.comm.transport.datagram.controls.swift import Swift

CONTROLS: dict[str, type[Control]] = {
    "none": Control,
    "window": Window,
    "credits": Credits,
    "aimd": Aimd,
    "dcqcn": Dcqcn,
    "swift": Swift,
}

__all__ = ["CONTROLS", "MIN_WINDOW_PACKETS", "Control", "Credits", "Granter", "Limits"]

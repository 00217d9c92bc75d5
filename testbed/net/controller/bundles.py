"""Bundles of OpenFlow messages, as the ONF's extension for OpenFlow 1.3 has them."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from testbed.net.controller.openflow import ONF_EXPERIMENTER, FlowMod

# of openflow.h: a bundle's message before the one it holds
_BUNDLE_ADD = struct.Struct("!BBHIIII2xH")
MESSAGES_AT_ONCE = 500  # handed to the library together: each costs it a switch of threads


class BundleWriter:
    """Puts messages into a bundle that a switch carries out as one, in order, or not at all (ONF extension 230)."""

    def __init__(self, datapath: Any, bundle_id: int, send: Callable[[Any], int]) -> None:
        self._datapath = datapath
        self._id = bundle_id
        self._send = send
        self._held: list[bytes] = []
        self._control("OPEN")

    def _control(self, what: str) -> None:
        protocol, parser = self._datapath.ofproto, self._datapath.ofproto_parser
        kind = getattr(protocol, f"ONF_BCT_{what}_REQUEST")
        flags = protocol.ONF_BF_ATOMIC | protocol.ONF_BF_ORDERED
        self._send(parser.ONFBundleCtrlMsg(self._datapath, self._id, kind, flags, []))

    def add(self, message: Any) -> None:
        """One message, which gets a transaction id, the bundle message's too."""
        protocol = self._datapath.ofproto
        self._datapath.set_xid(message)
        if not isinstance(message, FlowMod):
            message.serialize()
        inner = bytes(message.buf)
        head = _BUNDLE_ADD.pack(
            protocol.OFP_VERSION,
            protocol.OFPT_EXPERIMENTER,
            _BUNDLE_ADD.size + len(inner),
            message.xid,
            ONF_EXPERIMENTER,
            protocol.ONF_ET_BUNDLE_ADD_MESSAGE,
            self._id,
            protocol.ONF_BF_ATOMIC | protocol.ONF_BF_ORDERED,
        )
        self._held += (head, inner)
        if len(self._held) >= MESSAGES_AT_ONCE:
            self._flush()

    def _flush(self) -> None:
        if self._held:
            self._datapath.send(b"".join(self._held))
            self._held.clear()

    def commit(self) -> None:
        """Have the switch carry out the bundle, all of it at once."""
        self._flush()
        self._control("CLOSE")
        self._control("COMMIT")

"""Interfaces taken down and up again: their peers lose their carrier, as a switch sees it when a fibre is cut."""

from __future__ import annotations

import struct
from collections.abc import Iterable

from testbed.net.links.errors import LinkError, SettingMismatch
from testbed.net.links.netlink import FORMS, LINK, Netlink, Request, nest, put
from testbed.net.links.netns import network_namespace
from testbed.net.links.rtnetlink_dumps import Interface, interfaces

_SET_LINK = 19  # RTM_SETLINK
_UP = 1  # IFF_UP
_AF_BRIDGE, _PORT, _ISOLATED = 7, 12, 33  # IFLA_PROTINFO, IFLA_BRPORT_ISOLATED


def set_up(pid: int | None, names: Iterable[str], up: bool) -> None:
    """Set interfaces up or down in the network namespace of process `pid` (None: here), and read it back.

    LinkError, SettingMismatch.
    """
    asked = list(names)
    state = "up" if up else "down"
    with network_namespace(pid), Netlink() as netlink:
        netlink.carry_out(
            [
                Request(LINK, 0, FORMS[LINK].pack(0, 0, link.index, _UP * up, _UP), f"{link.name} {state}")
                for link in _of(netlink, asked)
            ]
        )
        for link in _of(netlink, asked):
            if link.up != up:
                raise SettingMismatch(link.name, "state", state, "the other")


def isolate(netlink: Netlink, names: Iterable[str], isolated: bool) -> None:
    """Whether ports of a bridge exchange no frames with those that are isolated as well; read back.

    LinkError, SettingMismatch.
    """
    asked = list(names)
    flag = nest(_PORT, put(_ISOLATED, struct.pack("=B", isolated)))
    netlink.carry_out(
        [
            Request(
                *(_SET_LINK, 0, FORMS[LINK].pack(_AF_BRIDGE, 0, link.index, 0, 0) + flag),
                f"{link.name} isolated: {isolated}",
            )
            for link in _of(netlink, asked)
        ]
    )
    for link in _of(netlink, asked):
        found = link.bridge_port.get(_ISOLATED)
        if found is None or bool(found[0]) != isolated:
            raise SettingMismatch(link.name, "isolated", str(isolated), str(not isolated))


def _of(netlink: Netlink, names: Iterable[str]) -> list[Interface]:
    known = {link.name: link for link in interfaces(netlink)}
    for name in names:
        if name not in known:
            raise LinkError(f"{name}: no such interface")
    return [known[name] for name in names]

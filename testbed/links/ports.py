"""Interfaces taken down and up again: their peers lose their carrier, as a switch sees it when a fibre is cut."""

from __future__ import annotations

from collections.abc import Iterable

from pyroute2 import IPRoute
from pyroute2.netlink.rtnl.ifinfmsg import IFF_UP

from testbed.links.errors import LinkError, SettingMismatch
from testbed.links.netns import network_namespace


def set_up(pid: int | None, interfaces: Iterable[str], up: bool) -> None:
    """Set interfaces up or down in the network namespace of process `pid` (None: here), and read it back.

    LinkError, SettingMismatch.
    """
    with network_namespace(pid), IPRoute() as ipr:
        for name in interfaces:
            found = ipr.link_lookup(ifname=name)
            if not found:
                raise LinkError(f"{name}: no such interface")
            ipr.link("set", index=found[0], state="up" if up else "down")
            (link,) = ipr.get_links(found[0])
            if bool(link["flags"] & IFF_UP) != up:
                raise SettingMismatch(name, "state", "up" if up else "down", "the other")


def isolate(netlink: IPRoute, interfaces: Iterable[str], isolated: bool) -> None:
    """Whether ports of a bridge exchange no frames with those that are isolated as well; read back.

    LinkError, SettingMismatch.
    """
    for name in interfaces:
        found = netlink.link_lookup(ifname=name)
        if not found:
            raise LinkError(f"{name}: no such interface")
        netlink.brport("set", index=found[0], isolated=int(isolated))
        (link,) = netlink.get_links(found[0])
        port = link.get_attr("IFLA_LINKINFO").get_attr("IFLA_INFO_SLAVE_DATA")
        if port is None or bool(port.get_attr("IFLA_BRPORT_ISOLATED")) != isolated:
            raise SettingMismatch(name, "isolated", str(isolated), str(not isolated))

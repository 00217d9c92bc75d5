"""Network cards with verbs, made of the kernel's soft-RoCE (rxe) on an interface; they go with it.

Facts of linux/rdma/rdma_netlink.h.
"""

from __future__ import annotations

import os
from pathlib import Path

from testbed.net.links.errors import LinkError
from testbed.net.links.netlink import Netlink, Request, put, text

NETLINK_RDMA = 20
_NEW_LINK = 5 << 10 | 3  # RDMA_NL_NLDEV, RDMA_NLDEV_CMD_NEWLINK
_DEVICE, _INTERFACE, _KIND = 2, 51, 65  # RDMA_NLDEV_ATTR_DEV_NAME, _NDEV_NAME, _LINK_TYPE
_DEVICES = Path("/sys/class/infiniband")
_MODULE = Path("/sys/module/rdma_rxe")
MOST_UNACKNOWLEDGED = _MODULE / "parameters/max_unacked_psns"


def soft_roce_reason() -> str | None:
    """Why this machine's hosts can have no such cards, each in its namespace; None where they can.

    What tells a kernel that looks for routes, and listens, in the namespace of a card's interface, is our own change
    beside it: that its window is a parameter.
    """
    if not _MODULE.exists():
        return "this kernel has no soft-RoCE (rdma_rxe)"
    if not MOST_UNACKNOWLEDGED.exists():
        return (
            "this kernel's soft-RoCE has a window of 128 packets and, before Linux 7.2, works in the first network "
            "namespace only"
        )
    return None


def add_soft_roce(name: str, interface: str) -> None:
    """Give an interface of this network namespace a card of that name, whose counters are never old. LinkError."""
    body = put(_DEVICE, text(name)) + put(_KIND, text("rxe")) + put(_INTERFACE, text(interface))
    with Netlink(NETLINK_RDMA) as netlink:
        netlink.carry_out([Request(_NEW_LINK, 0, body, f"rdma link add {name} type rxe netdev {interface}")])
    # as it comes, who reads them within 10 ms of somebody else gets what that one got
    lifespan = _counters(name) / "lifespan"
    try:
        lifespan.write_text("0")
    except OSError as error:
        raise LinkError(f"{lifespan}: cannot be set to 0: {os.strerror(error.errno or 0)}") from error


def packets_sent(name: str) -> int:
    """By a card, so far; IP counts them, but none of its protocols does. OSError where there is no such card."""
    return int((_counters(name) / "sent_pkts").read_text())


def _counters(name: str) -> Path:
    return _DEVICES / name / "ports/1/hw_counters"

"""The Linux names of interfaces for which containerlab takes the names of a node's own operating system.

The table holds, by kind of node, how containerlab 0.79 maps them (`docs/manual/topo-def-file.md` there, "Interface
naming"): SR Linux's `ethernet-1/2` is `e1-2`, vSRX's `ge-0/0/1` is `eth2`.
"""

from __future__ import annotations

import re

_JUNIPER = r"(?:et|xe|ge)-0/0/(\d+)"
_CISCO_XR = r"(?:Gi|GigabitEthernet|Te|TenGigE|TenGigabitEthernet)\s?0/0/0/(\d+)"
_CISCO_XE = r"(?:Gi|GigabitEthernet)\s?(\d+)"
_CISCO_ASA = r"(?:Gi|GigabitEthernet)\s?0/(\d+)"
_SLOT_1 = r"(?:Et|Ethernet)\s?1/(\d+)"
_SROS = r"(\d+(?:/[xc]?\d+)+)"
_SHIFTED: dict[str, tuple[str, int]] = {
    **dict.fromkeys(("vmx", "vqfx", "vsrx", "vjunosevolved", "vjunosrouter", "vjunosswitch"), (_JUNIPER, 1)),
    "cjunosevolved": (r"et-0/0/(\d+)", 4),
    **dict.fromkeys(("xrv", "xrv9k", "xrd_vrouter"), (_CISCO_XR, 1)),
    **dict.fromkeys(("csr", "csr1000v", "c8000v"), (_CISCO_XE, -1)),
    "vios": (_CISCO_XE, 1),
    **dict.fromkeys(("asav", "ftdv"), (_CISCO_ASA, 1)),
    "cat9kv": (r"(?:Gi|GigabitEthernet)\s?1/0/(\d+)", 0),
    **dict.fromkeys(("veos", "n9kv", "pan", "panos"), (_SLOT_1, 0)),
    **dict.fromkeys(("aoscx", "sros"), (r"1/1/(\d+)", 0)),
    "cumulusvx": (r"swp(\d+)", 0),
    "fortigate": (r"port(\d+)", -1),
    "ros": (r"ether(\d+)", -1),
    "freebsd": (r"vtnet(\d+)", 0),
    "openbsd": (r"vio(\d+)", 0),
    "saos": (r"(\d+)", 0),
    "bigip-ve": (r"1\.(\d+)", 0),
}
"""Kinds without their maker's name: the pattern of aliases, and what to add to the port's number for `ethN`."""


def linux_name(kind: str, name: str) -> str:
    """Return the name that an interface has in Linux, which is the name itself unless it is an alias."""
    own = kind.removeprefix("vr-")
    if own in ("srl", "nokia_srlinux"):
        match = re.fullmatch(r"ethernet-(\d+(?:/\d+)+)", name)
        return f"e{match[1].replace('/', '-')}" if match else name
    if own == "nokia_srsim":
        match = re.fullmatch(_SROS, name)
        return f"e{match[1].replace('/', '-')}" if match else name
    if own == "cisco_iol":
        match = re.fullmatch(r"(?:e|Ethernet)\s?(\d+)/(\d+)", name)
        return f"eth{4 * int(match[1]) + int(match[2])}" if match else name
    short = own.partition("_")[2]
    pattern, shift = _SHIFTED.get(own) or _SHIFTED.get(short) or ("", 0)
    match = re.fullmatch(pattern, name) if pattern else None
    return f"eth{int(match[1]) + shift}" if match else name

"""What is left of the kernel's messages about a namespace, and what is said of two that differ."""

from __future__ import annotations

import socket
import struct

import pytest

from testbed.net.links import state_diff
from testbed.net.links.namespace_state import (
    FDB,
    OFFLOADS,
    PORT,
    ROOT,
    is_permanent,
    parse_object,
    strip_attributes,
)
from testbed.net.links.netlink import (
    ADDRESS,
    CLASS,
    FILTER,
    LINK,
    MESSAGE_STRUCTS,
    NEIGHBOUR,
    QDISC,
    ROUTE,
    parse_attributes,
)

NAMES = {3: "p3", 4: "eth0"}
TICKS_PER_S = 1e9 / 64


def put(number: int, payload: bytes) -> bytes:
    return struct.pack("=HH", len(payload) + 4, number) + payload + bytes(-len(payload) % 4)


def nest(number: int, *parts: bytes) -> bytes:
    return put(number, b"".join(parts))


def link(mtu: int = 9000, packets: int = 0, timer: int = 0, family: int = 0, change: int = 0) -> bytes:
    """A bridge's port as the kernel tells of it."""
    slave = nest(5, put(8, b"\0"), put(23, struct.pack("=Q", timer)))
    info = nest(18, put(1, b"veth\0"), put(4, b"bridge\0"), slave)
    return MESSAGE_STRUCTS[LINK].pack(family, 1, 3, 0x11043, change) + b"".join(
        (put(3, b"p3\0"), put(4, struct.pack("=I", mtu)), put(23, struct.pack("=24Q", *[packets] * 24)), info)
    )


def htb_class(rate: int, burst: int, packets: int = 0) -> bytes:
    ticks = int(burst / rate * TICKS_PER_S)
    speed = struct.pack("=BBHhHI", 0, 1, 0, 0, 0, rate)
    parms = speed + speed + struct.pack("=5I", ticks, ticks, 9014, 0, 0)
    options = nest(2, put(1, parms))
    statistics = nest(7, put(1, struct.pack("=QI", packets * 9000, packets)))
    return (
        MESSAGE_STRUCTS[CLASS].pack(0, 3, 0x10010, 0x10001, 0x1100000)
        + put(1, b"htb\0")
        + put(7, statistics)
        + options
        + put(16, b"a warning")
    )


def mirred(used_s: int, packets: int, to: int = 4) -> bytes:
    """A filter with an action that was used so long ago, so often."""
    action = nest(
        1,
        put(1, b"mirred\0"),
        nest(4, put(1, struct.pack("=QI", packets, packets))),
        nest(
            2,
            put(2, struct.pack("=7I", 1, 0, 4, 1, 1, 1, to)),
            put(1, struct.pack("=4Q", used_s, used_s, 0, 0)),
        ),
    )
    options = nest(2, put(2, action), put(4, struct.pack("=Q", packets)))
    return MESSAGE_STRUCTS[FILTER].pack(0, 3, 1, 0xFFFF0000, 20 << 16 | 3) + put(1, b"matchall\0") + options


def said(kind: int, old: bytes | None, new: bytes | None) -> str:
    """What is said of an object that was told of like this, and then like that."""
    before, after = (parse_object(kind, message) if message else None for message in (old, new))
    known = after or before
    assert known is not None
    name = state_diff.object_name(known[0], known[1], NAMES)
    return f"{name}: {state_diff.describe_difference(known[0], before and before[1], after and after[1])}"


@pytest.mark.parametrize(
    ("kind", "one", "other"),
    [
        (LINK, link(packets=1, timer=5), link(packets=2, timer=6, change=0xFFFFFFFF)),
        (CLASS, htb_class(12_500_000, 25_000, 1), htb_class(12_500_000, 25_000, 2)),
        (FILTER, mirred(1, 10), mirred(2, 20)),
    ],
)
def test_what_counts_or_ages_is_left_out(kind: int, one: bytes, other: bytes) -> None:
    assert one != other
    assert parse_object(kind, one) == parse_object(kind, other)


def test_padding_of_wide_figures_is_no_change() -> None:
    plain = put(1, b"htb\0") + nest(2, put(6, bytes(8)))
    padded = put(1, b"htb\0") + put(9, b"") + nest(2, put(8, b""), put(6, bytes(8)))
    head = MESSAGE_STRUCTS[CLASS].pack(0, 3, 0x10010, 0x10001, 0)
    assert parse_object(CLASS, head + padded) == parse_object(CLASS, head + plain)
    speed = put(8, bytes(8))
    netem = [
        put(1, b"netem\0") + nest(2, bytes(24), *options) for options in ((speed,), (put(9, b""), speed))
    ]
    head = MESSAGE_STRUCTS[QDISC].pack(0, 3, 0x10000, 0xFFFFFFFF, 0)
    assert parse_object(QDISC, head + netem[0]) == parse_object(QDISC, head + netem[1])
    assert parse_object(LINK, link() + put(42, b"")) == parse_object(LINK, link())


def test_an_htb_class_is_told_in_bytes_per_second_and_bytes() -> None:
    whole, halved = htb_class(12_500_000, 25_000), htb_class(6_250_000, 25_000)
    assert said(CLASS, whole, halved) == (
        "class 1:10 of p3: rate 12500000 -> 6250000 bytes/s, ceil 12500000 -> 6250000 bytes/s"
    )
    larger = said(CLASS, whole, htb_class(12_500_000, 4_000_000))
    assert larger == "class 1:10 of p3: burst 25000 -> 4000000, cburst 25000 -> 4000000"
    assert said(CLASS, None, whole) == "class 1:10 of p3: added"
    assert said(CLASS, whole, None) == "class 1:10 of p3: gone"


def test_interfaces_and_bridge_ports_are_told_apart() -> None:
    assert said(LINK, link(), link(mtu=5000)) == "p3: mtu 9000 -> 5000"
    key, _ = parse_object(LINK, link(family=7)) or ((), b"")
    assert key == (PORT, 3)


def test_a_filter_that_leads_elsewhere_differs() -> None:
    assert parse_object(FILTER, mirred(1, 1)) != parse_object(FILTER, mirred(1, 1, to=5))
    assert said(FILTER, mirred(1, 1), None) == "filter of preference 20 at ffff: of p3: gone"


def test_a_fifo_is_told_by_its_limit() -> None:
    def fifo(limit: int) -> bytes:
        head = MESSAGE_STRUCTS[QDISC].pack(
            0, 3, 0x1100000, 0x10010, limit % 7
        )  # the last one: how many refer to it
        return head + put(1, b"bfifo\0") + put(2, struct.pack("=I", limit))

    assert said(QDISC, fifo(576_000), fifo(20_000)) == (
        "queueing discipline bfifo 110: of p3: limit 576000 -> 20000"
    )


def test_a_packet_counter_among_htb_s_options_is_left_out() -> None:
    def htb(direct: int, default: int = 16) -> bytes:
        options = nest(2, put(2, struct.pack("=5I", 3, 10, default, 0, direct)))
        return MESSAGE_STRUCTS[QDISC].pack(0, 3, 0x10000, ROOT, 2) + put(1, b"htb\0") + options

    assert parse_object(QDISC, htb(0)) == parse_object(QDISC, htb(9))
    assert parse_object(QDISC, htb(0)) != parse_object(QDISC, htb(0, default=17))


def test_neighbours_routes_and_addresses() -> None:
    far = socket.inet_aton("10.1.0.1")

    def neighbour(mac: bytes, state: int = 0x80, age: int = 0) -> bytes:
        head = MESSAGE_STRUCTS[NEIGHBOUR].pack(socket.AF_INET, 4, state, 0, 1)
        return head + put(1, far) + put(2, mac) + put(3, struct.pack("=4I", *[age] * 4))

    assert parse_object(NEIGHBOUR, neighbour(b"\2\0\0\0\0\1", age=1)) == parse_object(
        NEIGHBOUR, neighbour(b"\2\0\0\0\0\1", age=2)
    )
    assert said(NEIGHBOUR, neighbour(b"\2\0\0\0\0\1"), neighbour(b"\2\0\0\0\0\2")) == (
        "neighbour 10.1.0.1 of eth0: lladdr 02:00:00:00:00:01 -> 02:00:00:00:00:02"
    )
    for state, stays in ((0x80, True), (0x02, False)):
        _, left = parse_object(NEIGHBOUR, neighbour(b"\2\0\0\0\0\1", state)) or ((), b"")
        assert is_permanent(NEIGHBOUR, left) is stays

    def route(*metrics: bytes, flags: int = 0) -> bytes:
        head = MESSAGE_STRUCTS[ROUTE].pack(socket.AF_INET, 8, 0, 0, 254, 2, 253, 1, flags)
        return head + put(1, socket.inet_aton("10.0.0.0")) + put(4, struct.pack("=I", 4)) + nest(8, *metrics)

    assert said(ROUTE, route(), route(put(2, struct.pack("=I", 1500)))) == (
        "route to 10.0.0.0/8 of eth0: mtu none -> 1500"
    )
    assert parse_object(ROUTE, route(flags=0x200)) is None  # what a path was found to carry: a cache
    address = MESSAGE_STRUCTS[ADDRESS].pack(socket.AF_INET, 8, 0x80, 0, 4) + put(2, far)
    assert said(ADDRESS, None, address) == "address 10.1.0.1/8 of eth0: added"


def test_a_forwarding_entry_is_told_by_its_address() -> None:
    entry = (
        MESSAGE_STRUCTS[NEIGHBOUR].pack(7, 3, 0x40, 4, 0)
        + put(2, b"\2\0\x0a\0\0\2")
        + put(9, struct.pack("=I", 9))
    )
    key, _ = parse_object(NEIGHBOUR, entry) or ((), b"")
    assert key[:2] == (FDB, 3)
    assert said(NEIGHBOUR, entry, None) == "forwarding entry 02:00:0a:00:00:02 of p3: gone"


def test_offloads_are_told_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_diff, "feature_names", lambda: ("tx-scatter-gather", "", "rx-gro"))
    assert (
        state_diff.describe_difference((OFFLOADS, 4), bytes(8), b"\4".ljust(8, b"\0")) == "rx-gro off -> on"
    )
    assert state_diff.object_name((OFFLOADS, 4), b"", NAMES) == "offloads of eth0"


def test_an_event_in_another_form_differs_only_where_both_tell() -> None:
    (key, known), (_, told) = (
        parse_object(LINK, link()) or ((), b""),
        parse_object(LINK, link() + put(99, b"more")) or ((), b""),
    )
    assert known != told
    assert not state_diff.differs(key, known, told)
    _, changed = parse_object(LINK, link(mtu=1500) + put(99, b"more")) or ((), b"")
    assert state_diff.differs(key, known, changed)


def test_what_nobody_has_a_name_for_is_told_by_number() -> None:
    (key, old), (_, new) = (
        parse_object(LINK, link() + put(900, part)) or ((), b"") for part in (b"\1", b"\2")
    )
    assert state_diff.describe_difference(key, old, new) == "attribute 900 01 -> 02"


def test_attributes_end_where_the_bytes_do() -> None:
    data = put(1, b"abc") + put(2, b"")
    assert list(parse_attributes(data)) == [(1, b"abc"), (2, b"")]
    assert list(parse_attributes(data + b"\0\0\0\0")) == [(1, b"abc"), (2, b"")]
    assert strip_attributes(data, {1: None}) == put(2, b"")
    assert strip_attributes(data, {1: bytes.upper}) == put(1, b"ABC") + put(2, b"")

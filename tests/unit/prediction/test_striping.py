"""Messages that are dealt out to several connections, by the model, as the transport itself deals them out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from testbed.comm.transport import Request
from testbed.comm.transport.base import PeerCounters
from testbed.comm.transport.channels import StripeSettings
from testbed.comm.transport.onesided import ExposedWindows, PeerEnd
from testbed.comm.transport.striped import StripedPair
from testbed.net.paths import Network, Path
from testbed.prediction.events import Event
from testbed.prediction.simulation import simulate
from testbed.prediction.striping import Part, Striper
from testbed.workload.plan import JobPlan, Message

BYTES = 1


def send(numel: int, tag: int = 0) -> Message:
    return Message(f"send {tag}", f"to {tag}", "test", (), 1, numel, tag, sends=True)


def receive(numel: int, tag: int = 0) -> Message:
    return Message(f"receive {tag}", f"from {tag}", "test", (), 0, numel, tag)


def network(stripes: StripeSettings, *rates: float) -> Network:
    """Two ranks, a connection at each of these rates, and one back."""
    parts = {f"plane {number}": rate for number, rate in enumerate(rates)}
    there = tuple(Path(0.0, (name,)) for name in parts)
    back = Path(0.0, ("back",))
    return Network(
        {**parts, "back": 1e9},
        {(0, 1): there[0], (1, 0): back},
        {((0, 1), 0): there},
        stripe_settings={(0, 1): stripes},
    )


def took_s(made: Network, *sizes: int) -> list[float]:
    """When each of these messages, sent at once, is there."""
    sends = tuple(send(size, tag) for tag, size in enumerate(sizes))
    receives = tuple(receive(size, tag) for tag, size in enumerate(sizes))
    timeline = simulate(JobPlan((sends, receives)), made, BYTES)
    return [end for _, end in timeline.spans[1]]


def test_segments_go_round_the_connections_whatever_each_gets() -> None:
    stripes = StripeSettings(2, 1000, outstanding=100, fast_bytes=10)
    made = network(stripes, 4000.0, 1000.0)
    assert took_s(made, 4000) == pytest.approx([2.0])  # two segments at 1000 a second
    assert took_s(replace(made, stripe_settings={}), 4000) == pytest.approx([0.8])  # as if they could move


def test_a_connection_with_too_many_segments_unacknowledged_is_passed_over() -> None:
    stripes = StripeSettings(2, 1000, outstanding=1, fast_bytes=10)
    # at 0.25, 0.5 and 0.75 the quick one is free again; at 1.0 both are, and all is dealt out
    assert took_s(network(stripes, 4000.0, 1000.0), 5000) == pytest.approx([1.0])


def test_a_message_is_whole_after_those_before_it_and_a_small_one_when_it_comes() -> None:
    stripes = StripeSettings(2, 1000, outstanding=100, fast_bytes=10)
    # the second one's single segment goes on the quick plane
    assert took_s(network(stripes, 1000.0, 100.0), 2000, 1000) == pytest.approx([10.0, 10.0])
    small_s = took_s(network(stripes, 1000.0, 100.0), 2000, 10)[1]
    assert small_s == pytest.approx(1.01)  # behind one segment on the first connection


def test_what_leaves_as_acknowledgements_come_has_its_share_whatever_others_have_elsewhere() -> None:
    # a pair on a link of 1000 a second, a segment under way at a time; another's stand in front of a slower one
    stripes = StripeSettings(1, 1000, outstanding=1, fast_bytes=10)
    paths = {(0, 2): Path(0.0, ("link",)), (1, 3): Path(0.0, ("link", "slow"))}
    paths |= {(there, here): Path(0.0, ("back",)) for here, there in ((0, 2), (1, 3))}
    made = Network(
        {"link": 1000.0, "slow": 200.0, "back": 1e9},
        paths,
        {(pair, 0): (paths[pair],) for pair in ((0, 2), (1, 3))},
        queues={"link": 1e6, "slow": 1e6},
        sends_at_once=False,
        stripe_settings=dict.fromkeys(((0, 2), (1, 3)), stripes),
    )
    sends = tuple((Message("send", "to", "test", (), peer, 20_000, 0, sends=True),) for peer in (2, 3))
    receives = tuple((Message("receive", "from", "test", (), peer, 20_000, 0),) for peer in (0, 1))
    spans = simulate(JobPlan(sends + receives), made, BYTES).spans
    assert spans[2][0][1] == pytest.approx(
        20_000 / 800, rel=0.05
    )  # all that the other leaves, but for its first segment
    assert spans[3][0][1] == pytest.approx(20_000 / 200, rel=0.05)


class Taker:
    """A connection that notes the lengths of the segments that it is to carry."""

    def __init__(self) -> None:
        self.sock, self.outstanding, self.lengths = object(), 0, list[int]()
        self.is_connected = True

    def segment(self, out: Any, flags: int, sequence: int, start: int, end: int) -> None:
        self.lengths.append(end - start)


@pytest.mark.parametrize("outstanding", [2, 3, 64])
def test_the_transport_deals_out_alike(outstanding: int) -> None:
    settings = StripeSettings(3, 1000, outstanding=outstanding, fast_bytes=100)
    sizes = [2500, 100, 1000, 4000, 7200, 300]
    pair = StripedPair(PeerEnd(0, 1, PeerCounters(), ExposedWindows(), 1 << 20), settings)
    takers = [Taker() for _ in range(3)]
    pair.channels = dict(enumerate(takers))  # type: ignore[arg-type]
    for size in sizes:
        pair.send(Request("send", 1, 0, memoryview(bytearray(size))))

    carried: list[list[float]] = [[], [], []]
    waiting: list[tuple[int, int, Any]] = []

    def send_part(
        channel: int, part: Part, turn: int | None, accepted: Event, on_arrival: Any, on_ack: Any
    ) -> None:
        carried[channel].append(part.size_bytes)
        if part.size_bytes > settings.fast_bytes:  # others are not counted
            waiting.append((channel, part.segments, on_ack))

    dealer = Striper(settings, 3, lambda: None, send_part)
    for size in sizes:
        dealer.send(size, Event(), lambda: None)
    while waiting:
        channel, segments, acknowledged = waiting.pop(0)
        takers[channel].outstanding -= segments
        acknowledged()
        pair.on_acknowledged(segments)
    assert [sum(own) for own in carried] == [sum(taker.lengths) for taker in takers]
    assert sum(map(sum, carried)) == sum(sizes)

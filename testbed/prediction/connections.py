"""Connections between ranks on a fluid network: one per pair, or several that share a pair's messages."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from testbed.comm.transport.channels import StripeSettings
from testbed.net.paths.datagram_recovery import LossyDatagrams
from testbed.net.paths.losses import FIRST_PACKETS, LossyConnection, LossyWindow, Sent
from testbed.net.paths.network import Ends, LossDelay, Network, Path
from testbed.prediction.channels import (
    NO_STATE,
    Channel,
    ConnectionState,
    HopSegment,
    HopTransfer,
    SlowStartRamp,
    Warmup,
    split_by_hop,
)
from testbed.prediction.events import Clock, Event
from testbed.prediction.fluid import Fluid
from testbed.prediction.striping import Part, Striper

Action = Callable[[], None]


class _Sending(NamedTuple):
    """What a connection has to send over these paths. follows: it starts as earlier parts arrive."""

    key: object
    ends: Ends
    dscp: int
    paths: Sequence[Path]
    size_bytes: float
    latency_s: float
    turn: int | None
    follows: bool = False


class Connections:
    """All connections of a job."""

    def __init__(
        self,
        clock: Clock,
        network: Network,
        fluid: Fluid,
        lateness: LossDelay,
        kept: ConnectionState = NO_STATE,
    ) -> None:
        self._clock, self._network, self._fluid, self._lateness = clock, network, fluid, lateness
        # per lossy connection: when its queued data has left; how far its window is open, and since when
        self._until_s: dict[object, float] = {}
        self._open: dict[object, tuple[float, float]] = {}
        self._lanes: dict[object, Channel] = {}
        self._dealers: dict[tuple[Ends, int], Striper] = {}
        self._lossy_windows = dict(kept.lossy)
        self._openings: dict[object, SlowStartRamp | None] = {}
        self._before = kept
        self._legs: dict[object, tuple[HopSegment, ...]] = {}

    overflowed = False  # the fluid model accounts for queue losses in message times

    @property
    def kept(self) -> ConnectionState:
        """The state after this step, for the next one."""
        paces = {key: own.packets for key, own in self._openings.items() if own}
        return ConnectionState(self._lossy_windows, paces, self._fluid)

    def send(
        self, ends: Ends, dscp: int, size_bytes: float, taken: Event, left: Action, come: Action
    ) -> None:
        """Send a message.

        Args:
            ends: Ranks of sender and receiver.
            dscp: Traffic class.
            size_bytes: Payload.
            taken: Happens when the socket buffers hold all of it.
            left: Called when it has left.
            come: Called when it has arrived.
        """
        network, key = self._network, (ends, dscp)
        if (lane := self._lanes.get(key)) is None:
            paths, stripes = network.paths_of(ends, dscp), network.dealing.get(ends)
            if stripes is not None:
                self._dealer(ends, dscp, paths, stripes).send(size_bytes, taken, come)
                taken.and_then(left)
                return
            lane = self._lane(key, paths)
        if (timed := lane.timed.get(size_bytes)) is None:
            whole_bytes = network.whole_bytes(ends, size_bytes)
            busy_until_s = max(self._until_s.get((key, number), 0.0) for number in range(len(lane.paths)))
            busy_s = max(0.0, busy_until_s - self._clock.now_s)
            timed = whole_bytes, self._lateness.arrival_s(lane.paths, whole_bytes, busy_s)
            if lane.plain:
                lane.timed[size_bytes] = timed
        turn = self._turn()
        if lane.plain and not lane.is_queued(self._fluid, timed[0], turn):
            lane.send(self._clock, self._fluid, *timed, turn, taken, left, come)
        else:
            self._flow(_Sending(key, ends, dscp, lane.paths, *timed, turn), taken, left, come)

    def _lane(self, key: object, paths: Sequence[Path]) -> Channel:
        """Create the channel of a connection's first message."""
        lane = self._lanes[key] = Channel.of(key, paths, self._network)
        return lane

    def _flow(self, sending: _Sending, taken: Event, left: Action, come: Action) -> None:
        clock, key, whole_bytes = self._clock, sending.key, sending.size_bytes
        lane = self._lanes.get(key) or self._lane(key, sending.paths)
        shares, buffer = lane.shares, lane.buffer

        def all_left() -> None:
            left()
            buffer.leave(whole_bytes)

        if lane.is_queued(self._fluid, whole_bytes, sending.turn):

            def whole(latency_s: float) -> None:
                clock.later(latency_s, come)
                all_left()

            self._hop(key, sending, whole)
            buffer.put(whole_bytes, taken)
            return
        # a follower's connection has its share already
        ahead_s = 0.0 if sending.follows else self._fluid.ahead_s(key, shares, whole_bytes)
        until_s = clock.now_s + ahead_s
        each_bytes = whole_bytes / len(sending.paths)
        gone: list[Sent] = []
        for number, path in enumerate(sending.paths):
            if self._network.first_pace and (opening := self._opening((key, number), path, sending)):
                packets = each_bytes / path.serialisation.packet_bytes
                until_s = max(until_s, opening.left_s(packets, clock.now_s))
            own = path.lossy
            if own is None:
                continue
            if self._lateness.draw and isinstance(own, LossyConnection) and own.begins:
                packets = math.ceil(each_bytes / own.packet_bytes)
                gone.append(self._lossy_window((key, number), path, own).send(packets, clock.now_s))
                until_s = max(until_s, gone[-1].left_s)
            else:
                until_s = max(until_s, self._lossy_until_s((key, number), own, each_bytes))

        def sent() -> None:
            after_s = sending.latency_s + max(0.0, until_s - clock.now_s)
            if gone:
                self._arrive(clock.now_s + after_s, gone, come)
            else:
                clock.later(after_s, come)
            all_left()

        self._fluid.send(key, shares, whole_bytes, sent, turn=sending.turn)
        buffer.put(whole_bytes, taken)

    def _opening(self, key: object, path: Path, sending: _Sending) -> SlowStartRamp | None:
        """Return the ramp of a connection; None if its initial pace already reaches the path's rate."""
        if key not in self._openings:
            network, packet_bytes = self._network, path.serialisation.packet_bytes
            slowest, round_trip_s = self._slowest(path), self._round_trip_s(path, sending)
            gain, packets = network.first_pace / FIRST_PACKETS, self._before.paces.get(key, FIRST_PACKETS)
            opening = SlowStartRamp(gain, round_trip_s, slowest / packet_bytes, packets)
            slow = network.first_pace * packet_bytes < slowest * round_trip_s
            self._openings[key] = opening if slow else None
        return self._openings[key]

    def _slowest(self, path: Path) -> float:
        """Return the rate of the slowest part in bytes per second."""
        return min(self._network.capacities[part] for part in path.parts)

    def _back_s(self, ends: Ends, dscp: int) -> float:
        """Return the one-way latency of an acknowledgement."""
        return self._network.paths_of(ends[::-1], dscp)[0].latency_s(0)

    def _round_trip_s(self, path: Path, sending: _Sending) -> float:
        """Return the round trip of a full packet."""
        packet_bytes = path.serialisation.packet_bytes
        through_s = path.latency_s(packet_bytes) + packet_bytes / self._slowest(path)
        return through_s + self._back_s(sending.ends, sending.dscp)

    def _hop(
        self,
        key: object,
        sending: _Sending,
        gone: Callable[[float], None],
    ) -> None:
        (path,) = sending.paths
        if key not in self._legs:
            self._legs[key] = split_by_hop(key, path, self._network.capacities)
        packet_bytes, latency_s = path.serialisation.packet_bytes, sending.latency_s
        HopTransfer(
            self._clock,
            self._fluid,
            self._legs[key],
            sending.size_bytes,
            packet_bytes,
            latency_s,
            sending.turn,
            sending.follows,
            gone,
        ).begin()

    def _arrive(self, in_time_s: float, gone: Sequence[Sent], come: Action) -> None:
        """Call `come` once lost packets are there too; later sends may reveal a loss sooner."""
        clock, there = self._clock, Event()

        def look() -> None:
            at_s = max([in_time_s, *(own.there_s for own in gone)])
            if at_s > clock.now_s:
                clock.later(at_s - clock.now_s, look)
            elif not there.done:
                there.happen()
                come()

        for loss in {loss for own in gone for loss in own.losses}:
            loss.told.append(look)
        look()

    def open(self, ranks: int, before: Warmup) -> None:
        """Open the windows of lossy paths by the warm-up's messages, each of which waits for the one before."""
        for rank in range(ranks):
            self._go_round((rank, (rank + 1) % ranks), before)

    def _go_round(self, ends: Ends, before: Warmup) -> None:
        paths, stripes = self._network.paths_of(ends, 0), self._network.dealing.get(ends)
        for number, path in enumerate(paths):
            if path.lossy is None or not isinstance(path.lossy, LossyConnection) or not path.lossy.begins:
                continue
            key = ((ends, 0), number) if stripes is None else ((ends, 0, number), 0)
            window, at_s = self._lossy_window(key, path, path.lossy), 0.0
            packets = math.ceil(before.message_bytes / len(paths) / path.lossy.packet_bytes)
            for _ in range(before.messages):
                at_s = window.send(packets, at_s).there_s
            window.shift(at_s)

    def shift(self, seconds: float) -> None:
        """Move all windows' recorded times `seconds` back."""
        for window in self._lossy_windows.values():
            window.shift(seconds)

    def _lossy_window(self, key: object, path: Path, lossy: LossyConnection) -> LossyWindow:
        """Return a connection's window, created with its first message."""
        window = self._lossy_windows.get(key)
        if window is None:
            assert self._lateness.draw is not None
            window = lossy.begun(path.latency_s(lossy.packet_bytes), self._lateness.draw)
            self._lossy_windows[key] = window
        return window

    def _lossy_until_s(
        self, key: object, lossy: LossyConnection | LossyDatagrams, size_bytes: float
    ) -> float:
        """Return when this many more bytes have left a lossy connection."""
        now_s = self._clock.now_s
        begins_s = max(now_s, self._until_s.get(key, 0.0))
        if isinstance(lossy, LossyDatagrams):
            until_s = begins_s + lossy.least_s(size_bytes, begins_s - now_s, self._lateness.draw)
        else:
            open_bytes, then_s = self._open.get(key, (lossy.window_bytes, now_s))
            open_bytes = lossy.opened_bytes(open_bytes, now_s - then_s)
            self._open[key] = open_bytes - size_bytes, now_s
            until_s = max(
                now_s + lossy.least_s(size_bytes, open_bytes), begins_s + size_bytes / lossy.path_rate
            )
        self._until_s[key] = until_s
        return until_s

    def _dealer(self, ends: Ends, dscp: int, paths: Sequence[Path], stripes: StripeSettings) -> Striper:
        dealer = self._dealers.get((ends, dscp))
        if dealer is not None:
            return dealer
        back_s = self._back_s(ends, dscp)
        each_bytes = self._network.overheads.get(ends, 0.0) * stripes.segment_bytes

        def flow(
            channel: int, part: Part, turn: int | None, taken: Event, come: Action, acknowledged: Action
        ) -> None:
            path = paths[channel]
            whole_bytes = part.size_bytes + part.segments * each_bytes
            latency_s = path.latency_s(whole_bytes)
            if part.ends_bytes:  # lateness of any of the message's parts counts once
                used = paths[: math.ceil(part.ends_bytes / stripes.segment_bytes)]
                in_time_s = max(own.latency_s(part.ends_bytes / len(used)) for own in used)
                latency_s += self._lateness.arrival_s(used, part.ends_bytes) - in_time_s

            def there() -> None:
                come()
                self._clock.later(back_s, acknowledged)

            sending = _Sending(
                (ends, dscp, channel), ends, dscp, [path], whole_bytes, latency_s, turn, part.follows
            )
            self._flow(sending, taken, lambda: None, there)

        dealer = self._dealers[ends, dscp] = Striper(stripes, len(paths), self._turn, flow)
        return dealer

    def _turn(self) -> int | None:
        """Return the next rank in queues, where the transport sends messages at once."""
        return self._fluid.next_turn() if self._network.sends_at_once else None

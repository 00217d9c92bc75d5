"""Connections between ranks on a fluid network: one per pair, or several that share a pair's messages."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from testbed.comm.transport.channels import StripeSettings
from testbed.net.paths.congestion.linux_tcp import INITIAL_WINDOW_PACKETS
from testbed.net.paths.datagram_recovery import LossyDatagrams
from testbed.net.paths.losses import LossyConnection, LossyWindow, Sent
from testbed.net.paths.network import Ends, LossDelay, Network, Path
from testbed.prediction.channels import (
    Channel,
    HopSegment,
    HopTransfer,
    SlowStartRamp,
    Warmup,
    split_by_hop,
)
from testbed.prediction.events import Event, EventQueue
from testbed.prediction.fluid import Fluid
from testbed.prediction.packets.connections import PacketConnections
from testbed.prediction.striping import Part, Striper

Action = Callable[[], None]


class _Transfer(NamedTuple):
    """The data of a connection over these paths; `follows` is true if it starts as earlier parts arrive."""

    key: object
    ends: Ends
    dscp: int
    paths: Sequence[Path]
    size_bytes: float
    latency_s: float
    turn: int | None
    follows: bool = False


class ConnectionState(NamedTuple):
    """The state that connections, by key, keep from one step to the next.

    Attributes:
        lossy: Congestion windows of connections over lossy paths.
        paces: Packets delivered per round trip, for connections that are still below their path's rate.
        fluid: The fluid network, which is idle between steps.
        packets: All connections of a step that is simulated packet by packet.
    """

    lossy: Mapping[object, LossyWindow]
    paces: Mapping[object, float]
    fluid: Fluid | None = None
    packets: PacketConnections | None = None

    @property
    def matters(self) -> bool:
        """Whether this state affects the next step."""
        return bool(self.lossy or self.paces or self.packets)


NO_STATE = ConnectionState({}, {})


class Connections:
    """All connections of a job.

    `lossy_windows` and `paces` are from an earlier step, see `ConnectionState`.
    """

    def __init__(
        self,
        clock: EventQueue,
        network: Network,
        fluid: Fluid,
        lateness: LossDelay,
        lossy_windows: Mapping[object, LossyWindow],
        paces: Mapping[object, float],
    ) -> None:
        self._clock, self._network, self._fluid, self._lateness = clock, network, fluid, lateness
        # per lossy connection: when its queued data has left; its window, and the time since which it has that size
        self._busy_until_s: dict[object, float] = {}
        self._window_open: dict[object, tuple[float, float]] = {}
        self._channels: dict[object, Channel] = {}
        self._stripers: dict[tuple[Ends, int], Striper] = {}
        self.lossy_windows = dict(lossy_windows)
        self._ramps: dict[object, SlowStartRamp | None] = {}
        self._paces_before = paces
        self._segments: dict[object, tuple[HopSegment, ...]] = {}

    overflowed = False  # the fluid model accounts for queue losses in message times

    @property
    def paces(self) -> dict[object, float]:
        """The rates after this step, see `ConnectionState`."""
        return {key: own.packets for key, own in self._ramps.items() if own}

    def send(
        self, ends: Ends, dscp: int, size_bytes: float, accepted: Event, on_sent: Action, on_arrival: Action
    ) -> None:
        """Send a message.

        Args:
            ends: Ranks of sender and receiver.
            dscp: Traffic class.
            size_bytes: Payload.
            accepted: Event that happens when the socket buffers hold the whole message.
            on_sent: Called when the message has left.
            on_arrival: Called when the message has arrived.
        """
        network, key = self._network, (ends, dscp)
        paths, stripes = network.paths_of(ends, dscp), network.stripe_settings.get(ends)
        if stripes is not None:
            self._striper(ends, dscp, paths, stripes).send(size_bytes, accepted, on_arrival)
            accepted.and_then(on_sent)
            return
        whole_bytes = network.whole_bytes(ends, size_bytes)
        busy_until_s = max(self._busy_until_s.get((key, number), 0.0) for number in range(len(paths)))
        busy_s = max(0.0, busy_until_s - self._clock.now_s)
        latency_s = self._lateness.arrival_s(paths, whole_bytes, busy_s)
        transfer = _Transfer(key, ends, dscp, paths, whole_bytes, latency_s, self._turn())
        self._transmit(transfer, accepted, on_sent, on_arrival)

    def _transmit(self, transfer: _Transfer, accepted: Event, on_sent: Action, on_arrival: Action) -> None:
        clock, key, whole_bytes = self._clock, transfer.key, transfer.size_bytes
        if (channel := self._channels.get(key)) is None:
            channel = self._channels[key] = Channel.of(key, transfer.paths, self._network)
        shares, buffer = channel.shares, channel.buffer

        def all_left() -> None:
            on_sent()
            buffer.remove(whole_bytes)

        if channel.is_queued(self._fluid, whole_bytes, transfer.turn):

            def hops_done(latency_s: float) -> None:
                clock.call_later(latency_s, on_arrival)
                all_left()

            self._send_by_hop(key, transfer, hops_done)
            buffer.put(whole_bytes, accepted)
            return
        # a follower's connection already has its share
        ahead_s = 0.0 if transfer.follows else self._fluid.ahead_s(key, shares, whole_bytes)
        until_s = clock.now_s + ahead_s
        each_bytes = whole_bytes / len(transfer.paths)
        lossy_sends: list[Sent] = []
        for number, path in enumerate(transfer.paths):
            if self._network.first_pace and (ramp := self._ramp((key, number), path, transfer)):
                packets = each_bytes / path.serialisation.packet_bytes
                until_s = max(until_s, ramp.departure_s(packets, clock.now_s))
            own = path.lossy
            if own is None:
                continue
            if self._lateness.draw and isinstance(own, LossyConnection) and own.simulates_window:
                packets = math.ceil(each_bytes / own.packet_bytes)
                lossy_sends.append(self._lossy_window((key, number), path, own).send(packets, clock.now_s))
                until_s = max(until_s, lossy_sends[-1].left_s)
            else:
                until_s = max(until_s, self._lossy_until_s((key, number), own, each_bytes))

        def sent() -> None:
            after_s = transfer.latency_s + max(0.0, until_s - clock.now_s)
            if lossy_sends:
                self._await_losses(clock.now_s + after_s, lossy_sends, on_arrival)
            else:
                clock.call_later(after_s, on_arrival)
            all_left()

        self._fluid.send(key, shares, whole_bytes, sent, turn=transfer.turn)
        buffer.put(whole_bytes, accepted)

    def _ramp(self, key: object, path: Path, transfer: _Transfer) -> SlowStartRamp | None:
        """Return the ramp of a connection; None if its initial pacing rate already reaches the path's rate."""
        if key not in self._ramps:
            network, packet_bytes = self._network, path.serialisation.packet_bytes
            slowest, round_trip_s = self._slowest(path), self._round_trip_s(path, transfer)
            gain, packets = (
                network.first_pace / INITIAL_WINDOW_PACKETS,
                self._paces_before.get(key, INITIAL_WINDOW_PACKETS),
            )
            ramp = SlowStartRamp(gain, round_trip_s, slowest / packet_bytes, packets)
            slow = network.first_pace * packet_bytes < slowest * round_trip_s
            self._ramps[key] = ramp if slow else None
        return self._ramps[key]

    def _slowest(self, path: Path) -> float:
        """Return the rate of the slowest part in bytes per second."""
        return min(self._network.capacities[part] for part in path.parts)

    def _reply_s(self, ends: Ends, dscp: int) -> float:
        """Return the one-way latency of an acknowledgement."""
        return self._network.paths_of(ends[::-1], dscp)[0].latency_s(0)

    def _round_trip_s(self, path: Path, transfer: _Transfer) -> float:
        """Return the round trip of a full packet."""
        packet_bytes = path.serialisation.packet_bytes
        through_s = path.latency_s(packet_bytes) + packet_bytes / self._slowest(path)
        return through_s + self._reply_s(transfer.ends, transfer.dscp)

    def _send_by_hop(
        self,
        key: object,
        transfer: _Transfer,
        on_sent: Callable[[float], None],
    ) -> None:
        (path,) = transfer.paths
        if key not in self._segments:
            self._segments[key] = split_by_hop(key, path, self._network.capacities)
        packet_bytes, latency_s = path.serialisation.packet_bytes, transfer.latency_s
        HopTransfer(
            self._clock,
            self._fluid,
            self._segments[key],
            transfer.size_bytes,
            packet_bytes,
            latency_s,
            transfer.turn,
            transfer.follows,
            on_sent,
        ).start()

    def _await_losses(self, in_time_s: float, lossy_sends: Sequence[Sent], on_arrival: Action) -> None:
        """Call `on_arrival` once lost packets have arrived, too; later sends may reveal a loss sooner."""
        clock, there = self._clock, Event()

        def check() -> None:
            at_s = max([in_time_s, *(own.there_s for own in lossy_sends)])
            if at_s > clock.now_s:
                clock.call_later(at_s - clock.now_s, check)
            elif not there.done:
                there.trigger()
                on_arrival()

        for loss in {loss for own in lossy_sends for loss in own.losses}:
            loss.on_earlier.append(check)
        check()

    def open(self, ranks: int, before: Warmup) -> None:
        """Grow the windows of lossy paths with the warm-up's messages, each of which waits for the previous one."""
        for rank in range(ranks):
            self._open_window((rank, (rank + 1) % ranks), before)

    def _open_window(self, ends: Ends, before: Warmup) -> None:
        paths, stripes = self._network.paths_of(ends, 0), self._network.stripe_settings.get(ends)
        for number, path in enumerate(paths):
            if (
                path.lossy is None
                or not isinstance(path.lossy, LossyConnection)
                or not path.lossy.simulates_window
            ):
                continue
            key = ((ends, 0), number) if stripes is None else ((ends, 0, number), 0)
            window, at_s = self._lossy_window(key, path, path.lossy), 0.0
            packets = math.ceil(before.message_bytes / len(paths) / path.lossy.packet_bytes)
            for _ in range(before.messages):
                at_s = window.send(packets, at_s).there_s
            window.shift(at_s)

    def shift(self, seconds: float) -> None:
        """Move all windows' recorded times `seconds` back."""
        for window in self.lossy_windows.values():
            window.shift(seconds)

    def _lossy_window(self, key: object, path: Path, lossy: LossyConnection) -> LossyWindow:
        """Return a connection's window, created with its first message."""
        window = self.lossy_windows.get(key)
        if window is None:
            assert self._lateness.draw is not None
            window = lossy.open_window(path.latency_s(lossy.packet_bytes), self._lateness.draw)
            self.lossy_windows[key] = window
        return window

    def _lossy_until_s(
        self, key: object, lossy: LossyConnection | LossyDatagrams, size_bytes: float
    ) -> float:
        """Return the time when this many more bytes have left a lossy connection."""
        now_s = self._clock.now_s
        begins_s = max(now_s, self._busy_until_s.get(key, 0.0))
        if isinstance(lossy, LossyDatagrams):
            until_s = begins_s + lossy.least_s(size_bytes, begins_s - now_s, self._lateness.draw)
        else:
            open_bytes, then_s = self._window_open.get(key, (lossy.window_bytes, now_s))
            open_bytes = lossy.open_bytes_after(open_bytes, now_s - then_s)
            self._window_open[key] = open_bytes - size_bytes, now_s
            until_s = max(
                now_s + lossy.least_s(size_bytes, open_bytes), begins_s + size_bytes / lossy.path_rate
            )
        self._busy_until_s[key] = until_s
        return until_s

    def _striper(self, ends: Ends, dscp: int, paths: Sequence[Path], stripes: StripeSettings) -> Striper:
        striper = self._stripers.get((ends, dscp))
        if striper is not None:
            return striper
        reply_s = self._reply_s(ends, dscp)
        each_bytes = self._network.overheads.get(ends, 0.0) * stripes.segment_bytes

        def send_part(
            channel: int,
            part: Part,
            turn: int | None,
            accepted: Event,
            on_arrival: Action,
            on_ack: Action | None,
        ) -> None:
            path = paths[channel]
            whole_bytes = part.size_bytes + part.segments * each_bytes
            latency_s = path.latency_s(whole_bytes)
            if part.ends_bytes:  # lateness of several of the message's parts counts only once
                used = paths[: math.ceil(part.ends_bytes / stripes.segment_bytes)]
                in_time_s = max(own.latency_s(part.ends_bytes / len(used)) for own in used)
                latency_s += self._lateness.arrival_s(used, part.ends_bytes) - in_time_s

            def arrive() -> None:
                on_arrival()
                if on_ack is not None:
                    self._clock.call_later(reply_s, on_ack)

            transfer = _Transfer(
                (ends, dscp, channel), ends, dscp, [path], whole_bytes, latency_s, turn, part.follows
            )
            self._transmit(transfer, accepted, lambda: None, arrive)

        striper = self._stripers[ends, dscp] = Striper(stripes, len(paths), self._turn, send_part)
        return striper

    def _turn(self) -> int | None:
        """Return the next rank in queues if the transport sends messages at once."""
        return self._fluid.next_turn() if self._network.sends_at_once else None

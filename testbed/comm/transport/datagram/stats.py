"""Statistics of a pair of datagram sockets, ready for JSON."""

from __future__ import annotations

import math
from typing import Any

from testbed.comm.transport.datagram.receiver import Receiver
from testbed.comm.transport.datagram.sender import DatagramSettings, Sender
from testbed.comm.transport.datagram.spraying import Spray


def snapshot_pair(sender: Sender, acked_bytes: int) -> dict[str, float]:
    """Return the fields of `sockets.snapshot_connection`, with parity packets and marked packets.

    No window reads as 0.
    """
    recovery, window = sender.recovery, sender.control.window_packets
    return {
        "rtt_s": recovery.round_trips.smoothed_s,
        "congestion_window_segments": window if window < math.inf else 0,
        "retransmits": recovery.resent,
        "bytes_acked": acked_bytes,
        "parity": recovery.parity_sent,
        "marked": sender.marked,
    }


def pair_totals(
    settings: DatagramSettings, sender: Sender, receiver: Receiver, spray: Spray | None
) -> dict[str, Any]:
    """Return totals of both directions since the start, in packets, seconds and bit/s. packets_twice: duplicates."""
    recovery, control = sender.recovery, sender.control
    totals: dict[str, Any] = {
        "recovery": settings.recovery,
        "control": settings.control,
        "round_trip_s": round(recovery.round_trips.smoothed_s, 6),
        "packets_sent": sum(path.serial for path in recovery.paths.values()),
        "packets_resent": recovery.resent,
        "parity_sent": recovery.parity_sent,
        "packets_lost": sender.lost,
        "packets_late": sender.timed_out,
        "packets_marked": sender.marked,
        "packets_received": sum(path.received for path in receiver.seen.values()),
        "packets_mended": receiver.recovered,
        "packets_twice": receiver.duplicates,
    }
    if control.window_packets < math.inf:
        totals["window_packets"] = round(control.window_packets, 1)
    if control.rate_bps < math.inf:
        totals["rate_bps"] = round(control.rate_bps)
    if spray is not None:
        totals["paths"] = [state.value for state in spray.states]
        totals["paths_denied"] = spray.denied
    return totals


def describe_pair(sender: Sender, receiver: Receiver) -> str:
    """Return, as text, the state of a pair, to explain why nothing arrives."""
    recovery = sender.recovery
    waiting = recovery.end - recovery.low
    unacknowledged = f"{waiting} packets not acknowledged, {recovery.in_flight} of them in flight"
    missing = receiver.bits.bit_length() - receiver.bits.bit_count()
    return f"{unacknowledged}; {missing} missing before later received ones"

"""When a message is whole with each transport, over an empty path that loses packets: closed forms, and what is drawn.

Datagrams by `testbed.net.paths.datagram_recovery`; RoCE by its go-back-N, whose losses are drawn; TCP by `tcp_rounds`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from tcp_rounds import Rounds, bbr

from testbed.comm.transport.datagram.recoveries import RECOVERIES
from testbed.comm.transport.rdma.card import CardSettings, ack_timeout_s
from testbed.comm.transport.rdma.wire import HEADERS_BYTES, PACKETS_PER_ACK, PAYLOADS_BYTES
from testbed.net.paths.datagram_recovery import RecoveryForm

TRANSPORTS = ("reno", "cubic", "bbr", "roce", "go_back_n", "selective_repeat", "nack", "erasure", "xor")
PACKET_BYTES = PAYLOADS_BYTES[0]
ROCE_TIMEOUT_S = ack_timeout_s(CardSettings.ack_timeout_s)
DRAWS = {"roce": 20_000, "short": 400, "long": 2000, "longest": 100}  # of TCP connections by their messages
LONG_PACKETS, LONGEST_ROUNDS = 1 << 12, 10_000  # a round sends about the root of 3/2 over the share of losses
# of a TCP connection: messages before those that count, and how many do; fewer of long ones
COUNTED, COUNTED_LONG = (10, 30), (2, 1)


class Completion(NamedTuple):
    """Seconds from the beginning until the message is whole at its receiver."""

    mean_s: float
    p99_s: float
    p999_s: float


class Path(NamedTuple):
    """rate_bps and round trip of the empty path, share of packets lost on the way there."""

    rate_bps: float
    round_trip_s: float
    loss: float


def completion(
    transport: str,
    path: Path,
    size_bytes: int,
    counted: tuple[int, int] | None = None,
    seed: int = 1,
) -> Completion:
    """By the form of that transport. counted: of TCP, see COUNTED. seed: of what is drawn."""
    packets = math.ceil(size_bytes / PACKET_BYTES)
    packet_s = 8 * (PACKET_BYTES + HEADERS_BYTES) / path.rate_bps
    if transport in RECOVERIES:
        return of_form(RecoveryForm(transport, packets, packet_s, path.round_trip_s, path.loss))
    if transport == "bbr":
        return of_form(bbr(packets, packet_s, path.round_trip_s, path.loss))
    rng = np.random.default_rng(seed)
    long = packets >= LONG_PACKETS
    if transport == "roce":
        return of_draws(roce(path, packets, packet_s, DRAWS["roce"], rng))
    longest = packets * math.sqrt(path.loss / 1.5) > LONGEST_ROUNDS
    draws = DRAWS["longest" if longest else "long" if long else "short"]
    rounds = Rounds(transport, path.loss, path.round_trip_s, packet_s, draws, rng)
    earlier, count = counted or (COUNTED_LONG if long else COUNTED)
    took_s = [rounds.message(packets) for _ in range(earlier + count)]
    return of_draws(np.concatenate(took_s[earlier:]))


def of_form(form: RecoveryForm) -> Completion:
    """Of a closed form."""
    return Completion(form.mean_s, form.quantile_s(0.99), form.quantile_s(0.999))


def of_draws(took_s: np.ndarray) -> Completion:
    """Of what was drawn."""
    p99_s, p999_s = np.quantile(took_s, (0.99, 0.999))
    return Completion(float(took_s.mean()), float(p99_s), float(p999_s))


def roce(path: Path, packets: int, packet_s: float, draws: int, rng: np.random.Generator) -> np.ndarray:
    """A card's go-back-N, loss by loss: each costs a round trip, and the card's timer on top where nothing tells of it.

    So it is with a message's last packet, and with a loss after which the card went back and has heard of no packet
    since that it was to acknowledge, as soft-RoCE does not go back twice for one acknowledgement. Of a message that has
    left as a whole before that is known, the next such packet is the 66th.
    """
    gone_whole = packets * packet_s < path.round_trip_s
    whole_s = np.full(draws, packets * packet_s + path.round_trip_s / 2)
    next_, open_ = np.zeros(draws, np.int64), np.arange(draws)
    went_back = np.zeros(draws, bool)
    while open_.size:
        gone = rng.geometric(path.loss, open_.size) - 1
        next_[open_] += gone
        lost = next_[open_] < packets
        open_, gone = open_[lost], gone[lost]
        first = 1.0 if gone_whole else rng.random(open_.size)
        unheard = went_back[open_] & (gone < first * PACKETS_PER_ACK)
        unheard |= next_[open_] == packets - 1
        whole_s[open_] += path.round_trip_s + packet_s + unheard * ROCE_TIMEOUT_S
        went_back[open_] = True
    return whole_s

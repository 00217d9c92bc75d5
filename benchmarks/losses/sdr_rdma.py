"""When a sender knows that a Write is there, by SDR-RDMA's own equations (arXiv:2505.05366, section 4.2, appendices).

Drawn, as the paper's own simulation draws them; `docs/evidence/losses.md` holds `net.paths.datagram_recovery`
against them. A message is cut into chunks, which are lost one by one with one chance; a bit of the receiver's map
stands for a chunk, of one or many packets. Selective repeat: chunk i leaves at i x T_inj, each loss costs it RTO +
T_inj, the message is known of a round trip after its latest chunk. Erasure: data and parity leave, a round trip; where
a submessage fails, a round trip and beta of one more until word of it comes, then selective repeat of its k chunks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

RTO_ROUND_TRIPS, NACK_ROUND_TRIPS = 3.0, 1.0  # section 5.1.1
BETA = 0.5  # section 4.1.2, half of alpha, which the paper leaves open: buffers of one round trip
DATA, PARITY = 32, 8

Draws = NDArray[np.float64]


@dataclass(frozen=True)
class Channel:
    """rate_bps, round_trip_s: of the path; chunk_bytes: what one bit of the map is; loss: of a chunk."""

    rate_bps: float
    round_trip_s: float
    chunk_bytes: int
    loss: float

    @property
    def inject_s(self) -> float:
        """T_inj."""
        return self.chunk_bytes * 8 / self.rate_bps


def selective_repeat(
    channel: Channel, size_bytes: float, draws: int, rng: np.random.Generator, rto: float = RTO_ROUND_TRIPS
) -> Draws:
    """So many draws, seconds. rto: in round trips."""
    return _repeat(channel, np.full(draws, max(1, math.ceil(size_bytes / channel.chunk_bytes))), rng, rto)


def _repeat(channel: Channel, chunks: NDArray[np.int64], rng: np.random.Generator, rto: float) -> Draws:
    """chunks: of each draw."""
    took_s = chunks * channel.inject_s
    lost = rng.binomial(chunks, channel.loss)
    draw = np.repeat(np.arange(len(chunks)), lost)
    place = np.ceil(rng.random(len(draw)) * chunks[draw])
    again = rng.geometric(1 - channel.loss, len(draw))  # once, and once more for each further loss
    late_s = place * channel.inject_s + again * (rto * channel.round_trip_s + channel.inject_s)
    np.maximum.at(took_s, draw, late_s)
    return np.asarray(took_s + channel.round_trip_s, np.float64)


def erasure(channel: Channel, size_bytes: float, draws: int, rng: np.random.Generator) -> Draws:
    """So many draws, seconds: MDS(32, 8), as `selective_repeat` where that fails."""
    chunks = max(1, math.ceil(size_bytes / channel.chunk_bytes))
    data = min(DATA, chunks)
    parity = math.ceil(data * PARITY / DATA)
    submessages = math.ceil(chunks / data)
    took_s = np.full(
        draws, (chunks + math.ceil(chunks * PARITY / DATA)) * channel.inject_s + channel.round_trip_s
    )
    failed = rng.binomial(submessages, fails(channel.loss, data, parity), draws)
    again = failed > 0
    if again.any():
        repeated_s = _repeat(channel, failed[again] * data, rng, RTO_ROUND_TRIPS)
        took_s[again] += BETA * channel.round_trip_s + repeated_s
    return took_s


def fails(loss: float, data: int, parity: int) -> float:
    """Chance that more of a submessage is lost than its parity mends (appendix B)."""
    count = data + parity
    return math.fsum(
        math.comb(count, lost) * loss**lost * (1 - loss) ** (count - lost)
        for lost in range(parity + 1, count + 1)
    )

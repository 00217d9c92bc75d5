"""TCP Reno and CUBIC played round trip by round trip: when messages of a kept connection are whole, many draws at once.

A round sends a window, holes first; each packet is lost by itself. Reno (RFC 5681) halves its window at a loss and adds
a packet a round; CUBIC (RFC 9438) takes 0.7 and goes by its cube, or by Reno's line where that is more. What is lost is
known of a round trip later; of a message's last packet nothing tells but a probe after two round trips (RFC 8985), of a
last one that was sent again the time-out, 200 ms and a round trip in Linux. Windows begin at 10 packets (RFC 6928) and
grow only by what was used of them. Not in it: queues, HyStart, pacing, the order of packets in a round.

BBR needs no rounds: while its messages are shorter than what is under way on a full path, its estimate of the rate is
what it last had, its gain 2.885 above that, and a message takes round trip / 1.885 to leave, or the line's time if
longer.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from testbed.net.paths.datagram_recovery import RecoveryForm

FIRST_PACKETS = 10.0
RENO_KEPT, CUBIC_KEPT, CUBIC_SCALE = 0.5, 0.7, 0.4
CUBIC_FRIENDLY = 3 * (1 - CUBIC_KEPT) / (1 + CUBIC_KEPT)
PROBE_ROUND_TRIPS = 2.0
LEAST_RTO_S = 0.2
BBR_GAIN = 2 / math.log(2)

Draws = NDArray[np.float64]


class Rounds:
    """So many connections side by side, each over an empty path of its own. control: reno or cubic.

    packet_s: of one on the line; loss: chance that one is lost.
    """

    def __init__(
        self,
        control: str,
        loss: float,
        round_trip_s: float,
        packet_s: float,
        draws: int,
        rng: np.random.Generator,
    ) -> None:
        self.cubic = control == "cubic"
        self.loss, self.round_trip_s, self.packet_s, self.rng = loss, round_trip_s, packet_s, rng
        self.window = np.full(draws, FIRST_PACKETS)
        self.threshold = np.full(draws, np.inf)
        self.most = np.full(draws, np.inf)  # CUBIC's window before the last loss
        self.line = self.window.copy()  # what Reno's would be
        self.since_s = np.zeros(draws)  # the last loss

    def message(self, packets: int) -> Draws:
        """When a message of so many is whole, on each; the next one begins with the windows that this one leaves."""
        count = len(self.window)
        left, took_s = np.full(count, float(packets)), np.zeros(count)
        mending = np.zeros(count, bool)
        whole_s = np.full(count, np.nan)
        open_ = np.arange(count)
        while open_.size:
            window = np.floor(np.maximum(1.0, self.window[open_]))
            sent = np.minimum(window, left[open_])
            lost = self.rng.binomial(sent.astype(np.int64), self.loss).astype(float)
            busy_s = sent * self.packet_s
            last = sent == left[open_]
            tail = last & (self.rng.random(open_.size) * sent < lost)
            timed = tail & mending[open_]
            probed = tail & ~timed
            round_s = np.maximum(self.round_trip_s, busy_s)
            ends = last & (lost == 0)
            whole_s[open_[ends]] = took_s[open_[ends]] + busy_s[ends] + self.round_trip_s / 2
            # the probe is the last packet once more: nothing else may have been lost
            alone = probed & (lost == 1) & (self.rng.random(open_.size) >= self.loss)
            late_s = PROBE_ROUND_TRIPS * self.round_trip_s
            whole_s[open_[alone]] = took_s[open_[alone]] + busy_s[alone] + late_s + self.round_trip_s / 2
            round_s += np.where(probed, late_s, 0.0) + np.where(timed, LEAST_RTO_S, 0.0)
            self._react(open_, sent, lost, window, mending[open_], timed, round_s)
            took_s[open_] += round_s
            left[open_] -= sent - lost + np.where(probed & (lost > 1), 1.0, 0.0)
            mending[open_] = lost > 0
            open_ = open_[~(ends | alone)]
        return whole_s

    def _react(
        self,
        open_: NDArray[np.intp],
        sent: Draws,
        lost: Draws,
        window: Draws,
        mending: NDArray[np.bool_],
        timed: NDArray[np.bool_],
        round_s: Draws,
    ) -> None:
        """Windows of these connections after a round."""
        cut = (lost > 0) & (~mending | timed)
        kept = CUBIC_KEPT if self.cubic else RENO_KEPT
        slow = (self.window < self.threshold)[open_]
        grown = self.window[open_]
        doubled = grown + np.where(2 * sent >= window, sent - lost, 0.0)
        used = sent >= window
        if self.cubic:
            self.since_s[open_] += round_s
            most = self.most[open_]
            with np.errstate(invalid="ignore"):
                back_s = np.cbrt(most * (1 - CUBIC_KEPT) / CUBIC_SCALE)
                cube = CUBIC_SCALE * (self.since_s[open_] - back_s) ** 3 + most
            self.line[open_] += np.where(used, CUBIC_FRIENDLY, 0.0)
            straight = np.clip(np.maximum(cube, self.line[open_]), grown, 1.5 * grown)
        else:
            straight = grown + 1.0
        grown = np.where(
            slow,
            np.minimum(doubled, np.maximum(self.threshold[open_], grown)),
            np.where(used, straight, grown),
        )
        lower = np.maximum(2.0, self.window[open_] * kept)
        self.most[open_[cut]] = self.window[open_[cut]]
        self.since_s[open_[cut]] = 0.0
        self.line[open_[cut]] = lower[cut]
        self.threshold[open_[cut]] = lower[cut]
        grown = np.where(cut, lower, np.where(lost > 0, self.window[open_], grown))
        self.window[open_] = np.where(timed, 1.0, grown)


def bbr(packets: int, packet_s: float, round_trip_s: float, loss: float) -> RecoveryForm:
    """Its closed form: as nack, at its own pace."""
    leave_s = max(packets * packet_s, round_trip_s / (BBR_GAIN - 1))
    return RecoveryForm("nack", packets, leave_s / packets, round_trip_s, loss)

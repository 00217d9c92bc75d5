"""How quickly packets were delivered, as Linux samples it for congestion controls (`tcp_rate.c`)."""

from __future__ import annotations

from dataclasses import dataclass

Stamp = tuple[int, float, float, bool]
"""What was so when a packet was sent: packets that were delivered until then, the time when, and the time when the last
one of them had been sent; whether there was not enough to send.
"""


@dataclass(slots=True)
class Sample:
    """Of one acknowledgement. packets, interval_s: what was delivered in how long; 0 where that is not known."""

    round_trip_s: float
    acknowledged: int
    lost: int
    prior_flying: int
    packets: int = 0
    interval_s: float = 0.0
    prior_delivered: int = 0
    limited: bool = False


class Rates:
    """Of one connection."""

    def __init__(self) -> None:
        self.delivered = 0
        self.delivered_s = self.first_sent_s = 0.0
        self.limited_until = 0
        self._newest_s, self._newest = -1.0, -1  # packet of those delivered: when it was sent, its number
        self._prior: Stamp | None = None
        self._sending_s = 0.0

    def sent(self, now_s: float, *, first: bool) -> Stamp:
        """A packet is. first: as nothing is under way."""
        if first:
            self.first_sent_s = self.delivered_s = now_s
        return self.delivered, self.delivered_s, self.first_sent_s, bool(self.limited_until)

    def limit(self, flying: int) -> None:
        """There is not enough to send."""
        self.limited_until = (self.delivered + flying) or 1

    def came(self, sent_s: float, number: int, stamp: Stamp) -> None:
        """A packet is delivered."""
        self.delivered += 1
        newest_s = self._newest_s
        if self._prior is None or sent_s > newest_s or (sent_s == newest_s and number > self._newest):
            self._newest_s, self._newest, self._prior = sent_s, number, stamp
            self.first_sent_s = sent_s
            self._sending_s = sent_s - stamp[2]

    def sample(self, now_s: float, least_s: float, some: Sample) -> None:
        """Of what came since the last one, into `some`, which has the rest. least_s: round trip."""
        if self.limited_until and self.delivered > self.limited_until:
            self.limited_until = 0
        if some.acknowledged:
            self.delivered_s = now_s
        prior, self._prior = self._prior, None
        if prior is None:
            return
        delivered, delivered_s, _, limited = prior
        some.prior_delivered, some.limited = delivered, limited
        interval_s = max(self._sending_s, now_s - delivered_s)
        if interval_s < least_s:
            return
        some.packets, some.interval_s = self.delivered - delivered, interval_s

    def shift(self, seconds: float) -> None:
        """Tell the time from so much later on."""
        self.delivered_s -= seconds
        self.first_sent_s -= seconds
        self._newest_s -= seconds

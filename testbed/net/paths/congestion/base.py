"""The interface of a congestion-control model: a response function, the window's growth, and loss recovery."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from testbed.plugins import Registry, derived_from


@dataclass(frozen=True)
class LossResponse:
    """A calibrated loss response: the window relative to the response function, and round trips to recover a loss."""

    window: float = 1.0
    recovery: float = 1.0


class Growth(ABC):
    """The growth of one connection's congestion window, in packets and seconds."""

    uses_hystart: ClassVar[bool] = False
    """Whether slow start ends once the acknowledgements of a window take half a round trip (HyStart)."""

    @abstractmethod
    def after_loss(self, window: float) -> float:
        """Return the window after a loss."""

    @abstractmethod
    def grown(self, window: float, acknowledged: int, now_s: float, rtt_s: float) -> float:
        """Return the window after more packets are acknowledged, if it was full and is not in slow start.

        Args:
            window: The window in packets.
            acknowledged: The number of newly acknowledged packets.
            now_s: The current time.
            rtt_s: The round trip.
        """

    def idle(self, seconds: float) -> None:  # noqa: B027 - most have no clock
        """Account for a period in which nothing was sent."""

    def shift(self, seconds: float) -> None:  # noqa: B027 - most have no clock
        """Move the time origin forward by this many seconds."""


class WholeGrowth(Growth):
    """Growth in whole packets: one more per a number of acknowledged packets, as in Linux's `tcp_cong_avoid_ai`."""

    def __init__(self) -> None:
        self._counted = 0

    @abstractmethod
    def acks_per_increment(self, window: int, acknowledged: int, now_s: float, rtt_s: float) -> int:
        """Return the number of acknowledged packets for each increment; for the arguments see `grown`."""

    def grown(self, window: float, acknowledged: int, now_s: float, rtt_s: float) -> float:
        """Count the acknowledged packets and return the new window."""
        whole = int(window)
        acks = self.acks_per_increment(whole, acknowledged, now_s, rtt_s)
        if self._counted >= acks:  # this many were counted for a larger window
            self._counted = 0
            whole += 1
        self._counted += acknowledged
        increments, self._counted = divmod(self._counted, acks)
        return float(whole + increments)

    def after_loss(self, window: float) -> float:
        """Reset the count and return the reduced window."""
        self._counted = 0
        return float(self.reduced(int(window)))

    @abstractmethod
    def reduced(self, window: int) -> int:
        """Return the window after a loss."""


class CongestionControl(ABC):
    """A TCP congestion-control algorithm, as the model of a step sees it."""

    window: ClassVar[type[Growth] | None] = None
    """The growth of a connection's window from its first packet on; None to use the average window throughout."""

    response: ClassVar[LossResponse | None] = None
    """The loss response if no calibration has measured it; None for Reno's calibrated one."""

    goes_by_losses: ClassVar[bool] = True
    """Whether losses reduce the rate."""

    paces: ClassVar[bool] = False
    """Whether a window's packets are paced over a round trip; otherwise they are sent in a burst."""

    startup: ClassVar[float] = 0.0
    """For a control that paces, the initial rate in packets per round trip; 0 if unknown."""

    @staticmethod
    @abstractmethod
    def window_packets(loss: float, rtt_s: float) -> float:
        """Return the average number of packets in flight; infinite if losses do not matter.

        Args:
            loss: The share of packets lost, above 0 and up to 1.
            rtt_s: The round trip of the empty path in seconds.
        """


CONGESTION_CONTROLS: Registry[type[CongestionControl]] = Registry(
    "congestion control",
    "testbed.net.paths.congestion",
    "testbed.congestion_controls",
    derived_from(CongestionControl),
)
"""The modelled congestion-control algorithms, by their kernel names: `@CONGESTION_CONTROLS.register("reno")`."""

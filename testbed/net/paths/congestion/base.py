"""What a congestion control is to the model: a response function, and how quickly a loss is mended."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from testbed.plugins import Registry, derived_from


@dataclass(frozen=True)
class LossResponse:
    """Of one congestion control. window: factor to the textbook's; recovery: round trips until a loss is mended."""

    window: float = 1.0
    recovery: float = 1.0


class Growth(ABC):
    """How one connection's window goes up and down; packets and seconds."""

    leaves_by_trains: ClassVar[bool] = False
    """Whether it stops doubling once acknowledgements of a window come for half a round trip (HyStart)."""

    @abstractmethod
    def after_loss(self, window: float) -> float:
        """What is left of it."""

    @abstractmethod
    def grown(self, window: float, acknowledged: int, now_s: float, rtt_s: float) -> float:
        """With so many more packets acknowledged, where it was full and does not double any more."""

    def waited(self, seconds: float) -> None:  # noqa: B027 - most have no clock
        """Nothing was sent for so long."""

    def shift(self, seconds: float) -> None:  # noqa: B027 - most have no clock
        """Tell the time from so much later on."""


class WholeGrowth(Growth):
    """By one packet for so many acknowledged, which are counted, as Linux has it (`tcp_cong_avoid_ai`).

    Windows are whole.
    """

    def __init__(self) -> None:
        self._counted = 0

    @abstractmethod
    def each(self, window: int, acknowledged: int, now_s: float, rtt_s: float) -> int:
        """Packets acknowledged for one more. acknowledged: that are new."""

    def grown(self, window: float, acknowledged: int, now_s: float, rtt_s: float) -> float:
        """By those that are counted."""
        whole = int(window)
        each = self.each(whole, acknowledged, now_s, rtt_s)
        if self._counted >= each:  # of larger windows
            self._counted = 0
            whole += 1
        self._counted += acknowledged
        more, self._counted = divmod(self._counted, each)
        return float(whole + more)

    def after_loss(self, window: float) -> float:
        """And the count begins anew."""
        self._counted = 0
        return float(self.left(int(window)))

    @abstractmethod
    def left(self, window: int) -> int:
        """Of it, after a loss."""


class CongestionControl(ABC):
    """A congestion control of TCP, as the model of a step sees it."""

    window: ClassVar[type[Growth] | None] = None
    """Of one connection, from its first packet on; None: it is what it is on average, from the beginning."""

    response: ClassVar[LossResponse | None] = None
    """Where no calibration has measured it; None: as Reno's, which calibrations have."""

    goes_by_losses: ClassVar[bool] = True
    """Whether losses lower its rate."""

    paces: ClassVar[bool] = False
    """Whether it spreads a window's packets over a round trip; else they are sent at once."""

    startup: ClassVar[float] = 0.0
    """Of one that paces: packets in a round trip, at which it begins; 0 where it does not tell."""

    @staticmethod
    @abstractmethod
    def window_packets(loss: float, rtt_s: float) -> float:
        """Packets that are under way on average; infinite where losses do not matter.

        loss: share of packets, above 0, up to 1. rtt_s: round trip of the empty path, seconds.
        """


CONGESTION_CONTROLS: Registry[type[CongestionControl]] = Registry(
    "congestion control",
    "testbed.net.paths.congestion",
    "testbed.congestion_controls",
    derived_from(CongestionControl),
)
"""All that the model knows, by the kernel's names: `@CONGESTION_CONTROLS.register("reno")`."""

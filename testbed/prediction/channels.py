"""What of a connection between ranks is the same for all of its messages; and one that nothing can happen to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from testbed.net.paths.network import Network, PartShares, Path
from testbed.prediction.compute_clock import Clock
from testbed.prediction.events import Event, SendBuffer
from testbed.prediction.fluid import Fluid


@dataclass(eq=False, slots=True)
class Lane:
    """Of a connection, by its key.

    plain: nothing is lost on its paths, and there is no first pace. hops: whether it is one path, known link by link.
    timed: by bytes of a message, those with all that goes with it, and its latency, where that is always the same.
    """

    key: object
    paths: Sequence[Path]
    shares: list[PartShares]
    buffer: SendBuffer
    plain: bool
    hops: bool
    timed: dict[float, tuple[float, float]] = field(default_factory=dict)

    @classmethod
    def of(cls, key: object, paths: Sequence[Path], network: Network) -> Lane:
        """Over these paths."""
        lossless = all(path.lossy is None for path in paths)
        return cls(
            key,
            paths,
            [path.shares for path in paths],
            SendBuffer(network.send_buffer_bytes),
            lossless and not network.first_pace,
            lossless and len(paths) == 1 and network.routed,
        )

    def is_queued(self, fluid: Fluid, size_bytes: float, turn: int | None) -> bool:
        """Whether all of a message is in queues at once, and losses are theirs alone."""
        return self.hops and turn is not None and size_bytes <= fluid.holds_bytes(self.key, self.shares)

    def send(
        self,
        clock: Clock,
        fluid: Fluid,
        size_bytes: float,
        latency_s: float,
        turn: int | None,
        taken: Event,
        left: Callable[[], None],
        come: Callable[[], None],
    ) -> None:
        """A message on a plain one: as `Connections.send` has it."""
        until_s = clock.now_s + fluid.ahead_s(self.key, self.shares, size_bytes)

        def sent() -> None:
            clock.later(latency_s + max(0.0, until_s - clock.now_s), come)
            left()
            self.buffer.leave(size_bytes)

        fluid.send(self.key, self.shares, size_bytes, sent, turn=turn)
        self.buffer.put(size_bytes, taken)

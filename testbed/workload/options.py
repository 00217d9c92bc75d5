"""What a plan of training goes by, beside its mesh, schedule and stages."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import NamedTuple

from testbed.spec.scale import UNSCALED, Scale
from testbed.workload.intra_node import WithinRank
from testbed.workload.local_sgd import Outer
from testbed.workload.sequence_blocks import BlockWise


class SendToken(NamedTuple):
    """Who holds it may send from one building to another: which ones, and the bytes per second of a message alone."""

    direction: tuple[str, str]
    rate: float


class Group(NamedTuple):
    """Ranks that do collectives together: their number in the plan, and who they are."""

    number: int
    members: tuple[int, ...]


@dataclass(frozen=True)
class Options:
    """itemsize: bytes of an element that travels. bucket_cap: bytes of gradients that are all-reduced together.

    prefetch: how many layers ahead parameters are gathered; prefetch_first: and before a layer's gradients.
    algorithms: of dimensions' collectives, where not the usual ones; replicas' is the variant's. early_receives: if
    receives are posted as early as their senders' order has them, and messages leave at once; else a receive is posted
    when its action is next, and its message leaves then.
    sequence_parallel: tensor ranks share out the sequence. blocks: and put it together block by block.
    routing_skew: standard deviation of what an expert rank gets of a layer's tokens, as a share of the even part.
    send_tokens: pairs of ranks between which replicas send one after the other.
    slowdowns: factor of a rank's computing. jitter: of computing, see JobPlan. seed: of that and of routing. dscps: of
    what dimensions send. within: what each rank's accelerators take to send each other; () for nothing.
    training_steps: in a row. outer: of replicas, in place of gradients in every step.
    """

    itemsize: int
    bucket_cap: float
    prefetch: int = 1
    prefetch_first: bool = False
    algorithms: Mapping[str, str] = field(default_factory=dict)
    early_receives: bool = True
    sequence_parallel: bool = False
    blocks: BlockWise | None = None
    routing_skew: float = 0.0
    send_tokens: Mapping[tuple[int, int], SendToken] = field(default_factory=dict)
    slowdowns: Mapping[int, float] = field(default_factory=dict)
    jitter: float = 0.0
    seed: int = 0
    dscps: Mapping[str, int] = field(default_factory=dict)
    scale: Scale = UNSCALED
    within: Sequence[WithinRank] = ()
    training_steps: int = 1
    outer: Outer | None = None

    @property
    def likeness(self) -> Hashable:
        """Equal for those that are the same, but for send tokens."""
        values = [getattr(self, name) for name in _LIKE]
        plain = tuple(tuple(own.items()) if isinstance(own, Mapping) else own for own in values)
        return plain, repr(self.within)


_LIKE = [own.name for own in fields(Options) if own.name not in ("send_tokens", "within")]

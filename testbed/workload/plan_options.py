"""Options of a training plan, and which ranks can share one pattern.

Replicas at one place of the pipeline differ in their peers and groups alone, unless experts get unequal shares, or keys
and values travel around a ring. The plan is made for one of them, as a pattern that all of them use.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import NamedTuple

from testbed.spec.scale import UNSCALED, Scale
from testbed.workload.intra_node import IntraNodeModel
from testbed.workload.local_sgd import OuterSchedule
from testbed.workload.parallelism import CONTEXT, EXPERT, TENSOR
from testbed.workload.plan_patterns import Relocation
from testbed.workload.sequence_parallel import BlockWise


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
    within: Sequence[IntraNodeModel] = ()
    training_steps: int = 1
    outer: OuterSchedule | None = None

    @property
    def likeness(self) -> Hashable:
        """Equal for those that are the same, but for send tokens."""
        values = [getattr(self, name) for name in _LIKE]
        plain = tuple(tuple(own.items()) if isinstance(own, Mapping) else own for own in values)
        return plain, repr(self.within)


_LIKE = [own.name for own in fields(Options) if own.name not in ("send_tokens", "within")]


def move_of(groups: Mapping[str, Group], line: Sequence[int]) -> Relocation:
    """Of a rank in these groups, and in this line of a pipeline's ranks."""
    return Relocation(tuple(own.number for own in groups.values()), tuple(line))


def in_places(groups: Mapping[str, Group]) -> dict[str, Group]:
    """A rank's groups as a pattern has them: numbered by their places here."""
    return {name: Group(place, own.members) for place, (name, own) in enumerate(groups.items())}


def likeness(rank: int, groups: Mapping[str, Group], options: Options) -> Hashable | None:
    """Equal for ranks that do alike if they are at one place of the pipeline, but for turns that they take (`turns`).

    None for those that are like no other.
    """
    uneven = options.routing_skew and EXPERT in groups
    blocks = options.blocks is not None and TENSOR in groups
    if uneven or blocks or CONTEXT in groups:
        return None
    sizes = tuple((name, len(own.members)) for name, own in groups.items())
    within = repr(options.within[rank]) if options.within else None
    return sizes, options.slowdowns.get(rank, 1.0), within

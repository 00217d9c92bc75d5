"""Options of a training plan, and which ranks can share one pattern.

Replicas at the same pipeline stage differ only in their peers and groups, unless experts get uneven shares, or keys and
values travel around a ring. Such a plan is made for one replica, as a pattern that all of them share.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import NamedTuple

from testbed.spec.scale import UNSCALED, Scale
from testbed.workload.intra_node import IntraNodeModel
from testbed.workload.local_sgd import OuterSchedule
from testbed.workload.parallelism import CONTEXT, EXPERT, TENSOR
from testbed.workload.sequence_parallel import BlockWise


class SendToken(NamedTuple):
    """A permission to send from one building to another, held by one rank at a time.

    Attributes:
        direction: Source and destination building.
        rate: Bytes per second of a message that is alone on its path.
    """

    direction: tuple[str, str]
    rate: float


class Group(NamedTuple):
    """A group of ranks that run collectives together: its number in the plan, and its members."""

    number: int
    members: tuple[int, ...]


@dataclass(frozen=True)
class Options:
    """Options of a training plan, apart from mesh, schedule and stages.

    Attributes:
        itemsize: Bytes of an element on the wire.
        bucket_cap: Bytes of gradients that are all-reduced together.
        prefetch: Layers ahead of use at which parameters are gathered.
        prefetch_first: Whether the next layer's parameters are gathered before this layer's gradients are reduced.
        algorithms: Collective algorithm per mesh dimension, if not the default; replicas use the variant's.
        early_receives: Whether receives are posted in advance, in their senders' order, and messages leave at once.
            Otherwise a receive is posted when its action is next, and its message leaves at that time.
        sequence_parallel: Whether tensor-parallel ranks split the sequence.
        blocks: How tensor-parallel ranks gather and reduce the sequence block by block; None for whole collectives.
        routing_skew: Standard deviation of the number of tokens of a layer that an expert rank receives, relative to
            the mean.
        send_tokens: Pairs of ranks between which replicas take turns to send.
        slowdowns: Factor by which a rank's computation takes longer.
        jitter: See `JobPlan`.
        seed: Seed of jitter and of routing.
        dscps: DSCP of the traffic of each mesh dimension.
        scale: Scale of the emulation.
        within: Each rank's model of traffic between its own accelerators; () for none.
        training_steps: Number of consecutive training steps in one plan.
        outer: Exchange between replicas that replaces the gradient reduction of every step.
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
    def key(self) -> Hashable:
        """A key that is equal for the same options, ignoring send tokens."""
        values = [getattr(self, name) for name in _KEY_FIELDS]
        hashable = tuple(tuple(value.items()) if isinstance(value, Mapping) else value for value in values)
        return hashable, repr(self.within)


_KEY_FIELDS = [own.name for own in fields(Options) if own.name not in ("send_tokens", "within")]


def symmetry_key(rank: int, groups: Mapping[str, Group], options: Options) -> Hashable | None:
    """Return a key that is equal for ranks that can share a pattern at one pipeline stage, ignoring send tokens.

    The result is None for a rank that cannot share a pattern.
    """
    uneven = options.routing_skew and EXPERT in groups
    blocks = options.blocks is not None and TENSOR in groups
    if uneven or blocks or CONTEXT in groups:
        return None
    sizes = tuple((name, len(own.members)) for name, own in groups.items())
    within = repr(options.within[rank]) if options.within else None
    return sizes, options.slowdowns.get(rank, 1.0), within

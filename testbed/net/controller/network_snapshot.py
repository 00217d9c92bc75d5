"""What the controller's process is told about the network that it steers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from testbed.spec.control_delays import INSTANT, Control

if TYPE_CHECKING:
    from testbed.net.controller.edges import EdgePorts
    from testbed.net.controller.policy_view import Flow
    from testbed.spec.topology import Topology


@dataclass(frozen=True)
class Snapshot:
    """A network and what is known about it, as JSON carries it; its times are those of `control_delays.Control`."""

    topology: Mapping[str, Any]
    edges: Sequence[Mapping[str, Any]]
    policy: Mapping[str, Any]
    flows: Sequence[Mapping[str, Any]] = ()
    seed: int = 0
    down: Sequence[str] = ()
    reaction_s: float = 0.0
    rule_s: float = 0.0


def snapshot_of(
    topology: Topology,
    edges: Sequence[EdgePorts],
    policy: Mapping[str, Any],
    flows: Iterable[Flow] = (),
    seed: int = 0,
    control: Control = INSTANT,
) -> Snapshot:
    """The same from the forms that policies take; policy: see `PolicyChoice.to_data`."""
    from testbed.net.controller.edges import edges_to_data  # noqa: PLC0415 (the process itself starts faster without)

    return Snapshot(
        asdict(topology),
        edges_to_data(edges),
        dict(policy),
        [asdict(flow) for flow in flows],
        seed,
        reaction_s=control.reaction_s,
        rule_s=control.rule_s,
    )

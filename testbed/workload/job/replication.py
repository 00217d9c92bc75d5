"""What ranks are told of replicas that come and go. Figures are emulated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from testbed.comm.replicas import Policy, RingSettings


@dataclass(frozen=True)
class Replication:
    """replicas: ranks of each, in the order of their inner coordinates. policy: of the coordinator, but for its steps.

    state_elements: of 4 bytes, by inner coordinate, what a returned rank has to get over the network; dscp: of that.
    checkpoint_elements: as state_elements, of what goes to the next replica with each checkpoint; empty: nothing.
    silent: ranks that may be lost with their machines, so that no line of theirs is seen to close.
    """

    replicas: tuple[tuple[int, ...], ...]
    policy: Policy
    ring: RingSettings
    heartbeat_s: float
    state_elements: tuple[int, ...]
    dscp: int
    silent: tuple[int, ...] = ()
    checkpoint_elements: tuple[int, ...] = ()

    @property
    def tolerant(self) -> bool:
        """Whether replicas go on without one that is lost."""
        return self.policy.mode == "ftar"

    @classmethod
    def from_document(cls, document: dict[str, Any]) -> Replication:
        """The inverse of dataclasses.asdict, after a way through JSON."""
        return cls(
            tuple(map(tuple, document["replicas"])),
            Policy(**document["policy"]),
            RingSettings(**document["ring"]),
            document["heartbeat_s"],
            tuple(document["state_elements"]),
            document["dscp"],
            tuple(document["silent"]),
            tuple(document["checkpoint_elements"]),
        )

"""Hosts that carry background traffic: where each is, whom it sends to. Ready for JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class BackgroundHost:
    """One host of another job. targets: addresses that it sends to; source_port: of its first connection."""

    job: str
    host: str
    ip: str
    namespace_pid: int
    targets: tuple[str, ...]
    connections: int
    dscp: int
    congestion_control: str | None
    source_port: int

    @classmethod
    def from_document(cls, document: dict[str, Any]) -> BackgroundHost:
        """The inverse of dataclasses.asdict, after a way through JSON."""
        return cls(**{**document, "targets": tuple(document["targets"])})

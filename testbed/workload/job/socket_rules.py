"""What the sockets of each connection get: a scenario's settings by class of traffic and distance. Ready for JSON."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from testbed.comm.transport import SocketSettings
from testbed.comm.transport.wire import ConnectionKey
from testbed.spec.keywords import BDP, PLANNED

Planned = tuple[int, int, int, int, float]
"""Rank, peer, DSCP, connection of the pair, and the bit/s that the network's policy has in mind for what it sends."""


@dataclass(frozen=True)
class SocketRule:
    """Settings of some connections, in emulated figures; None where the rule says nothing, or fits all."""

    dscps: tuple[int, ...] | None = None
    distance: str | None = None
    congestion_control: str | None = None
    pacing_bps: float | str | None = None
    buffer_bytes: int | str | None = None

    def fits(self, dscp: int, distance: str) -> bool:
        """Whether a connection is one of those meant."""
        building = "same_building" if distance == "same_zone" else distance
        return (self.dscps is None or dscp in self.dscps) and self.distance in (None, distance, building)


@dataclass(frozen=True)
class SocketRules:
    """All rules; of those that fit the first that says something counts, setting by setting.

    bdp_bytes: per rank and peer, where a rule asks for it; planned: likewise.
    """

    rules: tuple[SocketRule, ...] = ()
    bdp_bytes: tuple[tuple[int, ...], ...] = ()
    planned: tuple[Planned, ...] = ()

    def settings(
        self, usual: SocketSettings, rank: int, peer: int, key: ConnectionKey, distance: str
    ) -> SocketSettings:
        """What this rank's end of a connection gets."""
        found: dict[str, Any] = {}
        for rule in self.rules:
            if rule.fits(key.traffic.dscp, distance):
                for name in ("congestion_control", "pacing_bps", "buffer_bytes"):
                    if (value := getattr(rule, name)) is not None:
                        found.setdefault(name, value)
        if not found:
            return usual
        buffer_bytes = found.get("buffer_bytes")
        if buffer_bytes == BDP:
            # one under way, another one so that no end waits for the other's reading, acknowledging or waking up
            buffer_bytes = 2 * self.bdp_bytes[rank][peer]
        pacing_bps = found.get("pacing_bps")
        if pacing_bps == PLANNED:
            wanted = rank, peer, key.traffic.dscp, key.channel
            pacing_bps = next((entry[-1] for entry in self.planned if entry[:-1] == wanted), None)
        return replace(
            usual,
            congestion_control=found.get("congestion_control", usual.congestion_control),
            window_bytes=buffer_bytes,
            pacing_bps=pacing_bps,
        )

    def try_out(self, usual: SocketSettings) -> None:
        """TransportError for what this host's kernel refuses, before there are connections."""
        for rule in self.rules:
            if rule.congestion_control is not None:
                settings = replace(usual, congestion_control=rule.congestion_control)
                with settings.make() as trial:
                    settings.apply(trial)

    @classmethod
    def from_document(cls, document: dict[str, Any]) -> SocketRules:
        """The inverse of dataclasses.asdict, after a round trip through JSON."""
        rules = [
            SocketRule(**{**rule, "dscps": None if rule["dscps"] is None else tuple(rule["dscps"])})
            for rule in document["rules"]
        ]
        bdp_bytes = tuple(map(tuple, document["bdp_bytes"]))
        return cls(tuple(rules), bdp_bytes, tuple(map(tuple, document["planned"])))

"""UDP ports of RoCEv2: packets go to 4791, from a port that hashes of flows go by."""

from __future__ import annotations

ROCE_PORT = 4791
FIRST_SOURCE_PORT = 0xC000  # what cards choose from: the upper 14 bits' worth
SOURCE_PORTS = 1 << 14


def udp_port(port: int) -> int:
    """The one that stands for a connection that would otherwise come from this port; 0, any, stays 0."""
    return FIRST_SOURCE_PORT | (port % SOURCE_PORTS or 1) if port else 0


def flow_label(port: int) -> int:
    """By which a card is told the port; 0 leaves it the choice."""
    return port - FIRST_SOURCE_PORT if port else 0

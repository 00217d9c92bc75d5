"""Emulated links: rate and queue (HTB), delay, jitter, loss and other impairments (link engines)."""

from testbed.net.errors import LinkError, SettingMismatch
from testbed.net.links.link_engine import DirectionStats, LinkEngine, LinkWire
from testbed.net.links.netns import network_namespace

__all__ = [
    "DirectionStats",
    "LinkEngine",
    "LinkError",
    "LinkWire",
    "SettingMismatch",
    "network_namespace",
]

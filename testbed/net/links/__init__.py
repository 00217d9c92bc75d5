"""Links: what a packet meets between two nodes. Rate and queue (HTB), delay, jitter and loss (link engines)."""

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

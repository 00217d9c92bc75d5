"""Links: what a packet meets between two nodes. Rate and queue (HTB), delay, jitter and loss (link engines)."""

from testbed.net.links.errors import LinkError, SettingMismatch
from testbed.net.links.netns import network_namespace
from testbed.net.links.wire import DirectionAccount, LinkEngine, LinkWire

__all__ = [
    "DirectionAccount",
    "LinkEngine",
    "LinkError",
    "LinkWire",
    "SettingMismatch",
    "network_namespace",
]

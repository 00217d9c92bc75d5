"""Boots a fresh kernel once and tries, in it, every feature that the recipe promises."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from testbed.net.virtual.errors import VirtualClockError
from testbed.net.virtual.guest import Guest, GuestSettings
from testbed.net.virtual.image import KernelImage

PROGRAM = Path(__file__).with_name("features_inside.py")
MEMORY_BYTES = 512 << 20
TIMEOUT_S = 120.0


def try_features(image: KernelImage) -> tuple[str, ...]:
    """The names of the features, all of which work; VirtualClockError names those that do not, with the reason."""
    said: list[str] = []
    complaints: list[str] = []
    settings = GuestSettings(memory_bytes=MEMORY_BYTES, timeout_s=TIMEOUT_S, open_vswitch=False)
    guest = Guest(image, settings)
    command = [sys.executable, "-S", "-E", str(PROGRAM)]
    ended = guest.run(command, Path("/"), {"TESTBED_UID": str(os.geteuid())}, said.append, complaints.append)
    try:
        found: dict[str, str] = json.loads("".join(said))
    except ValueError:
        raise VirtualClockError(
            f"the features could not be tried (status {ended.status}): {''.join(complaints) or ''.join(said)}"
        ) from None
    if broken := {name: reason for name, reason in found.items() if reason}:
        listed = "\n".join(f"  {name}: {reason}" for name, reason in broken.items())
        raise VirtualClockError(f"the kernel boots, but these features do not work in it:\n{listed}")
    return tuple(found)

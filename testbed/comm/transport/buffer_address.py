"""Where views of memory lie, for those who tell the kernel or a card."""

from __future__ import annotations

import numpy as np


def address_of(view: memoryview) -> int:
    """Of its first byte; 0 of nothing. Whoever uses it keeps the view."""
    return int(np.frombuffer(view, np.uint8).__array_interface__["data"][0]) if view else 0

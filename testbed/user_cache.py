"""Where what takes long to make is kept for a user."""

from __future__ import annotations

import os
from pathlib import Path


def user_cache(what: str) -> Path:
    """The user's folder for it; $XDG_CACHE_HOME moves it."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return home / "scale-across-testbed" / what

"""pyverbs, by this Python's own packages or by those of the distribution, for whose Python it is built."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

PACKAGED = Path("/usr/lib/python3/dist-packages/pyverbs/__init__.py")
LACKING = "RDMA needs pyverbs, libibverbs and its providers (Debian: python3-pyverbs ibverbs-providers)"


def pyverbs(module: str) -> ModuleType:
    """One of its modules. ImportError says what is lacking."""
    try:
        if "pyverbs" not in sys.modules and importlib.util.find_spec("pyverbs") is None:
            _take_packaged()
        return importlib.import_module(f"pyverbs.{module}")
    except ImportError as error:
        raise ImportError(f"{LACKING}: {error}") from None


def _take_packaged() -> None:
    """Of the distribution's packages this one alone: others would come before this Python's own."""
    if not PACKAGED.exists():
        raise ImportError(f"no {PACKAGED.parent}")
    spec = importlib.util.spec_from_file_location(
        "pyverbs", PACKAGED, submodule_search_locations=[str(PACKAGED.parent)]
    )
    assert spec is not None
    assert spec.loader is not None
    sys.modules["pyverbs"] = made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)

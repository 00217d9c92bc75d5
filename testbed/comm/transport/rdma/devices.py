"""RDMA devices of this host: finding the NIC that has a rank's address, and importing pyverbs.

pyverbs comes from this Python's own packages or, failing that, from those of the distribution, which are built for its
own Python.
"""

from __future__ import annotations

import importlib
import importlib.util
import ipaddress
import sys
import time
from pathlib import Path
from types import ModuleType

from testbed.comm.transport.base import TransportError

DEVICES = Path("/sys/class/infiniband")
WINDOW = Path("/sys/module/rdma_rxe/parameters/max_unacked_psns")
_APPEARS_S, _LOOK_S = 2.0, 0.002  # the kernel adds an interface's addresses to its RDMA device asynchronously
_MAX_ADDRESSES = 4

_known: dict[str, tuple[str, int]] = {}  # a cache for all ranks of a process


def find_card(ip: str, devices: Path = DEVICES, patience_s: float = _APPEARS_S) -> tuple[str, int]:
    """Return the name of the RDMA device with this IPv4 address, and its GID index. Raises TransportError."""
    deadline_s = time.monotonic() + patience_s
    while ip not in _known:
        _known.update(_addresses(devices))
        if ip not in _known:
            if time.monotonic() >= deadline_s:
                raise TransportError(
                    f"RDMA: no card with verbs has the address {ip}; hosts have one under the virtual clock, with "
                    "`transport.kind: rdma`: see docs/reference/rdma.md"
                )
            time.sleep(_LOOK_S)
    return _known[ip]


def _addresses(devices: Path) -> dict[str, tuple[str, int]]:
    """Return all IPv4 addresses of all devices, which list them as mapped IPv6 addresses."""
    addresses: dict[str, tuple[str, int]] = {}
    for device in sorted(devices.iterdir()) if devices.exists() else ():
        for index in range(_MAX_ADDRESSES):
            try:
                gid = (device / "ports/1/gids" / str(index)).read_text().strip()
                kind = (device / "ports/1/gid_attrs/types" / str(index)).read_text().strip()
                mapped = ipaddress.IPv6Address(gid).ipv4_mapped
            except (OSError, ValueError):  # no address with this index
                continue
            if mapped is not None and kind == "RoCE v2":
                addresses[str(mapped)] = device.name, index
    return addresses


def set_window(packets: int) -> None:
    """Set how many packets each queue pair may have in flight, on all devices of this kernel. Raises TransportError."""
    try:
        if int(WINDOW.read_text()) != packets:
            WINDOW.write_text(f"{packets}\n")
    except OSError as error:
        raise TransportError(f"RDMA: {WINDOW}: {error.strerror}; the window is 128 packets here") from None


PACKAGED = Path("/usr/lib/python3/dist-packages/pyverbs/__init__.py")
MISSING = "RDMA needs pyverbs, libibverbs and its providers (Debian: python3-pyverbs ibverbs-providers)"


def import_pyverbs(module: str) -> ModuleType:
    """Import one of pyverbs' modules. The ImportError says what to install."""
    try:
        if "pyverbs" not in sys.modules and importlib.util.find_spec("pyverbs") is None:
            _import_packaged()
        return importlib.import_module(f"pyverbs.{module}")
    except ImportError as error:
        raise ImportError(f"{MISSING}: {error}") from None


def _import_packaged() -> None:
    """Import only this package of the distribution: its others would take precedence over this Python's own."""
    if not PACKAGED.exists():
        raise ImportError(f"no {PACKAGED.parent}")
    spec = importlib.util.spec_from_file_location(
        "pyverbs", PACKAGED, submodule_search_locations=[str(PACKAGED.parent)]
    )
    assert spec is not None
    assert spec.loader is not None
    sys.modules["pyverbs"] = made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)

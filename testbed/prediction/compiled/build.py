"""Builds the compiled simulation from the package's C sources on first use, and caches it for the user."""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import lru_cache
from importlib import resources
from pathlib import Path

from testbed.caches import user_cache

HEADER, CODE = "engine.h", "engine.c"
FLAGS = (
    "-std=c11",
    "-O2",
    "-shared",
    "-fPIC",
    "-ffp-contract=off",
)  # -ffp-contract=off: round products and sums separately, as Python does
COMPILERS: Sequence[str] = ("cc", "gcc", "clang")
MOST_S = 60  # compiler timeout; it usually takes a second
_KINDS = {"int32_t": ctypes.c_int32, "double": ctypes.c_double}
_FIELD = re.compile(r"^ *(const )?(int8_t|int32_t|double) ([^;()]+);", re.MULTILINE)


def _fields(header: str) -> list[tuple[str, type]]:
    """Return the fields of the structure `Step` in the header."""
    body = header.partition("typedef struct {")[2].partition("} Step;")[0]
    return [
        (name.strip("* \n"), ctypes.c_void_p if constant else _KINDS[kind])
        for constant, kind, names in _FIELD.findall(body)
        for name in names.split(",")
    ]


class Step(ctypes.Structure):
    """The C structure of a step; arrays are pointers."""

    _fields_ = _fields(resources.files(__package__).joinpath(HEADER).read_text())


@lru_cache(1)
def loop() -> ctypes.CDLL | None:
    """Return the loaded library; None if it cannot be compiled here."""
    folder = resources.files(__package__)
    sources = {own.name: own.read_bytes() for own in folder.iterdir() if own.name.endswith((".c", ".h"))}
    found = hashlib.sha256(repr((sorted(sources.items()), FLAGS)).encode()).hexdigest()[:16]
    kept = user_cache("model") / f"loop-{found}.so"
    try:
        if not kept.exists():
            _make(sources, kept)
        loaded = ctypes.CDLL(str(kept))
    except (OSError, subprocess.SubprocessError):
        return None
    loaded.play.argtypes = [ctypes.POINTER(Step)] + [ctypes.c_void_p] * 4
    return loaded


def _make(sources: dict[str, bytes], kept: Path) -> None:
    """Compile the sources. Raises OSError, SubprocessError."""
    compiler = next((path for path in map(shutil.which, COMPILERS) if path), None)
    if compiler is None:
        raise FileNotFoundError("a C compiler")
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=kept.parent) as scratch:
        for name, text in sources.items():
            (Path(scratch) / name).write_bytes(text)
        made = Path(scratch) / kept.name
        command = [compiler, *FLAGS, "-o", str(made), str(Path(scratch) / CODE), "-lm"]
        subprocess.run(command, check=True, capture_output=True, timeout=MOST_S)
        os.replace(made, kept)

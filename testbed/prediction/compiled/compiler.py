"""Compiler of the C sources of flows and steps. Standard library only, since the wheel's build loads it."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

FOLDER = Path(__file__).parent
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


def library_name() -> str:
    """Return the library's file name, which depends on the sources and flags."""
    sources = {own.name: own.read_bytes() for own in FOLDER.iterdir() if own.suffix in {".c", ".h"}}
    return f"flows-{hashlib.sha256(repr((sorted(sources.items()), FLAGS)).encode()).hexdigest()[:16]}.so"


def compile_library(target: Path) -> None:
    """Compile the sources into a shared library; raise OSError or SubprocessError on failure."""
    compiler = next((path for path in map(shutil.which, COMPILERS) if path), None)
    if compiler is None:
        raise FileNotFoundError("none")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        made = Path(scratch) / target.name
        command = [compiler, *FLAGS, "-o", str(made), str(FOLDER / CODE), "-lm"]
        subprocess.run(command, check=True, capture_output=True, timeout=MOST_S)
        os.replace(made, target)

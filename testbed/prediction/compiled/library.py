"""The compiled library of flows and steps: from the wheel, or compiled on first use and cached for the user."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.caches import user_cache
from testbed.errors import TestbedError
from testbed.prediction.compiled.compiler import (
    COMPILERS,
    FOLDER,
    HEADER,
    compile_library,
    library_name,
)

VARIABLE = "TESTBED_FLOWS"
_KINDS: Mapping[str, type[ctypes._SimpleCData[Any]]] = {
    "int8_t": ctypes.c_int8,
    "int32_t": ctypes.c_int32,
    "double": ctypes.c_double,
}
_FIELD = re.compile(r"^ *(const )?(int8_t|int32_t|double) ([^;()]+);", re.MULTILINE)


def _fields(header: str) -> Iterator[tuple[str, type[ctypes._SimpleCData[Any]], bool]]:
    """Yield the fields of the structure `Step` in the header: name, type, and whether it is an array."""
    body = header.partition("typedef struct {")[2].partition("} Step;")[0]
    for constant, kind, names in _FIELD.findall(body):
        for name in names.split(","):
            yield name.strip("* \n"), _KINDS[kind], bool(constant)


_STEP = list(_fields((FOLDER / HEADER).read_text()))
COLUMN_TYPES = {name: np.dtype(kind) for name, kind, is_array in _STEP if is_array}


class Step(ctypes.Structure):
    """The C structure of a step; arrays are pointers."""

    _fields_ = [(name, ctypes.c_void_p if is_array else kind) for name, kind, is_array in _STEP]


def as_columns(rows: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    """Return arrays of `Step` by name, each with its type in the header."""
    return {name: np.asarray(values, dtype=COLUMN_TYPES[name]) for name, values in rows.items()}


class NoCompilerError(TestbedError):
    """The error raised if the library cannot be compiled on this machine."""


_HANDLE, _ARRAY, _NUMBER, _FIGURE = ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32, ctypes.c_double
_FUNCTIONS: Mapping[str, tuple[type | None, tuple[type, ...]]] = {
    "play": (_NUMBER, (ctypes.POINTER(Step), _ARRAY, _ARRAY, _ARRAY, _ARRAY)),
    "fluid_new": (_HANDLE, (_NUMBER, _ARRAY, _ARRAY, _NUMBER, *[_ARRAY] * 4)),
    "fluid_free": (None, (_HANDLE,)),
    "fluid_connect": (_NUMBER, (_HANDLE, _FIGURE, _FIGURE, _NUMBER, _ARRAY, _ARRAY, _ARRAY)),
    "fluid_send": (_NUMBER, (_HANDLE, _NUMBER, _FIGURE, ctypes.c_int64, ctypes.c_int64, _FIGURE)),
    "fluid_update": (None, (_HANDLE, _FIGURE)),
    "fluid_ahead_s": (_FIGURE, (_HANDLE, _NUMBER, _FIGURE, _FIGURE)),
    "fluid_leaves_s": (_FIGURE, (_HANDLE,)),
    "fluid_find_gone": (_NUMBER, (_HANDLE, _FIGURE)),
    "fluid_complete": (ctypes.c_int64, (_HANDLE, _NUMBER)),
    "fluid_busy": (_NUMBER, (_HANDLE,)),
    "fluid_fair_rates": (None, (_HANDLE, _ARRAY)),
}


@lru_cache(1)
def load_library() -> ctypes.CDLL:
    """Return the loaded library; raise NoCompilerError if it cannot be compiled."""
    try:
        loaded = _load(library_name())
    except (OSError, subprocess.SubprocessError) as error:
        raise NoCompilerError(
            where="model of flows",
            got=_reason(error),
            expected=f"a C compiler ({', '.join(COMPILERS)}) with the headers of the C library",
            hint="Debian and Ubuntu: apt install gcc libc6-dev",
        ) from error
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(loaded, name)
        function.restype, function.argtypes = result, arguments
    return loaded


def environment() -> dict[str, str]:
    """Return the environment in which another process on this machine, or in a guest, loads the same library.

    A guest's home is root's, which the guest's user need not be able to read. Raises NoCompilerError.
    """
    file = load_library()._name
    return {VARIABLE: file} if Path(file).exists() else {}


def _load(name: str) -> ctypes.CDLL:
    """Load the library: the given one, the wheel's, the cached one, or a new one."""
    if given := os.environ.get(VARIABLE):
        return ctypes.CDLL(given)
    with contextlib.suppress(OSError):  # a checkout has none, and the wheel's may be for another C library
        return ctypes.CDLL(str(FOLDER / name))
    kept = user_cache("model") / name
    try:
        if not kept.exists():
            compile_library(kept)
        return ctypes.CDLL(str(kept))
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
    with tempfile.TemporaryDirectory(
        prefix="testbed-flows-"
    ) as scratch:  # there is no cache that can be used
        compile_library(Path(scratch) / name)
        return ctypes.CDLL(str(Path(scratch) / name))


def _reason(error: OSError | subprocess.SubprocessError) -> str:
    said = (
        error.stderr.decode(errors="replace").strip()
        if isinstance(error, subprocess.CalledProcessError)
        else ""
    )
    return said.splitlines()[0] if said else str(error)

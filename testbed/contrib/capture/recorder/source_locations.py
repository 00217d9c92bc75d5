"""Source locations of operations: file and line, and the module of the model, in forward and backward passes."""

from __future__ import annotations

import functools
import os
import sys
import sysconfig
from bisect import bisect_right
from pathlib import Path
from types import FrameType
from typing import Any

import torch

_WRAPPERS = {"module", "_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module"}
_OWN = str(Path(__file__).parent)
_TORCH = str(Path(torch.__file__).parent)
_LIBRARY = sysconfig.get_paths()["stdlib"]


def here() -> str:
    """Return FILE:LINE of the innermost frame outside PyTorch, Python and the recorder; "" if there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = _shown(frame.f_code.co_filename)
        if name is not None:
            return f"{name}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


@functools.cache
def _shown(file: str) -> str | None:
    """Return the displayed name of a file of the user's own code."""
    if file.startswith("<") or file.startswith((_OWN, _TORCH)):
        return None
    if file.startswith(_LIBRARY) and "site-packages" not in file:
        return None
    path = os.path.relpath(file)
    return file if path.startswith("..") else path


class Modules:
    """The current module, found by hooks (forward pass) or by when the current graph node was created (backward)."""

    def __init__(self) -> None:
        self._stack: list[str] = []
        self._names: dict[int, str] = {}
        self._numbers: list[int] = []
        self._at: list[str] = []

    def install(self) -> None:
        """Hook all modules from now on."""
        torch.nn.modules.module.register_module_forward_pre_hook(self._enter)
        torch.nn.modules.module.register_module_forward_hook(self._leave, always_call=True)

    def clear(self) -> None:
        """Forget the graph nodes of the previous step."""
        self._numbers.clear()
        self._at.clear()

    def current(self, backward: bool) -> str:
        """Return the innermost module, "" outside of all."""
        if not backward:
            return self._stack[-1] if self._stack else ""
        node = torch._C._current_autograd_node()
        if node is None:
            return ""
        number = node._sequence_nr()
        index = bisect_right(self._numbers, number) - 1
        return self._at[index] if index >= 0 else ""

    def _enter(self, module: Any, _: Any) -> None:
        if id(module) not in self._names:
            self._learn(module)
        self._stack.append(self._names.get(id(module), ""))
        self._note()

    def _leave(self, *_: Any) -> None:
        if self._stack:
            self._stack.pop()
        self._note()

    def _learn(self, root: Any) -> None:
        """Record the names of the outermost called module's submodules, as its parameters have them."""
        inside = f"{self._stack[-1]}." if self._stack and self._stack[-1] else ""
        for name, module in root.named_modules():
            parts = [part for part in f"{inside}{name}".split(".") if part and part not in _WRAPPERS]
            self._names.setdefault(id(module), ".".join(parts))

    def _note(self) -> None:
        number = torch._C._autograd._get_sequence_nr()
        now = self._stack[-1] if self._stack else ""
        if self._numbers and self._numbers[-1] == number:
            self._at[-1] = now
        elif not self._at or self._at[-1] != now:
            self._numbers.append(number)
            self._at.append(now)

"""PyTorch's collectives over ours: `init_process_group("testbed")` in a program under `testbed launch`.

`autoload` is what PyTorch calls there by itself when it is imported; `computing` lets an accelerator's time pass.
"""

import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from testbed.contrib.torch.backend import register
    from testbed.contrib.torch.roofline import Roofline, computing, sleep

__all__ = ["Roofline", "autoload", "computing", "register", "sleep"]


def __getattr__(name: str) -> Any:
    """What needs PyTorch, imported when it is first asked for: who starts programs has none."""
    if name not in __all__:
        raise AttributeError(f"module 'testbed.contrib.torch' has no attribute {name!r}")
    from testbed.contrib.torch import backend, roofline  # noqa: PLC0415

    return getattr(backend if name == "register" else roofline, name)


def autoload() -> None:
    """Make the backend known, as PyTorch's entry points `torch.backends` are called; a warning where that fails.

    Who wants another backend is not to be kept from it.
    """
    try:
        from testbed.contrib.torch.backend import register  # noqa: PLC0415

        register()
    except (ImportError, SyntaxError, TypeError) as error:  # such as of a Python that is too old
        warnings.warn(f"torch backend testbed: {error}", stacklevel=2)

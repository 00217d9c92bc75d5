"""A torch.distributed backend on the testbed: `init_process_group("testbed")` in a program under `testbed launch`.

PyTorch calls `autoload` automatically on import; `computing` simulates the compute time of an accelerator.
"""

import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from testbed.contrib.torch.backend import register
    from testbed.contrib.torch.roofline import Roofline, computing, sleep

__all__ = ["Roofline", "autoload", "computing", "register", "sleep"]


def __getattr__(name: str) -> Any:
    """Import names that need PyTorch on first use, because the launcher has no PyTorch."""
    if name not in __all__:
        raise AttributeError(f"module 'testbed.contrib.torch' has no attribute {name!r}")
    from testbed.contrib.torch import backend, roofline  # noqa: PLC0415

    return getattr(backend if name == "register" else roofline, name)


def autoload() -> None:
    """Register the backend, as PyTorch calls its entry points `torch.backends`; warns if that fails.

    A failure must not prevent the use of other backends.
    """
    try:
        from testbed.contrib.torch.backend import register  # noqa: PLC0415

        register()
    except (ImportError, SyntaxError, TypeError) as error:  # for example, if Python is too old
        warnings.warn(f"torch backend testbed: {error}", stacklevel=2)

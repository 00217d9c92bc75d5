"""Packages that only some forms need, which a user installs with an extra of ours."""

from __future__ import annotations

from testbed.errors import BadInput


def lacking(form: str, package: str, extra: str) -> BadInput:
    """What `--to FORM` raises where its package cannot be imported."""
    return BadInput(
        where=f"--to {form}",
        got=f"no {package} installed",
        expected=f"it: pip install 'scale-across-testbed[{extra}]'",
    )

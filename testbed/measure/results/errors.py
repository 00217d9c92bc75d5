"""What can be wrong with a run's files."""

from __future__ import annotations

from testbed.errors import BadInput


class BadResult(BadInput, ValueError):
    """A folder holds no run, or one of another version; names file, field or line, value and what was expected."""


class RunExists(BadInput, FileExistsError):
    """A run was to be made where something is already; nothing was touched."""


class NotWritable(BadInput, PermissionError):
    """A folder cannot be made or written here; says where, why, and which option names another place."""

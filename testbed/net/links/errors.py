"""Errors of the links room."""

from __future__ import annotations

from testbed.errors import TestbedError


class LinkError(TestbedError):
    """A link could not be set up, or it broke while in use."""


class SettingMismatch(LinkError):
    """A setting read back from the system differs from what was asked."""

    def __init__(self, where: str, setting: str, asked: object, found: object) -> None:
        super().__init__(
            f"{where}: {setting}: asked for {asked}, the system has {found}",
            where=f"{where}: {setting}",
            got=str(found),
            expected=str(asked),
        )

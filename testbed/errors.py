"""What goes wrong in ways that people are told: one tree, so that whoever calls catches one class."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class TestbedError(Exception):
    """One message for people. status: with which a command ends that met it.

    Where the message has these parts, they stand apart as well. where: a file, field or thing. got: what was found
    there. expected: what would do. hint: what to do about it.
    """

    __test__ = False  # for pytest, which takes it for a test by its name
    status = 1

    def __init__(
        self, message: str = "", *, where: str = "", got: str = "", expected: str = "", hint: str = ""
    ) -> None:
        self.where, self.got, self.expected, self.hint = where, got, expected, hint
        prefix = f"{where}: " if where else ""
        text = message or f"{prefix}got {got}, expected {expected}"
        super().__init__(f"{text}\n{hint}" if hint else text)

    @property
    def found(self) -> str:
        """What was got, and where."""
        return f"{self.where}: {self.got}" if self.where else self.got


class BadInput(TestbedError):
    """What somebody gave cannot be used."""

    status = 2


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """The known words, with the closest pointed out if there is one: "ring, hierarchical; did you mean ring?"."""
    words = list(known)
    close = difflib.get_close_matches(str(word), words, n=1)
    return ", ".join(words) + (f"; did you mean {close[0]}?" if close else "")

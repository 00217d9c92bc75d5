"""Errors that are reported to users, in one class hierarchy, so that callers can catch a single class."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class TestbedError(Exception):
    """An error with one message for the user; `status` is the exit status of a command that fails with it.

    Parts of the message are also attributes: `where` (a file, field or object), `got` (what was found there),
    `expected` (what would be valid), and `hint` (what to do).
    """

    __test__ = False  # keeps pytest from collecting it by its name
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
        """The found value, and where it was found."""
        return f"{self.where}: {self.got}" if self.where else self.got


class BadInput(TestbedError):
    """Invalid user input."""

    status = 2


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """Return known words, with the closest as a suggestion, such as "ring, hierarchical; did you mean ring?"."""
    words = list(known)
    close = difflib.get_close_matches(str(word), words, n=1)
    return ", ".join(words) + (f"; did you mean {close[0]}?" if close else "")

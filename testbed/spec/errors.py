"""Errors in input files: where, what was found, what was expected."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from testbed.errors import BadInput


@dataclass(frozen=True)
class Problem:
    """One error in an input file. `file`: as the user gave it, or "--set" for an override; `line` counts from 1."""

    file: str
    line: int | None
    field: str
    value: str
    expected: str

    @property
    def where(self) -> str:
        """File, line and field, as far as they are known."""
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        return f"{place}: {self.field}" if self.field else place

    def __str__(self) -> str:
        return f"{self.where}: got {self.value}, expected {self.expected}"


class ConfigError(BadInput):
    """Invalid input, with all its problems; as text, one problem per line.

    `where`, `got` and `expected` are those of the first problem.
    """

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = list(problems)
        first = next(iter(self.problems), None)
        super().__init__(
            "\n".join(map(str, self.problems)),
            where=first.where if first else "",
            got=first.value if first else "",
            expected=first.expected if first else "",
        )


def option_error(option: str, got: str, expected: str) -> ConfigError:
    """Return the error of one command-line option or argument."""
    return ConfigError([Problem("command line", None, option, got, expected)])

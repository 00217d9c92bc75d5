"""Mistakes in input files, told to people: where, what was found, what was expected."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """One mistake. `file` is a path as the user gave it, or "--set" for an override; `line` counts from 1."""

    file: str
    line: int | None
    field: str
    value: str
    expected: str

    def __str__(self) -> str:
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        field = f"{self.field}: " if self.field else ""
        return f"{place}: {field}got {self.value}, expected {self.expected}"


class ConfigError(Exception):
    """Input that cannot be used, with every problem found in it; as text, one problem per line."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = list(problems)
        super().__init__("\n".join(map(str, self.problems)))

"""Common parts of all results: the base class of models of result files, and the columns of printed tables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, PrivateAttr

Row = TypeVar("Row")
Stored = TypeVar("Stored", bound="StoredResult")


class ResultModel(BaseModel):
    """A result file, or a part of one: it is immutable and rejects unknown fields."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    def document(self) -> dict[str, Any]:
        """Return the content as written to the file, as data for JSON, without fields that were never set."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)


class StoredResult(ResultModel):
    """A result with other files next to it, in the directory where it was opened."""

    _folder: Path | None = PrivateAttr(None)

    def at(self: Stored, folder: Path) -> Stored:
        """Set the directory where the result's files currently are, and return this result."""
        self._folder = folder.resolve()
        return self


@dataclass(frozen=True)
class Column(Generic[Row]):
    """A column of a table with a row for each result; terminal, JSON and reference page derive from it.

    Attributes:
        heading, unit: The two lines above the cells.
        width: Minimum width; cells are right-aligned.
        text: Returns a row's cell.
        meaning: Description of the column, for the reference page.
        key: The row's attribute that JSON has in addition to the row's fields, if the column shows one.
    """

    heading: str
    unit: str
    width: int
    text: Callable[[Row], Any]
    meaning: str = ""
    key: str = ""

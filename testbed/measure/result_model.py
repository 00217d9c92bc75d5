"""The base class of all models of result files."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict


class ResultModel(BaseModel):
    """A result file, or a part of one: immutable, and unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    def document(self) -> dict[str, Any]:
        """Return the content as it is written to the file, ready for JSON, without fields that were never set."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)

"""What models of a run's files have in common."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict


class ResultModel(BaseModel):
    """What a file of a run holds, or a part of it: nothing in it that is not named here, and nothing changes."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    def document(self) -> dict[str, Any]:
        """Ready for JSON, as it stands in the file: without what was not set."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)

"""What all unit tests have."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.workload.schedules import keeping


@pytest.fixture(autouse=True, scope="session")
def own_schedules(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Schedules that are searched for do not go into the user's cache."""
    folder: Path = tmp_path_factory.mktemp("schedules")
    keeping.folder = lambda: folder

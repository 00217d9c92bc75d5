"""What all unit tests have."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.workload.schedules import optimal

# The longest first: what starts last does not keep the other cores idle for long. Others follow.
LONGEST_FIRST = ("test_workload_optimum", "test_explorer", "test_live_browser", "test_workload_schedules")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give the lane an order."""
    ranks = {name: rank for rank, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: ranks.get(item.path.stem, len(ranks)))


@pytest.fixture(autouse=True, scope="session")
def own_schedules(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Schedules that are searched for do not go into the user's cache."""
    folder: Path = tmp_path_factory.mktemp("schedules")
    optimal.folder = lambda: folder

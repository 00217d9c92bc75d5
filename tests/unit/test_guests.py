"""How many guests of the virtual clock run at once, and what each may use."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from testbed import doctor
from testbed.config import ConfigError, Scenario, load_scenario
from testbed.running.choosing import choose_guests
from testbed.scale import Scale

GIB = 1 << 30
SCENARIOS = Path(__file__).parents[2] / "scenarios"


@pytest.fixture
def scenario(monkeypatch: pytest.MonkeyPatch) -> Scenario:
    """Of two parts, on a machine of four cores with 10 GiB free."""
    facts = replace(doctor.host_facts(), cores=4, memory_available_bytes=10 * GIB)
    monkeypatch.setattr(doctor, "host_facts", lambda: facts)
    return load_scenario(SCENARIOS / "quickstart.yaml")


@pytest.mark.parametrize(
    ("jobs", "each_gib", "guests"),
    [(None, 1, 2), (None, 4, 2), (None, 6, 1), (1, 1, 1), (2, 5, 2), (9, 1, 2)],
)
def test_as_many_as_parts_and_memory_allow(
    scenario: Scenario, jobs: int | None, each_gib: int, guests: int
) -> None:
    chosen = choose_guests(scenario, Scale(1000), 1e9, jobs, each_gib * GIB)
    assert chosen == (guests, each_gib * GIB)


def test_cores_bound_them_too(scenario: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = replace(doctor.host_facts(), cores=1)
    monkeypatch.setattr(doctor, "host_facts", lambda: facts)
    assert choose_guests(scenario, Scale(1000), 1e9, None, GIB)[0] == 1


@pytest.mark.parametrize(
    ("jobs", "each_gib", "words"),
    [
        (2, 6, "2 guests of 6 GiB each, 10 GiB are free, expected fewer --jobs, a larger"),
        (None, 11, "a guest of 11 GiB, 10 GiB are free, expected a larger"),
    ],
)
def test_what_does_not_fit_is_refused(
    scenario: Scenario, jobs: int | None, each_gib: int, words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        choose_guests(scenario, Scale(1000), 1e9, jobs, each_gib * GIB)

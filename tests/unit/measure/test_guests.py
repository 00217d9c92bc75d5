"""How many guests of the virtual clock run at once, and what each may use."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from testbed.measure.execution.network_setup import choose_guests
from testbed.measure.execution.resources import ARRAY_SHARE, Forecast, GuestLoad
from testbed.measure.fidelity.capacity import guest_memory
from testbed.net import doctor
from testbed.spec.errors import ConfigError
from testbed.spec.scale import Scale
from testbed.spec.scenario import Scenario, load_scenario

GIB = 1 << 30
SCENARIOS = Path(__file__).parents[3] / "scenarios"


@pytest.fixture
def scenario(monkeypatch: pytest.MonkeyPatch) -> Scenario:
    """Of two parts, on a machine of four cores with 10 GiB free."""
    facts = replace(doctor.host_facts(), cores=4, memory_available_bytes=10 * GIB)
    monkeypatch.setattr(doctor, "host_facts", lambda: facts)
    return load_scenario(SCENARIOS / "quickstart.yaml")


def chosen(scenario: Scenario, used_gib: float, jobs: int | None, asked: int | None = None) -> Forecast:
    """For guests that are expected to use so much, system and all."""
    scale, rank_bytes = Scale(4000), 4000 * 4.0 * GIB  # with which each may use many times that
    ceiling = guest_memory(scenario.topology.resolve(scale), 8, 4.0 * GIB)
    load = GuestLoad(8, 1, 100.0, 1e6, 0.0, 0.0)
    load = replace(load, array_bytes=(used_gib * GIB - load.memory_bytes(ceiling)) / ARRAY_SHARE)
    loads = dict.fromkeys(scenario.variant_names, load)
    return choose_guests(scenario, scale, rank_bytes, loads, jobs, asked)


@pytest.mark.parametrize(
    ("jobs", "used_gib", "guests"),
    [(None, 1, 2), (None, 3.9, 2), (None, 4.5, 1), (1, 1, 1), (2, 3.9, 2), (9, 1, 2)],
)
def test_as_many_as_parts_and_what_they_use_allow(
    scenario: Scenario, jobs: int | None, used_gib: float, guests: int
) -> None:
    assert chosen(scenario, used_gib, jobs).jobs == guests


def test_what_was_asked_for_bounds_what_is_expected(scenario: Scenario) -> None:
    expected = chosen(scenario, 20, None, asked=5 * GIB)
    assert (expected.jobs, expected.ceiling_bytes, expected.memory_bytes) == (2, 5 * GIB, 5 * GIB)


def test_what_is_expected_leaves_room(scenario: Scenario) -> None:
    """Where the law of a network's guest has less for it than its ranks are expected to use."""
    scale = Scale(4000)
    law = guest_memory(scenario.topology.resolve(scale), 8, 0.0)
    loads = dict.fromkeys(scenario.variant_names, GuestLoad(8, 1, 100.0, 1e6, 2.0 * GIB, 0.0))
    expected = choose_guests(scenario, scale, 0.0, loads, None, None)
    assert law < expected.memory_bytes < expected.ceiling_bytes / 1.2


def test_cores_bound_them_too(scenario: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = replace(doctor.host_facts(), cores=1)
    monkeypatch.setattr(doctor, "host_facts", lambda: facts)
    assert chosen(scenario, 1, None).jobs == 1


@pytest.mark.parametrize(
    ("jobs", "used_gib", "words"),
    [
        (2, 6, "2 guests that use about 7.5 GiB each, 10.0 GiB are free, expected fewer --jobs, a larger"),
        (None, 9, "a guest that uses about 11.2 GiB, 10.0 GiB are free, expected a larger"),
    ],
)
def test_what_does_not_fit_is_refused(
    scenario: Scenario, jobs: int | None, used_gib: float, words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        chosen(scenario, used_gib, jobs)

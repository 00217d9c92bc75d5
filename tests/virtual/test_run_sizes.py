"""Runs under the virtual clock with more ranks, trials and software; beside those of `test_run`, not behind them."""

from __future__ import annotations

import json

import pytest

from tests.virtual.conftest import Person
from tests.virtual.quickstart import load, run

pytestmark = [pytest.mark.virtual, pytest.mark.timeout(300)]

SMALLER = "scale.size_scale=4"  # for what a quarter of the packets shows as well


@pytest.mark.parametrize(
    ("ranks", "some"), [(8, (1, 4, 8)), pytest.param(16, (1, 2, 8, 16), marks=pytest.mark.thorough)]
)
def test_however_many_ranks_one_process_carries_they_take_the_same_nanoseconds(
    person: Person, ranks: int, some: tuple[int, ...]
) -> None:
    """In processes of one, of some and of all, every operation of each."""
    hosts = [f"topology.buildings.{name}.hosts={ranks // 2}" for name in ("east", "west")]
    changes = (f"ranks={ranks}", *hosts, SMALLER)
    wide = ("--jobs", "1", *(word for change in changes for word in ("--set", change)))
    wide += ("--set", "algorithms=[hierarchical]")
    samples = set()
    for carried in some:
        together = "all" if carried == ranks else str(carried)
        done = run(person, together, *wide, "--trials", "1", "--ranks-per-process", together)
        assert done.returncode == 0, done.stdout + done.stderr
        folder = person.home / together
        assert load(folder, "manifest.json")["ranks_per_process"] == carried
        samples.add((folder / "samples.jsonl").read_bytes())
    assert len(samples) == 1


def test_small_messages_pay_for_software(person: Person) -> None:
    medians = []
    for name, cost in (("free", "0 s"), ("dear", "100 us")):
        options = (
            "--set",
            SMALLER,
            "--set",
            f"transport.software_cost={{per_message: {cost}, per_gigabyte: 0 s}}",
        )
        done = run(person, name, "--set", "algorithms=[ring]", "--trials", "1", *options)
        assert done.returncode == 0, done.stdout + done.stderr
        medians.append(load(person.home / name, "summary.json")["variants"][0]["step_time_s"]["median"])
    # a ring of 8 sends and receives 14 times, one after the other
    assert medians[1] - medians[0] > 14 * 2 * 100e-6 * 0.9


def test_a_step_that_is_all_software_takes_what_it_costs_from_its_start_on(person: Person) -> None:
    """Three messages each way, one after the other at each rank; the last is there long before its turn comes."""
    building = {"hosts": 4, "nic": {"rate": "1 Gbit/s"}}
    scenario = {
        "name": "software",
        "topology": {
            "name": "software",
            "buildings": {"east": building, "west": building},
            "wan": [{"a": "east", "b": "west", "rate": "1 Gbit/s", "delay": "1 ms"}],
        },
        "ranks": 4,
        "workload": {"collectives": [{"collective": "all_to_all", "size": "4 KiB", "algorithm": "direct"}]},
        "transport": {"software_cost": {"per_message": "15 us", "per_gigabyte": "0 s"}},
        "trials": 1,
        "warmup": 1,
    }
    file = person.home / "software.yaml"
    file.write_text(json.dumps(scenario))
    done = person.call("run", str(file), "--clock", "virtual", "-o", str(person.home / "software"))
    assert done.returncode == 0, done.stdout + done.stderr
    (variant,) = load(person.home / "software", "summary.json")["variants"]
    assert variant["step_time_s"]["median"] == pytest.approx(6 * 15e-6, abs=1e-6)


def test_presets_cost_what_the_model_says(person: Person) -> None:
    variants = "variants={nccl: {preset: nccl}, ncclx: {preset: ncclx}}"
    done = run(person, "presets", "--trials", "1", "--set", "algorithms=[ring]", "--set", variants)
    assert done.returncode == 0, done.stdout + done.stderr
    found = {one["name"]: one for one in load(person.home / "presets", "summary.json")["variants"]}
    for variant in found.values():
        assert variant["verdict"]["status"] == "trusted", variant["verdict"]
        assert abs(variant["predicted"]["error"]) < 0.02
    slower = found["nccl"]["step_time_s"]["median"] / found["ncclx"]["step_time_s"]["median"]
    assert slower > 1.0


def test_long_series_are_cut_into_parts_and_put_together(person: Person) -> None:
    options = ("--set", "algorithms=[hierarchical]", "--set", SMALLER)
    done = run(person, "long", *options, "--trials", "12")
    assert done.returncode == 0, done.stdout + done.stderr
    folder = person.home / "long"
    (variant,) = load(folder, "summary.json")["variants"]
    assert variant["step_time_s"]["n"] == 12
    assert [part["trials"] for part in load(folder, "manifest.json")["clock"]["parts"]] == [10, 2]
    samples = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    assert {sample["trial"] for sample in samples} == set(range(12))
    verdict = variant["verdict"]
    assert (
        verdict["status"] == "caution"
    )  # in the first step of each part windows open, which the model takes for all
    assert {entry["name"] for entry in verdict["invariants"] if entry["ok"] is False} == {
        "steps_alike",
        "model_error",
    }

"""Guests that Dask's workers carry come to the very nanosecond that guests of this machine come to."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from testbed.measure.results.result import Result
from tests.virtual.conftest import Person

pytest.importorskip("distributed")
pytestmark = [pytest.mark.virtual, pytest.mark.thorough, pytest.mark.timeout(600)]

SCENARIO = {
    "name": "small",
    "topology": {
        "name": "pair",
        "buildings": {name: {"hosts": 1, "nic": {"rate": "100 Gbit/s"}} for name in ("east", "west")},
        "wan": [{"a": "east", "b": "west", "rate": "100 Gbit/s", "delay": "1 ms"}],
    },
    "workload": {"collectives": [{"collective": "all_reduce", "size": "100 MB"}]},
    "scale": {"size_scale": 1000},
    "trials": 2,
    "warmup": 0,
}


def test_they_take_the_same_time_whoever_carries_them(person: Person) -> None:
    file = person.home / "small.yaml"
    file.write_text(json.dumps(SCENARIO))

    def steps(name: str, *more: str) -> tuple[float, ...]:
        done = person.call("run", str(file), "-o", str(person.home / name), "--clock", "virtual", *more)
        assert done.returncode == 0, done.stdout + done.stderr
        (variant,) = Result.open(Path(person.home / name)).variants
        assert variant.verdict.status == "trusted"
        return variant.step_time_s.samples

    assert steps("dask", "--engine", "dask", "--jobs", "1") == steps("here", "--jobs", "1")

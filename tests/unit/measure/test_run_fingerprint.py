"""A run's fingerprint: the same for everybody who asks for the same, whatever it is called and wherever it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.measure.results.manifest import (
    ClockRecord,
    Manifest,
    RunFingerprint,
    code_hash,
    compute_fingerprint,
    file_hash,
)
from testbed.spec.scale import Scale
from testbed.spec.scenario import load_scenario

SCENARIO = """
name: two
topology:
  name: two
  buildings: {east: {hosts: 1, nic: {rate: 1 Gbit/s}}, west: {hosts: 1, nic: {rate: 1 Gbit/s}}}
  wan: [{a: east, b: west, rate: 1 Gbit/s, delay: 1 ms}]
workload: {plan: "own.py:steps"}
seed: {seed}
"""
PLAN = """
from testbed.plugins import *
def steps(job):
    return []
"""
VERSIONS = {"python": "3.11.2", "numpy": "2.4.6", "openvswitch": None}


def fingerprint(folder: Path, *, seed: int = 1, plan: str = PLAN, kernel: str = "7.3.4") -> RunFingerprint:
    """Of a scenario with a plan of its own, both in a folder of their own."""
    folder.mkdir(parents=True)
    (folder / "own.py").write_text(plan)
    (folder / "scenario.yaml").write_text(SCENARIO.replace("{seed}", str(seed)))
    samples = folder / "samples.jsonl"
    samples.write_text("{}\n")
    scenario = load_scenario(folder / "scenario.yaml")
    clock = ClockRecord(kind="virtual", cpu_time="free", kernel=kernel)
    manifest = Manifest.model_construct(
        clock=clock, link_engine="netem", datapath="system", versions=VERSIONS
    )
    return compute_fingerprint(manifest, samples, scenario, Scale())


def differing(one: RunFingerprint, other: RunFingerprint) -> set[str]:
    """Names of inputs that differ."""
    return {name for name in one.inputs | other.inputs if one.inputs.get(name) != other.inputs.get(name)}


def test_it_does_not_depend_on_where_files_are_but_on_what_they_hold(tmp_path: Path) -> None:
    here = fingerprint(tmp_path / "here")
    there = fingerprint(tmp_path / "a/longer/path/of/somebody/else")
    assert there == here
    assert here.samples == file_hash(tmp_path / "here/samples.jsonl")
    other = fingerprint(tmp_path / "other", plan=PLAN.replace("[]", "[1]"))
    assert differing(here, other) == {"files"}
    assert other.inputs_hash != here.inputs_hash


def test_it_names_what_differs(tmp_path: Path) -> None:
    here = fingerprint(tmp_path / "here")
    assert differing(here, fingerprint(tmp_path / "seed", seed=2)) == {"scenario", "seed"}
    assert differing(here, fingerprint(tmp_path / "kernel", kernel="6.1.9")) == {"kernel"}
    assert {"python", "numpy", "testbed", "C library", "scale", "clock", "link engine"} <= set(here.inputs)
    assert "openvswitch" not in here.inputs


def test_the_hash_of_the_code_leaves_out_what_python_compiles(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("testbed.measure.results.manifest.PACKAGE", tmp_path)
    (tmp_path / "a.py").write_text("1")
    before = code_hash.__wrapped__()
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__/a.pyc").write_text("2")
    assert code_hash.__wrapped__() == before
    (tmp_path / "a.py").write_text("3")
    assert code_hash.__wrapped__() != before

"""Jobs go out as they are planned, or were measured: to Chakra's traces, and to all that ASTRA-sim takes."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from testbed.cli.main import app
from testbed.errors import BadInput
from testbed.measure.results.run_directory import BadResult
from testbed.prediction.dry_run import dry_runs
from testbed.show.exchange import export_astra_sim, load_job
from testbed.show.exchange.astra_sim import dimensions_of
from testbed.show.exchange.topology_export import next_links, shortest_s
from testbed.spec.scale import UNSCALED
from testbed.spec.scenario import load_scenario
from testbed.spec.topology import load_topology
from testbed.workload.traces.chakra import read_job
from testbed.workload.traces.chakra.files import read_file
from testbed.workload.traces.trace import Collective, Compute, JobTrace, PointToPoint
from tests.unit.show.report_run import measured_variant
from tests.unit.workload.test_workload_pipeline_plan import write_topology

SHIPPED = Path(__file__).parents[3]
TOPOLOGIES = SHIPPED / "topologies"


def called(*words: object) -> Any:
    return CliRunner().invoke(app, list(map(str, words)), catch_exceptions=False)


def test_a_variant_goes_out_with_a_scenario_that_takes_as_long(tmp_path: Path) -> None:
    done = called("export", "quickstart", "--to", "chakra", "-o", tmp_path, "--variant", "hierarchical")
    assert done.exit_code == 0
    assert len(list(tmp_path.glob("job.*.et"))) == 8
    scenario = load_scenario(tmp_path / "scenario.yaml")
    assert scenario.algorithms == ("hierarchical",)
    (back,) = dry_runs(scenario, UNSCALED).values()
    own = dry_runs(load_scenario(SHIPPED / "scenarios/quickstart.yaml"), UNSCALED)["hierarchical"]
    assert back.timeline.step_time_s == own.timeline.step_time_s


def test_what_traces_have_no_place_for_is_said(tmp_path: Path) -> None:
    done = called("export", "crosspipe", "--to", "chakra", "-o", tmp_path)
    assert "left out: in-order receives: a message leaves only once" in done.stderr
    with pytest.raises(BadInput, match="variant: got ringg, expected ring, hierarchical; did you mean ring"):
        load_job(Path("quickstart"), variant="ringg")


COLLECTIVES = {"collectives": [{"collective": "all_reduce", "size": "4 MB"}], "compute": "100 ms"}


def measured(folder: Path, late: float = 0.0, workload: Mapping[str, Any] = COLLECTIVES) -> Path:
    """A run of two ranks: 0.5 s of computing and an all-reduce, twice as slow as real, each rank's part `late`."""
    write_topology(folder, hosts=1)
    scenario = {
        "name": "job",
        "topology": "pair.yaml",
        "ranks": 2,
        "workload": workload,
        "algorithms": ["ring"],
        "scale": {"time_dilation": 2},
    }
    (folder / "scenario.yaml").write_text(yaml.safe_dump(scenario))
    result = {
        "schema": 1,
        "scenario": "job",
        "run_dir": str(folder),
        "clock": "virtual",
        "scale": {"size_scale": 1.0, "time_dilation": 2.0},
        "dimensionless": [],
        "status": "trusted",
        "variants": [measured_variant("ring", 1.4).model_dump(mode="json", by_alias=True)],
    }
    (folder / "summary.json").write_text(json.dumps(result))
    samples = []
    for step in range(3):
        begin = 10.0 * step
        for rank in range(2):
            common = {"variant": "ring", "trial": step, "step": step, "rank": rank, "bytes": 0}
            end = begin + 1.0 + 0.2 * step
            samples += [
                {
                    **common,
                    "operation": "compute",
                    "index": 0,
                    "name": "compute",
                    "start_s": begin,
                    "end_s": end + rank,
                },
                {
                    **common,
                    "operation": "all_reduce",
                    "index": 1 + int(late),
                    "name": "x",
                    "start_s": end + rank,
                    "end_s": end + 2,
                },
                {
                    **common,
                    "operation": "step",
                    "name": "ring",
                    "start_s": begin,
                    "end_s": end + 2,
                    "sent_bytes": {},
                    "wrong": 0,
                    "checked": 1,
                },
            ]
    (folder / "samples.jsonl").write_text("\n".join(map(json.dumps, samples)))
    return folder


def test_a_run_goes_out_as_it_was_measured(tmp_path: Path) -> None:
    """Its median step, in real seconds."""
    job = load_job(measured(tmp_path))
    took = [[one.duration_s for one in own if isinstance(one, Compute)] for own in job.trace.ranks]
    assert took == [[pytest.approx(0.6)], [pytest.approx(1.1)]]
    assert job.trace.origin.endswith("ring, step 1 as measured")
    assert called("export", tmp_path, "--to", "chakra", "-o", tmp_path / "out").exit_code == 0
    first, second = (read_file(tmp_path / "out" / f"job.{rank}.et").nodes for rank in range(2))
    assert [(node.start_us, node.duration_us) for node in first] == [(0, 600_000), (600_000, 1_000_000)]
    assert [(node.start_us, node.duration_us) for node in second] == [(0, 1_100_000), (1_100_000, 500_000)]
    assert read_job(tmp_path / "out") == job.trace


def test_a_run_that_does_not_fit_its_scenario_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadResult, match=r"samples\.jsonl: ring: got operation 2 of rank 0"):
        load_job(measured(tmp_path, late=1.0))
    with pytest.raises(BadInput, match="expected a run as it was"):
        load_job(tmp_path, ["seed=2"])


def test_a_job_that_came_as_a_trace_goes_out_as_that_one(tmp_path: Path) -> None:
    """With all that a plan of it does not say."""
    write_topology(tmp_path, hosts=1)
    own = Compute("forward", duration_s=0.5, flops=7.0, module="layers.0", site="train.py:3")
    both = Collective("sum", "dp", (0,), group="dp", numel=100, dtype="bfloat16", module="layers.0")
    trace = JobTrace(((own, both), (own, both)), {"dp": (0, 1)}, "by hand", "h100")
    trace.write(tmp_path / "job.json.gz")
    scenario = {"name": "job", "topology": "pair.yaml", "ranks": 2, "workload": {"trace": "job.json.gz"}}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(scenario))
    assert load_job(tmp_path / "job.yaml").trace == trace
    for number, source in enumerate(("job.yaml", "job.json.gz")):
        folder = tmp_path / str(number)
        assert called("export", tmp_path / source, "--to", "chakra", "-o", folder).exit_code == 0
        assert read_job(folder) == trace
    assert load_job(tmp_path / "0" / "scenario.yaml").trace == trace
    run = measured(tmp_path, workload={"trace": "job.json.gz"})
    took = load_job(run).trace
    computing = took.ranks[1][0]
    assert isinstance(computing, Compute)
    assert computing.duration_s == pytest.approx(1.1)
    assert took.ranks[1] == (replace(own, duration_s=computing.duration_s), both)
    assert took.origin.endswith("step 1 as measured")


# --- ASTRA-sim


def test_astra_sim_finds_network_system_memory_and_traces(tmp_path: Path) -> None:
    job = load_job(SHIPPED / "scenarios/quickstart.yaml", variant="hierarchical")
    written, notes = export_astra_sim(job, tmp_path)
    assert {path.name for path in written} >= {
        "network.yml",
        "system.json",
        "memory.json",
        "run.sh",
        "comm_group.json",
    }
    network = yaml.safe_load((tmp_path / "network.yml").read_text())
    assert network["topology"] == ["Switch", "FullyConnected"]
    assert network["npus_count"] == [4, 2]
    assert network["bandwidth"] == pytest.approx(
        [400e9 / 8 / 2**30, 2 * 285.7e9 / 4 / 8 / 2**30]
    )  # GB/s, of each rank
    assert network["latency"] == [0.0, 2.5e6]  # ns
    system = json.loads((tmp_path / "system.json").read_text())
    assert system["all-reduce-implementation"] == ["ring", "ring"]
    assert system["roofline-enabled"] == 0  # by the traces' durations
    assert system["collective-optimization"] == "localBWAware"  # else every dimension reduces all of it
    assert notes == [
        "links shared by a building's ranks: each rank has a fixed part, even if others are idle"
    ]
    assert subprocess.run(["sh", "-n", tmp_path / "run.sh"], check=False).returncode == 0
    assert os.access(tmp_path / "run.sh", os.X_OK)


def test_what_astra_sim_does_otherwise_is_said(tmp_path: Path) -> None:
    _, notes = export_astra_sim(load_job(Path("sharding"), variant="fsdp-ring-1"), tmp_path)
    said = "\n".join(notes)
    assert "activation memory" in said
    done = called("export", "chunking", "--to", "astra-sim", "-o", tmp_path / "p2p")
    assert "left out: activation memory" in done.stderr


@pytest.mark.parametrize(
    ("name", "ranks", "expected"),
    [
        ("ring-of-four", [0, 1, 2, 3], ["Ring"]),
        ("four-buildings", [0] * 16 + [1] * 16 + [2] * 16 + [3] * 16, ["Switch", "FullyConnected"]),
        ("two-buildings", [0] * 4, ["Switch"]),
    ],
)
def test_dimensions_are_those_of_the_network(name: str, ranks: list[int], expected: list[str]) -> None:
    topology = load_topology(TOPOLOGIES / f"{name}.yaml").resolve()
    found, _ = dimensions_of(topology, ranks)
    assert [one.topology for one in found] == expected


def test_the_slowest_link_stands_for_all() -> None:
    topology = load_topology(TOPOLOGIES / "three-buildings.yaml").resolve()
    (between,), notes = dimensions_of(topology, [0, 1, 2])
    assert (between.rate * 8, between.latency_s) == (20e6, 0.010)
    assert "links between buildings differ: the slowest rate and the longest delay apply to all" in notes


@pytest.mark.parametrize("ranks", [[0, 0, 1], [0, 1, 0, 1]])
def test_buildings_with_different_numbers_of_ranks_have_no_dimensions(ranks: list[int]) -> None:
    topology = load_topology(TOPOLOGIES / "two-buildings.yaml").resolve()
    with pytest.raises(BadInput, match=r"ranks for ASTRA-sim: got .* in east, .* in west, expected as many"):
        dimensions_of(topology, ranks)


def test_ways_between_buildings_are_the_shortest() -> None:
    topology = load_topology(TOPOLOGIES / "three-buildings.yaml").resolve()
    assert shortest_s(topology)["north", "coast"] == 0.012
    assert shortest_s(topology)["coast", "north"] == 0.006
    assert next_links(topology, "north") == {"south": [0], "coast": [2]}


# --- the commands


def test_topologies_go_out_and_come_in_by_the_commands(tmp_path: Path) -> None:
    source = TOPOLOGIES / "two-buildings.yaml"
    assert called("export", source, "--to", "graphml", "-o", tmp_path / "net.graphml").exit_code == 0
    done = called("import", tmp_path / "net.graphml", "-o", tmp_path / "net.yaml")
    assert done.exit_code == 0
    assert load_topology(tmp_path / "net.yaml") == load_topology(source)
    assert called("export", "quickstart", "--to", "mininet", "-o", tmp_path / "net.py").exit_code == 0
    assert compile((tmp_path / "net.py").read_text(), "net.py", "exec")
    done = called("export", source, "--to", "containerlab", "-o", tmp_path / "lab", "--size-scale", 100)
    assert "left out: rates, which are divided by 100" in done.stderr
    shown = called("import", tmp_path / "lab" / "two-buildings.clab.yml")
    assert yaml.safe_load(shown.stdout)["wan"] == [
        {"a": "east", "b": "west", "rate": "285.7 Gbit/s", "delay": "2.5 ms", "planes": 2}
    ]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--to", "graphml", "--size-scale", "2"], "--size-scale: got it with graphml"),
        (["--to", "mininet", "--size-scale", "0.5"], "--size-scale: got 0.5, expected auto, or a number"),
        (["--to", "mininet", "--variant", "x"], "--variant: got it with mininet"),
    ],
)
def test_options_that_mean_nothing_are_refused(words: list[str], said: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=said):
        called("export", "quickstart", "-o", tmp_path / "x", *words)


def test_what_is_no_rate_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="a rate with its unit"):
        called("import", tmp_path / "x.graphml", "--rate", "fast")
    with pytest.raises(BadInput, match="--hosts: got 'east', expected a number, or numbers by building"):
        called("import", tmp_path / "x.graphml", "--hosts", "east")


def test_what_goes_into_windows_goes_out_as_messages_which_is_said() -> None:
    job = load_job(Path("tensor-overlap"))
    assert "memory windows: their blocks become messages" in list(job.lost())
    sent = [node for node in job.trace.ranks[0] if isinstance(node, PointToPoint) and node.sends]
    # two gathers and two reductions of a layer and direction, seven blocks each
    assert len(sent) == 2 * 2 * 4 * 7

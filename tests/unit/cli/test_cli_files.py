"""Commands on files alone: what comes along by name, drawings of topologies, examples to edit."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from typer.testing import CliRunner

from testbed.cli.main import app
from testbed.errors import BadInput
from testbed.prediction.dry_run import dry_runs, schedule_csv
from testbed.spec.catalogue import locate_file, shipped
from testbed.spec.errors import ConfigError
from testbed.spec.examples import copy_example
from testbed.spec.scale import Scale
from testbed.spec.scenario import load_scenario
from testbed.spec.topology import load_topology
from testbed.workload.schedules import read_csv
from testbed.workload.traces.chakra import write_job
from testbed.workload.traces.trace import Compute, JobTrace, RankTrace


def said(*arguments: str) -> str:
    done = CliRunner().invoke(app, list(arguments))
    assert done.exit_code == 0, done.output
    return done.stdout


def test_what_comes_along_is_found_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_scenario("controller/windows").name == "windows"
    assert load_scenario("quickstart", ["topology=four-buildings"]).topology.name == "four-buildings"
    assert load_topology("two-buildings").name == "two-buildings"
    # a file or a folder here comes first
    (tmp_path / "quickstart").write_text("name: mine\n")
    assert locate_file("quickstart") == Path("quickstart")


def test_a_name_that_is_none_is_answered_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean quickstart"):
        load_scenario("quickstrat")
    with pytest.raises(ConfigError, match="no such file, expected a YAML file"):
        load_scenario(tmp_path / "none.yaml")


@pytest.mark.parametrize("name", shipped("topologies"))
def test_every_topology_can_be_drawn(name: str) -> None:
    topology = load_topology(name).resolve()
    names = {host.name for host in topology.hosts}
    root = ET.fromstring(said("graph", name))
    assert root.tag.endswith("svg")
    listed = {element.text for element in root.iter() if element.get("class") == "host-name"}
    assert not listed or listed == names or len(names) > 16
    dot, mermaid = said("graph", name, "-f", "dot"), said("graph", name, "--format", "mermaid")
    assert dot.count(" -- ") == len(names) + len(topology.wan)
    assert mermaid.count("-->") == len(topology.wan)
    assert all(f'"{host}"' in dot and f'"{host}"' in mermaid for host in names)


def test_transit_sites_are_drawn_without_hosts() -> None:
    root = ET.fromstring(said("graph", "backbone"))
    sites = [element for element in root.iter() if element.get("class") == "building transit"]
    assert [[text.text for text in site.iter() if text.text] for site in sites] == [
        ["north", "transit"],
        ["south", "transit"],
    ]
    assert '  "north" [shape=oval, style=dashed];' in said("graph", "backbone", "-f", "dot")
    assert '  north(["north"])' in said("graph", "backbone", "-f", "mermaid")


def test_links_that_differ_by_direction_say_both(tmp_path: Path) -> None:
    (file := tmp_path / "uneven.yaml").write_text(
        "name: uneven\nbuildings: {a: {hosts: 1, nic: {rate: 1 Gbit/s}}, b: {hosts: 1, nic: {rate: 1 Gbit/s}}}\n"
        "wan: [{a: a, b: b, rate: 1 Gbit/s, delay: 1 ms, b_to_a: {rate: 2 Gbit/s}}]\n"
    )
    assert 'label="1 Gbit/s, 1 ms / 2 Gbit/s, 1 ms"' in said("graph", str(file), "-f", "dot")
    assert "1 Gbit/s · 1 ms" in said("graph", str(file))


def test_an_example_is_copied_whole_and_over_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    assert f"testbed run {folder}/windows.yaml" in said(
        "init", str(folder), "--scenario", "controller/windows"
    )
    assert load_scenario(folder / "windows.yaml").to_data() == load_scenario("controller/windows").to_data()
    before = {path: path.read_text() for path in folder.iterdir()}
    again = CliRunner().invoke(app, ["init", str(folder), "--scenario", "controller/windows"])
    assert isinstance(again.exception, ConfigError)
    assert {path: path.read_text() for path in folder.iterdir()} == before
    assert re.search(
        r"^  controller/windows +What lies in the WAN.s buffers .*\?$", said("init"), re.MULTILINE
    )


def test_an_example_of_a_recorded_job_has_its_trace_beside_it(tmp_path: Path) -> None:
    own, trace = copy_example("explore/recorded-8b-region", tmp_path / "mine")
    assert trace.name == "llama3-8b-hsdp.json.gz"
    assert load_scenario(own).workload.trace == str(trace)
    given = load_scenario("explore/recorded-8b-region").workload.trace
    assert given is not None
    assert Path(given).read_bytes() == trace.read_bytes()


def test_examples_are_copied_from_python_and_names_that_are_none_refused(tmp_path: Path) -> None:
    own, topology = copy_example("quickstart", tmp_path / "mine")
    assert own == tmp_path / "mine/quickstart.yaml"
    assert f"topology: {topology.name}" in own.read_text()
    with pytest.raises(
        ConfigError, match=r"--scenario: got quickstrat, expected .*did you mean quickstart\?"
    ):
        copy_example("quickstrat", tmp_path / "other")
    assert not (tmp_path / "other").exists()
    own.unlink()
    with pytest.raises(ConfigError, match=f"FOLDER: .* expected one without {topology.name}"):
        copy_example("quickstart", tmp_path / "mine")
    assert not own.exists()


def test_a_schedule_is_written_as_a_file_that_scenarios_take(tmp_path: Path) -> None:
    (file := tmp_path / "mine.csv").write_text(said("plan", "crosspipe", "--csv", "1f1b"))
    tried = dry_runs(load_scenario("crosspipe"), Scale())
    training = tried["1f1b"].workload.training
    assert training is not None
    assert read_csv(file.read_text()) == training.schedule.orders
    for variant, expected in (("1f1", "one of 1f1b, zbh1"), ("ring", "a schedule: a step with workload.par")):
        scenario = "quickstart" if variant == "ring" else "crosspipe"
        with pytest.raises(ConfigError, match=f"--csv: got {variant}, expected {expected}"):
            schedule_csv(dry_runs(load_scenario(scenario), Scale()), variant)


def test_options_of_a_plan_are_checked_as_running_it_would() -> None:
    changes = ("--set", "variants={one: {}, other: {workload.options.batch: 0}}")
    done = CliRunner().invoke(app, ["check", "decode", *changes])
    words = "variant other: workload.options.batch: got 0, expected at least 1"
    assert isinstance(done.exception, ConfigError)
    assert words in str(done.exception)


PAIR = """\
name: mine
topology:
  name: pair
  buildings:
    east: {hosts: 1, nic: {rate: 400 Gbit/s}}
    west: {hosts: 1, nic: {rate: 400 Gbit/s}}
  wan:
    - {a: east, b: west, rate: 400 Gbit/s, delay: 4 ms}
"""


@pytest.mark.parametrize("command", ["check", "plan", "predict"])
@pytest.mark.parametrize("nothing", [(), (Compute("of no time"),)])
@pytest.mark.parametrize("chakra", [False, True])
def test_a_job_in_which_nobody_does_anything_is_refused(
    command: str, nothing: RankTrace, chakra: bool, tmp_path: Path
) -> None:
    job = JobTrace((nothing, ()))
    if chakra:
        write_job(job, tmp_path / "traces")
    else:
        job.write(tmp_path / "job.json")
    described = "{chakra: traces}" if chakra else "{trace: job.json}"
    (tmp_path / "mine.yaml").write_text(f"{PAIR}workload: {described}\n")
    done = CliRunner().invoke(app, [command, str(tmp_path / "mine.yaml")])
    assert isinstance(done.exception, ConfigError)
    assert "got a job without any work" in str(done.exception)


def test_a_file_that_a_scenario_takes_its_job_from_is_checked_with_it(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(f"{PAIR}workload: {{chakra: traces}}\n")
    (tmp_path / "traces").mkdir()
    for rank in range(2):
        (tmp_path / f"traces/job.{rank}.et").touch()
    done = CliRunner().invoke(app, ["check", str(tmp_path / "mine.yaml")])
    assert isinstance(done.exception, BadInput)
    assert "job.0.et: got no node" in str(done.exception)
    stage = "stage: {forward: 1 ms, backward_input: 1 ms, backward_weight: 1 ms, activation: 1 MB}"
    schedule = "parallelism: {pipeline_parallel_degree: 2}, schedule: {file: mine.csv, microbatches: 1}"
    (tmp_path / "mine.yaml").write_text(f"{PAIR}workload: {{{stage}, {schedule}}}\n")
    (tmp_path / "mine.csv").write_text("0F0,0SEND_F0,0B0\n1RECV_F0,1F0\n")
    done = CliRunner().invoke(app, ["check", str(tmp_path / "mine.yaml")])
    assert "rank 1, stage 1, microbatch 0: F, expected F and B" in str(done.exception)
    (tmp_path / "mine.csv").write_text("0F0,0SEND_F0,0B0\n1RECV_F0,1F0,1B0\n")
    done = CliRunner().invoke(app, ["check", str(tmp_path / "mine.yaml")])
    assert done.exit_code == 0
    assert "left out: 1 SEND_F, 1 RECV_F of mine.csv: messages and gathers follow" in done.stderr
    done = CliRunner().invoke(app, ["check", str(tmp_path / "mine.yaml"), "--strict"])
    assert isinstance(done.exception, BadInput)
    assert "left out: 1 SEND_F, 1 RECV_F of mine.csv" in str(done.exception)

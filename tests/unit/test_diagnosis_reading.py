"""Dumps of a folder, PyTorch's among them, and the commands that judge, export and make them."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from testbed.cli.main import app
from testbed.diagnosis import diagnose, read_evidence
from testbed.flight import FLIGHT, PATHS_FILE, DumpError, NetworkPaths, dump_name
from testbed.flight.pytorch import from_pytorch, read_pytorch, to_pytorch, write_pytorch
from tests.unit.flight_world import World, faulty


def write(world: World, folder: Path) -> None:
    """A run's dumps and paths."""
    folder.mkdir(parents=True)
    for dump in world.play():
        dump.write(folder / dump_name(dump.rank))
    world.paths.write(folder / PATHS_FILE)


def test_a_run_and_its_parts_are_read(tmp_path: Path) -> None:
    world, whose = faulty("kill", 0)
    write(world, tmp_path / "run" / FLIGHT / "ring")
    (own,) = read_evidence(tmp_path / "run")
    assert (own.name, len(own.dumps)) == ("ring", world.size)
    assert own.paths == world.paths
    assert diagnose(own.dumps, own.paths).verdicts[0].ranks == whose
    (same,) = read_evidence(tmp_path / "run" / FLIGHT / "ring")
    assert (same.name, same.dumps) == ("", own.dumps)


def test_a_folder_without_dumps_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DumpError, match="no dumps"):
        read_evidence(tmp_path)
    with pytest.raises(DumpError, match="no folder"):
        read_evidence(tmp_path / "nowhere")


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"schema": 9}', '{"schema": 1}', '{"schema": 1, "hosts": {}, "pairs": [1]}']
)
def test_a_broken_file_of_paths_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / PATHS_FILE).write_text(text)
    with pytest.raises(DumpError, match=PATHS_FILE):
        NetworkPaths.read(tmp_path / PATHS_FILE)


# as torch/csrc/distributed/c10d/FlightRecorderDetail.hpp writes it
PYTORCH: dict[str, Any] = {
    "version": "2.9",
    "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}},
    "pg_status": {"0": {"last_enqueued_collective": "1", "last_completed_collective": "1"}},
    "entries": [
        {
            "frames": [], "record_id": 0, "pg_id": 0, "process_group": ("0", "default_pg"),
            "collective_seq_id": 1, "p2p_seq_id": 0, "op_id": 1, "profiling_name": "nccl:all_reduce",
            "time_created_ns": 1_000_000_000, "input_sizes": [[3, 4]], "input_dtypes": ["Float"],
            "output_sizes": [[3, 4]], "output_dtypes": ["Float"], "state": "completed",
            "time_discovered_started_ns": None, "time_discovered_completed_ns": 1_100_000_000,
            "retired": True, "timeout_ms": 600000, "is_p2p": False,
        },
        {
            "frames": [], "record_id": 1, "pg_id": 0, "process_group": ("0", "default_pg"),
            "collective_seq_id": 1, "p2p_seq_id": 1, "op_id": 2, "profiling_name": "nccl:recv 1<-0",
            "time_created_ns": 1_200_000_000, "input_sizes": [[]], "input_dtypes": ["Float"],
            "output_sizes": [[5]], "output_dtypes": ["BFloat16"], "state": "scheduled",
            "time_discovered_started_ns": None, "time_discovered_completed_ns": None,
            "retired": False, "timeout_ms": 600000, "is_p2p": True,
        },
    ],
}  # fmt: skip


def test_dumps_of_pytorch_are_read_as_far_as_they_go(tmp_path: Path) -> None:
    (tmp_path / "nccl_trace_rank_1").write_bytes(pickle.dumps(PYTORCH))
    (own,) = read_evidence(tmp_path)
    (dump,) = own.dumps
    first, second = dump.entries
    assert (dump.rank, dump.groups[0].name, dump.groups[0].ranks) == (1, "default_pg", (0, 1))
    assert (first.name, first.sequence, first.size_bytes, first.dtype) == ("all_reduce", 1, 48, "float32")
    assert (first.scheduled_s, first.started_s, first.ended_s) == (1.0, None, 1.1)
    assert (second.name, second.sequence, second.peer, second.size_bytes) == ("irecv", 0, 0, 10)
    assert (second.state, second.dtype) == ("scheduled", "bfloat16")


def test_nothing_in_a_dump_from_elsewhere_is_carried_out(tmp_path: Path) -> None:
    class Harmful:
        def __reduce__(self) -> tuple[Any, ...]:
            return print, ("carried out",)

    (tmp_path / "trace_rank_0").write_bytes(pickle.dumps({"entries": [Harmful()]}))
    with pytest.raises(DumpError, match="expected plain data"):
        read_pytorch(tmp_path / "trace_rank_0")
    (tmp_path / "trace_rank_1").write_bytes(pickle.dumps({"entries": []}))
    with pytest.raises(DumpError, match="not a dump of PyTorch"):
        read_pytorch(tmp_path / "trace_rank_1")


def test_what_goes_to_pytorchs_analyser_has_its_fields_and_comes_back(tmp_path: Path) -> None:
    world, _ = faulty("pause", 0)
    for dump in world.play():
        document = pickle.loads(write_pytorch(dump, tmp_path).read_bytes())
        assert set(document) >= set(PYTORCH)
        for item in document["entries"]:
            assert set(item) - {"duration_ms"} == set(PYTORCH["entries"][0])
            backend, name = item["profiling_name"].split(":")
            assert (backend, name.split(" ")[0]) in {
                ("nccl", known) for known in ("all_reduce", "all_reduce_barrier", "send", "recv")
            }
        back = read_pytorch(tmp_path / f"trace_rank_{dump.rank}")
        for one, other in zip(dump.entries, back.entries, strict=True):
            assert (one.name, one.sequence, one.size_bytes, one.peer) == (
                other.name, other.sequence, other.size_bytes, other.peer,
            )  # fmt: skip
            assert other.scheduled_s == pytest.approx(one.scheduled_s, abs=1e-9)
    assert len(read_evidence(tmp_path)[0].dumps) == world.size


def test_who_has_not_come_is_named_from_dumps_of_pytorch_too() -> None:
    world, whose = faulty("skip in a layer", 1)
    dumps = [from_pytorch(to_pytorch(dump), dump.rank, dump.time_s) for dump in world.play()]
    first = diagnose(dumps).verdicts[0]
    assert (first.kind, first.ranks) == ("RANK_NOT_JOINED", whose)


def test_the_command_says_who_and_writes_a_page(tmp_path: Path) -> None:
    world, whose = faulty("nic down", 0)
    write(world, tmp_path / "run" / FLIGHT)
    run = str(tmp_path / "run")
    said = CliRunner().invoke(app, ["diagnose", run])
    assert said.exit_code == 0
    assert f"STUCK_IN_NETWORK: {whose}, since" in said.stdout
    assert "without comparing dumps one would say: rank" in said.stdout
    page = (tmp_path / "run" / "diagnosis.html").read_text()
    assert str(whose) in page
    assert "STUCK_IN_NETWORK" in page
    document = json.loads(CliRunner().invoke(app, ["diagnose", run, "--json"]).stdout)
    assert document["verdicts"][0]["who"] == whose
    assert CliRunner().invoke(app, ["diagnose", run, "--clock-error", "1"]).exit_code != 0


def test_the_command_exports(tmp_path: Path) -> None:
    world, _ = faulty("kill", 0)
    write(world, tmp_path / "run" / FLIGHT)
    done = CliRunner().invoke(
        app, ["trace", "export", str(tmp_path / "run"), str(tmp_path / "out"), "--to", "pytorch"]
    )
    assert done.exit_code == 0
    assert len(list((tmp_path / "out").glob("trace_rank_*"))) == world.size

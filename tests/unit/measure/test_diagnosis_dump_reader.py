"""Dumps of a folder, PyTorch's among them, and the commands that judge, export and make them."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from testbed.cli.main import app
from testbed.comm.flight_recorder import FLIGHT, PATHS_FILE, DumpError, NetworkPaths, RankDump, dump_name
from testbed.comm.flight_recorder.pytorch import from_pytorch, to_pytorch, write_pytorch
from testbed.comm.flight_recorder.pytorch_files import read_dumps
from testbed.measure.diagnosis.diagnose import diagnose
from testbed.measure.diagnosis.dumps import read_evidence
from tests.unit.comm.flight_world import World, faulty


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
    with pytest.raises(DumpError, match="no directory"):
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

    harmful = {"version": "2.9", "pg_config": {}, "entries": [Harmful()]}
    (tmp_path / "trace_rank_0").write_bytes(pickle.dumps(harmful))
    with pytest.raises(DumpError, match="expected plain data"):
        read_evidence(tmp_path)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "got an empty file, expected a dump\nThe rank that wrote it died, or its disk was full"),
        (pickle.dumps(PYTORCH)[:200], "not a dump of PyTorch's flight recorder"),
        (b"\x80\x02(((((((((((((", "not a dump of PyTorch's flight recorder"),
        (b"{", "not a dump of PyTorch's flight recorder"),
        (b"[1]", "got no version, expected 2.x"),
        (pickle.dumps({**PYTORCH, "version": "3.0"}), "got version 3.0, expected 2.x"),
        (pickle.dumps({"version": "2.9", "entries": []}), "expected pg_config and entries"),
        (pickle.dumps({**PYTORCH, "pg_config": {"0": {"ranks": "[0, "}}}), "pg_config"),
        (pickle.dumps({**PYTORCH, "pg_config": {"0": {"ranks": [-1, 0, 3]}}}), r"got ranks \[-1, 0, 3\]"),
        (pickle.dumps({**PYTORCH, "pg_config": {"0": {"ranks": [0, 1]}}}), "got 3, as its name says"),
        (pickle.dumps({**PYTORCH, "pg_config": {}, "entries": [{}]}), "process_group"),
        (pickle.dumps({**PYTORCH, "pg_config": {}, "entries": [{"process_group": 0}]}), "process_group"),
        (
            pickle.dumps(
                {**PYTORCH, "pg_config": {}, "entries": [{**PYTORCH["entries"][0], "state": "done"}]}
            ),
            "entry 0: got state 'done', expected scheduled, started or completed",
        ),
        (
            pickle.dumps({**PYTORCH, "pg_config": {}, "entries": [{"process_group": ("0", "")}]}),
            "entry 0: no profiling_name",
        ),
    ],
)
def test_a_damaged_dump_of_pytorch_is_named(tmp_path: Path, data: bytes, said: str) -> None:
    (tmp_path / "trace_rank_3").write_bytes(data)
    with pytest.raises(DumpError, match=rf"trace_rank_3: .*{said}"):
        read_evidence(tmp_path)


@pytest.mark.parametrize(
    "name",
    [
        "comm_lib_trace_rank_{}",  # PyTorch of today
        "nccl_trace_rank_{}",  # PyTorch of 2.5 and after
        "trace_{}",  # PyTorch's tutorial
        "hccl_trace_rank_{}",  # Ascend
        "torchcomm_fr_trace_{}",  # torchcomms
        "rank_{}.pkl",
        "rank-{}.json",
        "dump{}",
        "{}",
    ],
)
@pytest.mark.parametrize("as_json", [False, True])
def test_dumps_of_pytorch_may_have_any_name_that_ends_with_the_rank(
    tmp_path: Path, name: str, as_json: bool
) -> None:
    document = {**PYTORCH, "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[9, 10, 11]"}}}
    for rank in (9, 10):
        data = json.dumps(document).encode() if as_json else pickle.dumps(document)
        (tmp_path / name.format(rank)).write_bytes(data)
    (tmp_path / "log.1").write_text("not a dump")
    (own,) = read_evidence(tmp_path)
    assert [dump.rank for dump in own.dumps] == [9, 10]
    assert own.dumps[0].groups[0].ranks == (9, 10, 11)
    assert own.dumps[0].entries[1].ended_s is None
    assert own.notes == ()


def test_two_dumps_of_one_rank_are_an_error_that_names_both(tmp_path: Path) -> None:
    for name in ("trace_rank_0", "trace_rank_1", "nccl_trace_rank_1"):
        (tmp_path / name).write_bytes(pickle.dumps(PYTORCH))
    with pytest.raises(
        DumpError, match="two dumps of rank 1: nccl_trace_rank_1 and trace_rank_1, expected one"
    ):
        read_evidence(tmp_path)
    refused = CliRunner().invoke(app, ["diagnose", str(tmp_path)])
    assert refused.exit_code != 0
    (tmp_path / "nccl_trace_rank_1").unlink()
    ours = RankDump(1, "east-1", 1.0)
    ours.write(tmp_path / dump_name(1))
    with pytest.raises(DumpError, match=r"two dumps of rank 1: rank-1\.json and trace_rank_1"):
        read_evidence(tmp_path)
    for path in tmp_path.iterdir():
        path.unlink()
    ours.write(tmp_path / dump_name(2))
    with pytest.raises(DumpError, match=r"rank-2\.json: got a dump of rank 1"):
        read_evidence(tmp_path)
    ours.write(tmp_path / dump_name(1))
    with pytest.raises(DumpError, match=r"two dumps of rank 1: rank-1\.json and rank-2\.json"):
        read_evidence(tmp_path)


def test_a_name_must_say_the_rank(tmp_path: Path) -> None:
    (tmp_path / "trace.pkl").write_bytes(pickle.dumps(PYTORCH))
    with pytest.raises(DumpError, match=r"trace\.pkl: got a name without a rank, expected trace_rank_3"):
        read_evidence(tmp_path)
    (tmp_path / "trace.pkl").rename(tmp_path / "trace_rank_-1")
    with pytest.raises(DumpError, match="trace_rank_-1: got rank -1, expected a rank of 0 or more"):
        read_evidence(tmp_path)


def test_dumps_in_folders_of_hosts_are_one_job_and_those_of_moments_are_not(tmp_path: Path) -> None:
    for host, rank in (("a", 0), ("b", 1)):
        (tmp_path / host).mkdir()
        (tmp_path / host / f"trace_rank_{rank}").write_bytes(pickle.dumps(PYTORCH))
    (own,) = read_evidence(tmp_path)
    assert [dump.rank for dump in own.dumps] == [0, 1]
    assert own.notes == ("the dumps of 2 directories are read as one job",)
    (tmp_path / "b" / "trace_rank_0").write_bytes(pickle.dumps(PYTORCH))
    assert [part.name for part in read_evidence(tmp_path)] == ["a", "b"]


def gloo(rank: int, retired: int, waits: bool = False) -> dict[str, Any]:
    """Write what PyTorch 2.13 does with Gloo: no group of its name, no ends, what is over `retired`."""
    entries = [
        {
            **PYTORCH["entries"][0], "profiling_name": "gloo:all_reduce", "collective_seq_id": number + 1,
            "time_created_ns": 10**9 * (number + 1) + rank, "state": "scheduled", "retired": number < retired,
            "time_discovered_started_ns": 0, "time_discovered_completed_ns": 0, "thread_name": "python",
        }
        for number in range(retired + waits)
    ]  # fmt: skip
    groups = {"": {"name": "", "desc": "", "ranks": "[]"}}
    return {
        "version": "2.10",
        "comm_lib_version": "",
        "pg_config": groups,
        "pg_status": {},
        "entries": entries,
    }


@pytest.mark.parametrize("timed_out", [False, True])
def test_what_gloo_leaves_without_an_end_is_concluded_and_said(tmp_path: Path, timed_out: bool) -> None:
    for rank in range(4):
        # rank 2 does not come to the fifth; the others wait for it, or have given it up
        document = gloo(rank, 4) if rank == 2 else gloo(rank, 4 + timed_out, waits=not timed_out)
        path = tmp_path / f"comm_lib_trace_rank_{rank}"
        path.write_text(json.dumps(document))
        os.utime(path, (60, 60))
    (own,) = read_evidence(tmp_path)
    assert {dump.groups[0].ranks for dump in own.dumps} == {(0, 1, 2, 3)}
    assert [entry.state for entry in own.dumps[0].entries] == ["completed"] * 4 + [
        "failed" if timed_out else "scheduled"
    ]
    assert own.notes[0].startswith("ranks of group 0 are not in the dumps")
    count, failed = (19, 3) if timed_out else (16, 0)
    assert own.notes[1].startswith(f"{count} operations ended without a result")
    assert f"{failed} that a rank has not reached count as failed" in own.notes[1]
    first = diagnose(own.dumps).verdicts[0]
    assert (first.kind, first.ranks) == ("RANK_NOT_JOINED", (2,))
    shown = CliRunner().invoke(app, ["diagnose", str(tmp_path)])
    assert "note: ranks of group 0 are not in the dumps" in shown.stderr


def test_a_healthy_job_of_gloo_has_no_verdict(tmp_path: Path) -> None:
    for rank in range(4):
        (tmp_path / f"{rank}.json").write_text(json.dumps(gloo(rank, 4)))
    (own,) = read_evidence(tmp_path)
    assert diagnose(own.dumps).verdicts == ()


def test_members_of_a_batch_have_the_state_of_their_batch(tmp_path: Path) -> None:
    # NCCL leaves what `batch_isend_irecv` starts scheduled, and says the state in the entry that ends the batch
    collective, message = PYTORCH["entries"]
    batch = {
        "state": "completed",
        "time_discovered_completed_ns": 1_500_000_000,
        "retired": True,
        "input_sizes": [],
    }
    entries = [
        {**message, "profiling_name": "nccl:send 1->0"},
        message,
        {**message, "profiling_name": "nccl:coalesced", **batch},
        {**collective, "collective_seq_id": 2, "state": "scheduled", "time_discovered_completed_ns": None},
        {**collective, "collective_seq_id": 2, "input_sizes": [[7]], "state": "scheduled"},
        {**collective, "collective_seq_id": 2, "profiling_name": "nccl:coalesced", **batch},
        {**message, "p2p_seq_id": 2, "retired": True},
    ]
    (tmp_path / "trace_1").write_bytes(pickle.dumps({**PYTORCH, "entries": entries}))
    (own,) = read_evidence(tmp_path)
    assert own.notes == ()
    found = [(entry.name, entry.sequence, entry.state, entry.ended_s) for entry in own.dumps[0].entries]
    assert found == [
        ("isend", 0, "completed", 1.5),
        ("irecv", 0, "completed", 1.5),
        ("all_reduce", 2, "completed", 1.5),
        # given up by itself: who looks at events knows the end of all that has one
        ("irecv", 0, "failed", None),
    ]
    assert own.dumps[0].entries[2].size_bytes == 28


def test_numbers_from_0_and_unknown_fields_of_other_recorders_are_understood_or_named(tmp_path: Path) -> None:
    # torchcomms counts from 0, and does not say what is a message
    for rank in range(2):
        first, second = PYTORCH["entries"]
        entries = [
            {**first, "collective_seq_id": 0, "novel": 1},
            {**second, "collective_seq_id": 1, "is_p2p": False},
        ]
        (tmp_path / f"torchcomm_fr_trace_{rank}").write_bytes(pickle.dumps({**PYTORCH, "entries": entries}))
    (own,) = read_evidence(tmp_path)
    assert [entry.sequence for entry in own.dumps[0].entries] == [1, 0]
    assert own.notes == ("unknown fields of entries: novel",)
    (tmp_path / "torchcomm_fr_trace_0").write_bytes(
        pickle.dumps({**PYTORCH, "entries": PYTORCH["entries"][:1] * 3})
    )
    (own,) = read_evidence(tmp_path)
    assert (
        "2 operations share their number with another one of their rank and group: the last one counts"
        in own.notes
    )


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
        ((back,), _) = read_dumps([tmp_path / f"trace_rank_{dump.rank}"])
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

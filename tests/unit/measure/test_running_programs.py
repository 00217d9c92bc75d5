"""Networks and programs of anybody: what is settled before anything is built, and ranks on loopback."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import pytest

import testbed
from testbed.comm.flight_recorder import Recorder
from testbed.contrib.torch.launch_env import ring_name
from testbed.measure.diagnosis.dumps import read_evidence
from testbed.measure.execution import network_setup
from testbed.measure.execution.network_setup import choose_network_without_ranks
from testbed.measure.execution.program_run import ProgramFlight, require_program, run_programs
from testbed.measure.fidelity.capacity import NetworkBackend
from testbed.measure.ranks.programs import Programs
from testbed.spec.errors import ConfigError
from testbed.workload.job.endpoint_resolution import loopback_endpoints

BACKEND = NetworkBackend("userspace", "netdev")


@pytest.fixture(autouse=True)
def backend_of_any_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network_setup, "choose_network_backend", lambda link_engine, datapath: BACKEND)


def test_a_network_without_ranks_has_what_was_asked_for() -> None:
    network = choose_network_without_ranks("two-buildings", "ecmp", size_scale="4000")
    assert (network.topology.name, network.policy.name) == ("two-buildings", "ecmp")
    assert network.scale.size_scale == 4000
    assert network.backend == BACKEND
    assert choose_network_without_ranks("two-buildings", "te", size_scale=4000.0).scale == network.scale


def test_a_command_and_python_name_what_does_not_fit_in_their_own_words() -> None:
    with pytest.raises(ConfigError, match="--policy: got magic"):
        choose_network_without_ranks("two-buildings", "magic")
    with pytest.raises(ConfigError, match=r"size_scale: got 0\.5, expected auto or a number of at least 1"):
        choose_network_without_ranks("two-buildings", "ecmp", size_scale="0.5")
    with (
        pytest.raises(ConfigError, match=r"command line: policy: got magic"),
        testbed.up("two-buildings", policy="magic"),
    ):
        pass


def test_the_process_that_holds_a_network_is_told_all_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[Path, dict[str, Any]]] = []

    def start_background(path: Path, options: dict[str, Any], progress: object) -> str:
        asked.append((path, options))
        return "ab12"

    monkeypatch.setattr(network_setup, "start_background", start_background)
    monkeypatch.chdir(tmp_path)
    network = choose_network_without_ranks("two-buildings", "ecmp", size_scale="4000")
    assert network.start(Path("two-buildings"), print) == "ab12"
    ((path, options),) = asked
    assert path.is_absolute()
    assert path.name == "two-buildings.yaml"
    assert (options["link_engine"], options["datapath"]) == ("userspace", "netdev")
    assert options["scale"]["size_scale"] == 4000
    assert options["policy"]["name"] == "ecmp"


def test_a_program_is_one_that_there_is() -> None:
    assert require_program(["sh", "-c", "true"]) == ["sh", "-c", "true"]
    with pytest.raises(ConfigError, match="COMMAND: got no-such-program, expected an executable program"):
        require_program(["no-such-program"])
    with pytest.raises(ConfigError, match="COMMAND: got nothing"):
        require_program([])


def test_ranks_on_loopback_run_to_their_end_and_the_worst_status_is_theirs() -> None:
    said: set[tuple[int, bool, str]] = set()
    script = 'echo "$RANK of $WORLD_SIZE"; echo oops >&2; exit $((RANK * 3))'
    status = run_programs(["sh", "-c", script], None, 2, lambda *line: said.add(line), print)
    assert status == 3
    assert said == {(0, False, "0 of 2"), (1, False, "1 of 2"), (0, True, "oops"), (1, True, "oops")}


def test_before_ranks_are_stopped_is_said_how_the_others_ended() -> None:
    told: list[dict[int, str]] = []
    script = """
        case $RANK in
            0) ;;
            1) echo "[rank1]: ValueError: no such batch" >&2; echo "  and so on" >&2; exit 3;;
            2) kill -9 $$;;
            3) sleep 60;;
        esac
    """
    with loopback_endpoints(4) as endpoints:
        programs = Programs(["sh", "-c", script], endpoints, lambda *_: None)
        programs.failing = lambda ended: told.append(dict(ended))
        assert programs.run() in (3, 137)
    expected = {0: "finished", 1: "ended with status 3: ValueError: no such batch", 2: "killed by signal 9"}
    assert told == [expected]
    with loopback_endpoints(1) as endpoints:
        assert Programs(["true"], endpoints, lambda *_: None, failing=lambda _: told.clear()).run() == 0
    assert told == [expected], "nothing is told of those that end well"


def test_dumps_that_cannot_be_written_leave_the_status_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def keep(self: ProgramFlight, ended: object) -> None:
        raise PermissionError("not yours")

    monkeypatch.setattr(ProgramFlight, "keep", keep)
    told: list[str] = []
    status = run_programs(["false"], None, 1, lambda *_: None, told.append, output=tmp_path)
    assert status == 1
    assert told == ["cannot write the flight recorder dumps: not yours"]


def test_a_rank_that_made_no_process_group_leaves_no_dump(tmp_path: Path) -> None:
    with loopback_endpoints(2) as endpoints:
        flight = ProgramFlight(endpoints, tmp_path / "failed")
        flight.make(tmp_path)
    flight.keep({0: "finished"})
    assert not flight.kept
    assert not (tmp_path / "failed").exists()
    with (tmp_path / ring_name(1)).open("r+b") as file:
        Recorder(mmap.mmap(file.fileno(), 0), 1).begin(0, 1, "all_reduce", 5.0)
    (tmp_path / ring_name(1)).unlink()
    (tmp_path / "failed" / "flight").mkdir(parents=True)
    (tmp_path / "failed" / "flight" / "rank-7.json").write_text("of another launch")
    flight.keep({1: "ended with status 1: boom"})
    (evidence,) = read_evidence(tmp_path / "failed")
    assert [(dump.rank, dump.ended, len(dump.entries)) for dump in evidence.dumps] == [
        (1, "ended with status 1: boom", 1)
    ]
    assert evidence.paths is not None
    assert evidence.paths.one_clock

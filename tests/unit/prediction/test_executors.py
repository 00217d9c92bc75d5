"""Engines: which a command names, work in order, what workers must have alike, shards that come as archives."""

from __future__ import annotations

import io
import operator
import sys
import zipfile
from pathlib import Path

import pytest

from testbed.cli.experiments.run import open_executor
from testbed.measure.execution import guests
from testbed.measure.execution.guests import GuestWork, measure_on_worker, read_ended, unpack
from testbed.measure.execution.identity import worker_identity
from testbed.measure.execution.run import Request, prepare
from testbed.measure.results.unfinished_run import FINISHED
from testbed.net.virtual.guest import GuestExit, GuestSettings
from testbed.prediction.executors import ExecutorError, Processes
from testbed.prediction.executors.dask_cluster import Cluster, difference
from testbed.spec.errors import ConfigError
from testbed.spec.scale import Scale
from testbed.spec.scenario import load_scenario


@pytest.mark.parametrize("jobs", [1, 2])
def test_work_comes_back_in_the_order_of_its_items_wherever_it_was_done(jobs: int) -> None:
    with Processes(jobs).workers(operator.mul, 3) as workers:
        assert list(workers.map(range(4))) == [0, 3, 6, 9]
        assert list(workers.map(range(60))) == [3 * number for number in range(60)]
        assert list(workers.map([])) == []


def test_an_engine_that_cannot_be_had_says_why_and_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="processes or dask"), open_executor("spark", None, None):
        pass
    words = "--scheduler: got --engine processes, expected --engine dask"
    with pytest.raises(ConfigError, match=words), open_executor("processes", "tcp://head:8786", None):
        pass
    with open_executor("processes", None, 3) as engine:
        assert (engine.words, engine.at_once) == ("3 processes", 1)
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(ExecutorError, match=r"testbed\[dask\]"), open_executor("dask", None, 1):
        pass


def test_what_a_worker_has_that_is_not_as_here_is_named() -> None:
    here = {"testbed": "1", "kernel": "6.1"}
    assert difference(here, here) == ""
    assert difference({"testbed": "2"}, here) == "testbed 2, expected 1; kernel none, expected 6.1"
    assert set(worker_identity()) == {"testbed", "Python", "calibration", "kernel of the virtual clock"}
    assert worker_identity() == worker_identity()


def test_the_real_clock_is_this_machines_alone() -> None:
    request = Request(
        load_scenario("quickstart"), Path("none"), clock="real", engine=Cluster(NoWorkers(), "here", dict)
    )
    with pytest.raises(ConfigError, match="--engine dask: got --clock real, expected --clock virtual"):
        prepare(request)


class NoWorkers:
    """A client of a scheduler that has none."""

    def nthreads(self) -> dict[str, int]:
        return {}


def test_a_scheduler_without_workers_is_refused() -> None:
    with pytest.raises(ExecutorError, match="the scheduler at here has no worker"):
        Cluster(NoWorkers(), "here", dict).check()


def test_a_shard_comes_from_its_worker_as_it_would_stand_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = GuestExit(0, 1.5, 2.5, 1 << 20)
    seen: list[Path] = []

    def measure(work: GuestWork, image: object, shard: object, scenario: object, folder: Path) -> GuestExit:
        (folder / "deep").mkdir(parents=True)
        (folder / "deep" / "samples").write_text(f"{scenario} of {shard}")
        guests.mark_finished(folder, ended)
        seen.append(folder)
        return ended

    class Seventh:
        number = 7

        def __str__(self) -> str:
            return "the seventh"

    monkeypatch.setattr(guests, "measure_in_guest", measure)
    monkeypatch.setattr(guests, "find_image", lambda: None)
    item: tuple[object, object] = (Seventh(), "scenario")
    packed = measure_on_worker(GuestWork(GuestSettings(), Scale(), None), item)  # type: ignore[arg-type]
    assert not seen[0].exists()
    assert unpack(packed, tmp_path / "7") == ended
    assert (tmp_path / "7" / "deep" / "samples").read_text() == "scenario of the seventh"
    assert read_ended(tmp_path / "7" / FINISHED) == ended


def test_an_archive_without_its_end_leaves_a_folder_that_is_not_finished(tmp_path: Path) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("samples", "some")
    with pytest.raises(KeyError):
        unpack(packed.getvalue(), tmp_path / "1")
    assert not (tmp_path / "1" / FINISHED).exists()

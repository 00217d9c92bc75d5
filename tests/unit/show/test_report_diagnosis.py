"""What a report, and a run that fails, say of who did it."""

from __future__ import annotations

from pathlib import Path

from testbed.comm.flight_recorder import FLIGHT, PATHS_FILE, dump_name
from testbed.measure.execution.run import failure_summary
from testbed.measure.results.unfinished_run import keep_failed
from testbed.show.report.diagnosis_page import diagnose_suspects, suspicion_text
from tests.unit.comm.flight_world import World, faulty
from tests.unit.show.report_run import measured_variant


def write(world: World, folder: Path) -> None:
    folder.mkdir(parents=True)
    for dump in world.play():
        dump.write(folder / dump_name(dump.rank))
    world.paths.write(folder / PATHS_FILE)


def test_a_variant_that_is_slower_than_predicted_has_its_verdict(tmp_path: Path) -> None:
    world, whose = faulty("slow rank", 0)
    write(world, tmp_path / FLIGHT / "slow")
    write(World(seed=1), tmp_path / FLIGHT / "well-3")
    slow = measured_variant("slow", 1.5, predicted_s=1.0)
    well = measured_variant("well", 1.0, predicted_s=1.01)
    ((name, found),) = diagnose_suspects(tmp_path, [slow, well])
    assert (name, found.verdicts[0].ranks) == ("slow", whose)
    assert suspicion_text(name, found).startswith(f"slow: SLOW_RANK: rank {whose[0]}, since ")


def test_nothing_is_said_of_what_is_as_predicted_or_has_no_dumps(tmp_path: Path) -> None:
    world, _ = faulty("slow rank", 0)
    well, slow = measured_variant("one", 1.0, predicted_s=1.0), measured_variant("one", 1.5, predicted_s=1.0)
    assert diagnose_suspects(tmp_path, [slow]) == []
    write(world, tmp_path / FLIGHT / "one")
    assert diagnose_suspects(tmp_path, [well]) == []
    assert len(diagnose_suspects(tmp_path, [slow])) == 1


def test_a_run_that_fails_says_who_it_was(tmp_path: Path) -> None:
    world, whose = faulty("kill", 0)
    write(world, tmp_path / "shards" / "0" / FLIGHT)
    left = keep_failed(tmp_path / "run", tmp_path / "shards", "rank 3 was killed")
    assert left is not None
    (line,) = failure_summary(left)
    assert line.startswith(f"CRASHED: rank {whose[0]}, since ")
    assert failure_summary(tmp_path) == []

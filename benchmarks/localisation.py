"""Things break in 13 ways among 32 ranks, each with many seeds: does `testbed diagnose` name what it was, and when?

    .venv/bin/python benchmarks/localisation.py FOLDER [--seeds 16] [--clean 100] [--only KIND ...] [--jobs 2] [--table]

Each seed draws whom or what it happens to and when, in scenarios/faults/localise.yaml under the virtual clock; what
is in FOLDER already is not run again. Ranks' clocks are put off, by up to 1 ms from one to another, before dumps are
judged: those of a step that did not end, where they tell who it is for sure, and else those of the run's end. Prints,
by kind: how often the first verdict names it, virtual seconds from the onset (of runs that do not fail: from the step
with it) to these dumps, and how often the naive answer (whom the first time-out names) is right; false alarms of
clean runs; and what was called what. --table: nothing is run.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testbed.comm.flight_recorder import FLIGHT, STALLED, RankDump
from testbed.measure.diagnosis.diagnose import diagnose
from testbed.measure.diagnosis.dumps import Evidence, read_evidence, read_stalled
from testbed.measure.diagnosis.verdicts import Diagnosis
from testbed.measure.execution.stalls import SURE
from testbed.spec.scenario import load_scenario

SCENARIO = Path(__file__).parents[1] / "scenarios" / "faults" / "localise.yaml"
CLOCK_ERROR_S = 1e-3
CLEAN, FAILED = "clean", "failed"
RANKS, PLANES = 32, 4
STEPS_FROM_ONSET = 3  # the last of them, of a run that does not fail
HOSTS = [f"{building}{number}" for building in ("east", "west") for number in range(1, 17)]


@dataclass(frozen=True)
class Case:
    """What breaks: the event, the verdicts that name it, and whether that is a rank, a host's card or a link."""

    event: Callable[[random.Random], dict[str, Any]]
    kinds: frozenset[str]
    of: str


def _moment(chance: random.Random) -> dict[str, Any]:
    return {"step": 1, "at": f"{chance.uniform(0, 100):.1f} ms"}


def _rank(action: str, **more: Any) -> Callable[[random.Random], dict[str, Any]]:
    return lambda chance: {"action": action, "target": chance.randrange(RANKS), **_moment(chance), **more}


def _host(action: str, **more: Any) -> Callable[[random.Random], dict[str, Any]]:
    return lambda chance: {"action": action, "target": chance.choice(HOSTS), **_moment(chance), **more}


def _collective(action: str, *whats: str) -> Callable[[random.Random], dict[str, Any]]:
    def event(chance: random.Random) -> dict[str, Any]:
        what = {"what": chance.choice(whats)} if whats else {}
        target = chance.randrange(RANKS)
        return {"action": action, "target": target, "step": 1, "operation": chance.randint(1, 8), **what}

    return event


def _link(action: str, **more: Any) -> Callable[[random.Random], dict[str, Any]]:
    def event(chance: random.Random) -> dict[str, Any]:
        return {
            "action": action,
            "target": f"east-west-{chance.randrange(PLANES)}",
            **_moment(chance),
            **more,
        }

    return event


def _plane(chance: random.Random) -> dict[str, Any]:
    return {"action": "plane_blackhole", "target": chance.randrange(PLANES), **_moment(chance)}


CRASH, STUCK, SLOW = frozenset({"CRASHED"}), frozenset({"STUCK_IN_NETWORK"}), frozenset({"SLOW_NETWORK"})
CASES = {
    "rank_kill": Case(_rank("rank_kill"), CRASH, "rank"),
    "host_kill": Case(_host("host_kill"), CRASH, "host"),
    "host_pause": Case(_host("host_pause"), frozenset({"SILENT", "RANK_NOT_JOINED", "CRASHED"}), "host"),
    "nic_down": Case(_host("nic_down"), STUCK, "nic"),
    "nic_degrade": Case(_host("nic_degrade", set={"rate": "10 Gbit/s"}), SLOW, "nic"),
    "nic_loss": Case(_host("nic_loss", loss="20 %"), SLOW | STUCK, "nic"),
    "rank_slow": Case(_rank("rank_slow", factor=4), frozenset({"SLOW_RANK"}), "rank"),
    "rank_skip": Case(_collective("rank_skip"), frozenset({"RANK_NOT_JOINED"}), "rank"),
    "rank_mismatch": Case(
        _collective("rank_mismatch", "size", "type", "order"), frozenset({"MISMATCH"}), "rank"
    ),
    "link_blackhole": Case(_link("link_blackhole"), STUCK, "link"),
    "plane_blackhole": Case(_plane, STUCK, "link"),
    "degrade": Case(_link("degrade", set={"rate": "10 Gbit/s"}), SLOW, "link"),
    "io_slow": Case(_rank("io_slow", delay="20 ms"), frozenset({"SLOW_IO"}), "rank"),
}


def main() -> None:
    """Run what is missing, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=16)
    parser.add_argument("--clean", type=int, default=100)
    parser.add_argument("--only", nargs="*", default=[*CASES, CLEAN])
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    wanted = [
        (kind, seed)
        for seed in range(max(options.seeds, options.clean))
        for kind in [*CASES, CLEAN]
        if kind in options.only and seed < (options.clean if kind == CLEAN else options.seeds)
    ]
    if not options.table:
        with ThreadPoolExecutor(options.jobs) as pool:
            for _ in pool.map(lambda which: _run(options.folder, *which), wanted):
                pass
    _print(options.folder, wanted)


def _event(kind: str, seed: int) -> dict[str, Any]:
    return CASES[kind].event(random.Random(f"{kind}/{seed}"))


def _where(folder: Path, kind: str, seed: int) -> Path:
    return folder / f"{kind}-{seed}"


def _run(folder: Path, kind: str, seed: int) -> None:
    run = _where(folder, kind, seed)
    if run.exists():
        return
    events = [] if kind == CLEAN else [_event(kind, seed)]
    settings = {"events": events, "telemetry.flight_recorder": "always", "seed": seed + 1}
    scenario = load_scenario(SCENARIO).changed(settings, f"{kind}-{seed}")
    with_event = folder / f"{kind}-{seed}.yaml"
    with_event.write_text(scenario.to_yaml())
    output = folder / f".{kind}-{seed}"
    for old in (output, Path(f"{output}.failed")):
        shutil.rmtree(old, ignore_errors=True)
    command = [sys.executable, "-m", "testbed", "run", str(with_event), "--clock", "virtual", "--jobs", "1"]
    done = subprocess.run([*command, "-o", str(output)], capture_output=True, text=True, check=False)
    left = output if output.exists() else Path(f"{output}.failed")
    if not left.exists():
        print(f"{kind} {seed}: {done.stderr[-400:]}", file=sys.stderr)
        return
    run.mkdir()
    if left != output:
        (run / FAILED).touch()
    shutil.move(left / FLIGHT, run / FLIGHT)
    if (left / "events.jsonl").exists():
        shutil.move(left / "events.jsonl", run / FLIGHT / "events.jsonl")
    shutil.rmtree(left)


def _judged(run: Path, seed: int) -> tuple[Evidence, Diagnosis]:
    """Its dumps, with every rank's clock off by a time of its own."""
    if (run / FLIGHT / STALLED).exists():
        evidence = read_stalled(run / FLIGHT)
        found = _diagnosed(evidence, seed)
        if found.verdicts and found.verdicts[0].certainty >= SURE:
            return evidence, found
    (evidence,) = read_evidence(run)
    return evidence, _diagnosed(evidence, seed)


def _diagnosed(evidence: Evidence, seed: int) -> Diagnosis:
    chance = random.Random(f"clocks/{seed}")
    dumps = tuple(_shifted(dump, chance.uniform(-0.5, 0.5) * CLOCK_ERROR_S) for dump in evidence.dumps)
    return diagnose(dumps, evidence.paths, CLOCK_ERROR_S)


def _shifted(dump: RankDump, by_s: float) -> RankDump:
    document = dump.to_document()

    def shift(own: dict[str, Any]) -> None:
        for key, value in own.items():
            if key.endswith("_s") and value is not None:
                own[key] = value + by_s

    shift(document)
    for entry in document["entries"]:
        shift(entry)
        for peer in entry.get("peers", {}).values():
            shift(peer)
    return RankDump.from_document(document)


def _right(kind: str, seed: int, found: Diagnosis) -> bool:
    """Whether the first verdict names what it was."""
    if not found.verdicts:
        return False
    case, event, verdict = CASES[kind], _event(kind, seed), found.verdicts[0]
    if verdict.kind not in case.kinds:
        return False
    return _named(case.of, event["target"], verdict.ranks, verdict.component)


def _named(of: str, target: Any, ranks: tuple[int, ...], component: str) -> bool:
    if of == "rank":
        return ranks == (target,)
    if of in ("host", "nic"):
        return ranks == (HOSTS.index(target),) or component in (f"nic {target}", f"host {target}")
    plane = target if isinstance(target, int) else int(target.rsplit("-", 1)[1])
    return component in (f"link east-west-{plane}", f"plane {plane}")


def _onset_s(run: Path, dumps: Sequence[RankDump]) -> float | None:
    if not (run / FAILED).exists():  # its events are told by another clock
        starts = [entry.ended_s for entry in dumps[0].entries if entry.name == "wait_for_start"]
        return starts[-STEPS_FROM_ONSET] if len(starts) >= STEPS_FROM_ONSET else None
    file = run / FLIGHT / "events.jsonl"
    times = (
        [json.loads(line).get("time_s") for line in file.read_text().splitlines()] if file.exists() else []
    )
    return min((time_s for time_s in times if time_s is not None), default=None)


def _print(folder: Path, wanted: list[tuple[str, int]]) -> None:
    confusion: Counter[tuple[str, str]] = Counter()
    rows: dict[str, list[tuple[bool, bool, float | None]]] = {}
    alarms = []
    clean = 0
    for kind, seed in wanted:
        run = _where(folder, kind, seed)
        if not run.exists():
            continue
        evidence, found = _judged(run, seed)
        said = found.verdicts[0].kind if found.verdicts else "nothing"
        confusion[kind, said] += 1
        if kind == CLEAN:
            clean += 1
            alarms += [f"{seed}: {said}"] if found.verdicts else []
            continue
        event, naive = _event(kind, seed), found.naive.rank
        by_naive = naive is not None and _named(CASES[kind].of, event["target"], (naive,), "")
        onset_s = _onset_s(run, evidence.dumps)
        took_s = None if onset_s is None else max(dump.time_s for dump in evidence.dumps) - onset_s
        right = _right(kind, seed, found)
        rows.setdefault(kind, []).append((right, by_naive, took_s))
        if not right:
            who = found.verdicts[0].who if found.verdicts else ""
            print(f"{kind} {seed}: {event['target']}, said {said} {who}", file=sys.stderr)
    print("| what breaks | named | naively | median time to it | longest |\n|---|---|---|---|---|")
    for kind, own in rows.items():
        times = [took_s for _, _, took_s in own if took_s is not None]
        shown = f"{statistics.median(times):.2f} s | {max(times):.2f} s" if times else "- | -"
        named, naively = sum(row[0] for row in own), sum(row[1] for row in own)
        print(f"| `{kind}` | {named} of {len(own)} | {naively} of {len(own)} | {shown} |")
    total = [row for own in rows.values() for row in own]
    if total:
        named, naively = sum(row[0] for row in total), sum(row[1] for row in total)
        print(f"| all | {named} of {len(total)} | {naively} of {len(total)} | | |")
    print(f"\nclean runs: {clean}, false alarms: {len(alarms)} {alarms or ''}")
    for (kind, said), count in sorted(confusion.items()):
        print(f"{kind:>16} -> {said:<18} {count}")


if __name__ == "__main__":
    main()

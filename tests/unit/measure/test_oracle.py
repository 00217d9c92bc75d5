"""The oracle: it agrees with the testbed's figures, finds each one that is altered, and shares no code with them."""

from __future__ import annotations

import ast
import copy
import json
import random
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import yaml
from rich.console import Console

from testbed.comm.collectives import algorithm_selection, between_groups
from testbed.comm.collectives.algorithms.all_to_all_v import rows_traffic, sent_rows
from testbed.measure.fidelity.verdict import Verdict
from testbed.measure.results.records import COUNTERS
from testbed.measure.results.result import Control, Result, Training
from testbed.measure.results.shard_merge import merge_records, merge_variants
from testbed.measure.results.shards import Shard, ShardFigures, ShardRecord, ShardVariant
from testbed.measure.results.summary import gather_steps
from testbed.measure.results.training_summary import training_summary
from testbed.show.report.html import write_report
from testbed.show.report.terminal import print_summary
from testbed.spec.scale import Scale
from testbed.spec.scenario import Scenario, load_scenario
from testbed.workload.job.job import Workload, workload_of
from testbed.workload.plan import Computing
from testbed.workload.uniform_plans import uneven_rows
from tests import oracle
from tests.figures import tables_of
from tests.oracle import Checks, Oracle, check_run
from tests.oracle.arithmetic import nearest_rank, student_quantile
from tests.oracle.flops import counts_of
from tests.oracle.wire import UNEVEN, payload
from tests.unit.show.report_run import SIZE_SCALE, SyntheticRun

ROOT = Path(__file__).parents[3]
SCALE = Scale(SIZE_SCALE)
TRIALS, WARMUP = 3, 1


def test_the_oracle_imports_nothing_that_it_judges() -> None:
    """Nothing of the testbed at all: the standard library, PyYAML, NumPy and itself."""
    imported = set()
    for file in Path(oracle.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0
                imported.add(node.module or "")
    assert {name for name in imported if name.startswith("tests")} == {
        name for name in imported if name.startswith("tests.oracle")
    }
    assert {name.partition(".")[0] for name in imported} == {
        *("tests", "numpy", "yaml", "__future__"),
        *("collections", "copy", "csv", "dataclasses", "functools", "html", "io", "itertools"),
        *("json", "math", "pathlib", "random", "re", "typing"),
    }


# a run of the quickstart whose times were drawn: raw records, and all else by the testbed


def samples_of(
    workload: Workload, variant: str, begin_s: float, draw: random.Random
) -> Iterator[dict[str, Any]]:
    """What ranks record: computing takes as long as planned, and a collective as long as is drawn."""
    for trial in range(TRIALS):
        step = {"variant": variant, "trial": trial, "step": trial + WARMUP}
        start_s = begin_s + 3.0 * trial
        for rank, plan in enumerate(workload.plan.ranks):
            now_s, done_s = start_s, start_s
            for index, operation in enumerate(plan):
                entry = {**step, "rank": rank, "index": index, "name": operation.name}
                if isinstance(operation, Computing):
                    end_s = now_s + operation.duration_s
                    yield {**entry, "operation": operation.kind, "start_s": now_s, "end_s": end_s, "bytes": 0}
                    now_s = end_s
                else:
                    done_s = max(now_s, done_s) + draw.uniform(0.01, 0.02) * (2 if variant == "ring" else 1)
                    size = getattr(operation, "numel", 0) * workload.itemsize
                    span = {"start_s": now_s, "end_s": done_s, "bytes": size}
                    yield {**entry, "operation": "all_reduce", **span}
            sent = {
                str(there): round(count)
                for (here, there), count in workload.pairs(variant)[0].items()
                if here == rank
            }
            span = {"start_s": start_s, "end_s": max(now_s, done_s), "bytes": sum(sent.values())}
            whole = {"rank": rank, "operation": "step", "name": variant, "wrong": 0, "checked": 9}
            yield {**step, **whole, **span, "sent_bytes": sent}


def links_of(until_s: float, draw: random.Random) -> Iterator[dict[str, Any]]:
    counted = {(plane, way): [0] * len(COUNTERS) for plane in (0, 1) for way in ("a_to_b", "b_to_a")}
    for tick in range(int(until_s / 0.25) + 2):
        for (plane, way), counts in counted.items():
            for place, most in enumerate((400_000, 80, 2, 3, 2, 3)):
                counts[place] += draw.randint(0, most)
            counters = dict(zip(COUNTERS, counts, strict=True))
            queue = {"queue_bytes": draw.randint(0, 100_000)}
            ends = {"a": "east", "b": "west", "plane": plane, "direction": way}
            yield {"time_s": tick / 4, **ends, **counters, **queue}


def sockets_of(until_s: float, draw: random.Random) -> Iterator[dict[str, Any]]:
    again = dict.fromkeys([(0, 4), (4, 0), (3, 4), (3, 2)], 0)
    for tick in range(int(until_s / 0.25) + 2):
        for rank, peer in again:
            again[rank, peer] += draw.randint(0, 2)
            ends = {"rank": rank, "peer": peer, "dscp": 0, "channel": 0}
            state = {"rtt_s": draw.uniform(0.005, 0.02), "retransmits": again[rank, peer]}
            state |= {"bytes_acked": 1000 * (tick + 1), "congestion_window_segments": 10}
            yield {"time_s": tick / 4, **ends, **state}


def shard_of(scenario: Scenario) -> ShardRecord:
    draw = random.Random(4)
    workload = workload_of(scenario, scenario.topology.resolve(SCALE), SCALE)
    samples: list[dict[str, Any]] = []
    variants = []
    for number, name in enumerate(scenario.variant_names):
        own = list(samples_of(workload, name, 1.0 + 3.0 * TRIALS * number, draw))
        samples += own
        steps = gather_steps(own, scenario.ranks)
        training = training_summary(workload, name, steps, own, None, SCALE)
        variants.append(
            ShardVariant(
                algorithm=name,
                step_time_s=median(step.step_time_s for step in steps),
                expected_wan_bytes=between_groups(workload.pairs(name)[0], workload.buildings),
                predicted_s=1.5 + number / 10,
                verdict=Verdict(status="trusted", invariants=()),
                control=Control(carrier_down_s=0, carrier_up_s=0, reaction_s=0, rule_s=0),
                training=Training.model_validate(training),
            )
        )
    until_s = max(entry["end_s"] for entry in samples)
    figures = ShardFigures.model_construct(variants=tuple(variants))
    shard = Shard(0, None, 0, TRIALS, scenario.seed)
    links, sockets = list(links_of(until_s, draw)), list(sockets_of(until_s, draw))
    return ShardRecord(shard, Path(), figures, samples, links, sockets)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a finished run, with its page."""
    scenario = load_scenario(ROOT / "scenarios/quickstart.yaml")
    folder = SyntheticRun().write(tmp_path_factory.mktemp("oracle") / "run")  # for its manifest
    shard = shard_of(scenario)
    records = merge_records([shard])
    for name, lines in (("samples", records.samples), ("links", records.links), ("sockets", records.sockets)):
        (folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    (folder / "scenario.yaml").write_text(scenario.to_yaml())
    document = json.loads((folder / "summary.json").read_text())
    variants = merge_variants(scenario, SCALE, [shard], records)
    document |= {"variants": [variant.document() for variant in variants], "status": "trusted"}
    (folder / "summary.json").write_text(json.dumps(document))
    write_report(folder)
    return folder


def printed_of(folder: Path) -> str:
    console = Console(width=100, record=True, quiet=False, file=open("/dev/null", "w"))  # noqa: SIM115
    print_summary(Result.open(folder), console)
    return console.export_text()


def test_the_oracle_has_the_same_figures(folder: Path) -> None:
    found = check_run(folder, printed_of(folder), tables_of(folder))
    assert sum(found.held.values()) > 350
    expected = {
        *(
            "step time median",
            "step time p95",
            "step time",
            "computing",
            "exposed communication",
            "tokens/s",
            "MFU",
            "drops",
        ),
        *("WAN bytes expected", "WAN bytes observed", "bytes of gradients", "utilisation", "longest queue"),
        *("balance of planes", "round trip median", "retransmits", "share of the step", "speed-up (page)"),
        *("speed-up, from (terminal)", "step_time_s (CSV)", "bytes (CSV)", "peak drawn (page)"),
    }
    assert expected - set(found.held) == set()


def figures_of(document: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where numbers are in a document."""
    if isinstance(document, dict):
        for key, value in document.items():
            yield from figures_of(value, (*path, key))
    elif isinstance(document, list):
        for number, value in enumerate(document):
            yield from figures_of(value, (*path, number))
    elif isinstance(document, (int, float)) and not isinstance(document, bool):
        yield path


# What raw records do not tell: who waited for what on the way, which needs the plan, and what is not a measurement.
UNHELD = re.compile(
    r"control|training\.(predicted|measured\.exposed|critical_path|measured\.bubble_s)|predicted\.step"
)


def test_each_figure_of_a_summary_that_is_altered_is_found(folder: Path) -> None:
    own = Oracle(folder)
    whole = json.loads((folder / "summary.json").read_text())
    unnoticed = []
    for path in figures_of(whole["variants"][0]):
        name = ".".join(map(str, path))
        if UNHELD.match(name):
            continue
        altered, checks = copy.deepcopy(whole), Checks()
        *way, last = path
        place = altered["variants"][0]
        for key in way:
            place = place[key]
        place[last] = place[last] * 1.02 + 2
        own.check_summary(altered, checks)
        if not checks.differences:
            unnoticed.append(name)
    assert unnoticed == []


@pytest.mark.parametrize(
    ("invariant", "measured", "status", "right"),
    [
        ("model_error", "+9.0%", "caution", True),
        ("model_error", "+9.0%", "trusted", False),
        ("model_error", "+9.0%", "untrusted", False),
        ("bytes_witnessed", "12 missing", "untrusted", True),
        ("bytes_witnessed", "12 missing", "caution", False),
        ("cpu_headroom", "60% of windows", "untrusted", True),
        ("cpu_headroom", "40% of windows", "untrusted", False),
        ("payload_correct", "0 wrong", "trusted", True),
    ],
)
def test_a_verdict_that_does_not_follow_from_its_invariants_is_found(
    folder: Path, invariant: str, measured: str, status: str, right: bool
) -> None:
    summary, checks = json.loads((folder / "summary.json").read_text()), Checks()
    entry = {"name": invariant, "bound": "", "measured": measured, "ok": status == "trusted" and right}
    summary["variants"][0]["verdict"] = {"status": status, "invariants": [{**entry, "sentence": ""}]}
    Oracle(folder).check_summary(summary, checks)
    assert (not checks.differences) == right


@pytest.mark.parametrize(
    "shown",
    [
        r'<span class="median">([\d.]+) s</span>',
        r"<small>MFU ([\d.]+) %</small>",
        r"is ([\d.]+)x faster",
        r"<title>step 2: ([\d.]+) s</title>",
        r"ring: ([\d.]+) % · [\d.]+ \w+ per step",
        r'data-label="Longest queue" class="number">([\d.]+) ',
        r'data-label="Retransmitted" class="number">(\d+)',
        r">peak ([\d.]+) %<",
    ],
)
def test_each_figure_of_a_page_that_is_altered_is_found(folder: Path, tmp_path: Path, shown: str) -> None:
    copied = tmp_path / "run"
    shutil.copytree(folder, copied)
    html = (folder / "report.html").read_text()
    found = re.search(shown, html)
    assert found is not None
    digits = found[1][:-1] + str((int(found[1][-1]) + 3) % 10)
    (copied / "report.html").write_text(f"{html[: found.start(1)]}{digits}{html[found.end(1) :]}")
    with pytest.raises(AssertionError, match=r"\(page\): shows"):
        check_run(copied)


def test_a_terminal_and_a_table_that_show_something_else_are_found(folder: Path) -> None:
    printed, tables = printed_of(folder), tables_of(folder)
    altered = re.sub(r"([\d,]+) tokens/s", "123,456 tokens/s", printed)
    with pytest.raises(AssertionError, match=r"tokens/s \(terminal\)"):
        check_run(folder, altered)
    steps = tables["steps"].replace(",0,", ",1,", 1)
    with pytest.raises(AssertionError, match=r"trials \(CSV\)"):
        check_run(folder, printed, {**tables, "steps": steps})


# the oracle's own formulas, against what was published and against plans


def test_published_models_have_as_many_parameters_as_their_publishers_say() -> None:
    published = yaml.safe_load((ROOT / "testbed/data/models.yaml").read_text())
    for name, entry in published.items():
        counts = counts_of(name)
        assert counts.total == pytest.approx(entry["parameters"], rel=0.001), name
        if "active" in entry:
            assert counts.active + counts.looked_up == pytest.approx(entry["active"], rel=0.02), name


def test_students_t_is_that_of_tables() -> None:
    assert [round(student_quantile(freedom), 3) for freedom in (1, 2, 4, 9, 30)] == [
        12.706,
        4.303,
        2.776,
        2.262,
        2.042,
    ]
    assert [nearest_rank(range(1, 101), share) for share in (0.5, 0.95, 0.99)] == [50, 95, 99]


ALGORITHMS = {
    "all_reduce": ("ring", "bidirectional_ring", "halving_doubling", "hierarchical", "hierarchical_tree"),
    "all_gather": ("ring", "near_first", "far_first", "bruck", "direct", "hierarchical"),
    "reduce_scatter": ("ring", "near_first", "far_first", "bruck", "direct", "hierarchical"),
    "all_to_all": ("direct", "pairwise", "hierarchical"),
    "gather": ("direct",),
    "broadcast": ("chain", "binomial"),
}


@pytest.mark.parametrize("buildings", [[0, 0, 0, 1, 1, 1], [0, 1, 0, 1], [0, 0, 1, 2, 2], [0, 0, 0]], ids=str)
def test_formulas_have_as_many_bytes_as_plans(buildings: list[int]) -> None:
    ranks, block = len(buildings), 5040
    for collective, algorithms in ALGORITHMS.items():
        whole = collective in ("all_reduce", "broadcast")
        for algorithm in algorithms:
            pairs = algorithm_selection.traffic(
                collective, algorithm, block * ranks if whole else block, 4, buildings
            )
            found = payload(collective, algorithm, 4 * block * ranks, buildings)
            assert found is not None
            across = between_groups(pairs, buildings)
            assert found.across == pytest.approx(across), (collective, algorithm)
            assert found.inside == pytest.approx(sum(pairs.values()) - across), (collective, algorithm)
    rows = uneven_rows(ranks, block)
    for algorithm in UNEVEN:
        pairs = rows_traffic(sent_rows(algorithm, rows, block), 4, algorithm)
        found = payload("all_to_all_v", algorithm, 4 * block * ranks, buildings)
        assert found is not None
        assert (found.across, found.inside + found.across) == (
            between_groups(pairs, buildings),
            sum(pairs.values()),
        )

"""Comparison of two runs: step times per variant, and every setting in which they differ."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from testbed.measure.results.committed_work import Work, have_same_steps, have_same_workload
from testbed.measure.results.manifest import Manifest, RunFingerprint, file_hash
from testbed.measure.results.records import SAMPLES
from testbed.measure.results.result import Result, StepTimes
from testbed.measure.results.run_directory import BadResult
from testbed.show.report.variant_text import student_975
from testbed.spec.units import per_second_text

MANIFEST, SCENARIO = "manifest.json", "scenario.yaml"
# parts of a manifest that may change figures; the rest is figures, places and times
KEPT = (
    *(
        "testbed_version",
        "host.kernel",
        "versions",
        "sysctls",
        "clock.kind",
        "clock.cpu_time",
        "clock.kernel",
    ),
    *("scale", "link_engine", "datapath", "congestion_control", "calibration"),
)
MOST_LATE = 0.01  # maximum deviation of a repeated run on the real clock, if there is no interval


@dataclass(frozen=True)
class ComparedVariant:
    """One variant of both runs.

    Attributes:
        ratio: Median of the second run over that of the first.
        interval: 95 % confidence interval of the ratio; None for too few samples.
        exact: Whether all samples, and the work done, are equal to the nanosecond.
        work: Work and elapsed time of each run.
    """

    name: str
    one_s: float
    other_s: float
    ratio: float
    interval: tuple[float, float] | None
    exact: bool
    verdicts: tuple[str, str]
    work: tuple[Work, Work]

    @property
    def speedup(self) -> float | None:
        """The second run's work per time over that of the first; None if their workloads differ."""
        one, other = self.work
        return other.per_second / one.per_second if have_same_workload(self.work) else None

    @property
    def agrees(self) -> bool:
        """Whether both runs may be equal; only possible for trusted figures."""
        if "untrusted" in self.verdicts or self.speedup is None:
            return False
        if not have_same_steps(self.work) and abs(self.speedup - 1) > MOST_LATE:
            return False
        if self.interval is None:
            return self.exact or abs(self.ratio - 1) <= MOST_LATE
        return self.exact or self.interval[0] <= 1 <= self.interval[1]


@dataclass(frozen=True)
class Difference:
    """A differing setting (scenario, versions, kernel or calibration), with each run's value; None for no value."""

    what: str
    one: Any
    other: Any


@dataclass(frozen=True)
class Comparison:
    """The comparison of two runs.

    Attributes:
        variants: Variants that both runs have.
        alone: Variants that only one of the runs has.
        differences: Settings that differ.
        identical: Whether both runs' samples are equal byte by byte.
        suspects: Names of fingerprint inputs that differ; None if a run has no fingerprint.
    """

    variants: tuple[ComparedVariant, ...]
    alone: tuple[str, ...]
    differences: tuple[Difference, ...]
    identical: bool = False
    suspects: tuple[str, ...] | None = ()

    @property
    def words(self) -> str:
        """A text that says whether the samples are equal and, if not, the possible causes."""
        if self.identical:
            return "The samples are identical to the last byte."
        if self.suspects is None:
            return "The samples differ; one of the runs is too old to name possible causes."
        named = ", ".join(self.suspects) or "none; only runs on the virtual clock repeat exactly"
        return f"The samples differ. Inputs that may have changed them: {named}."

    @property
    def agrees(self) -> bool:
        """Whether both runs have the same variants, and all of them may be equal."""
        return not self.alone and all(compared.agrees for compared in self.variants)

    def document(self) -> dict[str, Any]:
        """Return the JSON form."""
        rows = [
            {
                **asdict(compared),
                "work": [one.document() for one in compared.work],
                "speedup": compared.speedup,
                "agrees": compared.agrees,
            }
            for compared in self.variants
        ]
        differences = [asdict(entry) for entry in self.differences]
        return {
            "schema": 1,
            "agrees": self.agrees,
            "identical": self.identical,
            "suspects": self.suspects,
            "variants": rows,
            "differences": differences,
        }


def compare_runs(one: Path, other: Path) -> Comparison:
    """Compare two run directories; raise BadResult for a directory without a run."""
    here, there = Result.open(one), Result.open(other)
    names = [variant.name for variant in here.variants]
    others = [variant.name for variant in there.variants]
    compared = tuple(_compared(here, there, name) for name in names if name in others)
    alone = tuple(name for name in (*names, *others) if not (name in names and name in others))
    found = [*_differences(_scenario(one), _scenario(other), "scenario")]
    found += _differences(_surroundings(one), _surroundings(other), "")
    fingerprints = [Manifest.open(folder).fingerprint for folder in (one, other)]
    hashes = [_samples_hash(*pair) for pair in zip((one, other), fingerprints, strict=True)]
    return Comparison(compared, alone, tuple(found), hashes[0] == hashes[1], _suspects(*fingerprints))


def _samples_hash(folder: Path, fingerprint: RunFingerprint | None) -> str:
    file = folder / SAMPLES
    try:
        found = file_hash(file)
    except OSError as error:
        raise BadResult(f"{file}: {error.strerror}, expected a folder that `testbed run` made") from None
    if fingerprint is not None and found != fingerprint.samples:
        raise BadResult(
            f"{file}: got SHA-256 {found}, expected {fingerprint.samples} by {MANIFEST}: changed since the run"
        )
    return found


def _suspects(here: RunFingerprint | None, there: RunFingerprint | None) -> tuple[str, ...] | None:
    if here is None or there is None:
        return None
    names = dict.fromkeys((*here.inputs, *there.inputs))
    return tuple(name for name in names if here.inputs.get(name) != there.inputs.get(name))


def _compared(here: Result, there: Result, name: str) -> ComparedVariant:
    one, other = here.variant(name), there.variant(name)
    times, others = one.step_time_s, other.step_time_s
    return ComparedVariant(
        name,
        times.median,
        others.median,
        others.median / times.median,
        ratio_interval(times, others),
        times.samples == others.samples and one.done == other.done,
        (one.verdict.status, other.verdict.status),
        (one.done, other.done),
    )


def describe_unequal_work(held: ComparedVariant) -> str:
    """Describe the ratio of work per time, which step times do not show; empty if all steps are the same work."""
    one, other = held.work
    if held.speedup is None:
        return f"{held.name}: the steps are different work: {one.workload}; {other.workload}."
    if have_same_steps(held.work):
        return ""
    rates = f"{per_second_text(one.per_second)} and {per_second_text(other.per_second)} {one.unit}/s"
    return f"{held.name}: {rates}, {held.speedup:.4f}x the work in the same time."


def ratio_interval(one: StepTimes, other: StepTimes) -> tuple[float, float] | None:
    """Return Welch's 95 % interval for the ratio of geometric means, other over one; None below two samples each."""
    logs = [[math.log(value) for value in times.samples] for times in (one, other)]
    if min(map(len, logs)) < 2:
        return None
    shares = [statistics.variance(own) / len(own) for own in logs]
    middle = statistics.mean(logs[1]) - statistics.mean(logs[0])
    if not sum(shares):
        return math.exp(middle), math.exp(middle)
    freedom = sum(shares) ** 2 / sum(
        share**2 / (len(own) - 1) for share, own in zip(shares, logs, strict=True)
    )
    half = student_975(freedom) * math.sqrt(sum(shares))
    return math.exp(middle - half), math.exp(middle + half)


def _scenario(folder: Path) -> dict[str, Any]:
    return dict(_flat(_read(folder / SCENARIO, yaml.safe_load)))


def _surroundings(folder: Path) -> dict[str, Any]:
    found = _flat(_read(folder / MANIFEST, json.loads))
    return {name: value for name, value in found if name.startswith(KEPT)}


def _read(file: Path, parse: Any) -> Any:
    try:
        return parse(file.read_text())
    except OSError as error:
        raise BadResult(f"{file}: {error.strerror}, expected a folder that `testbed run` made") from None
    except (ValueError, yaml.YAMLError) as error:
        raise BadResult(f"{file}: cannot be read: {error}") from None


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield plain values with their paths."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(inner, f"{name}.{key}" if name else str(key))
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for number, inner in enumerate(value):
            yield from _flat(inner, f"{name}.{number}")
    else:
        yield name, value


def _differences(one: Mapping[str, Any], other: Mapping[str, Any], of: str) -> Iterator[Difference]:
    for name in dict.fromkeys((*one, *other)):
        if one.get(name) != other.get(name):
            yield Difference(f"{of}: {name}" if of else name, one.get(name), other.get(name))

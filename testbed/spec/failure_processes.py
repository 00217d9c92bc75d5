"""Failure processes of a scenario: components that fail repeatedly, at random or as recorded in a trace."""

from __future__ import annotations

import csv
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from testbed.spec.base_model import Finding, ValueFormat
from testbed.spec.events import ACTIONS, TARGET, Disturbance, DrawnEvent, expected_target, targets_of
from testbed.spec.units import format_duration
from testbed.spec.value_types import Timeout, TimeoutOrNone, choice
from testbed.spec.yaml_loader import show

if TYPE_CHECKING:
    from testbed.spec.topology import Topology

DISTRIBUTIONS = ("exponential", "trace")
COLUMNS = ("time_s", "target", "for_s")
MAX_EVENTS = 100_000  # per process; they are drawn in advance and kept in memory
ALL = "all"
Target = int | str


def _parse_targets(value: object) -> str | tuple[Target, ...]:
    if value == ALL:
        return ALL
    if isinstance(value, (list, tuple)) and value:
        return tuple(TARGET.parse(item) for item in value)
    raise ValueError("all, or a list of targets, such as [0, 1]")


_TARGETS = ValueFormat(
    _parse_targets,
    lambda: {"anyOf": [{"const": ALL}, {"type": "array", "items": TARGET.json_schema, "minItems": 1}]},
    lambda value: value if value == ALL else list(value),
)


class FailureSpec(Disturbance):
    """Random failures: each component fails independently, after times drawn with the scenario's seed."""

    what: Annotated[str, choice("an action", tuple(name for name, kind in ACTIONS.items() if not kind.ends))]
    """An action of `events`."""
    targets: Annotated[str | tuple[Target, ...], _TARGETS] = ALL
    """Components that may fail, as in the target of `events`; or all."""
    distribution: Annotated[str, choice("a distribution", DISTRIBUTIONS)] = "exponential"
    """Distribution of the time from a component's start, or return, to its failure: exponential, or from a `trace`."""
    mtbf_s: TimeoutOrNone = None
    """Mean time between failures of one component."""
    trace: str | None = None
    """A CSV file of recorded failures, relative to this file, with the columns time_s and target, and optionally for_s,
    which replaces `for`.
    """
    until_s: Timeout = 3600.0
    """Time up to which failures are drawn, from the start of each variant's first measured step."""

    def checks(self) -> Iterator[Finding]:
        """Check that keys fit the distribution, and that a trace can be read."""
        yield from self.key_findings("what", self.what)
        drawn = self.distribution == "exponential"
        for key, value, wanted in (("mtbf", self.mtbf_s, drawn), ("trace", self.trace, not drawn)):
            if (value is not None) != wanted:
                shown = "nothing" if value is None else f"{key} with {self.distribution}"
                yield Finding((key,), shown, f"{key} with distribution: {DISTRIBUTIONS[key == 'trace']} only")
        if self.mtbf_s and self.until_s / self.mtbf_s > MAX_EVENTS:
            least = format_duration(self.until_s / MAX_EVENTS)
            yield Finding(("mtbf",), format_duration(self.mtbf_s), f"at least {least}")
        if self.trace is not None:
            try:
                read_trace(Path(self.trace))
            except ValueError as error:
                yield Finding(("trace",), show(self.trace), str(error))

    def target_findings(self, topology: Topology, hosts: Sequence[str]) -> Iterator[Finding]:
        """Check that the targets exist. `hosts`: hosts of the ranks, in rank order."""
        known, kind = targets_of(self.what, topology, hosts)
        for position, target in enumerate(() if self.targets == ALL else self.targets):
            if target not in known:
                yield Finding(("targets", position), show(target), expected_target(target, known, kind))
        if self.trace is not None:
            for _, name, _ in read_trace(Path(self.trace)):
                if _find_target(name, known) is None:
                    expected = f"a file with existing targets; for {name!r}: "
                    yield Finding(("trace",), show(self.trace), expected + expected_target(name, known, kind))
                    return


def drawn_events(
    failures: Sequence[FailureSpec], topology: Topology, hosts: Sequence[str], seed: int
) -> list[DrawnEvent]:
    """Return the events of all failure processes, in order. They are the same in every variant.

    Each component has its own random generators, so that its failures do not depend on other components. Without `for`
    it fails once.

    Args:
        failures: the failure processes.
        topology: the resolved topology.
        hosts: hosts of the ranks, in rank order.
        seed: the scenario's seed.

    Raises:
        ValueError: a trace can no longer be read.
    """
    found: list[DrawnEvent] = []
    for number, failure in enumerate(failures):
        known, _ = targets_of(failure.what, topology, hosts)
        for at_s, target, for_s in (
            _recorded_failures(failure, known)
            if failure.trace
            else _drawn_failures(failure, known, seed, number)
        ):
            found.append(_event(failure, at_s, target, for_s))
    return sorted(found, key=lambda event: (event.at_s or 0.0, event.action, str(event.target)))


def _drawn_failures(
    failure: FailureSpec, known: Sequence[Target], seed: int, number: int
) -> Iterator[tuple[float, Target, float | None]]:
    assert failure.mtbf_s is not None
    for target in known if failure.targets == ALL else failure.targets:
        chance = random.Random(f"{seed}/failures/{number}/{target}")
        at_s = chance.expovariate(1 / failure.mtbf_s)
        while at_s <= failure.until_s:
            yield at_s, target, failure.for_s
            if failure.for_s is None:
                break
            at_s += failure.for_s + chance.expovariate(1 / failure.mtbf_s)


def _recorded_failures(
    failure: FailureSpec, known: Sequence[Target]
) -> Iterator[tuple[float, Target, float | None]]:
    assert failure.trace is not None
    for at_s, name, for_s in read_trace(Path(failure.trace)):
        target = _find_target(name, known)
        assert target is not None, "see target_findings"
        if at_s <= failure.until_s and (failure.targets == ALL or target in failure.targets):
            yield at_s, target, failure.for_s if for_s is None else for_s


def _find_target(name: str, known: Sequence[Target]) -> Target | None:
    return next((target for target in known if str(target) == name), None)


def _event(failure: FailureSpec, at_s: float, target: Target, for_s: float | None) -> DrawnEvent:
    same: dict[str, Any] = {name: getattr(failure, name) for name in Disturbance.model_fields}
    return DrawnEvent.model_construct(
        **{**same, "for_s": for_s}, at_s=at_s, action=failure.what, target=target
    )


def read_trace(path: Path) -> list[tuple[float, str, float | None]]:
    """Return (start in s, target, duration in s or None) of each recorded failure. A ValueError says what is wrong."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = csv.DictReader(file)
            if not {*COLUMNS[:2]} <= {*(rows.fieldnames or ())}:
                raise ValueError(
                    f"a CSV file with the columns {', '.join(COLUMNS[:2])}, optionally {COLUMNS[2]}"
                )
            return [_row(number, row) for number, row in enumerate(rows, start=2)]
    except OSError as error:
        raise ValueError(f"a CSV file of failures; {path}: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"a CSV file of failures; {path}: {error}") from None


def _row(line: int, row: dict[str, str]) -> tuple[float, str, float | None]:
    try:
        at_s, for_s = float(row["time_s"]), row.get("for_s")
        lasts_s = float(for_s) if for_s else None
    except (TypeError, ValueError):
        raise ValueError(f"numbers of seconds in time_s and for_s, also in line {line}") from None
    if not 0 <= at_s < float("inf") or (lasts_s is not None and not 0 < lasts_s < float("inf")):
        raise ValueError(f"a time_s of 0 or more and a for_s above 0, also in line {line}")
    return at_s, (row["target"] or "").strip(), lasts_s

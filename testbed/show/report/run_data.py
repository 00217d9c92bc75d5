"""The data of a report: one run directory, loaded, checked and converted to real units."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from testbed.comm.collectives import COLLECTIVES
from testbed.measure.results.records import (
    EVENTS,
    LINKS,
    SAMPLES,
    JsonObject,
    LinkKey,
    LinkReading,
    Sample,
    read_events,
    read_json,
    read_links,
    read_samples,
    read_text,
)
from testbed.measure.results.result import Result
from testbed.plugins import OWN_FILE
from testbed.spec.scale import Scale
from testbed.workload.send_tokens import TOKEN

WHOLE_STEP, SEND, RECEIVE = "step", "send", "recv"


def is_communication(operation: str) -> bool:
    """Return whether a sample's operation is a collective (including plug-ins), a send or receive, or a send token."""
    if operation in (SEND, RECEIVE, TOKEN) or OWN_FILE.fullmatch(operation):
        return True
    return operation in COLLECTIVES


@dataclass
class LinkCounters:
    """Counters of one WAN direction at `times_s` on the run's clock, in real units; all lists have the same length.

    `sent_bytes`, `drops` and `losses` are cumulative since the start of the run. They count bytes on the wire, packets
    that the queue dropped, and packets lost on the link. `queue_bytes` is the queue length at that time.
    """

    times_s: list[float] = field(default_factory=list)
    sent_bytes: list[float] = field(default_factory=list)
    drops: list[int] = field(default_factory=list)
    losses: list[int] = field(default_factory=list)
    queue_bytes: list[float] = field(default_factory=list)

    @property
    def dropped(self) -> int:
        """The number of packets dropped over the whole run."""
        return self.drops[-1] if self.drops else 0

    @property
    def lost(self) -> int:
        """The number of packets lost over the whole run."""
        return self.losses[-1] if self.losses else 0


@dataclass(frozen=True)
class RunData:
    """The content of a run directory in real units; only `manifest` has emulated values, as recorded.

    `summary` is `result` as plain data, for templates and panels.
    """

    run_dir: Path
    result: Result
    summary: JsonObject
    manifest: JsonObject
    scenario: JsonObject
    scenario_text: str
    scale: Scale
    samples: list[Sample]
    links: dict[LinkKey, LinkCounters]
    events: list[JsonObject] = field(default_factory=list)

    def fabric(self, variant: str) -> JsonObject:
        """Return the hosts and links of a variant's network, in emulated units."""
        found: JsonObject = self.manifest.get("fabrics", {}).get(variant, self.manifest["fabric"])
        return found

    @property
    def variants(self) -> list[JsonObject]:
        """The summary's variants, in the scenario's order."""
        variants: list[JsonObject] = self.summary["variants"]
        return variants


def load_run(run_dir: Path) -> RunData:
    """Load a run directory; raise BadResult if a file is missing or cannot be parsed."""
    result = Result.open(run_dir)
    scale = result.conversion
    scenario_text = read_text(run_dir / "scenario.yaml")
    scenario = yaml.safe_load(scenario_text)
    return RunData(
        run_dir=run_dir,
        result=result,
        summary=result.document(),
        manifest=read_json(run_dir / "manifest.json"),
        scenario=scenario if isinstance(scenario, dict) else {},
        scenario_text=scenario_text,
        scale=scale,
        samples=read_samples(run_dir / SAMPLES, scale),
        links=_counters(read_links(run_dir / LINKS, scale)),
        events=read_events(run_dir / EVENTS, scale),
    )


def _counters(readings: Iterable[LinkReading]) -> dict[LinkKey, LinkCounters]:
    links: dict[LinkKey, LinkCounters] = {}
    for reading in readings:
        if reading.edge:  # too close to the previous reading to compute a rate
            continue
        counters = links.setdefault(reading.link, LinkCounters())
        counters.times_s.append(reading.time_s)
        counters.sent_bytes.append(reading.bytes)
        counters.drops.append(reading.drops)
        counters.losses.append(reading.losses + reading.cut_losses)
        counters.queue_bytes.append(reading.queue_bytes)
    return links

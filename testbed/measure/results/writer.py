"""The writer of run directories: each is created here, from the records of its shards."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testbed.comm.flight_recorder import FLIGHT
from testbed.measure.fidelity.verdict import worst
from testbed.measure.results.manifest import (
    MANIFEST,
    ClockRecord,
    Manifest,
    ShardEntry,
    compute_fingerprint,
)
from testbed.measure.results.records import EVENTS, LINKS, SAMPLES
from testbed.measure.results.result import SUMMARY, Result, Variant
from testbed.measure.results.run_directory import RunDirectory, describe_environment, write_json, write_lines
from testbed.measure.results.shard_merge import Records, merge_records, merge_variants
from testbed.measure.results.shards import CAPTURES, MONITORS, SOCKETS, STREAMS, Record, ShardRecord
from testbed.spec.scale import Scale
from testbed.spec.scenario import Scenario


@dataclass(frozen=True)
class ShardTimes:
    """Uptime of a shard's guest, in virtual and in wall seconds, and the memory that it used."""

    virtual_s: float
    wall_s: float
    memory_bytes: int | None = None


@dataclass(frozen=True)
class BackendResult:
    """The result of a backend: the shards' records in order, and facts about the clock that they ran under.

    All fields except `records` and `wall_s` (the total) are set for guests only. `memory_bytes` is the limit of each
    guest, `jobs` is the number of guests in parallel, and `times` is by shard. `expected_*` are estimates made before
    the run. `kernel_image` is the hash of the guests' kernel.
    """

    records: Sequence[ShardRecord]
    wall_s: float
    memory_bytes: int | None = None
    jobs: int | None = None
    times: Sequence[ShardTimes] = ()
    expected_wall_s: float | None = None
    expected_memory_bytes: int | None = None
    kernel_image: str | None = None


def write_run(directory: RunDirectory, scenario: Scenario, scale: Scale, outcome: BackendResult) -> Result:
    """Write all files of a run from its shards' records, and return the content of `summary.json`."""
    shards, folder = outcome.records, directory.partial
    records = merge_records(shards)
    variants = merge_variants(scenario, scale, shards, records)
    first = shards[0].figures
    result = Result(
        schema=1,
        scenario=scenario.name,
        run_dir=str(directory.path),
        clock=first.clock,
        scale=first.scale,
        dimensionless=first.dimensionless,
        status=worst([variant.verdict.status for variant in variants]),
        variants=tuple(variants),
    )
    (folder / "scenario.yaml").write_text(scenario.to_yaml())
    write_lines(folder / SAMPLES, records.samples)
    manifest = _manifest(scenario, outcome, variants, records)
    fingerprint = compute_fingerprint(manifest, folder / SAMPLES, scenario, scale, outcome.kernel_image)
    write_json(folder / MANIFEST, manifest.model_copy(update={"fingerprint": fingerprint}).document())
    write_json(folder / SUMMARY, result.document())
    write_lines(folder / LINKS, records.links)
    write_lines(folder / SOCKETS, records.sockets)
    for field in ("controller", "rules"):
        write_lines(folder / STREAMS[field], _marked(shards, field))
    if scenario.all_events or records.events:
        write_lines(folder / EVENTS, records.events)
    for shard in shards:
        _move_files(shard, folder)
    return result


def _manifest(
    scenario: Scenario, outcome: BackendResult, variants: Sequence[Variant], records: Records
) -> Manifest:
    """Return the first shard's manifest with the fields of the whole run filled in."""
    shards = outcome.records
    first = shards[0].figures.manifest
    here = describe_environment()
    changes = {
        **{key: here[key] for key in ("testbed_version", "created", "versions")},
        "command": tuple(here["command"]),
        "host": type(first.host).model_validate(here["host"]),
        "seed": scenario.seed,
        "clock": _clock(first, outcome),
        "control": {variant.name: variant.control.document() for variant in variants},
        "captures": tuple(
            entry if record.shard.variant is None else {"folder": record.shard.folder, **entry}
            for record in shards
            for entry in record.figures.manifest.captures
        ),
        # those of variants that differ from the first one's
        "fabrics": {
            record.shard.variant: record.figures.manifest.fabric
            for record in shards
            if record.shard.variant is not None and record.figures.manifest.fabric != first.fabric
        },
        **{
            key: tuple(
                record.shard.mark(entry)
                for record in shards
                for entry in getattr(record.figures.manifest, key)
            )
            for key in ("sockets", "background_traffic", "tunnels")
        },
        "origin_epoch_s": first.origin_epoch_s + records.origin_s,
    }
    return first.model_copy(update=changes)


def _clock(first: Manifest, outcome: BackendResult) -> ClockRecord:
    """Return the first shard's clock; for a run that is split into shards, add the facts about all of them."""
    shards = outcome.records
    if shards[0].shard.variant is None:
        return first.clock
    changes: dict[str, Any] = {"wall_s": outcome.wall_s}
    if outcome.times:
        names = ("memory_bytes", "jobs", "expected_wall_s", "expected_memory_bytes")
        changes |= {"kernel": first.host.kernel} | {name: getattr(outcome, name) for name in names}
    entries = []
    for number, record in enumerate(shards):
        shard = record.shard
        assert shard.variant is not None
        times = outcome.times[number] if outcome.times else None
        entries.append(
            ShardEntry(
                variant=shard.variant,
                first_trial=shard.first_trial,
                trials=shard.trials,
                seed=shard.seed,
                **(vars(times) if times else {}),
            )
        )
    return first.clock.model_copy(update={**changes, "parts": tuple(entries)})


def _marked(shards: Sequence[ShardRecord], field: str) -> Iterator[Record]:
    """Yield a stream's records, each marked with its shard if there are several; times stay relative to the shard."""
    for record in shards:
        shard = record.shard
        mark = {} if shard.variant is None else {"variant": shard.variant, "first_trial": shard.first_trial}
        yield from ({**mark, **line} for line in getattr(record, field))


def _move_files(record: ShardRecord, folder: Path) -> None:
    """Move a shard's captures and dumps to the run directory, and the host monitors if there is only one shard."""
    for name in (CAPTURES, FLIGHT):
        if (source := record.folder / name).exists():
            target = folder / name
            if record.shard.variant is not None:
                target.mkdir(exist_ok=True)
                target /= record.shard.folder
            shutil.move(source, target)
    if record.shard.variant is None:
        for file in record.folder.glob(MONITORS):
            shutil.move(file, folder / file.name)

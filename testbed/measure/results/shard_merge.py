"""The merging of shard records into the figures of a whole run. Pure functions: no clock, files or network."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from testbed.comm.collectives import between_groups
from testbed.measure.fidelity.verdict import Invariant, Verdict, worst
from testbed.measure.results.committed_work import committed_work, compute_rates
from testbed.measure.results.link_summary import (
    LinkReadings,
    group_by_link,
    merge_dropping_ports,
    merge_paused_links,
    plane_balance,
    summarise_wan_links,
)
from testbed.measure.results.records import COUNTERS, LinkKey
from testbed.measure.results.result import Bytes, Training, Variant
from testbed.measure.results.serving_summary import variant_latencies
from testbed.measure.results.shards import Record, ShardRecord, ShardVariant
from testbed.measure.results.summary import (
    CONNECTION,
    SOCKET_COUNTERS,
    StepResult,
    compare_prediction,
    describe_bottleneck,
    distribution,
    find_busiest_nic,
    gather_steps,
    middle_step,
    summarise_connections,
    undisturbed_steps,
)
from testbed.measure.results.training_summary import bytes_by_tier, describe_time_split
from testbed.prediction.step_flops import step_work
from testbed.spec.scale import Scale
from testbed.spec.scenario import Scenario

GAP_S = 0.1  # between shards on the merged time axis


@dataclass(frozen=True)
class Records:
    """The merged records of a run; `origin_s` is their time 0 on the first shard's time axis."""

    samples: list[Record] = field(default_factory=list)
    links: list[Record] = field(default_factory=list)
    events: list[Record] = field(default_factory=list)
    sockets: list[Record] = field(default_factory=list)
    origin_s: float = 0.0


def merge_records(results: Sequence[ShardRecord]) -> Records:
    """Merge the shards' records: place shards one after another in time, and number trials consecutively.

    The records of a run with a single shard stay unchanged.
    """
    first = results[0]
    if first.shard.variant is None:
        return Records(list(first.samples), list(first.links), list(first.events), list(first.sockets))
    found = Records(origin_s=_begin_s(first))
    samples, links, events = found.samples, found.links, found.events
    shift_s, steps = 0.0, 0
    totals: dict[tuple[object, ...], int] = {}  # counter values at the end of the previous shards
    for result in results:
        end_s = max(sample["end_s"] for sample in result.samples)
        offset_s = shift_s - _begin_s(result)
        variant = result.shard.variant
        for sample in result.samples:
            samples.append(
                {
                    **sample,
                    "variant": variant,
                    "trial": sample["trial"] + result.shard.first_trial,
                    "step": sample["step"] + steps,
                    "start_s": sample["start_s"] + offset_s,
                    "end_s": sample["end_s"] + offset_s,
                }
            )
        last: dict[tuple[object, ...], int] = {}
        for link in result.links:
            moved = {**link, "time_s": link["time_s"] + offset_s}
            for counter in COUNTERS:
                key = LinkKey.of(link), counter
                moved[counter] = link[counter] + totals.get(key, 0)
                last[key] = moved[counter]
            links.append(moved)
        for event in result.events:
            time_s = event["time_s"]
            moment = None if time_s is None else time_s + offset_s
            events.append({**event, "variant": variant, "time_s": moment})
        for reading in result.sockets:  # each shard has new connections, so counters start at 0
            moved = {"variant": variant, **reading, "time_s": reading["time_s"] + offset_s}
            for counter in SOCKET_COUNTERS & reading.keys():
                own = variant, *(reading[name] for name in CONNECTION), counter
                last[own] = moved[counter] = reading[counter] + totals.get(own, 0)
            found.sockets.append(moved)
        totals |= last
        steps += 1 + max(sample["step"] for sample in result.samples)
        shift_s = max([end_s, *(link["time_s"] for link in result.links)]) + offset_s + GAP_S
    return found


def _begin_s(result: ShardRecord) -> float:
    """Return the time of a shard's first link reading, before its first measured step."""
    return min([0.0, *(float(link["time_s"]) for link in result.links)])


def merge_variants(
    scenario: Scenario, scale: Scale, results: Sequence[ShardRecord], records: Records
) -> list[Variant]:
    """Return the run's variants; `records` are those of `merge_records`."""
    readings = group_by_link(records.links)
    variants = []
    for name in scenario.variant_names:
        own = [entry for result in results if (entry := result.variant(name)) is not None]
        variants.append(_merge_variant(scenario, name, scale, own, records, readings))
    return variants


def _merge_variant(
    scenario: Scenario,
    name: str,
    scale: Scale,
    own: Sequence[ShardVariant],
    records: Records,
    readings: Mapping[LinkKey, LinkReadings],
) -> Variant:
    variant = scenario.variant(name)
    topology = variant.topology.resolve(scale)
    hosts = variant.rank_hosts(topology)
    buildings = [topology.building(host.building).index for host in hosts]
    steps = gather_steps([sample for sample in records.samples if sample["variant"] == name], scenario.ranks)
    whole = undisturbed_steps(steps)
    # readings without a variant belong to all algorithms of the scenario
    sockets = [reading for reading in records.sockets if reading.get("variant", name) == name]
    times = distribution([scale.real_s(step.step_time_s) for step in steps])
    compute_s = statistics.median(scale.real_s(step.compute_s) for step in steps)
    exposed_s = statistics.median(scale.real_s(step.step_time_s - step.compute_s) for step in steps)
    spans, places = [(step.start_s, step.end_s) for step in steps], [steps.index(step) for step in whole]
    wan = summarise_wan_links(topology, readings, spans, scale, places)
    expected = statistics.median(part.expected_wan_bytes for part in own)
    observed = statistics.median(between_groups(step.sent_bytes, buildings) for step in whole)
    predictions = [part.predicted_s for part in own if part.predicted_s is not None]
    training = _training(own, steps, buildings, scale)
    if training.schedule is not None:
        limited_by = describe_time_split(training.measured.document())
    else:
        nic = find_busiest_nic(topology, whole, [host.name for host in hosts])
        limited_by = describe_bottleneck(times["median"], exposed_s, compute_s, wan, nic)
    of_step = step_work(variant)
    replications = [part.replication for part in own if part.replication is not None]
    work = committed_work(variant, of_step, times["samples"], replications)
    figures = {
        "name": name,
        "algorithm": name if scenario.variants is None else next(iter(variant.named_algorithms)),
        "policy": variant.policy.label,
        "ranks": len(hosts),
        "step_time_s": times,
        # every shard has its own seed, and therefore its own ECMP hashes
        "predicted": compare_prediction(statistics.median(predictions), times["median"])
        if predictions
        else None,
        "compute_s": compute_s,
        "exposed_comm_s": exposed_s,
        "work": work,
        "rates": compute_rates(of_step, work.elapsed_s, work.steps),
        "wan_bytes": {
            "expected": round(scale.real_bytes(expected)),
            "observed": round(scale.real_bytes(observed)),
        },
        "wan_links": wan,
        "plane_balance": plane_balance(wan),
        "connections": summarise_connections(sockets, steps, [host.building for host in hosts], scale),
        "limited_by": limited_by,
        "verdict": merge_verdicts([part.verdict for part in own]),
        "control": own[0].control,
        "training": training,
        "pauses": merge_paused_links([part.pauses for part in own]),
        "port_drops": merge_dropping_ports([part.port_drops for part in own]),
        **variant_latencies(variant, own),
    }
    set_by_events = {key: getattr(own[0], key) for key in ("events", "replication")}
    figures |= {key: value for key, value in set_by_events.items() if value is not None}
    return Variant.model_validate(figures)


def _training(
    own: Sequence[ShardVariant], steps: Sequence[StepResult], buildings: Sequence[int], scale: Scale
) -> Training:
    """Return the training figures of the median shard, with the bytes and prediction error over all steps."""
    training = sorted(own, key=lambda part: part.step_time_s)[(len(own) - 1) // 2].training
    sent = [bytes_by_tier(step.sent_bytes, buildings, scale) for step in undisturbed_steps(steps)]
    tiers = {
        tier: Bytes(
            expected=round(statistics.median(part.training.bytes[tier].expected for part in own)),
            observed=round(statistics.median(one[tier] for one in sent)),
        )
        for tier in training.bytes
    }
    changes: dict[str, Any] = {"median_step": middle_step(steps).index, "bytes": tiers}
    if training.predicted is not None:
        measured_s = statistics.median(scale.real_s(step.step_time_s) for step in steps)
        error = compare_prediction(training.predicted.step_time_s, measured_s)
        changes["predicted"] = training.predicted.model_copy(update=error)
    return training.model_copy(update=changes)


def merge_verdicts(verdicts: Sequence[Verdict]) -> Verdict:
    """Return the worst status of all shards, and each invariant, from a shard where it failed if there is one."""
    status = worst([verdict.status for verdict in verdicts])
    rows: dict[str, Invariant] = {}
    for verdict in sorted(verdicts, key=lambda verdict: verdict.status != status):
        for row in verdict.invariants:
            if row.name not in rows or (row.ok is False and rows[row.name].ok is not False):
                rows[row.name] = row
    return Verdict(status=status, invariants=tuple(rows.values()))

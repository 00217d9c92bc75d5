"""The report of a run: one self-contained HTML file without network access or scripts."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from testbed.measure.diagnosis.verdicts import MEANINGS, since_text
from testbed.measure.results.records import JsonObject, LinkKey, hosts_by_building
from testbed.measure.results.training_summary import TIER_TEXTS
from testbed.show.report.charts import (
    TIMELINE_RANKS,
    median_step,
    series_class,
    step_spans,
    step_time_chart,
    time_split_chart,
    timeline_chart,
)
from testbed.show.report.diagnosis_page import diagnose_suspects
from testbed.show.report.pages import render_page
from testbed.show.report.panels.base import added_panels
from testbed.show.report.run_data import RunData, load_run
from testbed.show.report.serving import decoding_rows, latency_chart, load_chart, most_within, serving_rows
from testbed.show.report.shared_sections import (
    count_by_invariant,
    describe_replication,
    pause_rows,
    port_rows,
    reasons,
    replicas_chart,
)
from testbed.show.report.svg import draw_responsive
from testbed.show.report.topology import topology_drawing
from testbed.show.report.trace import write_trace
from testbed.show.report.utilisation import utilisation_over_time_chart, utilisation_per_step_chart
from testbed.show.report.variant_text import deviation, opening_sentences
from testbed.spec.units import time_text

REPORT_FILE = "report.html"
TRACE_FILE = "trace.json"
_PACKETS = ("drops", "losses", "cut_losses", "marks")
_JUDGED = (False, None, True)  # order: failed, not applicable, passed


def write_report(run_dir: Path, panels: Sequence[str] = ()) -> Path:
    """Write `report.html` and `trace.json` into the directory of a finished run; return the report's path.

    Args:
        run_dir: The run's directory with summary.json, manifest.json, scenario.yaml, samples.jsonl and links.jsonl.
        panels: Additional drawings, by name or as FILE.py:NAME.

    Raises:
        BadResult: If a file is missing or broken; the message names file and line.
        PluginError: If a panel cannot draw.
    """
    data = load_run(run_dir)
    write_trace(data, run_dir / TRACE_FILE)
    path = run_dir / REPORT_FILE
    path.write_text(render_report(data, panels), encoding="utf-8")
    return path


def render_report(data: RunData, panels: Sequence[str] = ()) -> str:
    """Render the report's HTML."""
    return render_page("report.html.j2", {**_content(data), "panels": added_panels(data, panels)})


def _content(data: RunData) -> dict[str, Any]:
    """Return all values that the template shows."""
    return {
        "summary": data.summary,
        "manifest": data.manifest,
        "command": shlex.join(data.manifest["command"]),
        "scenario_text": data.scenario_text,
        "facts": _facts(data),
        "variants": [_variant(data, index, variant) for index, variant in enumerate(data.variants)],
        "answer": opening_sentences(data.result.variants),
        "reasons": (shown_reasons := reasons(data.result.variants)),
        "more_reasons": count_by_invariant(shown_reasons[1]),
        "rated": any(variant.rates for variant in data.result.variants),
        "step_times": step_time_chart(data.variants),
        "time_split": time_split_chart(data.variants),
        "per_step": draw_responsive(partial(utilisation_per_step_chart, data.variants)),
        "queues": _queues(data),
        "port_drops": port_rows(data.result.variants),
        "pauses": pause_rows(data.result.variants),
        "connections": _connections(data),
        "trainings": _trainings(data),
        "over_time": draw_responsive(partial(utilisation_over_time_chart, data)),
        "events": data.events,
        "replicas": draw_responsive(partial(replicas_chart, data.variants)),
        "replicas_words": [
            words for variant in data.result.variants for words in describe_replication(variant)
        ],
        "requests": serving_rows(data.variants),
        "decoding": decoding_rows(data.variants),
        "latencies": draw_responsive(partial(latency_chart, data.variants)),
        "load_curves": draw_responsive(partial(load_chart, data.variants)),
        "most_within": most_within(data.variants),
        "dimensionless": data.summary.get("dimensionless", []),
        "timelines": _timelines(data),
        "trace_file": TRACE_FILE,
        "environment": _environment(data.manifest),
        "suspected": diagnose_suspects(data.run_dir, data.result.variants),
        "meanings": MEANINGS,
        "since": since_text,
        "scale": data.scale,
        "scaled_rates": _scaled_rates(data),
    }


def _variant(data: RunData, index: int, variant: JsonObject) -> JsonObject:
    typed = data.result.variants[index]
    return {
        **variant,
        "series": series_class(index),
        "untrusted": typed.verdict.status == "untrusted",
        "failing": typed.verdict.failed,
        "partial_steps": typed.done.partial_steps,
        "with_stalls": typed.done.with_stalls,
        "judged": sorted(typed.verdict.invariants, key=lambda entry: _JUDGED.index(entry.ok)),
        "wan_deviation": deviation(typed.wan_bytes),
        "drawing": draw_responsive(partial(topology_drawing, data, variant)),
    }


def _queues(data: RunData) -> list[JsonObject]:
    """Return queues, packets over all planes and plane balance, per variant and direction between two buildings."""
    rows: list[JsonObject] = []
    for variant in data.variants:
        balance = {(entry["from"], entry["to"]): entry for entry in variant.get("plane_balance", ())}
        links: dict[tuple[str, str], list[JsonObject]] = {}
        for record in variant["wan_links"]:
            key = LinkKey.of(record)
            if "queue_peak_bytes" in record:
                links.setdefault((key.source, key.target), []).append(record)
        for (here, there), own in links.items():
            index = balance.get((here, there), {}).get("jain_index", 1.0)
            figures = {name: sum(record[name] for record in own) for name in _PACKETS}
            longest = max(record["queue_peak_bytes"] for record in own)
            ends = {"variant": variant["name"], "here": here, "there": there, "planes": len(own)}
            rows.append({**ends, "jain_index": index, "queue_peak_bytes": longest, **figures})
    return rows


def _trainings(data: RunData) -> list[JsonObject]:
    """Return the breakdown of step times, per variant; shares are of the step's time."""
    found = []
    for variant in data.variants:
        if (training := variant.get("training")) is None:
            continue
        rows = [{"what": "computing", "seconds": training["measured"]["compute_s"]}]
        rows += [
            {"what": f"{entry['kind']}, {TIER_TEXTS[entry['tier']]}", "seconds": entry["seconds"]}
            for entry in training["measured"]["exposed"]
        ]
        rows.append({"what": "waiting for others (bubble)", "seconds": training["measured"]["bubble_s"]})
        total_s = sum(row["seconds"] for row in rows)
        found.append(
            {
                "name": variant["name"],
                "schedule": None,  # only steps with `parallelism` have a schedule
                **training,
                "rows": [{**row, "share": row["seconds"] / total_s} for row in rows],
                "tiers": [{"where": TIER_TEXTS[tier], **sent} for tier, sent in training["bytes"].items()],
                "peak_bytes": max(training.get("peak_activation_bytes", ()), default=0),
            }
        )
    return found


def _connections(data: RunData) -> list[JsonObject]:
    """Return round trips and retransmissions, per variant and direction between two buildings."""
    return [
        {"variant": variant["name"], **row}
        for variant in data.variants
        for row in variant.get("connections", ())
        if "rtt_s" in row
    ]


def _facts(data: RunData) -> list[str]:
    """Return short facts on the run, from the keys that the scenario's workload has."""
    fabric = data.manifest["fabric"]
    buildings = len({host["building"] for host in fabric["hosts"]})
    ranks = max((variant["ranks"] for variant in data.variants), default=0)
    facts = [f"{ranks} ranks in {buildings} buildings", f"{len(fabric['wan'])} WAN links"]
    if transit := len(hosts_by_building(fabric)) - buildings:
        facts.append(f"{transit} transit site{'s' if transit > 1 else ''}")
    workload = data.scenario.get("workload")
    if isinstance(workload, dict):
        facts += [str(workload[key]) for key in ("model", "gradient_dtype") if key in workload]
        if "bucket_cap" in workload:
            facts.append(f"buckets of {workload['bucket_cap']}")
    facts += sorted({f"policy {variant['policy']}" for variant in data.variants})
    facts += sorted({_control(variant["control"]) for variant in data.variants if "control" in variant})
    facts.append(f"{data.summary['clock']} clock")
    return facts


def _control(control: JsonObject) -> str:
    """Describe the control plane's delays in a few words."""
    if not any(control.values()):
        return "control plane without delay"
    seen = f"a link cut is detected after {time_text(control['carrier_down_s'])}"
    rules = f"{time_text(control['rule_s'])} a rule"
    return f"{seen}, the controller reacts in {time_text(control['reaction_s'])}, {rules}"


def _timelines(data: RunData) -> list[JsonObject]:
    """Return one entry per variant with samples, all on the same time axis so that lengths can be compared."""
    shown = []
    for variant in data.variants:
        own = [sample for sample in data.samples if sample.variant == variant["name"]]
        step = median_step(own)
        if step is not None:
            start, end = step_spans(own)[step]
            shown.append((variant, step, end - start, len({sample.rank for sample in own})))
    longest = max((duration for _, _, duration, _ in shown), default=0.0)
    return [
        {
            "name": variant["name"],
            "untrusted": variant["verdict"]["status"] == "untrusted",
            "trial": step[0],
            "step": step[1],
            "duration_s": duration,
            "ranks": ranks,
            "shortened": ranks > TIMELINE_RANKS,
            "chart": draw_responsive(partial(timeline_chart, data, variant["name"], longest)),
        }
        for variant, step, duration, ranks in shown
    ]


def _environment(manifest: JsonObject) -> list[tuple[str, str]]:
    """Return the manifest's plain values as rows, with nested ones by path; the fabric is drawn instead."""
    rows: list[tuple[str, str]] = []

    def add(name: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                add(f"{name}.{key}", inner)
        elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
            rows.append((name, f"{len(value)} entries, see manifest.json"))
        elif isinstance(value, list):
            rows.append((name, " ".join(str(item) for item in value)))
        else:
            rows.append((name, str(value)))

    for key, value in manifest.items():
        if key not in {"schema", "fabric", "command"}:
            add(key, value)
    return rows


def _scaled_rates(data: RunData) -> list[tuple[float, float]]:
    """Return the distinct real WAN rates, each with its emulated rate, in bit/s."""
    emulated = {
        link[direction]["rate_bps"]
        for link in data.manifest["fabric"]["wan"]
        for direction in ("a_to_b", "b_to_a")
    }
    return [(data.scale.real_bps(rate), rate) for rate in sorted(emulated, reverse=True)]

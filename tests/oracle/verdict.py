"""The verdict: what follows from the invariants' states, and those states that raw files tell."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from tests.oracle.arithmetic import median
from tests.oracle.checks import Checks
from tests.oracle.html_page import Page
from tests.oracle.raw import Record
from tests.oracle.variant import MeasuredVariant

ORDER = ("trusted", "caution", "untrusted")
CAUTION = frozenset(
    {
        *("jitter_accuracy", "serialisation", "events_on_time", "no_pause_circle", "scale_similarity"),
        *("model_agreement", "model_error", "steps_alike"),
    }
)
"""What makes a run no worse than caution, by docs/explanation/fidelity.md."""
UNTRUSTED = frozenset(
    {
        *("delay_accuracy", "loss_accuracy", "settings_in_force", "offload_state", "nothing_changed"),
        *("rules_in_force", "payload_correct", "wan_bytes_as_computed", "lossless", "bytes_witnessed"),
        *("compute_as_asked", "tunnel_delay", "tunnel_loss"),
    }
)
BEYOND = {
    "cpu_headroom": 50.0,
    "foreign_load": 75.0,
    "scheduler_lag": 20.0,
    "emulator_stalls": 30.0,
    "no_foreign_traffic": 1.0,
}
"""Of those with two bounds the second one, in the unit in which they are measured: percent or milliseconds."""
MOST_REASONS = 5
"""On a terminal; of more their number."""


def check_verdict(own: MeasuredVariant, shown: Record, checks: Checks) -> None:
    """Hold a variant's status against its invariants, and those that raw files tell against these."""
    verdict, what = shown["verdict"], f"{own.name}: verdict"
    found = {entry["name"]: entry for entry in verdict["invariants"]}
    failed = {name: entry for name, entry in found.items() if entry["ok"] is False}
    statuses = {status for entry in failed.values() for status in _statuses(entry)} or {"trusted"}
    least = max((min(map(ORDER.index, _statuses(entry))) for entry in failed.values()), default=0)
    allowed = {status for status in statuses if ORDER.index(status) >= least}
    checks.true(
        f"{what}: status", verdict["status"] in allowed, f"shows {verdict['status']}, failed: {list(failed)}"
    )
    if len(verdict["invariants"]) != len(found):
        checks.true(f"{what}: names", False, "has an invariant twice")
    if entry := found.get("payload_correct"):
        _payload(own, entry, checks)
    entry = found.get("wan_bytes_as_computed")
    if entry and entry["ok"] is not None and len(own.parts) == 1:
        expected = shown["wan_bytes"]["expected"]
        # real bytes are rounded, emulated ones are whole
        same = all(
            abs(own.moved(step)[1] - expected) < max(1.0, own.run.size_scale / 2) for step in own.whole_steps
        )
        checks.equal(f"{what}: bytes as computed", entry["ok"], same)
    if (entry := found.get("model_error")) and entry["ok"] is not None:
        _model_error(own, entry, shown, checks)
    if (entry := found.get("lossless")) is not None:
        checks.equal(f"{what}: lossless", entry["ok"], not sum(row["dropped"] for row in shown["pauses"]))


def check_headline(page: Page, printed: str, summary: Record, checks: Checks) -> None:
    """Hold the status of all, and what page and terminal say of the reasons, against the variants'."""
    variants: Sequence[Mapping[str, Any]] = summary["variants"]
    worst = max((ORDER.index(one["verdict"]["status"]) for one in variants), default=0)
    checks.equal("all: status", summary["status"], ORDER[worst])
    checks.equal("all: status (page)", page.title, f"{summary['scenario']} {summary['status']}")
    failed = [
        f"{one['name']}, {entry['name']}: {entry['sentence']}"
        for one in variants
        for entry in one["verdict"]["invariants"]
        if entry["ok"] is False
    ]
    paragraphs = set(page.paragraphs)
    for reason in failed:
        said = " ".join(reason.split()) in paragraphs
        checks.true("all: reasons (page)", said, f"does not say {reason!r}")
    (table,) = page.named("Variant", "Step time", "Limited by")
    badges = [row["Variant"][-1] for row in table.records()]
    checks.equal("all: verdicts (page)", badges, [one["verdict"]["status"] for one in variants])
    if printed and not printed.lstrip().startswith("{"):
        whole = " ".join(printed.split())
        title = re.match(rf"{re.escape(summary['scenario'])}: (\w+)", whole)
        checks.equal("all: status (terminal)", title and title[1].lower(), summary["status"])
        said_there = sum(" ".join(reason.split()) in whole for reason in failed)
        checks.true(
            "all: reasons (terminal)",
            said_there >= min(len(failed), MOST_REASONS),
            f"says {said_there} of {failed}",
        )


def _statuses(entry: Mapping[str, Any]) -> set[str]:
    """What a variant may be by one invariant that does not hold."""
    name = entry["name"]
    if name in CAUTION:
        return {"caution"}
    if name in UNTRUSTED or entry["measured"] == "not watched":
        return {"untrusted"}
    if name in BEYOND and (said := re.match(r"([\d.]+)\s*(?:%|ms)", entry["measured"])):
        value, bound = float(said[1]), BEYOND[name]
        if stolen := re.search(r"the hypervisor took (\d+)%", entry["sentence"]):
            value += float(stolen[1])
        if not math.isclose(value, bound, rel_tol=0.02):  # it is rounded
            return {"untrusted" if value > bound else "caution"}
    return {"caution", "untrusted"}


def _payload(own: MeasuredVariant, entry: Mapping[str, Any], checks: Checks) -> None:
    """Elements that ranks compared with the exact answer, and those that were wrong."""
    what = f"{own.name}: verdict: payload"
    parts = [part for step in own.steps for part in step.parts]
    wrong, checked = (sum(int(part[name]) for part in parts) for name in ("wrong", "checked"))
    if entry["ok"] is not None:
        checks.true(f"{what} correct", entry["ok"] <= (wrong == 0), f"shows it as right, {wrong} were wrong")
    if len(own.parts) == 1 and (said := re.match(r"(\d+) reduced elements .*?(\d+) were", entry["sentence"])):
        checks.equal(f"{what}: checked", int(said[1]), checked)
        checks.equal(f"{what}: wrong", int(said[2]), wrong)


def _model_error(own: MeasuredVariant, entry: Mapping[str, Any], shown: Record, checks: Checks) -> None:
    """The median of whole steps against the model, within the bounds that are shown."""
    found = re.match(r"-([\d.]+)% to \+([\d.]+)%, or ([\d.]+) ms", entry["bound"])
    if found is None or shown.get("predicted") is None or len(own.parts) != 1:
        return
    predicted_s = shown["predicted"]["step_time_s"]
    off_s = median([own.run.seconds(step.time_s) for step in own.whole_steps]) - predicted_s
    share = (float(found[2 if off_s > 0 else 1]) + 0.05) / 100  # as it is rounded
    within = abs(off_s) <= max(share * predicted_s, float(found[3]) / 1e3) * (1 + 1e-3)
    checks.true(
        f"{own.name}: verdict: the model's error",
        within or entry["ok"] is False,
        f"holds, the median step is {off_s / predicted_s:+.2%} off",
    )

"""Commits of replicas that come and go, and tokens that were decoded."""

from __future__ import annotations

import re
from collections import defaultdict
from itertools import pairwise

from tests.oracle.arithmetic import nearest_rank
from tests.oracle.checks import Checks
from tests.oracle.raw import Record
from tests.oracle.variant import MeasuredVariant

TOLD_S = 0.02
"""A coordinator hears of a step's end from all members, and commits it: by the virtual clock within so long."""


def check_replication(own: MeasuredVariant, shown: Record, checks: Checks) -> None:
    """Commits against ranks' records of steps, and what follows from commits."""
    what = f"{own.name}: replication"
    commits, period_s = shown["commits"], shown["period_s"]
    standing = {commit["trial"]: commit for commit in commits if commit["trial"] >= 0}
    checks.equal(f"{what}: committed steps", sorted(standing), [step.parts[0]["trial"] for step in own.steps])
    each = own.ranks // shown["replicas"]
    begin_s = own.steps[0].start_s - own.run.time_dilation * _first_start_s(own, shown)
    for step in own.steps:
        commit = standing.get(step.parts[0]["trial"])
        if commit is None:
            continue
        checks.equal(f"{what}: replicas in a step", commit["replicas"], len(step.parts) // each)
        end_s = own.run.seconds(step.end_s - begin_s)
        gave = any(part["given_bytes"] for part in step.parts)
        near = commit["time_s"] < end_s + TOLD_S and (gave or commit["time_s"] > end_s - TOLD_S)
        # whoever gives its state away after a commit ends the step later
        checks.true(
            f"{what}: time of a commit", near, f"shows {commit['time_s']} s, the step ended at {end_s} s"
        )
    useful = sum(commit["replicas"] / shown["replicas"] for commit in standing.values())
    checks.same(f"{what}: elapsed", shown["elapsed_s"], commits[-1]["time_s"])
    if all(commit.get("share") in (None, commit["replicas"] / shown["replicas"]) for commit in commits):
        share = useful * period_s / shown["elapsed_s"]
        checks.same(f"{what}: effective", shown["effective"], share)
    whole = [
        after["time_s"] - before["time_s"]
        for before, after in pairwise(commits)
        if after["trial"] == before["trial"] + 1 and after["replicas"] == shown["replicas"]
    ]
    checks.true(
        f"{what}: period", not whole or min(whole) <= period_s + 1e-9, f"is {period_s} s, no step is so short"
    )
    given = sum(int(part["given_bytes"]) for step in own.steps for part in step.parts)
    checks.near(f"{what}: state given", shown["catch_up_bytes"], own.run.bytes(given), 1.0)
    for sum_of, losses in (("steps_lost", "steps_lost"), ("catch_up_bytes", "catch_up_bytes")):
        checks.equal(f"{what}: {sum_of}", shown[sum_of], sum(loss[losses] for loss in shown["losses"]))


def _first_start_s(own: MeasuredVariant, shown: Record) -> float:
    """How long after the first measured step's start its record begins: later where it was done again."""
    first = shown["commits"][0]
    again = any(later["trial"] <= first["trial"] for later in shown["commits"][1:])
    if not again:
        return 0.0
    last = [commit for commit in shown["commits"] if commit["trial"] == first["trial"]][-1]
    return float(last["time_s"]) - own.run.seconds(own.steps[0].time_s)


def check_decoding(own: MeasuredVariant, shown: Record, checks: Checks) -> None:
    """Times of tokens: from one's last combine to the next one's, on the last rank."""
    what, times_s = f"{own.name}: tokens", []
    for step in own.whole_steps:
        layers: dict[int, dict[int, tuple[int, float]]] = defaultdict(dict)
        for entry in step.operations:
            found = _OF_TOKEN.search(entry["name"])
            if found and found["what"] == "combine":
                place, end_s = int(found["layer"]), float(entry["end_s"])
                known = layers[int(found["token"])].get(entry["rank"], (-1, 0.0))
                layers[int(found["token"])][entry["rank"]] = max(known, (place, end_s))
        ends = [step.start_s, *(max(end for _, end in layers[token].values()) for token in sorted(layers))]
        times_s += [own.run.seconds(after - before) for before, after in pairwise(ends)]
    checks.equal(f"{what}: count", shown["tokens"], len(times_s))
    if len(times_s) != shown["tokens"]:
        return
    said = shown["token_s"]
    checks.same(f"{what}: mean", said["mean"], sum(times_s) / len(times_s), 1e-6)
    for figure, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0)):
        checks.same(f"{what}: {figure}", said[figure], nearest_rank(times_s, share), 1e-6)


_OF_TOKEN = re.compile(r"(?P<what>\w+) of token (?P<token>\d+), layer (?P<layer>\d+)")

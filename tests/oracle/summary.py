"""What `summary.json` says of a variant, held against its raw files."""

from __future__ import annotations

import re
from collections import defaultdict

from tests.oracle.answers import check_decoding, check_replication
from tests.oracle.arithmetic import jain, median, nearest_rank
from tests.oracle.checks import Checks
from tests.oracle.expected import expected, gradient_bytes
from tests.oracle.kept import activation_peaks
from tests.oracle.pauses import check_pauses
from tests.oracle.quantities import shows
from tests.oracle.raw import Record
from tests.oracle.serving import check_serving
from tests.oracle.variant import MeasuredVariant
from tests.oracle.verdict import check_verdict

COUNTED = 1.0
"""A figure that is a rounded number of bytes or packets may be off by this much."""


def check_variant(own: MeasuredVariant, shown: Record, checks: Checks) -> None:
    """All of a variant's entry that raw files can tell."""
    name = own.name
    _times(own, shown, checks)
    _expected(own, shown, checks)
    checks.equal(f"{name}: ranks", shown["ranks"], own.ranks)
    checks.same(f"{name}: computing", shown["compute_s"], own.compute_s)
    checks.same(f"{name}: exposed communication", shown["exposed_comm_s"], own.exposed_s, 1e-7)
    inside, across = ([own.moved(step)[way] for step in own.whole_steps] for way in (0, 1))
    checks.near(f"{name}: WAN bytes observed", shown["wan_bytes"]["observed"], median(across), COUNTED)
    _links(own, shown, checks)
    _connections(own, shown, checks)
    _rates(own, shown, checks)
    _limit(own, shown, checks)
    check_verdict(own, shown, checks)
    check_pauses(own, shown, checks)
    if (training := shown.get("training")) is not None:
        _training(own, shown, training, checks)
        for tier, moved in (("building", inside), ("wan", across)):
            observed = training["bytes"][tier]["observed"]
            checks.near(f"{name}: bytes by tier", observed, median(moved), COUNTED)
    for part, check in (
        ("replication", check_replication),
        ("serving", check_serving),
        ("decoding", check_decoding),
    ):
        if shown.get(part):
            check(own, shown[part], checks)


def _times(own: MeasuredVariant, shown: Record, checks: Checks) -> None:
    times = shown["step_time_s"]
    figures = {
        "median": median(own.times_s),
        "p95": nearest_rank(own.times_s, 0.95),
        "min": min(own.times_s),
        "max": max(own.times_s),
    }
    for figure, value in figures.items():
        checks.same(f"{own.name}: step time {figure}", times[figure], value)
    checks.equal(f"{own.name}: number of steps", times["n"], len(own.times_s))
    for said, value in zip(times["samples"], own.times_s, strict=True):
        checks.same(f"{own.name}: step time", said, value)
    if (predicted := shown.get("predicted")) is not None:
        error = predicted["step_time_s"] / figures["median"] - 1
        checks.near(f"{own.name}: error of the model", predicted["error"], error, 1e-9)


def _links(own: MeasuredVariant, shown: Record, checks: Checks) -> None:
    balance: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in shown["wan_links"]:
        what = f"{own.name}: link {row['a']} {row['b']} {row['plane']} {row['direction']}"
        use = own.links.get((row["a"], row["b"], row["plane"], row["direction"]))
        checks.true(f"{what}: whether there is one", use is not None, "is in no raw file")
        if use is None:
            continue
        checks.same(f"{what}: rate", row["rate_bps"], use.rate_bps)
        checks.near(f"{what}: bytes", row["bytes"], use.bytes, COUNTED + 1e-9 * use.bytes)
        checks.near(f"{what}: utilisation", row["utilisation"], use.utilisation, 1e-9)
        checks.near(f"{what}: longest queue", row["queue_peak_bytes"], use.queue_peak_bytes, COUNTED)
        for cause in ("drops", "losses", "cut_losses", "marks"):
            checks.equal(f"{what}: {cause}", row[cause], use.packets(cause))
        checks.near(f"{what}: time beside steps", row["beyond_s"], use.beyond_s, 1e-9)
        checks.equal(f"{what}: steps", len(row["steps"]), len(own.steps))
        for number, said in enumerate(row["steps"]):
            checks.near(f"{what}: bytes of a step", said["bytes"], use.each["bytes"][number], COUNTED)
            checks.near(f"{what}: utilisation in a step", said["utilisation"], use.shares[number], 1e-9)
            for cause in ("packets", "drops", "losses", "cut_losses", "marks"):
                checks.equal(f"{what}: {cause} of a step", said[cause], use.each[cause][number])
        ends = (row["a"], row["b"]) if row["direction"] == "a_to_b" else (row["b"], row["a"])
        balance[ends].append(use.utilisation)
    checks.equal(f"{own.name}: WAN links", len(shown["wan_links"]), len(own.links))
    several = {ends: shares for ends, shares in balance.items() if len(shares) > 1}
    rows = {(row["from"], row["to"]): row for row in shown["plane_balance"]}
    checks.equal(f"{own.name}: pairs of buildings with planes", sorted(rows), sorted(several))
    for ends, shares in several.items():
        checks.equal(f"{own.name}: planes", rows[ends]["planes"], len(shares))
        checks.same(f"{own.name}: balance of planes", rows[ends]["jain_index"], jain(shares))


def _connections(own: MeasuredVariant, shown: Record, checks: Checks) -> None:
    rows = {(row["from"], row["to"]): row for row in shown["connections"]}
    checks.equal(f"{own.name}: connected buildings", sorted(rows), sorted(own.sockets))
    for ends, row in rows.items():
        what = f"{own.name}: connections {ends[0]} to {ends[1]}"
        checks.equal(f"{what}: number", row["connections"], len(own.sockets[ends]))
        trips = own.round_trips_s(ends)
        said = row.get("rtt_s")
        checks.equal(f"{what}: whether there are round trips", said is not None, bool(trips))
        if said is not None and trips:
            for figure, value in (("min", min(trips)), ("median", median(trips)), ("max", max(trips))):
                checks.same(f"{what}: round trip {figure}", said[figure], value)
        checks.equal(f"{what}: retransmits", row["retransmits"], own.counted(ends, "retransmits") or 0)
        for counter in ("parity", "marked"):
            checks.equal(f"{what}: {counter}", row.get(counter), own.counted(ends, counter))


def _rates(own: MeasuredVariant, shown: Record, checks: Checks) -> None:
    """By committed work over elapsed time."""
    work, steps = shown["work"], sum(own.committed)
    replication = shown.get("replication")  # whose commits are held against samples by themselves
    elapsed_s = sum(own.times_s) if replication is None else replication["elapsed_s"]
    checks.same(f"{own.name}: committed steps", work["steps"], steps)
    checks.equal(
        f"{own.name}: partial steps", work.get("partial_steps", 0), sum(one < 1 for one in own.committed)
    )
    checks.equal(f"{own.name}: whether stalls count", work.get("with_stalls", False), replication is not None)
    checks.same(f"{own.name}: elapsed time", work["elapsed_s"], elapsed_s)
    rates, step = shown.get("rates"), own.training
    if step is None:
        return
    checks.near(f"{own.name}: tokens", work["tokens"], steps * step.tokens, COUNTED)
    checks.near(f"{own.name}: sequences", work["sequences"], steps * step.sequences, COUNTED)
    if rates is None:
        checks.true(f"{own.name}: rates", False, "shows none of a step that trains a model")
        return
    seconds = elapsed_s / steps
    checks.same(f"{own.name}: tokens/s", rates["tokens_per_s"], step.tokens / seconds)
    checks.same(f"{own.name}: sequences/s", rates["sequences_per_s"], step.sequences / seconds)
    checks.same(f"{own.name}: MFU", rates["mfu"], step.flops / step.peak_flops / seconds)


_OF_LINK = re.compile(
    r"WAN link (\S+) to (\S+), plane (\d+): busy (\d+)% of the step, (\d+)% of the communication"
)
_OF_CARD = re.compile(r"(NIC of \S+, \w+): busy (\d+)% of the step, (\d+)% of the communication")
_OF_COMPUTING = re.compile(r"computing: (\d+)% of the step, communication is hidden behind it")
_OF_LATENCY = re.compile(
    r"latency and rounds of messages: (?:no WAN link|the busiest WAN link only (\d+)%), "
    r"the busiest NIC (\d+)% of the step"
)
_OF_RANKS = re.compile(r"([a-z][a-z _-]*?) (\d+)%")


def _limit(own: MeasuredVariant, shown: Record, checks: Checks) -> None:
    """The sentence on what limited a step: each figure in it."""
    said, what = shown["limited_by"], f"{own.name}: limited by"
    step_s = median(own.times_s)
    # backward and exposed communication are what a link could have been busy in; forward, a third, sends nothing
    window = max(own.exposed_s, step_s - own.compute_s / 3) / step_s

    def percent(figure: str, text: str, value: float) -> None:
        checks.true(f"{what}: {figure}", shows(f"{text} %", value, decimals=0), f"{said!r}, not {value:.2%}")

    busiest = max((use.utilisation for use in own.links.values()), default=0.0)
    if found := _OF_LINK.fullmatch(said):
        here, there, plane = found[1], found[2], int(found[3])
        use = own.links.get((here, there, plane, "a_to_b")) or own.links[there, here, plane, "b_to_a"]
        percent("share of the step", found[4], use.utilisation)
        percent("share of the communication", found[5], min(1.0, use.utilisation / window))
        checks.near(f"{what}: the busiest link", use.utilisation, busiest, 1e-9)
    elif (found := _OF_CARD.fullmatch(said)) and own.busiest_card is not None:
        checks.equal(f"{what}: the busiest card", found[1], own.busiest_card[0])
        percent("share of the step", found[2], own.busiest_card[1])
        percent("share of the communication", found[3], min(1.0, own.busiest_card[1] / window))
    elif found := _OF_COMPUTING.fullmatch(said):
        percent("share of the step", found[1], own.compute_s / step_s)
    elif (found := _OF_LATENCY.fullmatch(said)) and own.busiest_card is not None:
        if found[1] is not None:
            percent("busiest link", found[1], busiest)
        percent("busiest card", found[2], own.busiest_card[1])
    elif said.endswith(" of the ranks' time"):
        _shares(own, shown, said, checks)


def _shares(own: MeasuredVariant, shown: Record, said: str, checks: Checks) -> None:
    """Shares of the ranks' time, of a step of the median duration."""
    split = shown["training"]["measured"]
    where = {"wan": "between buildings", "building": "inside buildings", "rank": "within ranks"}
    parts = {"pipeline bubbles": split["bubble_s"], "computing": split["compute_s"]}
    parts |= {f"{one['kind']} {where[one['tier']]}": one["seconds"] for one in split["exposed"]}
    total = sum(parts.values())
    for part, text in _OF_RANKS.findall(said):
        share = parts[part.strip()] / total
        checks.true(
            f"{own.name}: limited by: share of the ranks' time",
            shows(f"{text} %", share, decimals=0),
            f"{said!r}, not {share:.2%} of {part}",
        )


def _training(own: MeasuredVariant, shown: Record, training: Record, checks: Checks) -> None:
    """Where the time of the median step went: parts that add up, and computing as ranks recorded it."""
    what, step = f"{own.name}: time of the median step", own.middle
    split, step_s = training["measured"], own.run.seconds(step.operations_s)
    computing = own.run.seconds(sum(step.computing_s.values()) / own.ranks)
    checks.equal(f"{what}: which", training["median_step"], step.number)
    if (peaks := activation_peaks(own, step)) is not None:
        for said, peak in zip(training["peak_activation_bytes"], peaks, strict=True):
            checks.near(f"{own.name}: peak of activations", said, peak, COUNTED)
    total = split["compute_s"] + split["bubble_s"] + sum(one["seconds"] for one in split["exposed"])
    checks.same(f"{what}: sum of its parts", total, step_s, 1e-6)
    checks.same(f"{what}: computing", split["compute_s"], computing, 1e-6)
    path = sum(one["seconds"] for one in training["critical_path"])
    checks.near(f"{what}: critical path", path, step_s, 1e-6 * step_s)
    if (predicted := training.get("predicted")) is not None:
        error = predicted["step_time_s"] / median(own.times_s) - 1
        checks.near(f"{own.name}: error of the model", predicted["error"], error, 1e-9)


def _expected(own: MeasuredVariant, shown: Record, checks: Checks) -> None:
    """Bytes that a step has to send, by formulas."""
    if (reduced := gradient_bytes(own)) is not None:
        asked, done = reduced
        # each bucket is a whole number of elements
        checks.near(f"{own.name}: bytes of gradients", done, asked, 8.0 * len(own.whole_steps[0].operations))
    if (found := expected(own)) is None:
        return
    across, within = own.run.bytes(found.across), own.run.bytes(found.within)
    said = shown["wan_bytes"]["expected"]
    checks.near(f"{own.name}: WAN bytes expected", said, across, within + COUNTED)
    if (training := shown.get("training")) is not None:
        for tier, value in (("building", own.run.bytes(found.inside)), ("wan", across)):
            said = training["bytes"][tier]["expected"]
            checks.near(f"{own.name}: bytes by tier expected", said, value, within + COUNTED)

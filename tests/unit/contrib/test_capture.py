"""What capture makes of what ranks recorded, without PyTorch: order on streams, classes of ranks, times, names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from testbed.contrib.capture.rank_classes import (
    RankClass,
    class_of,
    find_difference,
    next_leaders,
    translate_nodes,
)
from testbed.contrib.capture.recorder.tape import MAIN, Tape, common_module
from testbed.contrib.capture.trace_assembly import (
    assemble,
    estimate_computing,
    peaks_of,
    read_computing_table,
)
from testbed.errors import BadInput
from testbed.spec.catalogue import accelerators
from testbed.workload.traces.consistency import first_mismatch
from testbed.workload.traces.trace import Collective, Compute, PointToPoint

KERNEL = ("bfloat16", 8e9, 100.0, 1e-3)


def message(tape: Tape, what: str = "x", stream: str = "group dp") -> int:
    return tape.communicate(stream, {"type": "collective", "name": what})


def after(tape: Tape) -> list[tuple[str, list[int]]]:
    tape.end()
    return [(node["stream"], node["after"]) for node in tape.nodes]


# ---- the tape


def test_kernels_between_communication_are_one_node() -> None:
    tape = Tape()
    for module in ("layers.0.attention", "layers.0.feed_forward", "layers.0.feed_forward"):
        tape.compute("forward", module, "a.py:1", KERNEL)
    tape.compute("backward", "layers.0", "a.py:2", ("float32", 2.0, 4.0, 0.5))
    assert tape.end() == 2
    forward, backward = tape.nodes
    assert (forward["module"], forward["site"], forward["flops"]) == (
        "layers.0",
        "a.py:1",
        {"bfloat16": 24e9},
    )
    assert (forward["touched_bytes"], forward["seconds"]) == (300.0, 3e-3)
    assert (backward["kind"], backward["after"], backward["stream"]) == ("backward", [], MAIN)


def test_communication_goes_on_beside_computing_until_it_is_waited_for() -> None:
    tape = Tape()
    tape.compute("forward", "", "", KERNEL)
    number = message(tape)
    tape.compute("forward", "", "", KERNEL)
    tape.wait(number, tape.generation)
    tape.compute("forward", "", "", KERNEL)
    assert after(tape) == [(MAIN, []), ("group dp", [0]), (MAIN, []), (MAIN, [1])]


def test_events_order_streams() -> None:
    """As FSDP2 prefetches: gathered on a stream of its own, which waits for a copy that is older than what computes."""
    tape = Tape()
    gathering = tape.stream("gathering")
    tape.compute("forward", "", "", KERNEL)
    copied = tape.record()
    tape.compute("forward", "", "", KERNEL)
    tape.wait_event(copied, gathering)
    tape.current = gathering
    number = message(tape)
    tape.wait(number, tape.generation)
    gathered = tape.record()
    tape.current = tape.streams[MAIN]
    tape.wait_event(gathered)
    tape.compute("forward", "", "", KERNEL)
    assert after(tape) == [(MAIN, []), ("group dp", [0]), (MAIN, []), (MAIN, [1])]


def test_what_comes_before_something_waited_for_is_not_named_too() -> None:
    tape = Tape()
    tape.compute("forward", "", "", KERNEL)
    first = message(tape)
    second = message(tape, stream="group tp")
    tape.wait(first, tape.generation)
    third = message(tape, stream="group tp")
    for number in (first, second, third):
        tape.wait(number, tape.generation)
    tape.compute("forward", "", "", KERNEL)
    assert after(tape)[-1] == (MAIN, [third])


def test_a_program_that_blocks_asks_for_nothing_meanwhile() -> None:
    tape = Tape()
    other = tape.stream("copies")
    tape.compute("forward", "", "", KERNEL)
    tape.block()
    tape.current = other
    tape.compute("forward", "", "", KERNEL)
    assert after(tape) == [(MAIN, []), ("copies", [0])]


def test_a_step_begins_anew() -> None:
    tape = Tape()
    tape.compute("forward", "", "", KERNEL)
    number, token = message(tape), tape.generation
    event = tape.record()
    tape.restart()
    tape.wait(number, token)
    tape.wait_event(event)
    tape.compute("forward", "", "", ("bfloat16", 0.0, 0.0, 0.0))  # a view costs nothing
    tape.compute("forward", "", "", KERNEL)
    assert after(tape) == [(MAIN, [])]


def test_the_module_of_several_is_the_one_around_them() -> None:
    assert common_module("layers.1.wq", "layers.10.wq") == "layers"
    assert common_module("a", "b") == ""


# ---- classes of ranks: a mesh of 2 stages, 2 shards, 2 tensor ranks; rank = 4 stage + 2 shard + tensor

GROUPS = {
    "world": list(range(8)),
    **{f"pipeline {rank}": [rank, rank + 4] for rank in range(4)},
    **{f"shard {rank}": [rank, rank + 2] for rank in (0, 1, 4, 5)},
    **{f"tensor {rank}": [rank, rank + 1] for rank in (0, 2, 4, 6)},
}
FAMILIES = {name: name.split()[0] for name in GROUPS}
PLACE: dict[str, Any] = {"module": "", "site": "train.py:1", "after": []}


def collective(group: str, numel: int = 8, **more: Any) -> dict[str, Any]:
    node = {
        "type": "collective",
        "collective": "all_reduce",
        "name": "all_reduce",
        "group": group,
        "numel": numel,
    }
    return {**node, "dtype": "float32", "stream": f"group {group}", **PLACE, **more}


def end(peer: int, sends: bool) -> dict[str, Any]:
    what = "send" if sends else "recv"
    node = {"type": "message", "name": f"{what} {peer}", "peer": peer, "tag": 0, "sends": sends, "numel": 4}
    return {**node, "dtype": "bfloat16", "stream": f"{what} {peer}", **PLACE}


def record(rank: int, nodes: list[dict[str, Any]]) -> dict[str, Any]:
    return {"rank": rank, "nodes": nodes, "groups": GROUPS, "families": FAMILIES}


FIRST = record(
    0, [collective("tensor 0"), end(4, True), collective("shard 0"), collective("world", 1, root=0)]
)
LAST = record(
    4, [end(0, False), collective("tensor 4"), collective("shard 4"), collective("world", 1, root=0)]
)


def test_ranks_of_a_stage_are_alike_and_stages_are_not() -> None:
    first = class_of(FIRST, 0)
    assert first.members == (0, 1, 2, 3)
    assert first.pipelines == ((0, 4), (1, 5), (2, 6), (3, 7))
    assert next_leaders([], 8) == [0]
    assert next_leaders([first], 8) == [4]
    assert class_of(LAST, 4).members == (4, 5, 6, 7)
    assert next_leaders([first, class_of(LAST, 4)], 8) == []


def test_without_messages_all_that_collectives_join_are_alike() -> None:
    alone = record(0, [collective("tensor 0"), collective("shard 0")])
    assert class_of(alone, 0).members == (0, 1, 2, 3)
    assert class_of(record(0, [collective("world")]), 0).members == tuple(range(8))
    assert class_of(record(3, []), 3).members == (3,)


def test_messages_to_ranks_of_no_group_keep_those_apart() -> None:
    ring = record(0, [end(3, True), collective("world")])
    found = class_of({**ring, "groups": {"world": list(range(8))}, "families": {"world": "world"}}, 0)
    assert found.members == (0,)


def test_groups_that_share_ranks_are_no_family() -> None:
    groups = {"group 0": [0, 1], "group 1": [1, 2], "group 2": [2, 3]}
    families = dict.fromkeys(groups, "group")
    own = {"rank": 0, "nodes": [collective("group 0")], "groups": groups, "families": families}
    assert class_of(own, 0).members == (0, 1)


def test_another_rank_does_the_same_in_its_own_groups() -> None:
    own = class_of(FIRST, 0)
    found = translate_nodes(FIRST, own, 3)
    assert found is not None
    assert [node.get("group", node.get("peer")) for node in found] == ["tensor 2", 7, "shard 1", "world"]
    assert found[0]["stream"] == "group tensor 2"
    assert found[1]["stream"] == "send 7"
    assert found[3]["root"] == 0
    assert translate_nodes(FIRST, own, 0) == FIRST["nodes"]
    assert translate_nodes(FIRST, RankClass(0, (0, 3)), 3) is None  # nobody knows whom it sends to


def test_what_was_expected_of_a_rank_is_held_against_what_it_does() -> None:
    expected = translate_nodes(FIRST, class_of(FIRST, 0), 1)
    assert find_difference(expected, expected or []) is None
    other = [dict(node) for node in expected or []]
    other[2]["numel"] = 9
    assert find_difference(expected, other) == "communication 2 (all_reduce at train.py:1): numel 9, not 8"
    assert find_difference(expected, other[:2]) == "2 communications, not 4"
    assert find_difference(None, other) == "its groups differ"


# ---- the trace


def test_a_trace_has_every_rank_in_its_own_place() -> None:
    work = {"type": "compute", "name": "forward", "stream": MAIN, "kind": "forward", **PLACE}
    work = {**work, "flops": {"bfloat16": 989e9}, "touched_bytes": 5.0, "seconds": 1e-3}
    first, last = record(0, [work, *FIRST["nodes"]]), record(4, [*LAST["nodes"], work])
    ranks = [
        (translate_nodes(own, class_of(own, own["rank"]), rank) or [], own)
        for own, ranks in ((first, range(4)), (last, range(4, 8)))
        for rank in ranks
    ]
    h100 = accelerators()["h100"]
    trace = assemble(ranks, estimate_computing("utilisation", h100).seconds, "train.py", "h100")
    assert first_mismatch(trace, senders_wait=True) is None
    computed, reduced, sent = trace.ranks[1][:3]
    assert isinstance(computed, Compute)
    assert computed.duration_s == pytest.approx(1e-3 / h100["utilisation"])
    assert computed.flops == 989e9
    assert isinstance(reduced, Collective)
    assert (reduced.group, reduced.kind) == ("tensor 0", "tensor")
    assert isinstance(sent, PointToPoint)
    assert (sent.peer, sent.kind) == (5, "pipeline")
    assert set(trace.groups) == {name for name in GROUPS if not name.startswith("pipeline")}
    least = assemble(ranks, estimate_computing("roofline", h100).seconds, "train.py", "h100").ranks[0][0]
    assert isinstance(least, Compute)
    assert least.duration_s == 1e-3


def test_peaks_are_by_type() -> None:
    peaks = peaks_of(accelerators()["h100"])
    assert (peaks["bfloat16"], peaks["float32"], peaks["float8_e5m2"]) == (989e12, 494.5e12, 1979e12)


def test_measured_times_are_shared_out_by_what_parts_take_at_the_least(tmp_path: Path) -> None:
    table = tmp_path / "times.csv"
    table.write_text("kind,seconds,ranks\nforward,0.6,\nbackward,2.0,0-1\n")
    nodes: list[dict[str, Any]] = [
        {"type": "compute", "kind": "forward", "seconds": 0.1},
        {"type": "compute", "kind": "forward", "seconds": 0.2},
        {"type": "message"},
        {"type": "compute", "kind": "backward", "seconds": 0.5},
    ]
    assert read_computing_table(table)(1, nodes) == pytest.approx([0.2, 0.4, 0.0, 2.0])
    assert read_computing_table(table)(2, nodes) == pytest.approx([0.2, 0.4, 0.0, 0.5])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("kind,seconds\nforward,long\n", r"times.csv:2: got forward,long, expected kind,seconds"),
        ("name,seconds\nforward,1\n", r"times.csv:2: got forward,1"),
    ],
)
def test_a_table_that_is_none_is_refused(text: str, said: str, tmp_path: Path) -> None:
    table = tmp_path / "times.csv"
    table.write_text(text)
    with pytest.raises(BadInput, match=said):
        read_computing_table(table)
    with pytest.raises(
        BadInput,
        match=r"--compute: got .*none.csv, expected utilisation, roofline, a profiler.s trace .* or a table",
    ):
        read_computing_table(tmp_path / "none.csv")

"""Chakra traces: what others write is read as they mean it; what is written here they can read, and comes back."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.workload.traces.chakra import read_job, write_job
from testbed.workload.traces.chakra.files import read_file, write_file
from testbed.workload.traces.trace import Collective, Compute, JobTrace, Node, PointToPoint, TraceError
from tests.unit.workload.et_wire import (
    BOOL,
    BOOLS,
    COLL,
    COMP,
    INT32,
    INT64,
    LOAD,
    METADATA,
    RECV,
    SEND,
    STRING,
    UINT64,
    attribute,
    attributes,
    collective,
    message,
    messages,
    node,
    version,
    waits,
    write,
)

MEBI = 1 << 20


def durations(trace: JobTrace, rank: int = 0) -> dict[str, float]:
    return {node.name: node.duration_s for node in trace.ranks[rank] if isinstance(node, Compute)}


# --- what others write


@pytest.mark.parametrize(
    ("comm", "name", "whole_bytes"),
    [
        (0, "all_reduce", MEBI),
        (1, "reduce", MEBI),
        (2, "all_gather", 4 * MEBI),  # what each gives, as ASTRA-sim has it
        (3, "gather", 4 * MEBI),
        (4, "scatter", MEBI),
        (5, "broadcast", MEBI),
        (6, "all_to_all", MEBI),
        (7, "reduce_scatter", MEBI),
        (8, "reduce_scatter", MEBI),
        (9, "barrier", 0),
    ],
)
def test_a_collective_of_all_ranks_is_read_by_its_number_and_size(
    comm: int, name: str, whole_bytes: int, tmp_path: Path
) -> None:
    for rank in range(4):
        write(tmp_path / f"bench.{rank}.et", version(), collective(rank, comm, MEBI))
    trace = read_job(tmp_path)
    assert trace == read_job(tmp_path / "bench")
    assert trace.groups == {"all": (0, 1, 2, 3)}
    ((own,),) = set(trace.ranks)
    assert isinstance(own, Collective)
    assert (own.collective, own.numel * 4, own.dtype) == (name, whole_bytes, "float32")
    assert "Chakra 0.0.4" in trace.origin


def ring_of_messages(folder: Path, ranks: int, steps: int) -> None:
    """As an algorithm of MSCCL becomes one: no version, sends first, receives after them, reductions without a size."""
    head = message([(2, message([(1, "schema"), (STRING, "1.0.2-chakra.0.0.4")]))])
    for rank in range(ranks):
        own = []
        for step in range(steps):
            to = (attribute("comm_dst", INT32, (rank + 1) % ranks), attribute("comm_tag", INT32, 0))
            of = (attribute("comm_src", INT32, (rank - 1) % ranks), attribute("comm_tag", INT32, 0))
            size = attribute("comm_size", INT64, 1024)
            before = [waits(3 * step - 1)] if step else []
            own += [
                node(3 * step, f"send {step}", SEND, *before, size, *to),
                node(3 * step + 1, f"recv {step}", RECV, waits(3 * step), size, *of),
                node(3 * step + 2, f"reduce {step}", COMP, waits(3 * step + 1)),
            ]
        write(folder / f"ring.{rank}.et", head, *own)


def test_messages_meet_their_other_ends(tmp_path: Path) -> None:
    ring_of_messages(tmp_path, ranks=4, steps=3)
    trace = read_job(tmp_path)
    assert trace.groups == {}
    assert [node.name for node in trace.ranks[3]][:4] == ["send 0", "recv 0", "reduce 0", "send 1"]
    sent, got = trace.ranks[3][:2]
    assert isinstance(sent, PointToPoint)
    assert isinstance(got, PointToPoint)
    assert (sent.sends, sent.peer, sent.numel, got.sends, got.peer) == (True, 0, 256, False, 2)
    assert got.after == (0,)
    assert trace.ranks[3][3].after == (2,)


OLD = [  # where an attribute's values stand in files of before October 2023: whole numbers, texts, lists of booleans
    pytest.param({"type": 3, "int": 7, "bools": 9}, True, id="August 2023"),
    pytest.param({"type": 2, "int": 6, "bools": 8}, False, id="July 2023"),
]


@pytest.mark.parametrize(("numbers", "metadata"), OLD)
def test_files_of_2023_are_read_by_their_own_numbers(
    numbers: dict[str, int], metadata: bool, tmp_path: Path
) -> None:
    def number(name: str, value: int) -> tuple[int, bytes]:
        return 11, message([(1, name), (2, numbers["type"]), (numbers["int"], value)])

    dims = 11, message([(1, "involved_dim"), (2, 5), (numbers["bools"], 1), (numbers["bools"], 1)])
    for rank in range(2):
        nodes = [
            node(10, "work", COMP, number("runtime", 25)),
            node(11, "sums", COLL, (4, 10), number("comm_type", 3), number("comm_size", 400), dims),
            node(12, "all", COLL, (4, 11), number("comm_type", 2), number("comm_size", 400), dims),
            node(13, "swap", COLL, (4, 12), number("comm_type", 1), number("comm_size", 400), dims),
        ]
        write(tmp_path / f"old.{rank}.et", *([b""] if metadata else []), *nodes)
    trace = read_job(tmp_path)
    assert durations(trace) == {"work": 25e-6}
    found = [(own.collective, own.numel) for own in trace.ranks[0] if isinstance(own, Collective)]
    assert found == [("reduce_scatter", 100), ("all_gather", 200), ("all_to_all", 100)]
    assert trace.ranks[1][1].after == (0,)
    assert read_file(tmp_path / "old.0.et").version == "0.0.3"


def test_files_of_before_july_2023_have_a_field_for_each_figure(tmp_path: Path) -> None:
    for rank in range(2):
        write(
            tmp_path / f"flat.{rank}.et",
            node(1, "work", 3, (5, 1), (6, 4096), (7, 12), (12, 10**6)),
            node(2, "swap", 6, (4, 1), (13, 2), (14, 1), (18, 800)),
            node(
                3,
                "out" if rank else "in",
                4 if rank else 5,
                (4, 2),
                (17 if rank else 16, 1 - rank),
                (18, 40),
                (19, 3),
            ),
        )
    trace = read_job(tmp_path)
    work, swap, last = trace.ranks[0]
    assert isinstance(work, Compute)
    assert (work.duration_s, work.flops, work.touched_bytes) == (12e-6, 1e6, 4096)
    assert isinstance(swap, Collective)
    assert (swap.collective, swap.numel, swap.after) == ("all_to_all", 200, (0,))
    assert isinstance(last, PointToPoint)
    assert (last.sends, last.peer, last.tag, last.numel) == (False, 1, 3, 10)


def test_computing_without_a_duration_is_reckoned(tmp_path: Path) -> None:
    sizes = attribute("num_ops", INT64, 6000), attribute("tensor_size", UINT64, 100)
    write(
        tmp_path / "stg.0.et",
        version(),
        node(0, "matmul", COMP, *sizes),
        node(1, "known", COMP, *sizes, (7, 5)),
        node(2, "weights", LOAD, attribute("tensor_size", UINT64, 300)),
        node(3, "nothing", COMP),
    )
    trace = read_job(tmp_path, lambda flops, touched: max(flops / 1e3, touched / 10))
    assert durations(trace) == {"matmul": 10.0, "known": 5e-6, "weights": 30.0, "nothing": 0.0}
    assert {node.name: node.stream for node in trace.ranks[0]}["weights"] == "memory"
    with pytest.raises(
        TraceError, match=r"stg\.0\.et: node 0 \(matmul, COMP_NODE\): got no duration_micros, 6000 op"
    ):
        read_job(tmp_path)


GROUPS = [
    pytest.param("pg_name", STRING, "comm_group.json", id="by ASTRA-sim's file"),
    pytest.param("comm_group", INT32, "job.json", id="by the file beside the traces"),
]


@pytest.mark.parametrize(("name", "kind", "file"), GROUPS)
def test_groups_are_those_of_the_file(name: str, kind: int, file: str, tmp_path: Path) -> None:
    (tmp_path / file).write_text(json.dumps({"7": [2, 0], "9": [1, 3]}))
    for rank in range(4):
        key = 9 if rank % 2 else 7
        own = attribute(name, kind, str(key) if kind == STRING else key)
        # as a generator writes them that has attributes without a value, and whole numbers for what is true or false
        nothing, place = (10, message([(1, "inputs")])), attribute("is_cpu_op", INT32, 0)
        write(tmp_path / f"job.{rank}.et", version(), collective(0, 0, 40, own, nothing, place))
    trace = read_job(tmp_path)
    assert trace.groups == {"7": (2, 0), "9": (1, 3)}
    assert [own[0].group for own in trace.ranks if isinstance(own[0], Collective)] == ["7", "9", "7", "9"]


def test_groups_are_those_that_pytorch_wrote_down(tmp_path: Path) -> None:
    for rank in range(4):
        pair = [rank, rank + 1] if rank % 2 == 0 else [rank - 1, rank]
        said = json.dumps([{"pg_name": "0", "ranks": []}, {"pg_name": "3", "ranks": pair, "group_size": 2}])
        head = message([(1, repr([said]))])
        tensor = message([(3, "['GenericList[Tensor(c10::BFloat16)]', 'Bool']")])
        write(
            tmp_path / f"run.{rank}.et",
            version("1.1.1-chakra.0.0.4"),
            node(1, "## process_group:init ##", METADATA, (8, head)),
            node(2, "c10d::allreduce_", COLL, waits(1), attribute("is_cpu_op", BOOL, 1), (7, 90)),
            collective(3, 0, 64, waits(2), attribute("pg_name", STRING, "3"), (8, tensor)),
            collective(4, 0, 64, waits(3), attribute("pg_name", STRING, "0"), name="everybody"),
        )
    trace = read_job(tmp_path)
    assert trace.groups == {"3": (0, 1), "all": (0, 1, 2, 3), "3 of 2": (2, 3)}
    starts, pair_sum, everybody = trace.ranks[2]
    assert isinstance(starts, Compute)
    assert (starts.duration_s, starts.stream, starts.after) == (90e-6, "cpu", ())
    assert isinstance(pair_sum, Collective)
    assert (pair_sum.group, pair_sum.dtype, pair_sum.numel) == ("3 of 2", "bfloat16", 32)
    assert isinstance(everybody, Collective)
    assert everybody.group == "all"


def test_a_part_of_a_networks_dimensions_is_a_group(tmp_path: Path) -> None:
    for rank in range(4):
        dims = attribute("involved_dim", BOOLS, [False, True])
        write(tmp_path / f"dims.{rank}.et", version(), collective(0, 0, 40, dims))
    with pytest.raises(
        TraceError, match=r"dims\.0\.et: node 0 \(coll\): got involved_dim .* npus_count of the network"
    ):
        read_job(tmp_path)
    (tmp_path / "network.yml").write_text("topology: [Ring, Ring]\nnpus_count: [2, 2]\n")
    assert sorted(read_job(tmp_path).groups.values()) == [(0, 2), (1, 3)]


def test_streams_go_in_an_order_in_which_the_job_ends(tmp_path: Path) -> None:
    """Rank 0 lists first what needs an answer to what it lists last; both are computing, on one stream."""
    size = attribute("comm_size", INT64, 4)
    write(
        tmp_path / "turn.0.et",
        version(),
        node(0, "hear", RECV, size, attribute("comm_src", INT32, 1), attribute("comm_tag", INT32, 1)),
        node(1, "then", COMP, waits(0), (7, 3)),
        node(2, "first", COMP, (7, 4)),
        node(3, "say", SEND, waits(2), size, attribute("comm_dst", INT32, 1)),
    )
    write(
        tmp_path / "turn.1.et",
        version(),
        node(0, "hear", RECV, size, attribute("comm_src", INT32, 0)),
        node(
            1, "say", SEND, waits(0), size, attribute("comm_dst", INT32, 0), attribute("comm_tag", INT32, 1)
        ),
    )
    trace = read_job(tmp_path)
    assert [node.name for node in trace.ranks[0]] == ["hear", "first", "say", "then"]


def test_a_callers_end_is_not_waited_for_where_that_would_be_a_circle(tmp_path: Path) -> None:
    caller = node(1, "aten::linear", COMP, waits(2), (7, 1))
    write(tmp_path / "cpu.0.et", version(), caller, node(2, "aten::mm", COMP, (4, 1), (4, 99), (7, 2)))
    assert [node.name for node in read_job(tmp_path).ranks[0]] == ["aten::mm", "aten::linear"]


PAIR = attribute("comm_size", INT64, 4), attribute("comm_dst", INT32, 1)
WRONG: list[Any] = [
    pytest.param(
        [collective(5, 11, 8)], r"node 5 \(coll, COMM_COLL_NODE\): got comm_type 11", id="collective"
    ),
    pytest.param([node(5, "x", COLL)], r"node 5 \(x, COMM_COLL_NODE\): got no comm_type", id="no collective"),
    pytest.param([node(5, "x", 8)], r"node 5 \(x, type 8\): got a type that is not supported", id="type"),
    pytest.param(
        [node(5, "x", SEND, PAIR[0])], r"node 5 \(x, COMM_SEND_NODE\): got no comm_dst", id="no peer"
    ),
    pytest.param(
        [node(5, "x", SEND, PAIR[0], attribute("comm_dst", INT32, 7))], "another rank of 0 to 1", id="peer"
    ),
    pytest.param(
        [node(5, "x", SEND, *PAIR, attribute("comm_src", INT32, 1))], "got comm_src 1, expected 0", id="own"
    ),
    pytest.param([node(5, "x", COMP, waits(77))], r"node 5 \(x\): got data_deps on 77", id="dependency"),
    pytest.param(
        [node(5, "x", COMP, waits(6)), node(6, "y", COMP, waits(5))], "waits for itself", id="circle"
    ),
    pytest.param([node(5, "x", COMP), node(5, "y", COMP)], "two nodes of id 5: x and y", id="ids"),
    pytest.param(
        [collective(5, 0, 8, attribute("pg_name", STRING, "4"))],
        r"node 5 \(coll\): got group 4, expected its ranks in .*comm_group.json",
        id="group",
    ),
    pytest.param(
        [collective(5, 0, 8)],
        r"a\.0\.et: node 5 \(coll\): got collective 1 of group all, which rank 1 never",
        id="alone",
    ),
    pytest.param(
        [node(5, "x", RECV, PAIR[0], attribute("comm_src", INT32, 1))],
        r"node 5 \(x\): got a message of rank 1 with tag 0, expected its sender to send",
        id="unsent",
    ),
]


@pytest.mark.parametrize(("nodes", "said"), WRONG)
def test_what_cannot_be_done_is_said_with_file_and_node(
    nodes: list[bytes], said: str, tmp_path: Path
) -> None:
    write(tmp_path / "a.0.et", version(), *nodes)
    write(tmp_path / "a.1.et", version())
    with pytest.raises(TraceError, match=said):
        read_job(tmp_path)


def test_members_of_a_collective_must_say_the_same(tmp_path: Path) -> None:
    for rank, size in enumerate((8, 16)):
        write(tmp_path / f"a.{rank}.et", version(), collective(0, 0, size))
    with pytest.raises(TraceError, match="all_reduce of 8 B and all_reduce of 16 B"):
        read_job(tmp_path)
    for rank, size in enumerate((8, 16)):
        write(tmp_path / f"a.{rank}.et", version(), collective(0, 6, size))
    found = [own[0] for own in read_job(tmp_path).ranks]
    assert [(own.collective, own.splits) for own in found if isinstance(own, Collective)] == [
        ("all_to_all_v", (1, 1)),
        ("all_to_all_v", (2, 2)),
    ]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\xff\xff\xff\xff\xff\xff", "message 0: got no length"),
        (b"\x05abc", "message 0: got 3 bytes, expected 5"),
        (b"\x02\x0a\x7f", "message 0: no message of an execution trace"),
        (b"", "got no node, expected a trace of what its rank does\nThe rank that wrote it died"),
        (gzip.compress(b"", mtime=0), "got no node"),
        (gzip.compress(b"\x05abcde", mtime=0)[:-9], "no execution trace"),
        (b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff\xff\xff", "no execution trace"),
    ],
)
def test_what_is_no_trace_is_refused(content: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / "a.0.et").write_bytes(content)
    with pytest.raises(TraceError, match=f"a.0.et: {said}"):
        read_job(tmp_path)


def test_files_that_are_missing_are_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"got none, expected NAME\.RANK\.et"):
        read_job(tmp_path)
    for name in ("a.0.et", "a.2.et"):
        write(tmp_path / name, version())
    with pytest.raises(TraceError, match="got no file of rank 1"):
        read_job(tmp_path)
    write(tmp_path / "a.123456789012.et", version())
    with pytest.raises(
        TraceError, match="got no file of rank 1, expected one of each rank up to 123456789012"
    ):
        read_job(tmp_path)
    write(tmp_path / "b.0.et", version())
    with pytest.raises(TraceError, match="got traces of a, b"):
        read_job(tmp_path)
    assert len(read_job(tmp_path / "b").ranks) == 1


@pytest.mark.parametrize(
    "names",
    [
        ("chakra_trace.0.et", "chakra_trace.1.et"),  # ASTRA-sim's, and those of Chakra's wiki
        ("rank_0.et", "rank_1.et"),
        ("dp4-gpt.7b-00.et.gz", "dp4-gpt.7b-01.et.gz"),
        ("0.et", "1.et"),
    ],
)
def test_files_of_several_names_are_found(names: tuple[str, str], tmp_path: Path) -> None:
    for number, name in enumerate(names):
        write(tmp_path / name, version(), node(7, f"of rank {number}", COMP, (7, 5)))
    assert [own[0].name for own in read_job(tmp_path).ranks] == ["of rank 0", "of rank 1"]


def test_two_files_of_one_rank_are_an_error_that_names_both(tmp_path: Path) -> None:
    for name in ("a.0.et", "a.1.et", "a.01.et"):
        write(tmp_path / name, version())
    with pytest.raises(TraceError, match=r"got two traces of rank 1: a\.01\.et and a\.1\.et, expected one"):
        read_job(tmp_path)
    (tmp_path / "a.01.et").rename(tmp_path / "a.0.et.gz")
    with pytest.raises(TraceError, match=r"got two traces of rank 0: a\.0\.et and a\.0\.et\.gz"):
        read_job(tmp_path)


def test_a_file_without_a_rank_in_its_name_is_not_passed_over(tmp_path: Path) -> None:
    write(tmp_path / "a.0.et", version())
    write(tmp_path / "b.et", version())
    with pytest.raises(TraceError, match=r"b\.et: got a name without a rank, expected NAME\.RANK\.et"):
        read_job(tmp_path)
    assert len(read_job(tmp_path / "a").ranks) == 1


def test_what_is_not_used_is_named(tmp_path: Path) -> None:
    priority = attribute("comm_priority", INT32, 3)
    callers = (4, b"\x09")
    own = [node(1, "b", COMP, (7, 5), (77, 1)), node(2, "c", COMP), node(3, "d", METADATA)]
    write(tmp_path / "a.0.et", version(), collective(0, 0, 8, priority, callers), *own)
    assert read_job(tmp_path).left_out == (
        "fields of 1 nodes that no known version has",
        "1 COMP_NODEs without duration or operations, which take no time",
        "nodes' attributes comm_priority",
        "1 ctrl_deps on nodes that are not there",
    )


def test_two_files_of_groups_must_say_the_same(tmp_path: Path) -> None:
    for rank in range(3):
        write(tmp_path / f"a.{rank}.et", version(), collective(0, 0, 8, attribute("pg_name", STRING, "1")))
    (tmp_path / "comm_group.json").write_text('\ufeff{"1": [0, 1, 2]}')
    (tmp_path / "a.json").write_text('{"1": [0, 1]}')
    with pytest.raises(TraceError, match=r"got different groups in comm_group\.json and in a\.json"):
        read_job(tmp_path)
    (tmp_path / "a.json").write_text('{"schema": "of something else"}')
    assert read_job(tmp_path).groups == {"1": (0, 1, 2)}
    (tmp_path / "comm_group.json").write_text('{"1": [0, 1], "1": [0, 1, 2]}')
    with pytest.raises(TraceError, match=r"comm_group\.json: got group 1 twice"):
        read_job(tmp_path)


# --- what is written here

NAMES = st.text(max_size=8)
DTYPES = st.sampled_from(["float32", "bfloat16", "float8", "int64"])
KINDS = [
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "all_to_all",
    "barrier",
]


@st.composite
def traces(draw: st.DrawFn) -> JobTrace:
    world = draw(st.integers(1, 4))
    members = st.lists(st.integers(0, world - 1), min_size=1, unique=True).map(tuple)
    groups = draw(st.dictionaries(NAMES, members, max_size=3))

    def one(rank: int, number: int) -> Node:
        own = [name for name, ranks in groups.items() if rank in ranks]
        kind = draw(
            st.sampled_from(
                ["compute", *(["collective", "uneven"] if own else []), *(["message"] if world > 1 else [])]
            )
        )
        common: dict[str, Any] = {
            "name": draw(NAMES),
            "stream": draw(st.sampled_from(["compute", "other", ""])),
            "after": tuple(draw(st.lists(st.integers(0, number - 1), max_size=3))) if number else (),
            "module": draw(NAMES),
            "site": draw(NAMES),
        }
        if kind == "compute":
            figures = st.floats(0, 1e12, allow_nan=False)
            seconds = draw(st.floats(0, 1e5, allow_nan=False))
            return Compute(
                **common,
                duration_s=seconds,
                flops=draw(figures),
                touched_bytes=draw(figures),
                kind=draw(NAMES),
            )
        numel, dtype, said = draw(st.integers(0, 2**40)), draw(DTYPES), draw(NAMES)
        if kind == "message":
            peer = draw(st.sampled_from([other for other in range(world) if other != rank]))
            tag, sends = draw(st.integers(0, 2**40)), draw(st.booleans())
            return PointToPoint(
                **common, peer=peer, numel=numel, dtype=dtype, tag=tag, sends=sends, kind=said
            )
        group = draw(st.sampled_from(own))
        splits = tuple(draw(st.integers(0, 99)) for _ in groups[group]) if kind == "uneven" else ()
        which = "all_to_all_v" if kind == "uneven" else draw(st.sampled_from(KINDS))
        root, algorithm = draw(st.sampled_from(groups[group])), draw(st.sampled_from(["", "ring"]))
        return Collective(
            **common,
            group=group,
            collective=which,
            numel=numel,
            dtype=dtype,
            splits=splits,
            root=root,
            kind=said,
            algorithm=algorithm,
        )

    ranks = tuple(
        tuple(one(rank, number) for number in range(draw(st.integers(0, 4)))) for rank in range(world)
    )
    return JobTrace(ranks, groups, draw(NAMES), draw(NAMES))


@settings(deadline=None, max_examples=100)
@given(traces())
def test_a_trace_comes_back_without_a_difference(trace: JobTrace) -> None:
    with TemporaryDirectory() as folder:
        write_job(trace, Path(folder))
        back = read_job(Path(folder))
    assert back == trace
    assert list(back.groups) == list(trace.groups)


TRACE = JobTrace(
    (
        (
            Compute(
                "forward", duration_s=1.5e-3, flops=2e9, touched_bytes=77.0, kind="forward", module="layers.0"
            ),
            Compute("more", duration_s=1e-7),
            PointToPoint("activations", "out", (0,), peer=1, numel=10, dtype="bfloat16", tag=5, sends=True),
            Collective("weights", "dp", (0,), group="data", collective="all_gather", numel=100),
        ),
        (
            PointToPoint("activations", "in", peer=0, numel=10, dtype="bfloat16", tag=5),
            Collective("weights", "dp", group="data", collective="all_gather", numel=100),
        ),
    ),
    {"data": (0, 1)},
)


def test_others_find_what_they_look_for(tmp_path: Path) -> None:
    """By the bytes alone."""
    written = write_job(TRACE, tmp_path, "own")
    assert [path.name for path in written] == ["own.0.et", "own.1.et", "comm_group.json"]
    assert json.loads((tmp_path / "comm_group.json").read_text()) == {"1": [0, 1]}
    head, *nodes = messages(tmp_path / "own.0.et")
    assert dict(head)[1] == b"1.0.0"
    fields = [dict(own) for own in nodes]
    assert [own.get(1, 0) for own in fields] == [0, 1, 2, 3]
    assert [own[3] for own in fields] == [COMP, COMP, SEND, COLL]
    assert [own.get(5, b"") for own in fields] == [
        b"",
        b"\0",
        b"\0",
        b"\0",
    ]  # the stream's order, and what it waits for
    assert [own.get(7, 0) for own in fields] == [1500, 1, 0, 0]
    assert attributes(nodes[0])["num_ops"] == 2 * 10**9
    assert attributes(nodes[0])["tensor_size"] == 77
    message_of, weights = attributes(nodes[2]), attributes(nodes[3])
    assert [message_of[name] for name in ("comm_src", "comm_dst", "comm_size", "comm_tag")] == [0, 1, 20, 5]
    assert [weights[name] for name in ("comm_type", "comm_size", "pg_name")] == [2, 200, b"1"]
    assert weights["is_cpu_op"] == 0
    received = attributes(messages(tmp_path / "own.1.et")[1])
    assert [received[name] for name in ("comm_src", "comm_dst")] == [0, 1]


def test_measured_times_are_for_those_who_look(tmp_path: Path) -> None:
    times = [[(0.0, 1.0)] * 3 + [(2e-3, 5e-3)], [(0.0, 1.0)] * 2]
    write_job(TRACE, tmp_path, times=times)
    weights = read_file(tmp_path / "job.0.et").nodes[3]
    assert (weights.start_us, weights.duration_us) == (2000, 5000)
    assert read_job(tmp_path) == TRACE


def test_what_somebody_changed_since_counts(tmp_path: Path) -> None:
    write_job(TRACE, tmp_path)
    for rank in range(2):
        file = read_file(tmp_path / f"job.{rank}.et")
        nodes = list(file.nodes)
        nodes[-1] = replace(nodes[-1], attributes={**nodes[-1].attributes, "comm_size": 400})
        if rank == 0:
            nodes[0] = replace(nodes[0], duration_us=9)
        write_file(file.path, file.attributes, nodes)
    first, _, _, weights = read_job(tmp_path).ranks[0]
    assert isinstance(first, Compute)
    assert (first.duration_s, first.kind, first.module) == (9e-6, "forward", "layers.0")
    assert isinstance(weights, Collective)
    assert (weights.numel, weights.stream, weights.group) == (200, "dp", "data")


def test_collectives_that_chakra_has_no_number_for_are_refused(tmp_path: Path) -> None:
    odd = replace(TRACE, ranks=((replace(TRACE.ranks[1][1], collective="scan"),), ()))  # type: ignore[call-arg]
    with pytest.raises(TraceError, match=r"job\.0\.et: weights: got scan, expected one of: all_reduce"):
        write_job(odd, tmp_path)

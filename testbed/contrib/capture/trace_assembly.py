"""Assembly of the job's trace from the ranks' recordings: compute nodes get durations, groups and kinds get names."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testbed.contrib.capture.profiler_traces import is_trace, profile_for_rank, read_profiles
from testbed.contrib.capture.rank_classes import Record, pipelines_of
from testbed.errors import BadInput
from testbed.workload.traces.trace import Collective, Compute, JobTrace, Node, PointToPoint

UTILISATION, ROOFLINE = "utilisation", "roofline"
Nodes = Sequence[Mapping[str, Any]]
Seconds = Callable[[int, Nodes], Sequence[float]]
"""Returns the duration of each node of a rank, by rank number; only compute nodes take time."""


@dataclass(frozen=True)
class ComputeModel:
    """A model of compute times. seconds: of a rank's nodes. notes: remarks on their source, for the user."""

    seconds: Seconds
    notes: tuple[str, ...] = ()


def peaks_of(accelerator: Mapping[str, Any]) -> dict[str, float]:
    """Return flop/s by PyTorch's element type; float32 products are computed as TF32, at half the rate of bf16."""
    bf16, fp8 = accelerator["peak"]["bf16"], accelerator["peak"]["fp8"]
    found = {"bfloat16": bf16, "float16": bf16, "float32": bf16 / 2}
    return found | {f"float8_{kind}": fp8 for kind in ("e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz")}


def estimate_computing(model: str, accelerator: Mapping[str, Any]) -> ComputeModel:
    """Return the compute model of this name or file.

    - utilisation: flops at the share of the peak rate that training achieves, as elsewhere in the testbed;
    - roofline: the lower bound of every kernel, limited by the peak or by memory bandwidth;
    - the path of a profiler's trace or a folder of them, see `read_computing_profile`;
    - the path of a table, see `read_computing_table`.

    Raises BadInput.
    """
    if model == ROOFLINE:
        return ComputeModel(lambda rank, nodes: [node.get("seconds", 0.0) for node in nodes])
    if model == UTILISATION:
        peaks, share = peaks_of(accelerator), accelerator["utilisation"]

        def seconds(flops: Mapping[str, float]) -> float:
            rates = ((peaks.get(dtype, peaks["float32"]) * share, count) for dtype, count in flops.items())
            total: float = sum(count / rate for rate, count in rates)
            return total

        return ComputeModel(lambda rank, nodes: [seconds(node.get("flops", {})) for node in nodes])
    path = Path(model)
    return read_computing_profile(path) if is_trace(path) else ComputeModel(read_computing_table(path))


def read_computing_profile(path: Path) -> ComputeModel:
    """Return the compute model of a PyTorch profiler's trace, for all ranks, or of a folder with one trace per rank.

    A rank without its own trace uses that of the nearest lower rank. Raises BadInput.
    """
    profiles = read_profiles(path)
    return ComputeModel(
        lambda rank, nodes: distribute_seconds(nodes, profile_for_rank(profiles, rank).seconds),
        tuple(one.describe() for one in profiles),
    )


def distribute_seconds(nodes: Nodes, wanted: Mapping[str, float]) -> list[float]:
    """Distribute the total time of each kind over its nodes, in proportion to their lower bounds."""
    least: Counter[str] = Counter()
    for node in nodes:
        least[node.get("kind", "")] += node.get("seconds", 0.0)
    return [
        node["seconds"] / least[node["kind"]] * wanted.get(node["kind"], least[node["kind"]])
        if node["type"] == "compute" and least[node["kind"]]
        else 0.0
        for node in nodes
    ]


def read_computing_table(path: Path) -> Seconds:
    """Return compute times from a CSV table with columns kind, seconds and, if ranks differ, ranks (0-3 or 5).

    Kinds are forward, backward and compute. `seconds` is a rank's total of the kind in a step; kinds that are not
    listed take their lower bound. Raises BadInput.
    """
    rows: list[tuple[str, float, range | None]] = []
    try:
        with path.open(newline="") as file:
            for number, row in enumerate(csv.DictReader(file), 2):
                try:
                    rows.append((row["kind"].strip(), float(row["seconds"]), _ranks(row.get("ranks") or "")))
                except (KeyError, ValueError, AttributeError):
                    raise BadInput(
                        where=f"{path}:{number}",
                        got=",".join(str(value) for value in row.values()),
                        expected="kind,seconds or kind,seconds,ranks, such as forward,0.41,0-3",
                    ) from None
    except OSError as error:
        raise BadInput(
            where="--compute",
            got=str(path),
            expected=f"{UTILISATION}, {ROOFLINE}, a profiler's trace (.json, .json.gz, a folder of them) or a table: "
            f"{error.strerror}",
        ) from None

    def by_table(rank: int, nodes: Nodes) -> list[float]:
        return distribute_seconds(
            nodes, {kind: seconds for kind, seconds, ranks in rows if ranks is None or rank in ranks}
        )

    return by_table


def _ranks(text: str) -> range | None:
    if not text.strip():
        return None
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


def assemble(
    ranks: Sequence[tuple[Nodes, Record]], seconds: Seconds, origin: str, accelerator: str
) -> JobTrace:
    """Return the trace of a job from the nodes of every rank and the record that knows its groups."""
    groups: dict[str, tuple[int, ...]] = {}
    made: list[tuple[Node, ...]] = []
    known: dict[Node, Node] = {}
    for rank, (nodes, record) in enumerate(ranks):
        message_kind = _message_kind(record)
        own = []
        for node, duration_s in zip(nodes, seconds(rank, nodes), strict=True):
            one = _node(node, record, message_kind, duration_s)
            own.append(known.setdefault(one, one))
            if isinstance(one, Collective):
                groups[one.group] = tuple(record["groups"][one.group])
        made.append(tuple(own))
    trace = JobTrace(tuple(made), groups, origin, accelerator)
    trace.check(origin)
    return trace


def _message_kind(record: Record) -> str:
    """Return the name of the groups within which messages are sent."""
    pipelines = pipelines_of(record, record["rank"])
    names = (name for name, members in record["groups"].items() if tuple(members) in pipelines)
    family = next((record["families"][name] for name in names), "")
    return family if family not in ("", "group", "world") else "message"


def _node(node: Mapping[str, Any], record: Record, message_kind: str, duration_s: float) -> Node:
    """Convert a recorded node to the trace's class for its type, whose fields are its keys."""
    own = {key: value for key, value in node.items() if key not in ("type", "seconds")}
    own["after"] = tuple(node["after"])
    if node["type"] == "compute":
        return Compute(**{**own, "duration_s": duration_s, "flops": sum(node["flops"].values())})
    if node["type"] == "message":
        return PointToPoint(**own, kind=message_kind)
    family = record["families"][node["group"]]
    own |= {"splits": tuple(node.get("splits", ())), "kind": family if family != "group" else "collective"}
    return Collective(**own)

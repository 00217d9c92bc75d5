"""The raw files of a run's folder: what ranks, links and sockets recorded, and what was asked for."""

from __future__ import annotations

import copy
import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

Record = dict[str, Any]

COMPUTING = frozenset(
    ("compute", "forward", "backward", "full_backward", "backward_input", "backward_weight")
)


@dataclass(frozen=True)
class Step:
    """One measured step as its ranks recorded it, in emulated seconds and bytes.

    parts: each rank's record of the whole step. operations: all of their operations.
    """

    number: int
    parts: tuple[Record, ...]
    operations: tuple[Record, ...]

    @property
    def start_s(self) -> float:
        return min(float(part["start_s"]) for part in self.parts)

    @property
    def end_s(self) -> float:
        return max(float(part["end_s"]) for part in self.parts)

    @property
    def time_s(self) -> float:
        return self.end_s - self.start_s

    @property
    def operations_s(self) -> float:
        """Until the last operation ended; ranks end the step a moment later."""
        return max((float(entry["end_s"]) for entry in self.operations), default=self.end_s) - self.start_s

    @cached_property
    def computing_s(self) -> dict[int, float]:
        """Seconds that each rank computed."""
        found = {int(part["rank"]): 0.0 for part in self.parts}
        for entry in self.operations:
            if entry["operation"] in COMPUTING and entry["rank"] in found:
                found[entry["rank"]] += entry["end_s"] - entry["start_s"]
        return found

    @cached_property
    def sent(self) -> dict[tuple[int, int], int]:
        """Payload bytes that each rank gave its transport for each peer."""
        return {
            (int(part["rank"]), int(peer)): int(count)
            for part in self.parts
            for peer, count in part["sent_bytes"].items()
        }

    @property
    def disturbed(self) -> bool:
        """Whether a replica was missing, stopped, or gave its state away meanwhile."""
        return any(
            part.get("stopped_s") or part.get("given_bytes") or part.get("checkpoint_bytes")
            for part in self.parts
        )


class RawRun:
    """A run's folder, without its summary."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.scenario: Record = yaml.load((folder / "scenario.yaml").read_text(), Loader=LOADER)
        self.manifest: Record = json.loads((folder / "manifest.json").read_text())
        self.size_scale = float(self.manifest["scale"]["size_scale"])
        self.time_dilation = float(self.manifest["scale"]["time_dilation"])

    def lines(self, name: str) -> list[Record]:
        """Of a file with a JSON object on each line; none where there is no such file."""
        file = self.folder / name
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    @cached_property
    def samples(self) -> list[Record]:
        return self.lines("samples.jsonl")

    @cached_property
    def links(self) -> dict[tuple[str, str, int, str], list[Record]]:
        """Readings of each direction of each WAN link, in the order of time."""
        found: dict[tuple[str, str, int, str], list[Record]] = defaultdict(list)
        for entry in self.lines("links.jsonl"):
            found[entry["a"], entry["b"], entry["plane"], entry["direction"]].append(entry)
        return dict(found)

    @cached_property
    def sockets(self) -> list[Record]:
        return self.lines("sockets.jsonl")

    def steps(self, variant: str) -> list[Step]:
        """Measured steps of a variant, in their order."""
        whole: dict[int, list[Record]] = defaultdict(list)
        operations: dict[int, list[Record]] = defaultdict(list)
        for entry in self.samples:
            if entry["variant"] == variant:
                (whole if entry["operation"] == "step" else operations)[entry["step"]].append(entry)
        return [
            Step(number, tuple(parts), tuple(operations[number])) for number, parts in sorted(whole.items())
        ]

    def settings(self, variant: str) -> Record:
        """The scenario as a variant has it: with its changes, each at a dotted path."""
        found = copy.deepcopy(self.scenario)
        variants = found.pop("variants", None)
        if variants is None:
            found["algorithms"] = [variant]
            return found
        for path, value in (variants[variant] or {}).items():
            _put(found, path.split("."), value)
        return found

    # From emulated figures to those of the modelled network.

    def seconds(self, emulated: float) -> float:
        return emulated / self.time_dilation

    def bytes(self, emulated: float) -> float:
        return emulated * self.size_scale

    def bits_per_s(self, emulated: float) -> float:
        return emulated * self.size_scale * self.time_dilation


LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def _put(document: Any, path: list[str], value: Any) -> None:
    """Set what is at a path of keys, and of positions in lists; what is missing on the way comes to be."""
    *way, last = path
    for key in way:
        if isinstance(document, list):
            document = document[int(key)]
        else:
            if not isinstance(document.get(key), (dict, list)):
                document[key] = {}
            document = document[key]
    if isinstance(document, list):
        document[int(last)] = value
    else:
        document[last] = value


def get(document: Mapping[str, Any], path: str, default: Any = None) -> Any:
    """What is at a dotted path of keys."""
    found: Any = document
    for key in path.split("."):
        if not isinstance(found, Mapping) or found.get(key) is None:
            return default
        found = found[key]
    return found

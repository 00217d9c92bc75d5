"""Compute times of a step by kind, read from a PyTorch profiler trace of a run on an accelerator.

The format is that of `torch.profiler.profile(...).export_chrome_trace` (Kineto): JSON whose `traceEvents` follow
Chrome's format, with times in microseconds. Device events have the category kernel, gpu_memcpy or gpu_memset. Their
`args.correlation` identifies the call that launched them, and that call's place in the program shows which part of the
step they belong to.
"""

from __future__ import annotations

import gzip
import json
import math
import re
import zlib
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from testbed.errors import BadInput

FORWARD, BACKWARD, COMPUTE = "forward", "backward", "compute"
KINDS = (FORWARD, BACKWARD, COMPUTE)
SUFFIXES = (".json", ".json.gz")
_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
_STEP = "ProfilerStep#"
_BACKWARD = "autograd::engine::evaluate_function"
_OPTIMIZER = "Optimizer."  # .step#NAME.step and .zero_grad#NAME.zero_grad
_COMMUNICATION = re.compile(
    r"nccl|rccl|hccl|oneccl|nvshmem|deep_ep::|cross_device_reduce|(one|two)_shot_|multimem|memcpy ptop",
    re.IGNORECASE,
)
"""Communication kernels by name: NCCL, RCCL and their replacements; copies between devices over a link."""

Thread = tuple[Any, Any]
Span = tuple[float, float]


@dataclass(frozen=True)
class Profile:
    """A measured step, the one with the median compute time.

    seconds: compute time of the device, by kind.
    communication_s: time in which the device only communicates.
    idle_s: time in which the device is idle.
    steps: the number of steps from which the median was taken.
    rank: the rank that was traced, None if the trace does not say.
    """

    path: Path
    seconds: Mapping[str, float]
    communication_s: float
    idle_s: float
    steps: int
    rank: int | None

    def describe(self) -> str:
        """Return a one-line summary."""
        kinds = ", ".join(f"{kind} {self.seconds[kind] * 1e3:.3f} ms" for kind in KINDS)
        excluded = f"communication only {self.communication_s * 1e3:.3f} ms, idle {self.idle_s * 1e3:.3f} ms"
        steps = f"median of {self.steps} steps" if self.steps > 1 else "one step"
        return f"compute times from {self.path.name}, {steps}: {kinds}; excluded: {excluded}"


def is_trace(path: Path) -> bool:
    """Return whether this is a folder or has the file name of a trace."""
    return path.is_dir() or path.name.endswith(SUFFIXES)


def read_profiles(path: Path) -> list[Profile]:
    """Return the profile of a file, or of every trace in a folder, ordered by rank. Raises BadInput."""
    if not path.is_dir():
        return [read_profile(path)]
    files = sorted(one for one in path.iterdir() if one.name.endswith(SUFFIXES))
    if not files:
        raise BadInput(
            where="--compute", got=f"{path} without a trace", expected="profiler traces, .json or .json.gz"
        )
    found: dict[int, Profile] = {}
    for file in files:
        one = read_profile(file)
        if one.rank is None or one.rank in found:
            got = "none" if one.rank is None else f"{one.rank}, as in {found[one.rank].path.name}"
            raise BadInput(
                where=f"{file}: distributedInfo.rank",
                got=got,
                expected="a different rank in each trace of a folder",
            )
        found[one.rank] = one
    return [one for _, one in sorted(found.items())]


def profile_for_rank(profiles: list[Profile], rank: int) -> Profile:
    """Return a rank's own profile, else that of the nearest lower rank (stages are consecutive), else the first."""
    below = [one for one in profiles if one.rank is not None and one.rank <= rank]
    return below[-1] if below else profiles[0]


def read_profile(path: Path) -> Profile:
    """Return the compute times of a step in a trace. Raises BadInput, naming file and field."""
    document = _document(path)
    found = _Events(path)
    for number, event in enumerate(document["traceEvents"]):
        if isinstance(event, dict) and event.get("ph") == "X":
            found.take(number, event)
    info = document.get("distributedInfo")
    rank = info.get("rank") if isinstance(info, dict) else None
    return found.profile(rank if isinstance(rank, int) else None)


def _document(path: Path) -> dict[str, Any]:
    expected = "a PyTorch profiler's trace: JSON with traceEvents, as export_chrome_trace writes it"
    try:
        data = path.read_bytes()
        document: Any = json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
    except OSError as error:
        raise BadInput(where="--compute", got=str(path), expected=f"a trace: {error.strerror}") from None
    except (EOFError, ValueError, zlib.error) as error:
        raise BadInput(where=str(path), got=f"no JSON ({error})", expected=expected) from None
    found: dict[str, Any] = document if isinstance(document, dict) else {}
    if not isinstance(events := found.get("traceEvents"), list):
        raise BadInput(where=f"{path}: traceEvents", got=type(events).__name__, expected=expected)
    return found


@dataclass(frozen=True)
class _Kernel:
    """A device event; `correlation` identifies its launch."""

    begin_us: float
    end_us: float
    correlation: Any
    communicates: bool


@dataclass
class _Events:
    """The relevant events of a trace."""

    path: Path
    steps: list[tuple[float, float, Thread]] = field(default_factory=list)
    backward: dict[Thread, list[Span]] = field(default_factory=lambda: defaultdict(list))
    optimizers: dict[Thread, list[Span]] = field(default_factory=lambda: defaultdict(list))
    launches: dict[Any, tuple[float, Thread]] = field(default_factory=dict)
    kernels: list[_Kernel] = field(default_factory=list)
    devices: set[Any] = field(default_factory=set)
    on_cpu: int = 0

    def take(self, number: int, event: Mapping[str, Any]) -> None:
        """Add an event that has a duration."""
        kind, name = event.get("cat"), str(event.get("name"))
        thread = event.get("pid"), event.get("tid")
        given = event.get("args")
        arguments = given if isinstance(given, dict) else {}
        if kind in _DEVICE:
            begin, end = self._span(number, event)
            correlation = arguments.get("correlation")
            if correlation is None:
                raise BadInput(
                    where=f"{self.path}: traceEvents[{number}].args.correlation",
                    got="none",
                    expected=f"the number by which a {kind} names its launch",
                )
            self.devices.add(arguments.get("device", event.get("pid")))
            self.kernels.append(_Kernel(begin, end, correlation, bool(_COMMUNICATION.search(name))))
        elif kind == "user_annotation" and name.startswith((_STEP, _OPTIMIZER)):
            span = self._span(number, event)
            if name.startswith(_STEP):
                self.steps.append((*span, thread))
            else:
                self.optimizers[thread].append(span)
        elif kind == "cpu_op":
            self.on_cpu += 1
            if name.startswith(_BACKWARD):
                self.backward[thread].append(self._span(number, event))
        elif "correlation" in arguments:
            self.launches[arguments["correlation"]] = self._us(number, event, "ts"), thread

    def _span(self, number: int, event: Mapping[str, Any]) -> Span:
        begin = self._us(number, event, "ts")
        return begin, begin + self._us(number, event, "dur")

    def _us(self, number: int, event: Mapping[str, Any], key: str) -> float:
        found = event.get(key)
        if isinstance(found, bool) or not isinstance(found, int | float) or not math.isfinite(found):
            where = f"{self.path}: traceEvents[{number}].{key}"
            raise BadInput(where=where, got=str(found), expected="microseconds")
        return float(found)

    def profile(self, rank: int | None) -> Profile:
        """Return the step with the median compute time. Raises BadInput if there is none."""
        self._check()
        backward = {thread: _outermost(spans) for thread, spans in self.backward.items()}
        optimizers = {thread: _outermost(spans) for thread, spans in self.optimizers.items()}
        steps = [_Step(*one, backward, optimizers) for one in sorted(self.steps)]
        begins = [one.begin_us for one in steps]
        for kernel in self.kernels:
            launch = self.launches.get(kernel.correlation)
            at = -1 if launch is None else bisect_right(begins, launch[0]) - 1
            if launch is not None and at >= 0 and launch[0] <= steps[at].end_us:
                steps[at].kernels.append((kernel, steps[at].kind(*launch)))
        found = [one.profile(self.path, rank) for one in steps if one.trains and one.kernels]
        if not found:
            raise BadInput(
                where=str(self.path),
                got=f"{len(self.kernels)} kernels, but no step with both kernel launches and a backward pass",
                expected=f"launches and {_BACKWARD} within {_STEP}N: a run without CUDA graphs, traced with the "
                "activities CPU and CUDA",
            )
        found.sort(key=lambda one: sum(one.seconds.values()))
        median = found[(len(found) - 1) // 2]
        return Profile(**{**vars(median), "steps": len(found)})

    def _check(self) -> None:
        if not self.kernels:
            raise BadInput(
                where=f"{self.path}: traceEvents",
                got=f"{self.on_cpu} of category cpu_op and none of {', '.join(_DEVICE)}",
                expected="kernels of an accelerator: a trace of a run on one, with ProfilerActivity.CUDA",
            )
        if len(self.devices) > 1:
            raise BadInput(
                where=f"{self.path}: args.device",
                got=", ".join(sorted(map(str, self.devices))),
                expected="one device, that of the rank",
            )
        if not self.steps:
            raise BadInput(
                where=f"{self.path}: traceEvents",
                got=f"no {_STEP}N",
                expected="steps: give the profiler a schedule and call its step() after each",
            )


@dataclass
class _Step:
    """A step in the program's threads, with the kernels that it launches and their kinds."""

    begin_us: float
    end_us: float
    thread: Thread
    backward: Mapping[Thread, list[Span]]
    optimizers: Mapping[Thread, list[Span]]
    kernels: list[tuple[_Kernel, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        ends = [
            end
            for spans in self.backward.values()
            for begin, end in spans
            if self.begin_us <= begin < self.end_us
        ]
        self.last_backward_us = max(ends, default=-math.inf)

    @property
    def trains(self) -> bool:
        """Whether the step has a backward pass."""
        return self.last_backward_us > -math.inf

    def kind(self, at_us: float, thread: Thread) -> str:
        """Return the kind of a kernel launched at this time.

        The kind is backward in autograd's threads or calls, and forward before a backward pass.
        """
        if _within(self.optimizers.get(thread, []), at_us):
            return COMPUTE
        spans = self.backward.get(thread, [])
        if _within(spans, at_us) or (spans and thread != self.thread):
            return BACKWARD
        return FORWARD if at_us < self.last_backward_us else COMPUTE

    def profile(self, path: Path, rank: int | None) -> Profile:
        """Return the step's times; overlapping kernels count once, for the kernel that started first."""
        seconds = dict.fromkeys(KINDS, 0.0)
        computing: list[Span] = []
        busy: list[Span] = []
        over_us = -math.inf
        for kernel, kind in sorted(self.kernels, key=lambda one: one[0].begin_us):
            busy.append((kernel.begin_us, kernel.end_us))
            if not kernel.communicates:
                computing.append(busy[-1])
                seconds[kind] += max(0.0, kernel.end_us - max(over_us, kernel.begin_us)) / 1e6
                over_us = max(over_us, kernel.end_us)
        alone_us = _covered_us(busy) - _covered_us(computing)
        idle_us = max(0.0, self.end_us - self.begin_us - _covered_us(busy))
        return Profile(path, seconds, alone_us / 1e6, idle_us / 1e6, 1, rank)


def _outermost(spans: Iterable[Span]) -> list[Span]:
    """Return the spans in order, without nested ones."""
    found: list[Span] = []
    for begin, end in sorted(spans, key=lambda one: (one[0], -one[1])):
        if not found or begin >= found[-1][1]:
            found.append((begin, end))
    return found


def _within(spans: list[Span], at_us: float) -> bool:
    at = bisect_right(spans, (at_us, math.inf)) - 1
    return at >= 0 and at_us <= spans[at][1]


def _covered_us(spans: Iterable[Span]) -> float:
    """Return the length of the union of the spans."""
    total, over = 0.0, -math.inf
    for begin, end in sorted(spans):
        total += max(0.0, end - max(over, begin))
        over = max(over, end)
    return total

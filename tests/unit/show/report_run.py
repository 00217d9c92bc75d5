"""A synthetic run directory for the report's tests, shaped like a real one.

`python tests/unit/show/report_run.py DIRECTORY` writes some, with their reports, to look at.
"""

from __future__ import annotations

import json
import random
import statistics
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from testbed.measure.results.result import Variant

SIZE_SCALE = 4000.0
GRADIENT_BYTES = 32_121_044_992
BUCKETS = 78
FORWARD_S, BACKWARD_S = 0.339, 0.678


def measured_variant(
    name: str,
    *times_s: float,
    status: str = "trusted",
    predicted_s: float | None = None,
    wan_bytes: tuple[int, int] = (0, 0),
    limited_by: str = "computing",
    work: dict[str, Any] | None = None,
) -> Variant:
    """A variant of a result: its steps' times in the order of its trials, and what else is asked for."""
    median = statistics.median(times_s)
    predicted = (
        None if predicted_s is None else {"step_time_s": predicted_s, "error": predicted_s / median - 1}
    )
    return Variant.model_validate(
        {
            "name": name, "algorithm": "ring", "policy": "ecmp", "ranks": 2, "predicted": predicted,
            "step_time_s": {"median": median, "p95": max(times_s), "min": min(times_s), "max": max(times_s),
                            "n": len(times_s), "samples": times_s},
            "compute_s": 0.0, "exposed_comm_s": median, "limited_by": limited_by,
            "work": work,
            "wan_bytes": dict(zip(("expected", "observed"), wan_bytes, strict=True)),
            "wan_links": [], "plane_balance": [], "connections": [],
            "verdict": {"status": status, "invariants": []},
            "control": {"carrier_down_s": 0.0, "carrier_up_s": 0.0, "reaction_s": 0.0, "rule_s": 0.0},
        }
    )  # fmt: skip


@dataclass
class Link:
    """One WAN link with real figures, per direction (a to b, b to a)."""

    a: str
    b: str
    plane: int = 0
    rate_bps: tuple[float, float] = (285.7e9, 285.7e9)
    delay_s: tuple[float, float] = (2.5e-3, 2.5e-3)
    jitter_s: float = 0.0
    loss: float = 0.0


@dataclass
class SyntheticRun:
    """What the run is made of; `write` makes the directory. `exposed_s` gives a variant's slowness."""

    name: str = "quickstart"
    buildings: dict[str, int] = field(default_factory=lambda: {"east": 4, "west": 4})
    links: list[Link] = field(default_factory=lambda: [Link("east", "west", 0), Link("east", "west", 1)])
    exposed_s: dict[str, float] = field(default_factory=lambda: {"ring": 0.412, "hierarchical": 0.131})
    wan_share: dict[str, float] = field(default_factory=lambda: {"ring": 3.5, "hierarchical": 2.0})
    statuses: dict[str, str] = field(default_factory=dict)
    trials: int = 5
    spread: float = 0.01
    overhead_bytes: int = 0
    command: list[str] = field(default_factory=lambda: ["testbed", "run", "scenarios/quickstart.yaml"])

    @property
    def ranks(self) -> int:
        return sum(self.buildings.values())

    def write(self, run_dir: Path) -> Path:
        run_dir.mkdir(parents=True, exist_ok=True)
        self.generator = random.Random(1)
        self.clock_s = 3.0
        self.steps: dict[str, list[tuple[float, float]]] = {}
        samples = [line for variant in self.exposed_s for line in self._variant_samples(variant)]
        _write_lines(run_dir / "samples.jsonl", samples)
        _write_lines(run_dir / "links.jsonl", self._link_counters())
        _write_json(run_dir / "summary.json", self.summary(run_dir))
        _write_json(run_dir / "manifest.json", self._manifest())
        (run_dir / "scenario.yaml").write_text(
            f"name: {json.dumps(self.name)}\nranks: {self.ranks}\n"
            "workload:\n  model: llama3-8b\n  gradient_dtype: float32\n  bucket_cap: 400 MiB\n"
            f"algorithms: {json.dumps(list(self.exposed_s))}\npolicy: ecmp\n"
        )
        return run_dir

    def _variant_samples(self, variant: str) -> list[dict[str, Any]]:
        samples = []
        self.steps[variant] = []
        for trial in range(self.trials):
            stretch = 1 + self.spread * self.generator.random()
            total = (FORWARD_S + BACKWARD_S + self.exposed_s[variant]) * stretch
            start = self.clock_s
            for rank in range(self.ranks):
                samples += self._rank_samples(variant, trial, rank, start + 0.001 * rank, start + total)
            self.steps[variant].append((start, start + total))
            self.clock_s = start + total + 0.15
        self.clock_s += 1.0
        return samples

    def _rank_samples(
        self, variant: str, trial: int, rank: int, start_s: float, end_s: float
    ) -> list[dict[str, Any]]:
        def sample(operation: str, name: str, start: float, end: float, size: int = 0) -> dict[str, Any]:
            return {
                "variant": variant, "trial": trial, "step": step, "rank": rank, "operation": operation,
                "name": name, "start_s": round(start, 6), "end_s": round(end, 6), "bytes": size,
            }  # fmt: skip

        step = sum(map(len, self.steps.values()))
        computed = start_s + FORWARD_S + BACKWARD_S
        lines = [sample("forward", "forward", start_s, start_s + FORWARD_S)]
        each, carried = BACKWARD_S / BUCKETS, (end_s - start_s - FORWARD_S) / BUCKETS
        for bucket in range(BUCKETS):
            begin = start_s + FORWARD_S + bucket * each
            done = start_s + FORWARD_S + (bucket + 1) * carried
            lines.append(sample("backward", f"bucket {bucket}", begin, begin + each))
            size = int(GRADIENT_BYTES / BUCKETS / SIZE_SCALE)
            lines.append(
                sample("all_reduce", f"bucket {bucket}", begin + each, max(done, begin + each), size)
            )
        lines.append(sample("wait", "all buckets", computed, end_s - 0.004))
        lines.append(sample("optimizer", "optimizer", end_s - 0.004, end_s))
        lines.append(sample("step", "step", start_s, end_s))
        return lines

    def _link_bytes(self, variant: str) -> float:
        """Real bytes on the wire per step and direction of each link."""
        return self.wan_share[variant] / 2 * GRADIENT_BYTES * 1.008 / len(self.links)

    def _link_counters(self) -> list[dict[str, Any]]:
        lines = []
        for tick in range(int(self.clock_s * 10) + 1):
            now = tick / 10
            sent = sum(
                self._link_bytes(variant) * min(max((now - start) / (end - start), 0.0), 1.0)
                for variant, steps in self.steps.items()
                for start, end in steps
            )
            for link in self.links:
                for direction, uneven in (("a_to_b", 1.0), ("b_to_a", 0.97)):
                    size = int(sent * uneven / SIZE_SCALE)
                    lines.append(
                        {"time_s": now, "a": link.a, "b": link.b, "plane": link.plane, "direction": direction,
                         "bytes": size, "packets": size // 9000, "drops": 0, "losses": size // 900_000,
                         "cut_losses": 0, "marks": 0, "queue_bytes": 0}
                    )  # fmt: skip
        return lines

    def summary(self, run_dir: Path) -> dict[str, Any]:
        variants = [self._variant_summary(name) for name in self.exposed_s]
        order = ["trusted", "caution", "untrusted"]
        return {
            "schema": 1,
            "scenario": self.name,
            "run_dir": str(run_dir),
            "clock": "real",
            "scale": {"size_scale": SIZE_SCALE, "time_dilation": 1.0},
            "dimensionless": [
                {
                    "name": "packets per message",
                    "real": 31500.0,
                    "emulated": 7.9,
                    "preserved": False,
                    "meaning": "largest message over the MTU",
                }
            ],
            "status": max((v["verdict"]["status"] for v in variants), key=order.index),
            "variants": variants,
        }

    def _variant_summary(self, name: str) -> dict[str, Any]:
        times = [round(end - start, 6) for start, end in self.steps[name]]
        expected = int(self.wan_share[name] * GRADIENT_BYTES)
        median, mean = sorted(times)[len(times) // 2], statistics.mean(times)
        return {
            "name": name,
            "algorithm": name,
            "policy": "ecmp",
            "control": {"carrier_down_s": 0.01, "carrier_up_s": 0.02, "reaction_s": 0.05, "rule_s": 0.001},
            "ranks": self.ranks,
            "step_time_s": {
                "median": median,
                "p95": max(times),
                "min": min(times),
                "max": max(times),
                "n": len(times),
                "samples": times,
            },
            "predicted": {"step_time_s": 0.99 * median, "error": -0.01},
            "work": {"steps": len(times), "elapsed_s": sum(times), "tokens": 65536 * len(times),
                     "sequences": 8 * len(times), "workload": "llama3-8b, sequences of 8192 tokens"},
            "rates": {"tokens_per_s": 65536 / mean, "sequences_per_s": 8 / mean, "mfu": 0.4 * 1.017 / mean},
            "compute_s": FORWARD_S + BACKWARD_S,
            "exposed_comm_s": median - FORWARD_S - BACKWARD_S,
            "wan_bytes": {"expected": expected, "observed": expected + self.overhead_bytes},
            "wan_links": [
                {"a": link.a, "b": link.b, "plane": link.plane, "direction": direction, "rate_bps": rate,
                 "bytes": int(self._link_bytes(name)),
                 "utilisation": min(self._link_bytes(name) * 8 / median / rate, 1.0),
                 "queue_peak_bytes": 3_000_000, "drops": 17, "losses": 23, "cut_losses": 0, "marks": 0,
                 "beyond_s": 0.0,
                 "steps": [{"bytes": 9_000_000, "utilisation": 0.1, "packets": 1000, "drops": 17, "losses": 23,
                            "cut_losses": 0, "marks": 0}]}
                for link in self.links
                for direction, rate in zip(("a_to_b", "b_to_a"), link.rate_bps, strict=True)
            ],
            "plane_balance": [],
            "connections": [],
            "limited_by": f"the WAN link {self.links[0].a} to {self.links[0].b} (plane 0), "
            "busy while no rank computed",
            "verdict": self._verdict(self.statuses.get(name, "trusted")),
        }  # fmt: skip

    def _verdict(self, status: str) -> dict[str, Any]:
        invariants: list[dict[str, Any]] = [
            _invariant("rate_accuracy", "within 3 %", "0.4 %", "Every WAN link carried its configured rate."),
            _invariant("delay_accuracy", "within 2 % or 0.5 ms", "0.21 ms", "Every WAN link had its delay."),
            _invariant(
                "cpu_headroom", "35 % idle", "58 % idle", "In every window the machine had time left."
            ),
            _invariant("scheduler_lag", "p99 below 1 ms", "0.18 ms", "A waiting process woke up on time."),
            _invariant("emulator_lateness", "p99 below 0.5 ms", "0.09 ms", "Packets left when they should."),
            _invariant("payload_correct", "0 wrong", "0 wrong", "Every reduction gave the exact sum."),
            _invariant("conservation", "0 bytes", "0 bytes", "What was sent arrived or was counted as drop."),
        ]
        invariants.append(
            {**_invariant("loss_accuracy", "within 10 %", "none", "No link has loss, so there is none."),
             "ok": None}
        )  # fmt: skip
        if status != "trusted":
            invariants[2].update(
                ok=False,
                measured="3 % idle",
                sentence="The machine was busy with something else: packets waited for the processor.",
            )
        return {"status": status, "invariants": invariants}

    def _manifest(self) -> dict[str, Any]:
        hosts = [
            {"name": f"{building}{n + 1}", "building": building, "ip": f"10.{index}.0.{n + 1}"}
            for index, (building, count) in enumerate(self.buildings.items())
            for n in range(count)
        ]
        return {
            "schema": 1,
            "testbed_version": "0.1.0",
            "created": "2026-01-15T10:20:30+00:00",
            "command": self.command,
            "host": {"kernel": "6.18.0", "machine": "x86_64", "cores": 2, "memory_bytes": 8_000_000_000},
            "versions": {"python": "3.11.2", "numpy": "2.4.6", "open_vswitch": "3.1.0"},
            "seed": 1,
            "clock": {"kind": "real", "cpu_time": "real"},
            "origin_epoch_s": 1768472430.0,
            "scale": {"size_scale": SIZE_SCALE, "time_dilation": 1.0},
            "link_engine": "userspace",
            "datapath": "netdev",
            "congestion_control": ["cubic"],
            "sockets": [{"rank": rank, "congestion_control": "cubic"} for rank in range(self.ranks)],
            "sysctls": {"net.ipv4.tcp_wmem": "4096 16384 4194304"},
            "bootstrap": {},
            "calibration": {},
            "policy": {},
            "control": {},
            "captures": [],
            "background_traffic": [],
            "tunnels": [],
            "fabric": {
                "hosts": [{**host, "rank": rank} for rank, host in enumerate(hosts)],
                "wan": [
                    {
                        "a": link.a,
                        "b": link.b,
                        "plane": link.plane,
                        **{
                            direction: {
                                "rate_bps": link.rate_bps[side] / SIZE_SCALE,
                                "delay_s": link.delay_s[side],
                                "jitter_s": link.jitter_s,
                                "loss": link.loss,
                                "queue_bytes": 576000,
                            }
                            for side, direction in enumerate(("a_to_b", "b_to_a"))
                        },
                    }
                    for link in self.links
                ],
            },
        }


def _invariant(name: str, bound: str, measured: str, sentence: str) -> dict[str, Any]:
    return {"name": name, "bound": bound, "measured": measured, "ok": True, "sentence": sentence}


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1))


def _write_lines(path: Path, records: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def three_buildings() -> SyntheticRun:
    return SyntheticRun(
        name="three-buildings",
        buildings={"north": 4, "south": 2, "harbour": 12},
        links=[
            Link("north", "south", 0),
            Link("north", "south", 1),
            Link("south", "harbour", 0, (400e9, 100e9), (5e-3, 5e-3), 0.2e-3),
            Link("north", "harbour", 0, (200e9, 200e9), (10e-3, 12e-3), 0.0, 0.001),
        ],
        statuses={"hierarchical": "caution"},
    )


def four_buildings() -> SyntheticRun:
    names = ["a", "b", "c", "d"]
    pairs = [(x, y) for i, x in enumerate(names) for y in names[i + 1 :]]
    return SyntheticRun(
        name="full mesh",
        buildings=dict.fromkeys(names, 16),
        links=[Link(x, y, plane) for x, y in pairs for plane in (0, 1)],
        statuses={"ring": "untrusted"},
    )


def many_buildings() -> SyntheticRun:
    names = [f"campus-{n}" for n in range(6)]
    return SyntheticRun(
        name="ring of buildings",
        buildings=dict.fromkeys(names, 24),
        links=[Link(name, names[(n + 1) % 6]) for n, name in enumerate(names)],
    )


if __name__ == "__main__":
    from testbed.show.report import write_report

    for run in (SyntheticRun(), three_buildings(), four_buildings(), many_buildings()):
        print(write_report(run.write(Path(sys.argv[1]) / run.name)))

"""One run of a scenario, from a checked file to a run directory with a judged summary."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from testbed.collectives import between_groups, traffic
from testbed.config import Scenario, Topology
from testbed.controller import Flow, PolicyChoice
from testbed.fabric.capture import Capture
from testbed.fabric.faults import Faults
from testbed.fabric.network import Fabric
from testbed.fabric.plan import WAN_NODE
from testbed.fabric.state import clean_abandoned
from testbed.fidelity import LinkMeasurement, MonitorProcess, measure_links, worst
from testbed.fidelity.alpha_beta import (
    Step,
    all_planes,
    calibration_bytes,
    model_agreement,
    nearest_plane,
    ring_all_reduce_s,
    ring_steps,
    worst_plane,
)
from testbed.fidelity.capacity import Stack
from testbed.fidelity.similarity import Number, Traffic, dimensionless
from testbed.harness.assess import Evidence, assess, link_key
from testbed.harness.declared import flows_of, total
from testbed.harness.directory import RunDirectory, surroundings
from testbed.harness.events import EventPlayer, events_record
from testbed.harness.exchange import exchange_traffic
from testbed.harness.job import Job, LinkSample
from testbed.harness.spec import JobSpec, plan_steps
from testbed.harness.summary import (
    LinkSeries,
    StepResult,
    gather_steps,
    summarise_variant,
    wan_payload,
)
from testbed.harness.wiring import THIS_NAMESPACE, Wiring, places_on, software_cost, wiring_of
from testbed.scale import Scale
from testbed.transport import TrafficClass
from testbed.virtual import clock_here
from testbed.workload import Collective, Compute, Exchange, step_program

MONITOR_FILE = "monitor.jsonl"
CAPTURES = "captures"
CONTROLLER, RULES = "controller.jsonl", "rules.jsonl"
ITEMSIZES = {"float32": 4, "int32": 4, "float64": 8, "int64": 8}
MESSAGE_S = 0.2e-3  # what a message costs ranks in Python here: docs/fidelity.md


@dataclass(frozen=True)
class Progress:
    """What a run tells meanwhile: `phase` once per phase, `step(done, all)` before each step."""

    phase: Callable[[str], None]
    step: Callable[[int, int], None]


@dataclass(frozen=True)
class NetworkRecord:
    """What the controller had to say in the end: the policy, all rules with their counts; and its events."""

    policy: dict[str, Any]
    bridges: dict[str, list[dict[str, Any]]]
    events: Sequence[Mapping[str, Any]]
    restarts: int

    def rule_lines(self) -> Iterator[dict[str, Any]]:
        """One record a rule, with the packets and (emulated) bytes that it took."""
        for bridge, rules in self.bridges.items():
            for rule in rules:
                yield {"bridge": bridge, **rule}


class Run:
    """One run. `execute` does it; nothing is left behind but the run directory, and that only when all went well."""

    def __init__(
        self, scenario: Scenario, stack: Stack, scale: Scale, output: Path, progress: Progress
    ) -> None:
        self.scenario = scenario
        self.stack = stack
        self.scale = scale
        self.output = output
        self.progress = progress
        self.clock = clock_here()
        self.topology: Topology = scenario.topology.resolve(scale)
        self.program = step_program(scenario.workload, scenario.ranks, scale)
        self.hosts = self.topology.hosts[: scenario.ranks]
        # what messages cost software, in emulated seconds, where that is modelled: else it costs what it costs
        self.message_cost_s, self.byte_cost_s = software_cost(scenario.transport, scale)
        self.itemsize = ITEMSIZES[scenario.workload.gradient_dtype]
        # which plane a message takes is the policy's to say, and several connections may take several
        best = all_planes if scenario.transport.kind == "striped" else nearest_plane
        self.ring, self.worst_ring = (
            ring_steps(self.topology, self.hosts, planes) if len(self.hosts) > 1 else []
            for planes in (best, worst_plane)
        )
        sized = [action.numel for action in self.program if isinstance(action, Collective | Exchange)]
        message_bytes = max(sized) * self.itemsize / len(self.hosts)
        self.alone_bytes = calibration_bytes(self.ring, self.topology.mtu, message_bytes) if self.ring else 0
        self.buildings = [self.topology.building(host.building).index for host in self.hosts]

    def execute(self) -> dict[str, Any]:
        """Do everything; returns the summary that stands in the run directory. FabricError, RunError."""
        clean_abandoned()
        directory = RunDirectory(self.output)
        try:
            summary = self._execute(directory)
            directory.finish()
        except BaseException:
            directory.discard()
            raise
        return summary

    def _execute(self, directory: RunDirectory) -> dict[str, Any]:
        scenario = self.scenario
        events: list[Mapping[str, Any]] = []
        fabric = Fabric(
            self.topology,
            policy=PolicyChoice(**scenario.policy.to_choice()),
            flows=self._flows(),
            events=events.append,
            link_engine=self.stack.link_engine,
            datapath=self.stack.datapath,
            scale=self.scale,
            seed=scenario.seed,
            progress=self.progress.phase,
        )
        with fabric:
            self.progress.phase("measuring rate and delay of every WAN link")
            measurements = measure_links(self.topology, fabric.probe_pids())
            fabric.queue()
            shown = fabric.inspect()
            self.progress.phase(f"starting {len(self.hosts)} ranks")
            spec = self._job_spec(fabric, directory)
            interval_s = self.scale.emulated_s(self.scenario.telemetry.interval_s)
            job = Job(fabric, spec, lambda index: self.progress.step(index, len(spec.steps)), interval_s)
            job.player = self._player(fabric, job)
            capture = self._capture(fabric, directory.partial)
            with contextlib.ExitStack() as stack:
                stack.enter_context(capture)
                if self.clock != "free":
                    monitor = stack.enter_context(MonitorProcess(directory.partial / MONITOR_FILE))
                    job.watch_also = lambda: None if monitor.alive() else "the monitor's process ended"
                job.run()
            self.progress.phase("judging the figures")
            changed = fabric.changed_settings(), fabric.changed_offloads()
            network = self._network_record(fabric, events)
        return self._write(directory, job, measurements, shown, changed, capture.records, network)

    def _flows(self) -> list[Flow]:
        """What the ranks will send, as the first of the algorithms has it."""
        wiring = self._wiring({host.name: THIS_NAMESPACE for host in self.hosts})
        flows = []
        for dscp, actions in self._by_class().items():
            parts = [self._traffic(action, self.scenario.algorithms[0]) for action in actions]
            flows += flows_of(wiring, total(parts), TrafficClass(dscp))
        return flows

    def _by_class(self) -> dict[int, list[Collective | Exchange]]:
        """What sends something, by its DSCP."""
        found: dict[int, list[Collective | Exchange]] = {}
        for action in self.program:
            if isinstance(action, Collective | Exchange):
                found.setdefault(action.dscp, []).append(action)
        return found

    def _traffic(self, action: Collective | Exchange, algorithm: str) -> Mapping[tuple[int, int], int]:
        """Emulated payload bytes per ordered pair of ranks; algorithm: of what names none."""
        if isinstance(action, Exchange):
            return exchange_traffic(self.buildings, action, self.itemsize)
        numel = action.numel // (1 if action.collective == "all_reduce" else len(self.hosts))
        chosen = action.algorithm or algorithm
        return traffic(action.collective, chosen, numel, self.itemsize, self.buildings)

    def _wiring(self, pids: Mapping[str, int]) -> Wiring:
        """pids: a process in the namespace of each host."""
        spec = self.scenario.transport
        return wiring_of(
            spec,
            self.scale,
            self.topology,
            places_on(self.topology, len(self.hosts), pids),
            self.scenario.seed,
            congestion_control=spec.congestion_control,
        )

    @staticmethod
    def _network_record(fabric: Fabric, events: Sequence[Mapping[str, Any]]) -> NetworkRecord:
        assert fabric.controller is not None
        api = fabric.controller.api
        return NetworkRecord(api.show(), api.rules(), events, fabric.controller.restarts)

    def _capture(self, fabric: Fabric, folder: Path) -> Capture:
        asked = self.scenario.telemetry.capture
        links = [link.name for link in self.topology.wan] if asked == "all" else asked
        pid = fabric.state.pids[WAN_NODE]
        return Capture(pid, fabric.plan.wires(), links, folder / CAPTURES)

    def _player(self, fabric: Fabric, job: Job) -> EventPlayer | None:
        if not self.scenario.events:
            return None
        rank_of = {host.name: rank for rank, host in enumerate(self.hosts)}
        return EventPlayer(
            self.scenario.events,
            self.topology,
            self.scale,
            Faults(fabric),
            pid_of_host=lambda host: job.rank_pids[rank_of[host]],
            pid_of_rank=lambda rank: job.rank_pids[rank],
        )

    def _job_spec(self, fabric: Fabric, directory: RunDirectory) -> JobSpec:
        scenario = self.scenario
        return JobSpec(
            wiring=self._wiring(fabric.state.pids),
            dtype=scenario.workload.gradient_dtype,
            program=self.program,
            steps=plan_steps(
                tuple(scenario.algorithms), scenario.trials, scenario.warmup, in_turns=not scenario.events
            ),
            output=str(directory.partial.resolve()),
            calibration_numel=self.alone_bytes // self.itemsize * len(self.hosts),
        )

    def _write(
        self,
        directory: RunDirectory,
        job: Job,
        measurements: list[LinkMeasurement],
        shown: dict[str, Any],
        changed: tuple[str | None, str | None],
        captured: list[dict[str, Any]],
        network: NetworkRecord,
    ) -> dict[str, Any]:
        records = _read_ranks(directory.partial, len(self.hosts))
        samples, sockets = records.samples, records.sockets
        origin_s = min(sample["start_s"] for sample in samples if sample["operation"] == "step")
        series = _series(job.samples)
        log = job.player.log if job.player else []
        numbers = self._dimensionless()
        evidence = Evidence(
            topology=self.topology,
            events=self.scenario.events,
            event_log=log,
            scale=self.scale,
            numbers=numbers,
            agreement=model_agreement(
                _alone_s(records.calibrations),
                self._model_s(self.ring),
                exact=self.clock == "free",
                slowest_s=self._model_s(self.worst_ring),
            ),
            measurements=measurements,
            links=job.samples,
            monitor_file=directory.partial / MONITOR_FILE if self.clock != "free" else None,
            changed_settings=changed[0],
            changed_offloads=changed[1],
        )
        steps = gather_steps(samples, len(self.hosts))
        variants = []
        for algorithm in self.scenario.algorithms:
            own = [step for step in steps if step.variant == algorithm]
            variants.append(self._variant(algorithm, own, series, evidence))
        summary = {
            "schema": 1,
            "scenario": self.scenario.name,
            "run_dir": str(self.output),
            "clock": "real" if self.clock is None else "virtual",
            "scale": asdict(self.scale),
            "dimensionless": [number.to_dict() for number in numbers],
            "status": worst([variant["verdict"]["status"] for variant in variants]),
            "variants": variants,
        }
        manifest = {
            "schema": 1,
            **surroundings(),
            "seed": self.scenario.seed,
            "clock": {"kind": summary["clock"], "cpu_time": self.clock or "real"},
            "scale": summary["scale"],
            "link_engine": self.stack.link_engine,
            "datapath": self.stack.datapath,
            "congestion_control": sorted({entry["congestion_control"] for entry in sockets}),
            "sockets": sockets,
            "bootstrap": records.bootstrap(),
            "fabric": {"hosts": shown["hosts"], "wan": shown["wan"]},
            "policy": {**network.policy, "controller_restarts": network.restarts},
            "captures": captured,
            "origin_epoch_s": origin_s + time.time() - time.monotonic(),
        }
        directory.write_text("scenario.yaml", self.scenario.to_yaml())
        directory.write_json("manifest.json", manifest)
        directory.write_json("summary.json", summary)
        directory.write_lines("samples.jsonl", (_shifted(sample, origin_s) for sample in samples))
        directory.write_lines("links.jsonl", _link_lines(job.samples, origin_s))
        directory.write_lines(CONTROLLER, (_shifted_event(event, origin_s) for event in network.events))
        directory.write_lines(RULES, network.rule_lines())
        if self.scenario.events:
            directory.write_lines("events.jsonl", (_event_line(entry, origin_s) for entry in log))
        return summary

    def _variant(
        self,
        algorithm: str,
        steps: list[StepResult],
        series: dict[tuple[str, str], LinkSeries],
        evidence: Evidence,
    ) -> dict[str, Any]:
        expected = self._expected_wan_bytes(algorithm)
        observed = [wan_payload(step.sent_bytes, self.buildings) for step in steps]
        entry = summarise_variant(
            self.topology,
            self.scale,
            name=algorithm,
            algorithm=algorithm,
            policy=self.scenario.policy.label,
            ranks=len(self.hosts),
            steps=steps,
            series=series,
            expected_wan_bytes=expected,
            verdict=assess(evidence, steps, expected, observed).to_dict(),
        )
        if evidence.events:
            entry["events"] = events_record(evidence.event_log, algorithm)
        return entry

    def _model_s(self, ring: list[Step]) -> float:
        """What the collective that is done alone should take."""
        if not ring:
            return 0.0
        overhead_s = 2 * (self.message_cost_s + self.alone_bytes * self.byte_cost_s)
        if self.clock != "free":
            overhead_s = MESSAGE_S
        return ring_all_reduce_s(ring, self.alone_bytes, overhead_s)

    def _dimensionless(self) -> list[Number]:
        """What the scale keeps and what it changes."""
        program = step_program(self.scenario.workload, self.scenario.ranks)
        sending = [action for action in program if isinstance(action, Collective | Exchange)]
        sizes = [action.numel * self.itemsize for action in sending]
        traffic = Traffic(
            # a ring sends a bucket in as many parts as there are ranks
            message_bytes=max(sizes) / len(self.hosts),
            gradient_bytes=sum(sizes),
            compute_s=sum(action.duration_s for action in program if isinstance(action, Compute)),
            overhead_s=self.scenario.transport.software_cost.per_message_s,
            emulated_overhead_s=self.message_cost_s if self.clock == "free" else MESSAGE_S,
        )
        real = self.scenario.topology.resolve()
        return dimensionless(real, self.topology, self.scale, traffic)

    def _expected_wan_bytes(self, algorithm: str) -> int:
        """Payload bytes between buildings per step, all directions, by the algorithm's formula (emulated)."""
        return sum(
            between_groups(self._traffic(action, algorithm), self.buildings)
            for actions in self._by_class().values()
            for action in actions
        )


def _alone_s(calibrations: list[dict[str, Any]]) -> float | None:
    """Seconds of the quickest of the collectives that were done alone, from the common start to the last rank's end."""
    took: dict[int, float] = {}
    for entry in calibrations:
        attempt = entry["attempt"]
        took[attempt] = max(took.get(attempt, 0.0), entry["end_s"] - entry["start_s"])
    return min(took.values(), default=None)


@dataclass
class _RankRecords:
    """What all ranks have written down, by kind."""

    samples: list[dict[str, Any]]
    sockets: list[dict[str, Any]]
    calibrations: list[dict[str, Any]]
    bootstraps: list[dict[str, Any]]

    def bootstrap(self) -> dict[str, Any]:
        """How the ranks found each other: the slowest one's time, messages and bytes of all, and those of rank 0."""
        counts = ("messages_sent", "bytes_sent", "connections")
        return {
            "method": self.bootstraps[0]["method"],
            "time_s": max(entry["time_s"] for entry in self.bootstraps),
            **{name: sum(entry[name] for entry in self.bootstraps) for name in counts},
            "rank_0": {name: self.bootstraps[0][name] for name in counts},
        }


def _read_ranks(folder: Path, ranks: int) -> _RankRecords:
    """All ranks' records; the ranks' own files are merged away."""
    found = _RankRecords([], [], [], [])
    for rank in range(ranks):
        path = folder / f"rank-{rank}.jsonl"
        for line in path.read_text().splitlines():
            entry = json.loads(line)
            if entry["operation"] == "sockets":
                found.sockets += [{"rank": rank, **item} for item in entry["sockets"]]
            elif entry["operation"] == "calibration":
                found.calibrations.append(entry)
            elif entry["operation"] == "bootstrap":
                found.bootstraps.append(entry)
            else:
                found.samples.append(entry)
        path.unlink()
    found.samples.sort(key=lambda sample: (sample["step"], sample["rank"], sample["start_s"]))
    return found


def _series(samples: list[LinkSample]) -> dict[tuple[str, str], LinkSeries]:
    series: dict[tuple[str, str], LinkSeries] = {}
    for sample in samples:
        for key, account in sample.account.directions.items():
            figures = account.sent_bytes, account.queue_bytes, account.dropped, account.marked
            series.setdefault(key, LinkSeries()).add(sample.time_s, *figures)
    return series


def _shifted_event(event: Mapping[str, Any], origin_s: float) -> dict[str, Any]:
    return {**event, "time_s": event["time_s"] - origin_s} if "time_s" in event else dict(event)


def _shifted(sample: dict[str, Any], origin_s: float) -> dict[str, Any]:
    return {**sample, "start_s": sample["start_s"] - origin_s, "end_s": sample["end_s"] - origin_s}


def _event_line(entry: dict[str, Any], origin_s: float) -> dict[str, Any]:
    return {**entry, "time_s": None if entry["time_s"] is None else entry["time_s"] - origin_s}


def _link_lines(samples: list[LinkSample], origin_s: float) -> list[dict[str, Any]]:
    return [
        {
            "time_s": sample.time_s - origin_s,
            "a": counters.a,
            "b": counters.b,
            "plane": counters.plane,
            "direction": counters.direction,
            "bytes": account.sent_bytes,
            "packets": account.in_packets - account.dropped,
            "drops": account.dropped,
            "marks": account.marked,
            "queue_bytes": account.queue_bytes,
        }
        for sample in samples[
            :-1
        ]  # the last was taken for the final count, at no interval from the one before
        for counters in sample.counters.wan
        for account in (sample.account.directions[link_key(counters)],)
    ]

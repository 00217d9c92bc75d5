"""One run of a scenario, from a checked file to a run directory with a judged summary."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from testbed.collectives import between_groups
from testbed.config import Scenario, Topology
from testbed.controller import PolicyChoice
from testbed.fabric.capture import Capture
from testbed.fabric.faults import Faults
from testbed.fabric.network import Fabric
from testbed.fabric.plan import WAN_NODE
from testbed.fabric.state import clean_abandoned
from testbed.fabric.watching import Watch
from testbed.fidelity import LinkMeasurement, MonitorProcess, measure_links, worst
from testbed.fidelity.capacity import NetworkBackend
from testbed.fidelity.similarity import Number, Traffic, dimensionless
from testbed.fidelity.tunnel_invariants import Tunnel
from testbed.job.background import BackgroundHost
from testbed.job.job import job_of
from testbed.job.resolving import background_hosts, endpoints_on, multipath_of
from testbed.job.spec import JobSpec, plan_steps
from testbed.model.calibration import REAL, VIRTUAL, find_calibration
from testbed.model.predicting import missing_share, predict
from testbed.results.directory import RunDirectory, surroundings
from testbed.results.records import EVENTS, LINKS, SAMPLES
from testbed.results.result import SUMMARY, Result
from testbed.results.socket_use import socket_use
from testbed.results.summary import (
    LinkSeries,
    StepResult,
    gather_steps,
    summarise_variant,
)
from testbed.results.training_summary import limited_words, training_summary
from testbed.running.assess import Evidence, assess
from testbed.running.elsewhere import bring_home, monitor_file, tunnels_of, watched
from testbed.running.events import EventPlayer, changed_by, events_record
from testbed.running.host_evidence import HostEvidence, why_not_again
from testbed.running.isolated import IsolatedBaseline
from testbed.running.job_run import JobRun
from testbed.running.records import NetworkRecord, RankRecords, link_lines, read_ranks, series_of, shifted
from testbed.scale import Scale
from testbed.virtual import clock_here

MONITOR_FILE = "monitor.jsonl"
THIS_MACHINE = "this machine"
CAPTURES = "captures"
LOOK_INTERVAL_S = 1.0
CONTROLLER, RULES, SOCKETS = "controller.jsonl", "rules.jsonl", "sockets.jsonl"


@dataclass(frozen=True)
class Progress:
    """What a run tells meanwhile: `phase` once per phase, `step(done, all)` before each step."""

    phase: Callable[[str], None]
    step: Callable[[int, int], None]


class Run:
    """One run. `execute` does it; nothing is left behind but the run directory, and that only when all went well."""

    def __init__(
        self,
        scenario: Scenario,
        network_backend: NetworkBackend,
        scale: Scale,
        output: Path,
        progress: Progress,
        machines: Sequence[str] = (),
    ) -> None:
        self.scenario = scenario
        self.machines = machines
        self.network_backend = network_backend
        self.scale = scale
        self.output = output
        self.progress = progress
        self.clock = clock_here()
        self._calibration = find_calibration(REAL if self.clock is None else VIRTUAL)
        self.job = job_of(scenario, scale, network_backend.link_engine)
        self.topology: Topology = self.job.topology
        self.hosts, self.workload = self.job.hosts, self.job.workload
        self.baseline = IsolatedBaseline(
            self.topology,
            self.hosts,
            scenario.transport,
            self.job.wiring,
            scale,
            self.workload.message_bytes,
            network_backend.link_engine,
        )

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
            flows=self.job.flows,
            multipath=multipath_of(scenario.transport, self.hosts),
            events=events.append,
            link_engine=self.network_backend.link_engine,
            datapath=self.network_backend.datapath,
            scale=self.scale,
            seed=scenario.seed,
            control=scenario.control.resolve(self.scale),
            machines=self.machines,
            progress=self.progress.phase,
        )
        with fabric:
            watch = fabric.watch(*changed_by(scenario.events, self.topology))
            self.progress.phase("measuring rate and delay of every WAN link")
            measurements = measure_links(self.topology, fabric.probe_pids())
            if fabric.queues:
                with watch.own_change():
                    fabric.queue()
            shown = fabric.inspect()
            self.progress.phase(f"starting {len(self.hosts)} ranks")
            spec = self._job_spec(fabric, directory)
            intervals_s = map(self.scale.emulated_s, (self.scenario.telemetry.interval_s, LOOK_INTERVAL_S))
            job = JobRun(fabric, spec, lambda index: self.progress.step(index, len(spec.steps)), *intervals_s)
            job.watch = watch
            job.player = self._player(fabric, job)
            capture = self._capture(fabric, directory.partial)
            frames = fabric.trunk_frames()
            with contextlib.ExitStack() as stack:
                stack.enter_context(capture)
                if self.clock != "free":
                    monitor = stack.enter_context(MonitorProcess(directory.partial / MONITOR_FILE))
                    job.watch_also = lambda: None if monitor.alive() else "the monitor's process ended"
                    stack.enter_context(watched(fabric))
                job.run()
            self.progress.phase("judging the figures")
            tunnels = tunnels_of(fabric, frames)
            bring_home(fabric, directory.partial)
            watch.look(thorough=True)
            changed = fabric.changed_settings(), fabric.changed_offloads()
            network = self._network_record(fabric, events)
        return self._write(
            directory, job, measurements, shown, changed, watch, capture.records, network, tunnels
        )

    def _background_hosts(self, fabric: Fabric) -> list[BackgroundHost]:
        scenario = self.scenario
        return background_hosts(
            scenario.background_traffic,
            self.topology,
            fabric.state.pids.__getitem__,
            scenario.transport.congestion_control,
            scenario.seed,
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

    def _player(self, fabric: Fabric, job: JobRun) -> EventPlayer | None:
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
        places = endpoints_on(self.topology, self.hosts, fabric.pids)
        return JobSpec(
            wiring=replace(self.job.wiring, ranks=tuple(places)),
            dtype=scenario.workload.gradient_dtype,
            plan=self.workload.plan,
            steps=plan_steps(
                tuple(scenario.algorithms), scenario.trials, scenario.warmup, in_turns=not scenario.events
            ),
            output=str(directory.partial.resolve()),
            background_traffic=tuple(self._background_hosts(fabric)),
            telemetry_interval_s=self.scale.emulated_s(scenario.telemetry.interval_s),
            calibration_numel=self.baseline.message_bytes // self.workload.itemsize * len(self.hosts),
            calibrate_again=not why_not_again(scenario.events, scenario.background_traffic, self.topology),
        )

    def _write(
        self,
        directory: RunDirectory,
        job: JobRun,
        measurements: list[LinkMeasurement],
        shown: dict[str, Any],
        changed: tuple[str | None, str | None],
        watch: Watch,
        captured: list[dict[str, Any]],
        network: NetworkRecord,
        tunnels: Sequence[Tunnel],
    ) -> dict[str, Any]:
        records = read_ranks(directory.partial, len(self.hosts))
        samples, sockets = records.samples, records.sockets
        origin_s = min(sample["start_s"] for sample in samples if sample["operation"] == "step")
        series = series_of(job.samples)
        log = job.player.log if job.player else []
        numbers = self._dimensionless()
        evidence = Evidence(
            topology=self.topology,
            events=self.scenario.events,
            event_log=log,
            scale=self.scale,
            numbers=numbers,
            agreement=self.baseline.agreement(records.calibrations),
            measurements=measurements,
            links=job.samples,
            monitor_files=self._monitor_files(directory.partial, tunnels),
            tunnels=tunnels,
            changed_settings=changed[0],
            changed_offloads=changed[1],
            changes=[(self.scale.real_s(change.time_s - origin_s), change.words) for change in watch.changes],
            repairs=network.repairs,
            inside=self._inside(job, records, log),
        )
        steps = gather_steps(samples, len(self.hosts))
        variants = []
        for algorithm in self.scenario.algorithms:
            own = [step for step in steps if step.variant == algorithm]
            variants.append(self._variant(algorithm, own, series, records, evidence))
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
            "link_engine": self.network_backend.link_engine,
            "datapath": self.network_backend.datapath,
            "congestion_control": sorted({entry["congestion_control"] for entry in sockets}),
            "sockets": sockets,
            "bootstrap": records.bootstrap(),
            "fabric": {"hosts": self._with_ranks(shown["hosts"]), "wan": shown["wan"]},
            "calibration": dict(self._calibration.made),
            "policy": {**network.policy, "controller_restarts": network.restarts},
            "control": {variant["name"]: variant["control"] for variant in variants},
            "captures": captured,
            "background_traffic": job.background_traffic,
            "tunnels": [asdict(tunnel) for tunnel in tunnels],
            "origin_epoch_s": origin_s + time.time() - time.monotonic(),
        }
        directory.write_text("scenario.yaml", self.scenario.to_yaml())
        directory.write_json("manifest.json", manifest)
        directory.write_json(SUMMARY, Result.of(summary).document())
        directory.write_lines(SAMPLES, shifted(samples, origin_s))
        directory.write_lines(LINKS, link_lines(job.samples, origin_s))
        directory.write_lines(SOCKETS, shifted(records.tcp, origin_s))
        directory.write_lines(CONTROLLER, shifted(network.events, origin_s))
        directory.write_lines(RULES, network.rule_lines())
        if self.scenario.events:
            directory.write_lines(EVENTS, shifted(log, origin_s))
        return summary

    def _inside(self, job: JobRun, records: RankRecords, log: Sequence[Mapping[str, Any]]) -> HostEvidence:
        """What was counted inside the buildings."""
        return HostEvidence(
            self.topology,
            job.before,
            job.after,
            (job.samples[0].account, job.samples[-1].account),
            [host.name for host in self.hosts],
            frozenset(name for other in self.scenario.background_traffic for name in other.hosts),
            records.samples,
            self.scenario.events,
            log,
            self.baseline.lone(records.calibrations),
            exact=self.baseline.exact,
            settles=self.scenario.transport.kind != "mptcp",  # which shares out as it remembers its ways
        )

    def _monitor_files(self, folder: Path, tunnels: Sequence[Tunnel]) -> dict[str, Path]:
        """What watched each machine; nothing where nothing can be late."""
        if self.clock == "free":
            return {}
        others = {tunnel.machine: folder / monitor_file(tunnel.machine) for tunnel in tunnels}
        return {THIS_MACHINE if others else "": folder / MONITOR_FILE, **others}

    def _with_ranks(self, hosts: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """As `inspect` shows hosts, with the ranks that they have in this run."""
        ranks = {host.name: rank for rank, host in enumerate(self.hosts)}
        return [{**host, "rank": ranks.get(host["name"])} for host in hosts]

    def _variant(
        self,
        algorithm: str,
        steps: list[StepResult],
        series: dict[tuple[str, str], LinkSeries],
        records: RankRecords,
        evidence: Evidence,
    ) -> dict[str, Any]:
        expected = self.job.wan_bytes(algorithm)
        training, modelled = self.workload.training is not None, not self.job.unmodelled
        predicted = predict(self.job, algorithm, self._calibration) if training or modelled else None
        missing = missing_share(self.job, algorithm, self._calibration)
        observed = [between_groups(step.sent_bytes, self.workload.buildings) for step in steps]
        entry = summarise_variant(
            self.topology,
            self.scale,
            name=algorithm,
            algorithm=algorithm,
            policy=self.scenario.policy.label,
            hosts=self.hosts,
            steps=steps,
            series=series,
            connections=socket_use(records.tcp, steps, [host.building for host in self.hosts], self.scale),
            expected_wan_bytes=expected,
            verdict=assess(replace(evidence, missing_share=missing), steps, expected, observed).to_dict(),
            predicted_s=self.scale.real_s(predicted.step_time_s) if predicted and modelled else None,
        )
        entry["control"] = asdict(self.scenario.control.resolve())
        if training and predicted is not None:
            entry["training"] = training_summary(
                self.workload, algorithm, steps, records.samples, predicted, self.scale
            )
            entry["limited_by"] = limited_words(entry["training"]["measured"])
        if evidence.events:
            entry["events"] = events_record(evidence.event_log, algorithm)
        return entry

    def _dimensionless(self) -> list[Number]:
        """What the scale keeps and what it changes."""
        traffic = Traffic(
            message_bytes=self.scale.real_bytes(self.workload.message_bytes),
            gradient_bytes=self.scale.real_bytes(self.workload.rank_bytes),
            compute_s=self.scale.real_s(self.workload.compute_s),
            overhead_s=self.scenario.transport.software_cost.per_message_s,
            emulated_overhead_s=self.baseline.overhead_s,
        )
        real = self.scenario.topology.resolve()
        return dimensionless(real, self.topology, self.scale, traffic)

"""Measurement of one shard: build its network, run and monitor its job, judge the figures."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Any

from testbed.clock import clock_here
from testbed.comm.collectives import between_groups
from testbed.comm.flight_recorder import FLIGHT, PATHS_FILE
from testbed.measure.execution import launchers, resources
from testbed.measure.execution.assessment import Evidence, ReplicationRecord, assess, check_model
from testbed.measure.execution.event_player import EventPlayer, parts_changed_by, summarise_events
from testbed.measure.execution.isolated_all_reduce import IsolatedBaseline
from testbed.measure.execution.job_run import JobRun
from testbed.measure.execution.network_evidence import (
    count_nodes,
    paused_links,
    port_drops,
    reason_not_repeated,
)
from testbed.measure.execution.network_setup import Network
from testbed.measure.execution.progress import Progress, ShardLive
from testbed.measure.execution.rank_evidence import socket_changes
from testbed.measure.execution.rank_network import NetworkCheck, RankNetwork, bring_up
from testbed.measure.execution.shard_records import (
    NetworkRecord,
    RankRecords,
    fabric_record,
    link_lines,
    read_ranks,
    resolve_served_job,
    shift_times,
)
from testbed.measure.execution.stalls import StallReporter, StallWatch
from testbed.measure.fidelity.capacity import NetworkBackend
from testbed.measure.fidelity.cpu_monitor import MonitorProcess
from testbed.measure.fidelity.link_invariants import DroppingPort, Tunnel
from testbed.measure.fidelity.similarity import run_numbers
from testbed.measure.results.records import EVENTS
from testbed.measure.results.run_directory import describe_environment, write_lines
from testbed.measure.results.serving_summary import shard_latencies
from testbed.measure.results.shards import CAPTURES, Shard, ShardFigures, ShardRecord
from testbed.measure.results.summary import (
    StepResult,
    first_start_s,
    gather_steps,
    is_slower_than_predicted,
    undisturbed_steps,
)
from testbed.measure.results.training_summary import training_summary
from testbed.net.controller import PolicyChoice
from testbed.net.fabric.capture import Capture
from testbed.net.fabric.faults import Faults
from testbed.net.fabric.network import Fabric
from testbed.net.fabric.plan import WAN_NODE
from testbed.prediction.calibration import REAL, VIRTUAL, find_calibration
from testbed.prediction.network_paths import network_paths
from testbed.spec.errors import option_error
from testbed.spec.scale import Scale
from testbed.spec.scenario import Scenario
from testbed.spec.telemetry import WHEN_SLOW
from testbed.spec.topology import Topology
from testbed.workload.job.endpoint_resolution import background_hosts
from testbed.workload.job.errors import RunError
from testbed.workload.job.fault_resolution import rank_faults_of
from testbed.workload.job.job import job_of
from testbed.workload.job.launch_spec import JobSpec, plan_steps

LOOK_INTERVAL_S = 1.0


class ShardRun:
    """The measurement of one shard on its own network.

    `scenario` is the shard's own scenario, and `folder` is an existing directory for all files. `ranks_per_process` is
    None for the fastest choice.
    """

    def __init__(
        self,
        shard: Shard,
        scenario: Scenario,
        network_backend: NetworkBackend,
        scale: Scale,
        folder: Path,
        progress: Progress,
        machines: Sequence[str] = (),
        ranks_per_process: int | None = None,
    ) -> None:
        self.shard = shard
        self.scenario = scenario
        self.machines = machines
        self.network_backend = network_backend
        self.scale = scale
        self.folder = folder
        self.progress = progress
        self.clock = clock_here()
        self._calibration = find_calibration(REAL if self.clock is None else VIRTUAL)
        self.job = job_of(scenario, scale, network_backend.link_engine)
        self.topology: Topology = self.job.topology
        if machines and self.job.replication is not None:
            expected = "one machine, as ranks connect to a coordinator on it"
            raise option_error("--machines", ",".join(machines), expected)
        self.hosts, self.workload = self.job.hosts, self.job.workload
        self.events = scenario.all_events
        self.ranks_per_process = resources.ranks_per_process(
            ranks_per_process,
            len(self.hosts),
            self.workload.rank_bytes,
            exact=self.clock == "free",
            apart=bool(resources.stopping_events(self.events)) or self.job.replication is not None,
        )
        self.baseline = IsolatedBaseline(
            self.topology,
            self.hosts,
            scenario.transport,
            self.job.wiring,
            scale,
            self.workload.message_bytes,
            network_backend.link_engine,
        )

    def measure(self) -> ShardRecord:
        """Measure the shard and return its record, which is also written to the directory.

        Raises:
            FabricError: If the network cannot be built.
            RunError: If a rank or another part fails.
        """
        scenario = self.scenario
        events: list[Mapping[str, Any]] = []
        policy = PolicyChoice(**scenario.policy.to_choice())
        with bring_up(
            Network(scenario.topology, self.network_backend, self.scale, policy),
            self.hosts,
            scenario.seed,
            self.progress.phase,
            scenario.transport,
            flows=self.job.flows,
            events=events.append,
            control=scenario.control.resolve(self.scale),
            machines=self.machines,
        ) as running:
            fabric = running.fabric
            assert fabric is not None
            changed_parts = parts_changed_by(self.events, self.topology)
            check = NetworkCheck(fabric, self.progress.phase, *changed_parts)
            if fabric.has_queues:
                with check.watch.own_change():
                    fabric.apply_queues()
            shown = fabric.inspect()
            self.progress.phase(f"starting {len(self.hosts)} ranks")
            self._write_paths()
            spec = self._job_spec(running)
            intervals_s = map(self.scale.emulated_s, (self.scenario.telemetry.interval_s, LOOK_INTERVAL_S))
            job = JobRun(
                running, spec, lambda index: self.progress.step(index, len(spec.steps)), *intervals_s
            )
            job.watch = check.watch
            job.player = self._player(fabric, job)
            live = ShardLive(self.folder, fabric_record(shown, self.hosts))
            live.player, job.on_sample = job.player, live.sample
            job.stalls = StallWatch(self.scale.emulated_s(scenario.telemetry.stalled_after_s))
            reporter = StallReporter(self.folder / FLIGHT, self.progress.phase, job.stalls, self.shard)
            job.on_stall = reporter.report
            capture = self._capture(fabric)
            frames = fabric.tunnel_frames()
            with contextlib.ExitStack() as stack:
                stack.enter_context(capture)
                stack.callback(reporter.end)
                if self.clock != "free":
                    monitor = stack.enter_context(MonitorProcess(self.folder / launchers.MONITOR_FILE))
                    job.watch_also = lambda: None if monitor.alive() else "the host monitor ended"
                    stack.enter_context(launchers.monitor_remote_hosts(fabric))
                try:
                    job.run()
                except RunError:
                    # written next to the flight recorders' dumps, for the diagnosis of the failure
                    if job.player and (dumps := self.folder / FLIGHT).exists():
                        write_lines(dumps / EVENTS, job.player.log)
                    raise
            self.progress.phase("judging the figures")
            tunnels = launchers.measured_tunnels(fabric, frames)
            launchers.fetch_remote_files(fabric, self.folder)
            check.end()
            network = NetworkRecord.of(fabric, events)
        record = self._record(job, check, shown, capture.records, network, tunnels)
        record.write()
        live.end()
        return record

    def _capture(self, fabric: Fabric) -> Capture:
        asked = self.scenario.telemetry.capture
        links = [link.name for link in self.topology.wan] if asked == "all" else asked
        return Capture(fabric.state.pids[WAN_NODE], fabric.plan.wires(), links, self.folder / CAPTURES)

    def _write_paths(self) -> None:
        """Write the connections' paths at the start of the run next to the flight recorders' dumps."""
        folder = self.folder / FLIGHT
        folder.mkdir(parents=True, exist_ok=True)
        paths = network_paths(self.job, self._calibration)
        replace(paths, one_clock=not self.machines).write(folder / PATHS_FILE)

    def _player(self, fabric: Fabric, job: JobRun) -> EventPlayer | None:
        if not self.events:
            return None
        return EventPlayer(
            self.events,
            self.topology,
            self.scale,
            Faults(fabric),
            [host.name for host in self.hosts],
            job.rank_pids.get,
            job.tell_of_death,
            job.return_ranks,
            self.scenario.seed,
        )

    def _job_spec(self, running: RankNetwork) -> JobSpec:
        scenario, fabric = self.scenario, running.fabric
        assert fabric is not None
        background = background_hosts(
            scenario.background_traffic,
            self.topology,
            fabric.state.pids.__getitem__,
            scenario.transport.congestion_control,
            scenario.seed,
        )
        return JobSpec(
            wiring=replace(self.job.wiring, ranks=tuple(running.endpoints)),
            dtype=scenario.workload.gradient_dtype,
            plan=self.workload.start,
            dispatching=self.workload.dispatching,
            steps=plan_steps(
                scenario.named_algorithms, scenario.trials, scenario.warmup, in_turns=not self.events
            ),
            output=str(self.folder.resolve()),
            background_traffic=tuple(background),
            telemetry_interval_s=self.scale.emulated_s(scenario.telemetry.interval_s),
            calibration_numel=self.baseline.message_bytes // self.workload.itemsize * len(self.hosts),
            calibrations=self.baseline.times,
            ranks_per_process=self.ranks_per_process,
            rank_faults=rank_faults_of(self.events, self.workload.plan, scenario.seed, self.scale),
            calibrate_again=self.job.replication is None
            and not reason_not_repeated(self.events, scenario.background_traffic, self.topology),
            survives_kills=self.job.survives_kills,
            replication=self.job.replication,
        )

    def _record(
        self,
        job: JobRun,
        check: NetworkCheck,
        shown: dict[str, Any],
        captured: list[dict[str, Any]],
        network: NetworkRecord,
        tunnels: Sequence[Tunnel],
    ) -> ShardRecord:
        records = read_ranks(self.folder, len(self.hosts))
        self.done = resolve_served_job(self.job, self.folder, records)
        samples, sockets = records.samples, records.sockets
        replication = ReplicationRecord.read(self.folder, self.job)
        origin_s = replication.origin_s if replication else first_start_s(samples)
        log = job.player.log if job.player else []
        changes = [*check.watch.changes, *socket_changes(samples, [host.name for host in self.hosts])]
        numbers = run_numbers(
            self.scenario, self.topology, self.workload, self.scale, self.baseline.overhead_s
        )
        evidence = Evidence(
            self.job,
            records.samples,
            job.step_clock,
            count_nodes(job, sockets, [host.name for host in self.hosts]),
            job.samples,
            self.baseline.exact,
            log,
            self.baseline.lone(records.calibrations),
            numbers=numbers,
            agreement=self.baseline.agreement(records.calibrations),
            network=check,
            # under the virtual clock nothing is late
            monitor_files={} if self.clock == "free" else launchers.monitor_files(self.folder, tunnels),
            tunnels=tunnels,
            changes=[(self.scale.real_s(change.time_s - origin_s), change.words) for change in changes],
            repairs=network.repairs,
            replication=replication,
            pauses=paused_links(self.topology, job.samples[0].account, job.samples[-1].account, self.scale),
        )
        steps = gather_steps(samples, len(self.hosts))
        variants = []
        for name, algorithm in self.scenario.named_algorithms.items():
            own = [step for step in steps if step.variant == name]
            spans = [(step.start_s, step.end_s) for step in own]
            drops = port_drops(self.scenario.topology, self.topology, job, spans, self.scale)
            variants.append(self._variant(name, algorithm, own, records, evidence, drops))
        slow = any(is_slower_than_predicted(each["step_time_s"], each["predicted_s"]) for each in variants)
        if self.scenario.telemetry.flight_recorder == WHEN_SLOW and not self.events and not slow:
            shutil.rmtree(self.folder / FLIGHT, ignore_errors=True)
        clock, scale = "real" if self.clock is None else "virtual", asdict(self.scale)
        manifest = {
            "schema": 1,
            **describe_environment(),
            "seed": self.scenario.seed,
            "clock": {"kind": clock, "cpu_time": self.clock or "real"},
            "scale": scale,
            "link_engine": self.network_backend.link_engine,
            "datapath": self.network_backend.datapath,
            "ranks_per_process": self.ranks_per_process,
            "congestion_control": sorted({entry["congestion_control"] for entry in sockets}),
            "sockets": sockets,
            "bootstrap": records.bootstrap(),
            "fabric": fabric_record(shown, self.hosts),
            "calibration": dict(self._calibration.made),
            "policy": {**network.policy, "controller_restarts": network.restarts},
            "control": {variant["algorithm"]: variant["control"] for variant in variants},
            "captures": captured,
            "background_traffic": job.background_traffic,
            "tunnels": [asdict(tunnel) for tunnel in tunnels],
            "origin_epoch_s": origin_s + time.time() - time.monotonic(),
        }
        figures = {
            "clock": clock,
            "scale": scale,
            "dimensionless": numbers,
            "variants": variants,
            "manifest": manifest,
        }
        return ShardRecord(
            self.shard,
            self.folder,
            ShardFigures.model_validate(figures),
            samples=list(shift_times(samples, origin_s)),
            links=list(link_lines(job.samples, origin_s)),
            sockets=list(shift_times(records.tcp, origin_s)),
            events=list(shift_times(log, origin_s)),
            controller=list(shift_times(network.events, origin_s)),
            rules=network.rules,
        )

    def _variant(
        self,
        name: str,
        algorithm: str,
        steps: list[StepResult],
        records: RankRecords,
        evidence: Evidence,
        drops: Sequence[DroppingPort],
    ) -> dict[str, Any]:
        """Return the fields of `ShardVariant`."""
        expected = self.done.wan_bytes(algorithm)
        model = check_model(self.job, algorithm, self._calibration)
        predicted = model.timeline
        observed = [
            between_groups(step.sent_bytes, self.workload.buildings) for step in undisturbed_steps(steps)
        ]
        entry = {
            "algorithm": name,
            "step_time_s": median(self.scale.real_s(step.step_time_s) for step in steps),
            "expected_wan_bytes": expected,
            "predicted_s": self.scale.real_s(predicted.step_time_s) if predicted else None,
            "verdict": assess(evidence, steps, expected, observed, model, drops),
            "control": asdict(self.scenario.control.resolve()),
            "pauses": list(evidence.pauses),
            "port_drops": drops,
            "training": training_summary(
                self.done.workload, algorithm, steps, records.samples, predicted, self.scale
            ),
        }
        entry |= shard_latencies(self.done, algorithm, steps, records.samples, predicted)
        if evidence.replication is not None:
            entry["replication"] = evidence.replication.summary(records.samples, evidence.event_log)
        if evidence.events:
            entry["events"] = summarise_events(evidence.event_log, name)
        return entry

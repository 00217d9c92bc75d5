"""A run in parts: what they left behind, put together into one run directory; and one by the real clock."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from testbed.config import Scenario
from testbed.fidelity import worst
from testbed.fidelity.capacity import NetworkBackend
from testbed.results.directory import RunDirectory, surroundings
from testbed.results.parts import Part, PartResult, cut, merge_records, merge_summaries
from testbed.results.records import EVENTS, LINKS, SAMPLES
from testbed.results.result import SUMMARY, Result
from testbed.running.run import CAPTURES, CONTROLLER, RULES, SOCKETS, Progress, Run
from testbed.scale import Scale


class PartedRun:
    """As `Run`, of a scenario with variants: its parts one after the other, in turns."""

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
        self.parts = cut(scenario)

    def execute(self) -> dict[str, Any]:
        """Do everything; returns the summary that stands in the run directory. FabricError, RunError."""
        directory = RunDirectory(self.output)
        began_s = time.monotonic()
        try:
            for part in self.parts:
                self._run(part, directory)
            first = read_part(self.parts[0], directory)
            clock = {
                **first.manifest["clock"],
                "wall_s": time.monotonic() - began_s,
                "parts": [part_record(part) for part in self.parts],
            }
            self.progress.phase("putting the parts together")
            summary = put_together(directory, self.scenario, self.scale, self.parts, self.output, clock)
            directory.finish()
        except BaseException:
            directory.discard()
            raise
        return summary

    def _run(self, part: Part, directory: RunDirectory) -> None:
        scenario = part.scenario(self.scenario)
        done, of = part.number, len(self.parts)
        each = scenario.trials + scenario.warmup
        self.progress.phase(f"{part.variant}, trial {part.first_trial + 1} of {self.scenario.trials}")

        def phase(line: str) -> None:
            if part.number == 0:  # the others do the same
                self.progress.phase(line)

        def step(number: int, total: int) -> None:
            self.progress.step(done * each + number, of * each)

        output = part_folder(directory, part) / "run"
        output.parent.mkdir(parents=True)
        Run(
            scenario, self.network_backend, self.scale, output, Progress(phase, step), self.machines
        ).execute()


def part_folder(directory: RunDirectory, part: Part) -> Path:
    """Where a part has its task and its own run directory."""
    return directory.partial / "parts" / str(part.number)


def part_record(part: Part) -> dict[str, Any]:
    """What a manifest says of a part."""
    return {
        "variant": part.variant,
        "first_trial": part.first_trial,
        "trials": part.trials,
        "seed": part.seed,
    }


def put_together(
    directory: RunDirectory,
    scenario: Scenario,
    scale: Scale,
    parts: Sequence[Part],
    output: Path,
    clock: Mapping[str, Any],
) -> dict[str, Any]:
    """Write the whole run's files from those of its parts, which go; returns the summary."""
    results = [read_part(part, directory) for part in parts]
    records = merge_records(results)
    variants = merge_summaries(scenario, scale, results, records)
    first = results[0]
    summary = {
        **first.summary,
        "scenario": scenario.name,
        "run_dir": str(output),
        "status": worst([variant["verdict"]["status"] for variant in variants]),
        "variants": variants,
    }
    manifest = {
        **first.manifest,
        **surroundings(),
        "sysctls": first.manifest["sysctls"],
        "seed": scenario.seed,
        "clock": dict(clock),
        "control": {variant["name"]: variant["control"] for variant in variants},
        "captures": [
            {"folder": result.part.folder, **entry}
            for result in results
            for entry in result.manifest["captures"]
        ],
        **{
            key: [
                {"variant": result.part.variant, **entry}
                for result in results
                for entry in result.manifest[key]
            ]
            for key in ("sockets", "background_traffic", "tunnels")
        },
    }
    for part in parts:
        captures = part_folder(directory, part) / "run" / CAPTURES
        if captures.exists():
            (directory.partial / CAPTURES).mkdir(exist_ok=True)
            shutil.move(captures, directory.partial / CAPTURES / part.folder)
    for name in (CONTROLLER, RULES):
        directory.write_lines(name, _of_all_parts(parts, directory, name))
    shutil.rmtree(directory.partial / "parts")
    directory.write_text("scenario.yaml", scenario.to_yaml())
    directory.write_json("manifest.json", manifest)
    directory.write_json(SUMMARY, Result.of(summary).document())
    directory.write_lines(SAMPLES, records.samples)
    directory.write_lines(LINKS, records.links)
    directory.write_lines(SOCKETS, records.sockets)
    if records.events:
        directory.write_lines(EVENTS, records.events)
    return summary


def _of_all_parts(parts: Sequence[Part], directory: RunDirectory, name: str) -> Iterator[dict[str, Any]]:
    """A file's records, each with its part's variant and first trial; times are the part's own."""
    for part in parts:
        for line in (part_folder(directory, part) / "run" / name).read_text().splitlines():
            yield {"variant": part.variant, "first_trial": part.first_trial, **json.loads(line)}


def read_part(part: Part, directory: RunDirectory) -> PartResult:
    """What a part's own run directory holds."""
    run = part_folder(directory, part) / "run"

    def lines(name: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (run / name).read_text().splitlines()]

    summary, manifest = (json.loads((run / name).read_text()) for name in ("summary.json", "manifest.json"))
    events = lines(EVENTS) if (run / EVENTS).exists() else []
    measured = lines(SAMPLES), lines(LINKS)
    return PartResult(part, summary, manifest, *measured, events, lines(SOCKETS))

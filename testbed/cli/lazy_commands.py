"""Commands whose modules are imported when they are called, so that `testbed --help` is fast.

The command list's help lines are here; a command's own help and options are in its module. A test compares both.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup


class Entry(NamedTuple):
    """A command or group of commands: its module in this package, and its line in the command list."""

    module: str
    help: str


COMMANDS: Mapping[str, Entry] = {
    "run": Entry(
        "run",
        "Run a scenario: build, measure, validate, report. Exit status 3: the results are untrusted.",
    ),
    "watch": Entry(
        "watch",
        "Show a run in the browser: network, timeline and step times, while it goes on or afterwards.",
    ),
    "report": Entry("finished_runs", "Render a run's report and timeline again, from its files."),
    "compare": Entry(
        "finished_runs",
        "Compare two runs: step times by variant, verdicts, and differences between their setups.",
    ),
    "reproduce": Entry(
        "finished_runs",
        "Repeat a run from its folder, with its clock and scale, and compare. Exit status 4: they differ.",
    ),
    "diagnose": Entry(
        "diagnose",
        "Find the culprit of a run that hangs, failed or is slow: the rank, host, card, link or switch.",
    ),
    "trace": Entry("diagnose", "Flight recorder dumps of ranks: their most recent operations."),
    "bench": Entry(
        "bench",
        "Benchmark a collective at many sizes, like nccl-tests: time per call, bandwidths, wrong elements.",
    ),
    "bootstrap": Entry(
        "bootstrap",
        "Benchmark the bootstrap of a large job: rendezvous, group creation, connections; no data is sent.",
    ),
    "explore": Entry(
        "explore",
        "Search a scenario's configurations for the fastest step with the step model; --confirm runs the best.",
    ),
    "sweep": Entry(
        "sweep",
        "Sweep one or two settings of a scenario, predicted and optionally measured; curve or heat map.",
    ),
    "calibrate": Entry(
        "calibrate",
        "Calibrate the step model: run probes on the emulated network and fit the model to them.",
    ),
    "up": Entry(
        "fabric", "Build a network and leave it running, for `exec`, `inspect` and your own programs."
    ),
    "inspect": Entry(
        "fabric",
        "Show a running network: hosts, and every WAN link's settings as read back from the kernel.",
    ),
    "down": Entry("fabric", "Take a network down."),
    "clean": Entry(
        "fabric",
        "Remove what killed runs left behind: interfaces, bridges, namespaces, processes, nothing else.",
    ),
    "ps": Entry("listing", "List the networks on this machine: owner, age, hosts and links."),
    "runs": Entry("listing", "Runs, sweeps and searches in ./runs: list them, remove old ones."),
    "exec": Entry(
        "fabric",
        "Run a program inside a host: testbed exec HOST -- COMMAND... Exits with the program's status.",
    ),
    "doctor": Entry(
        "fabric",
        "Check what this host supports, with evidence, and which link engine and datapath a run would use.",
    ),
    "launch": Entry(
        "launch",
        "Run a program once per rank, each in its host: testbed launch -t TOPOLOGY -- python train.py",
    ),
    "capture": Entry(
        "capture",
        "Record a step of a PyTorch script, without accelerators: testbed capture -- train.py",
    ),
    "plan": Entry(
        "plan",
        "Dry-run a scenario's step on a model of its network: time, memory, bytes; nothing is built or sent.",
    ),
    "predict": Entry(
        "predict",
        "Predict a scenario's step times with a model of its network; nothing is built or sent.",
    ),
    "probe": Entry(
        "fabric",
        "Trace a flow between two hosts: which WAN links its packets cross, their delay and their DSCP.",
    ),
    "check": Entry(
        "files",
        "Check a topology or scenario file and print it with every default and unit filled in.",
    ),
    "schema": Entry(
        "files",
        "Print the JSON Schema of topology or scenario files, for editors, or of results.",
    ),
    "graph": Entry(
        "files",
        "Draw a topology: buildings, hosts, WAN links with their rates and delays. Nothing is built.",
    ),
    "export": Entry(
        "exchange",
        "Export a job, a topology or a run's metrics to other tools.",
    ),
    "import": Entry(
        "exchange",
        "Import a network as a topology file: GraphML or GML (Topology Zoo), or containerlab.",
    ),
    "init": Entry(
        "files",
        "Copy a bundled scenario and its topology into a folder to edit, or list the bundled ones.",
    ),
    "link": Entry("fabric", "Change WAN links of a running network."),
    "policy": Entry("policy", "Show or change the transport policy of a running network."),
    "virtual": Entry(
        "virtual",
        "The virtual clock: a Linux kernel in a process, whose time advances only when it is idle.",
    ),
}


class LazyCommand(TyperCommand):
    """A placeholder for a command, which loads it when it is called or asked for help."""

    def __init__(self, name: str, entry: Entry) -> None:
        super().__init__(name, help=entry.help)
        self.entry = entry

    def load(self) -> Any:
        """Import the command's module and return the command."""
        own = typer.Typer(add_completion=False)
        import_module(f"testbed.cli.{self.entry.module}").add_commands(own)
        assert self.name is not None
        return typer.main.get_group(own).commands[self.name]

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        """Return the context of the real command, which then takes over."""
        return self.load().make_context(*args, **kwargs)


class LazyGroup(TyperGroup):
    """A group with the lazily loaded COMMANDS in addition to its own."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for name, entry in COMMANDS.items():
            self.add_command(LazyCommand(name, entry))

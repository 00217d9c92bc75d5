"""Commands whose modules are imported when they are called: `testbed --help` waits for none of what commands need.

What the list of commands says stands here; a command's own help and options stand where it does, and a test holds
both against each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup


class Entry(NamedTuple):
    """A command or group of commands: its module in this package, and what the list of commands says of it."""

    module: str
    help: str


COMMANDS: Mapping[str, Entry] = {
    "run": Entry(
        "run",
        "Run a scenario: build, measure, judge, report. Exit status 3: the figures are not to be trusted.",
    ),
    "watch": Entry(
        "watch",
        "Show a run as a page in a browser: its network, timeline and step times as they come, or all of one that is "
        "over.",
    ),
    "report": Entry("finished_runs", "Render a run's report and timeline once more, from its files."),
    "compare": Entry(
        "finished_runs",
        "Hold two runs against each other: step times variant by variant, verdicts, and what was different.",
    ),
    "reproduce": Entry(
        "finished_runs",
        "Do a run again from its folder, by its clock and scale, and say whether it agrees. Exit status "
        "4: it does not.",
    ),
    "diagnose": Entry(
        "diagnose",
        "Say who did it: which rank, host, card, link or switch a run that stands, broke or is slow waits for.",
    ),
    "trace": Entry("diagnose", "Dumps of ranks' flight recorders: what their operations did last."),
    "bench": Entry(
        "bench",
        "Time a collective at many sizes, as nccl-tests do: time per call, bandwidths, wrong elements.",
    ),
    "bootstrap": Entry(
        "bootstrap",
        "Time how the ranks of a large job find each other, make their groups and connect; no data is sent.",
    ),
    "explore": Entry(
        "explore",
        "Search a scenario's configurations for the quickest step, by the model; --confirm runs the best.",
    ),
    "sweep": Entry(
        "sweep",
        "Take a scenario through all values of one or two settings: by the model, then measured; curve or "
        "heat map.",
    ),
    "calibrate": Entry(
        "calibrate",
        "Send probes through the emulated network, and fit the model of a step to what they take.",
    ),
    "up": Entry("fabric", "Build a network and leave it up, for `exec`, `inspect` and your own programs."),
    "inspect": Entry(
        "fabric",
        "Show a network that is up: hosts, and every WAN link's settings as read back from the system now.",
    ),
    "down": Entry("fabric", "Take a network down."),
    "clean": Entry(
        "fabric",
        "Remove what killed runs left behind: their interfaces, bridges, namespaces, processes, and "
        "nothing else.",
    ),
    "ps": Entry(
        "listing", "List the networks on this machine: whose, since when, with which hosts and links."
    ),
    "runs": Entry("listing", "Runs, sweeps and searches in ./runs: list them, remove old ones."),
    "exec": Entry(
        "fabric",
        "Run any program inside a host: testbed exec HOST -- COMMAND... Streams and exit status are the "
        "program's.",
    ),
    "doctor": Entry(
        "fabric",
        "Say what this host can do, with evidence, and which link engine and datapath a run would use.",
    ),
    "launch": Entry(
        "launch",
        "Run a program once per rank, each in its host: testbed launch -t TOPOLOGY -- python train.py",
    ),
    "capture": Entry(
        "capture",
        "Record a step of your own PyTorch script, without accelerators: testbed capture -- train.py",
    ),
    "plan": Entry(
        "plan",
        "Try out a scenario's step on a model of its network: time, memory, bytes; nothing is built or sent.",
    ),
    "predict": Entry(
        "predict",
        "Say what a scenario's steps take, by a model of its network; nothing is built or sent.",
    ),
    "probe": Entry(
        "fabric",
        "Send packets of one flow from host to host and tell which WAN links they cross, how long it "
        "takes, their DSCP.",
    ),
    "check": Entry(
        "files",
        "Check a topology or scenario file and print it fully expanded: every default, every unit.",
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
        "Write a job, a topology or a run's figures for other programs.",
    ),
    "import": Entry(
        "exchange",
        "Make a topology file of somebody else's network: GraphML or GML (Topology Zoo), or containerlab's.",
    ),
    "init": Entry(
        "files",
        "Copy a scenario that comes with the testbed, and its topology, into a folder to edit; or list them.",
    ),
    "link": Entry("fabric", "WAN links of a network that is up."),
    "policy": Entry("policy", "The transport policy of a network that is up."),
    "virtual": Entry(
        "virtual",
        "The virtual clock: a Linux kernel as a process, whose time moves only when all in it is idle.",
    ),
}


class LazyCommand(TyperCommand):
    """Stands for a command until it is called, or asked for its own help."""

    def __init__(self, name: str, entry: Entry) -> None:
        super().__init__(name, help=entry.help)
        self.entry = entry

    def load(self) -> Any:
        """The command itself; imports its module."""
        own = typer.Typer(add_completion=False)
        import_module(f"testbed.cli.{self.entry.module}").add_commands(own)
        assert self.name is not None
        return typer.main.get_group(own).commands[self.name]

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        """That of the command itself, which from then on is in its place."""
        return self.load().make_context(*args, **kwargs)


class LazyGroup(TyperGroup):
    """A group that has COMMANDS beside its own."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for name, entry in COMMANDS.items():
            self.add_command(LazyCommand(name, entry))

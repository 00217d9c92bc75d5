"""Commands whose modules are imported when they are called, so that `testbed --help` is fast."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

COMMANDS: Mapping[str, str] = {
    "run": "run:run",
    "watch": "watch:watch",
    "report": "finished_runs:report",
    "compare": "finished_runs:compare",
    "reproduce": "finished_runs:reproduce",
    "diagnose": "diagnose:diagnose",
    "trace": "diagnose:trace_app",
    "bench": "bench:bench",
    "bootstrap": "bootstrap:bootstrap",
    "explore": "explore:explore",
    "sweep": "sweep:sweep",
    "calibrate": "calibrate:calibrate",
    "up": "fabric:up",
    "inspect": "fabric:inspect",
    "down": "fabric:down",
    "clean": "fabric:clean",
    "ps": "listing:ps",
    "runs": "listing:runs_app",
    "exec": "fabric:execute",
    "doctor": "fabric:diagnose",
    "launch": "launch:launch",
    "capture": "capture:capture_script",
    "plan": "plan:plan",
    "predict": "predict:predict",
    "probe": "fabric:probe",
    "check": "files:check",
    "schema": "files:schema",
    "graph": "files:graph",
    "export": "exchange:export",
    "import": "exchange:import_",
    "init": "files:init",
    "link": "fabric:link_app",
    "policy": "policy:policy_app",
    "virtual": "virtual:virtual_app",
}
"""The function, or group of commands, of each command: MODULE:NAME in this package."""


class LazyCommand(TyperCommand):
    """A placeholder for a command, which loads it when it is called or asked for help."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.module, _, self.target = COMMANDS[name].partition(":")

    def read_help(self) -> None:
        """Read the command's line in the list from its module's source, without importing it."""
        source = Path(__file__).with_name(f"{self.module}.py").read_text()
        for node in ast.parse(source).body:
            if isinstance(node, ast.FunctionDef) and node.name == self.target:
                self.help = (ast.get_docstring(node) or "").partition("\n\n")[0]
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == self.target:
                assert isinstance(node.value, ast.Call)
                words = {own.arg: own.value for own in node.value.keywords}
                self.help = ast.literal_eval(words["help"])

    def load(self) -> Any:
        """Import the command's module and return the command."""
        target = getattr(import_module(f"testbed.cli.{self.module}"), self.target)
        own = typer.Typer(add_completion=False)
        if isinstance(target, typer.Typer):
            own.add_typer(target, name=self.name)
        else:
            runs_program = "context" in inspect.signature(target).parameters
            settings = {"allow_extra_args": runs_program, "ignore_unknown_options": runs_program}
            own.command(self.name, context_settings=settings)(target)
        assert self.name is not None
        return typer.main.get_group(own).commands[self.name]

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        """Return the context of the real command, which then takes over."""
        return self.load().make_context(*args, **kwargs)


class LazyGroup(TyperGroup):
    """A group with the lazily loaded COMMANDS in addition to its own."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for name in COMMANDS:
            self.add_command(LazyCommand(name))

    def get_command(self, *args: Any) -> Any:
        """Return a command, with its line in the list of commands."""
        command = super().get_command(*args)
        if isinstance(command, LazyCommand):
            command.read_help()
        return command

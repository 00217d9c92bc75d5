"""Entry point: the commands, and how errors become messages and exit statuses.

Exit status: 0 success (and a run is not untrusted), 1 failure, 2 bad input, 3 a run with untrusted results,
130 interrupted, 143 terminated.
"""

from __future__ import annotations

import ast
import inspect
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from types import CodeType, FrameType
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from typer.core import TyperCommand, TyperGroup

from testbed.errors import TestbedError
from testbed.version import VERSION

COMMANDS: Mapping[str, str] = {
    "run": "run:run",
    "watch": "run:watch",
    "report": "runs:report",
    "compare": "runs:compare",
    "reproduce": "runs:reproduce",
    "diagnose": "runs:diagnose",
    "trace": "runs:trace_app",
    "bench": "bench:bench",
    "bootstrap": "bench:bootstrap",
    "explore": "search:explore",
    "sweep": "search:sweep",
    "calibrate": "model:calibrate",
    "up": "fabric:up",
    "inspect": "fabric:inspect",
    "down": "fabric:down",
    "clean": "fabric:clean",
    "ps": "runs:ps",
    "runs": "runs:runs_app",
    "exec": "fabric:execute",
    "doctor": "fabric:diagnose",
    "launch": "programs:launch",
    "capture": "capture:capture_script",
    "plan": "model:plan",
    "predict": "model:predict",
    "probe": "fabric:probe",
    "check": "files:check",
    "schema": "files:schema",
    "graph": "files:graph",
    "export": "files:export",
    "import": "files:import_",
    "init": "files:init",
    "link": "fabric:link_app",
    "policy": "fabric:policy_app",
    "virtual": "programs:virtual_app",
}
"""The function, or group of commands, of each command: MODULE:NAME in this package."""


class LazyCommand(TyperCommand):
    """A placeholder for a command, which loads the command when it is called or its help is requested."""

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


app = typer.Typer(
    name="testbed",
    cls=LazyGroup,
    help="Packet-level network emulation for training jobs that span several data-center buildings.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _print_version(asked: bool) -> None:
    if asked:
        print(f"testbed {VERSION}")
        raise typer.Exit


@app.callback()
def _every_command(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Make the typer app a group, even before commands are added."""


def main() -> NoReturn:
    """Run the command line; a TestbedError becomes one message on standard error and an exit status."""
    raise_on_signals()
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    status = 0
    try:
        app(standalone_mode=True)
    except BaseException as error:
        known = _status_of(error, console)
        if known is None:
            raise
        status = known
    sys.exit(status)


def _status_of(error: BaseException, console: Console) -> int | None:
    """Report how a command ended and return its exit status; None for an unexpected error."""
    number = signal_behind(error)
    if number is not None:
        if number == signal.SIGINT:
            console.print("interrupted; no network, process or unfinished run is left behind", markup=False)
        return 128 + number
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else int(bool(error.code))
    if isinstance(error, TestbedError):
        console.print(f"error: {error}", style="red", markup=False)
        return error.status
    return None


REDELIVERY_DELAY_S = 0.1  # a busy host takes tens of milliseconds to start the delivering thread
# The CPython functions that take the lock without a `with`; other implementations may not have them.
_LOCK = "_waitpid_lock"
_LOCK_TAKERS: list[CodeType] = [
    getattr(subprocess.Popen, name).__code__
    for name in ("_internal_poll", "_wait")
    if hasattr(subprocess.Popen, name)
]


def raise_on_signals() -> None:
    """Make SIGINT raise KeyboardInterrupt, and SIGTERM and SIGHUP raise SystemExit(128 + number).

    Call this in the main thread. Signals that were ignored when this process started (by nohup, or by a shell in the
    background) stay ignored.

    A handler runs at any point in the main thread's code. An exception in a finaliser or in a weak reference's callback
    (the import system has such callbacks) is only printed and then ignored, so a run would not end. An exception in the
    middle of `subprocess.Popen` polling can leave its lock held, and waiting for that process would block forever. In
    these cases (`sys.unraisablehook`, `_holds_lock`) the signal is delivered again a moment later.
    """
    last: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        last[:] = [number]
        if _holds_lock(frame):
            _deliver_again(number)
            return
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise _Ended(number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handle)
    sys.unraisablehook = _redelivering_hook(last, sys.unraisablehook)


def signal_behind(error: BaseException) -> int | None:
    """Return the signal that caused an error, or None.

    typer turns KeyboardInterrupt into an exit, and cleaning up after an interrupt may raise other errors, such as a
    RuntimeError from a half-finished event loop.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, KeyboardInterrupt):
            return signal.SIGINT
        if isinstance(cause, _Ended):
            return cause.number
        cause = cause.__cause__ or cause.__context__
    return None


class _Ended(SystemExit):
    """The exit that a signal requests."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.number = number


def _redelivering_hook(
    last: list[int], others: Callable[[sys.UnraisableHookArgs], object]
) -> Callable[..., None]:
    def hook(unraisable: sys.UnraisableHookArgs) -> None:
        if last and isinstance(unraisable.exc_value, (KeyboardInterrupt, SystemExit)):
            # not raised here, since an exception in this hook would be lost, too
            _deliver_again(last[0])
        else:
            others(unraisable)

    return hook


def _holds_lock(frame: FrameType | None) -> bool:
    """Return whether a signal interrupted code that holds a process's lock."""
    if frame is None or frame.f_code not in _LOCK_TAKERS:
        return False
    lock = getattr(frame.f_locals.get("self"), _LOCK, None)
    return lock is not None and lock.locked()


def _deliver_again(number: int) -> None:
    timer = threading.Timer(REDELIVERY_DELAY_S, os.kill, (os.getpid(), number))
    timer.daemon = True
    timer.start()

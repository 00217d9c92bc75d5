"""Options of commands: what has one name has one default."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import typer.main
from rich.text import Text
from typer.testing import CliRunner

import testbed.api
from testbed.cli.main import COMMANDS, LazyCommand, app
from testbed.cli.options import MODEL_CLOCK, RUN_CLOCK
from testbed.spec.policy import DEFAULT_POLICY

# the same word for another thing, as nccl-tests have it
OTHER_THINGS = {("bench", "-o"), ("bench", "-f"), ("bench", "--protocol"), ("launch", "--protocol")}
OTHER_THINGS |= {("bootstrap", "--ranks")}  # several numbers, each a start of its own
OTHER_THINGS |= {("sweep", "--confirm")}  # how many points, where explore says in its scenario how many


def commands(group: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """All of them, with their names."""
    if isinstance(group, LazyCommand):
        group = group.load()
    inner = getattr(group, "commands", None)
    if inner is None:
        yield name, group
        return
    for own, command in inner.items():
        yield from commands(command, f"{name} {own}".strip())


def options() -> dict[str, dict[str, object]]:
    """By an option's word, its default in each command that has it."""
    found: dict[str, dict[str, object]] = {}
    for name, command in commands(typer.main.get_command(app)):
        for option in command.params:
            if option.param_type_name == "option" and not getattr(option, "hidden", False):
                for word in option.opts:
                    if (name, word) not in OTHER_THINGS:
                        found.setdefault(word, {})[name] = option.default
    return found


def test_an_option_has_one_default_in_all_commands_but_the_clock_which_has_a_reason() -> None:
    found = options()
    clocks = found.pop("--clock")
    assert clocks.pop("run") == clocks.pop("bench") == clocks.pop("launch") == RUN_CLOCK
    assert clocks.pop("sweep") == "model"  # of which nothing is measured
    assert set(clocks.values()) == {MODEL_CLOCK}
    assert len(clocks) == 4
    differing = {word: own for word, own in found.items() if len(set(map(str, own.values()))) > 1}
    assert differing == {}
    assert set(found["--policy"].values()) == {DEFAULT_POLICY}
    assert len(found["--policy"]) == 3


def test_python_has_the_same_defaults() -> None:
    assert inspect.signature(testbed.api.up).parameters["policy"].default == DEFAULT_POLICY
    # its docstring says why
    assert inspect.signature(testbed.api.run).parameters["clock"].default == MODEL_CLOCK
    assert "which notebooks seldom have" in (testbed.api.run.__doc__ or "")


def test_help_texts_have_nothing_that_rich_takes_for_markup() -> None:
    for name, command in commands(typer.main.get_command(app)):
        for text in (command.help, *(getattr(one, "help", None) for one in command.params)):
            assert Text.from_markup(text or "").plain == (text or ""), name


def test_the_list_of_commands_says_what_each_says_of_itself() -> None:
    group = typer.main.get_command(app)
    assert list(getattr(group, "commands")) == list(COMMANDS)  # noqa: B009 (typer's own types are private)
    for name in COMMANDS:
        listed = LazyCommand(name)
        listed.read_help()
        text = listed.load().help
        assert listed.help == inspect.cleandoc(text).split("\n\n")[0], name


def test_a_command_that_there_is_not_is_answered_with_the_nearest() -> None:
    done = CliRunner().invoke(app, ["lanch"])
    assert done.exit_code == 2
    assert "Did you mean 'launch'" in " ".join(done.output.split())


@pytest.mark.parametrize("arguments", [["--help"], []])
def test_what_asks_for_no_command_imports_nothing_that_commands_need(arguments: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "testbed", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    imported = {
        line.rpartition("|")[2].strip()
        for line in done.stderr.splitlines()
        if line.startswith("import time:")
    }
    assert "typer" in imported
    heavy = {"numpy", "pydantic", "yaml", "pyroute2", "os_ken", "psutil", "jinja2"}
    assert imported & heavy == set()
    ours = {name for name in imported if name.startswith("testbed.")}
    assert ours <= {f"testbed.cli.{name}" for name in ("main", "lazy_commands", "interrupts")} | {
        "testbed.cli",
        "testbed.errors",
        "testbed.version",
    }

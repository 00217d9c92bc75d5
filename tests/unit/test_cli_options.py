"""Options of commands: what has one name has one default."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import typer.main

import testbed.api
from testbed.cli.main import app
from testbed.cli.options import MODEL_CLOCK, RUN_CLOCK
from testbed.config.policy import DEFAULT_POLICY

# the same word for another thing, as nccl-tests have it
OTHER_THINGS = {("bench", "-o"), ("bench", "-f"), ("bench", "--protocol")}


def commands(group: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """All of them, with their names."""
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
    assert clocks.pop("run") == clocks.pop("bench") == RUN_CLOCK
    assert set(clocks.values()) == {MODEL_CLOCK}
    assert len(clocks) == 3
    differing = {word: own for word, own in found.items() if len(set(map(str, own.values()))) > 1}
    assert differing == {}
    assert set(found["--policy"].values()) == {DEFAULT_POLICY}
    assert len(found["--policy"]) == 3


def test_python_has_the_same_defaults() -> None:
    assert inspect.signature(testbed.api.up).parameters["policy"].default == DEFAULT_POLICY
    assert (
        inspect.signature(testbed.api.run).parameters["clock"].default == MODEL_CLOCK
    )  # its docstring says why
    assert "which a notebook seldom has" in (testbed.api.run.__doc__ or "")

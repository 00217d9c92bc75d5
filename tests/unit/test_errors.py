"""Errors are one tree, with their parts; a command catches its root."""

from __future__ import annotations

import ast
import builtins
import inspect
from pathlib import Path

import pytest

import testbed
from testbed.errors import BadInput, TestbedError
from testbed.measure.results.run_directory import RunExists
from testbed.net.controller import PolicyError
from testbed.net.errors import NoKernelError, SettingMismatch
from testbed.spec.errors import ConfigError, Problem
from testbed.workload.job.errors import RunError

SOURCES = Path(testbed.__file__).parent


def test_every_error_of_ours_is_of_one_tree() -> None:
    bases = {
        node.name: {ast.unparse(base) for base in node.bases}
        for file in SOURCES.rglob("*.py")  # read, not imported: some are programs
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.ClassDef)
    }
    ours = {"TestbedError"}
    while more := {name for name, above in bases.items() if above & ours} - ours:
        ours |= more
    built_in = {
        name
        for name, kind in vars(builtins).items()
        if isinstance(kind, type) and issubclass(kind, BaseException)
    }
    strangers = {name for name, above in bases.items() if above & built_in} - ours
    assert {"ConfigError", "PeerLost", "RunExists"} <= ours
    assert not {name for name in strangers if not name.startswith("_")}


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ConfigError([]), 2),
        (PolicyError("no such policy"), 2),
        (RunError("rank 3 ended"), 1),
        (RunExists("runs/mine: exists already"), 2),
    ],
)
def test_a_commands_status_is_the_errors(error: TestbedError, status: int) -> None:
    assert error.status == status
    assert isinstance(error, BadInput) == (status == 2)


def test_what_the_package_says_that_it_has_is_there() -> None:
    for name in testbed.__all__:
        assert inspect.isclass(getattr(testbed, name)) or callable(getattr(testbed, name))


def test_parts_and_message_say_the_same() -> None:
    error = BadInput(where="mine.csv", got="1 line", expected="2", hint="a line per rank")
    assert str(error) == "mine.csv: got 1 line, expected 2\na line per rank"
    assert error.found == "mine.csv: 1 line"
    problems = [
        Problem("a.yaml", 3, "ranks", "0", "at least 1"),
        Problem("a.yaml", 9, "seed", "x", "a number"),
    ]
    config = ConfigError(problems)
    assert str(config).splitlines() == [
        "a.yaml:3: ranks: got 0, expected at least 1",
        "a.yaml:9: seed: got x, expected a number",
    ]
    assert (config.where, config.got, config.expected) == ("a.yaml:3: ranks", "0", "at least 1")
    mismatch = SettingMismatch("e1-h1", "rate", 100, 90)
    assert (mismatch.where, mismatch.got, mismatch.expected) == ("e1-h1: rate", "90", "100")
    assert NoKernelError("/here").hint in str(NoKernelError("/here"))

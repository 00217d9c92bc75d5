"""Bundled scenarios: the question that each answers, and copies to edit.

A scenario's question is in the comment at its top. Its first sentence is the question, and others explain; after a line
with only `#` come the commands that answer it.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

from testbed.errors import BadInput, did_you_mean
from testbed.spec.catalogue import shipped
from testbed.spec.errors import ConfigError, Problem
from testbed.spec.scenario import load_scenario

_COMMENT = re.compile(r"(?:#.*\n)+")
_ASKS = re.compile(r"[^?]*\?")


@dataclass(frozen=True)
class Header:
    """A scenario's top comment: question, explanation, and commands without remarks."""

    question: str
    words: str
    commands: tuple[str, ...]


def header(text: str, name: str) -> Header:
    """Parse the comment at the top of a scenario file. Raises BadInput without a question or command."""
    comment = _COMMENT.match(text)
    first, *others = re.split(r"^#\n", comment[0] if comment else "", flags=re.MULTILINE)
    words = " ".join(line.lstrip("# ") for line in first.splitlines())
    asked = _ASKS.match(words)
    commands = tuple(_commands("".join(others)))
    if asked is None or ". " in asked[0] or not commands:
        raise BadInput(
            where=name,
            got=f"a comment that begins {words[:60]!r}, and {len(commands)} commands",
            expected="a comment that begins with a question and has, after a line of # alone, indented commands",
        )
    return Header(asked[0], words[asked.end() :].strip(), commands)


def _commands(comment: str) -> Iterator[str]:
    """Yield the indented command lines, with continuation lines joined."""
    lines = [line.removeprefix("#     ") for line in comment.splitlines() if line.startswith("#     ")]
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        yield re.sub(r"\s+", " ", re.sub(r"\s+# .*", "", line)).strip()


def copy_example(scenario: str, folder: Path) -> tuple[Path, ...]:
    """Copy a bundled scenario, with its topology and its trace, into a folder, which is created if necessary.

    Args:
        scenario: Its name, such as "quickstart" or "controller/windows".
        folder: The target folder; it may contain other files.

    Returns:
        The copies, the scenario first. It can be loaded, because it refers to the other copies.

    Raises:
        ConfigError: The name is unknown, or a file exists already; nothing is copied.
    """
    known = shipped("scenarios")
    if scenario not in known:
        raise _wrong("--scenario", scenario, did_you_mean(scenario, known))
    source = known[scenario]
    own = folder / source.name
    targets = {own: source}
    document = yaml.safe_load(source.read_text())
    named = {"topology": document.get("topology"), "trace": document["workload"].get("trace")}
    files = {key: file for key, file in named.items() if isinstance(file, str)}
    for file in files.values():
        targets[folder / Path(file).name] = (source.parent / file).resolve()
    for target in targets:
        if target.exists():
            raise _wrong("FOLDER", str(folder), f"one without {target.name}")
    folder.mkdir(parents=True, exist_ok=True)
    for target, given in targets.items():
        shutil.copy(given, target)
    text = own.read_text()
    for key, file in files.items():
        text = text.replace(f"{key}: {file}", f"{key}: {Path(file).name}", 1)
    own.write_text(text)
    load_scenario(own)
    return tuple(targets)


def _wrong(field: str, value: str, expected: str) -> ConfigError:
    return ConfigError([Problem("command line", None, field, value, expected)])

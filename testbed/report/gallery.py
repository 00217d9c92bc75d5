"""All scenarios that come with the testbed, as a page: each with its question, its command and its network drawn.

A scenario says its question itself, in the comment at its top: the first sentence asks, others say more; then, behind a
line of `#` alone, the commands that answer it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from testbed.config import load_scenario
from testbed.config.shipped import shipped
from testbed.errors import BadInput
from testbed.report.graph import drawn

PAGE = "gallery.md"
PICTURES = "gallery"
GROUPS = {
    "": "Steps over several buildings",
    "controller": "Policies, queues and windows",
    "explore": "Searches for the quickest configuration",
    "faults": "What breaks, and who did it",
    "inference": "Requests served",
}
"""Headings, by the folder of a scenario."""
_COMMENT = re.compile(r"(?:#.*\n)+")
_ASKS = re.compile(r"[^?]*\?")


@dataclass(frozen=True)
class Header:
    """What a scenario says of itself: the sentence that asks, those that follow, command lines without remarks."""

    question: str
    words: str
    commands: tuple[str, ...]


def header(text: str, name: str) -> Header:
    """Of a scenario's file. BadInput where it asks nothing, or names no command."""
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
    """Indented lines, those that go on joined to one."""
    lines = [line.removeprefix("#     ") for line in comment.splitlines() if line.startswith("#     ")]
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        yield re.sub(r"\s+", " ", re.sub(r"\s+# .*", "", line)).strip()


def network_svg(file: Path) -> str:
    """The network of a scenario's file, as `testbed graph` draws it. ConfigError."""
    return drawn(load_scenario(file).topology.resolve(), "svg")


def write_gallery(folder: Path, files: Mapping[str, Path] | None = None) -> list[Path]:
    """Writes the page and its pictures into `folder`; what was written. files: by name; None: all that are shipped."""
    scenarios = shipped("scenarios") if files is None else files
    pictures = folder / PICTURES
    written = []
    for name, file in scenarios.items():
        picture = pictures / f"{name}.svg"
        picture.parent.mkdir(parents=True, exist_ok=True)
        picture.write_text(network_svg(file), encoding="utf-8")
        written.append(picture)
    page = folder / PAGE
    headers = {name: header(file.read_text(), name) for name, file in scenarios.items()}
    page.write_text(_page(headers), encoding="utf-8")
    return [page, *written]


def _page(headers: Mapping[str, Header]) -> str:
    lines = [
        "# Gallery",
        "",
        f"All {len(headers)} scenarios that come with the testbed: what each asks, the command that answers, and its "
        "network. They go by name in every command, and `testbed init FOLDER --scenario NAME` copies one to edit.",
        "",
    ]
    groups: dict[str, list[str]] = {}
    for name in headers:
        groups.setdefault(name.rpartition("/")[0], []).append(name)
    for group, names in groups.items():
        lines += [f"## {GROUPS.get(group, group)}", ""]
        for name in names:
            lines += _entry(name, headers[name])
    return "\n".join(lines)


def _entry(name: str, found: Header) -> list[str]:
    return [
        f"### {name}",
        "",
        f"**{found.question}**",
        "",
        f"![the network of {name}]({PICTURES}/{name}.svg){{ loading=lazy }}",
        "",
        found.words,
        "",
        *(f"    {command}" for command in found.commands),
        "",
    ]

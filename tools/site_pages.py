"""The pages that the documentation's site is built from: .venv/bin/python tools/site_pages.py FOLDER

Those of docs/ as they stand, and what is generated: the gallery, the commands, the Python API. Links to files outside
docs/ lead to copies of them, so that the site is whole by itself; a link to a folder there becomes plain text.
"""

from __future__ import annotations

import html
import inspect
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import typer

import testbed
from testbed.cli.main import LazyCommand, app
from testbed.show.report.topology_graph import draw_topology
from testbed.spec.catalogue import shipped
from testbed.spec.examples import Header, header
from testbed.spec.scenario import load_scenario

ROOT = Path(__file__).resolve().parents[1]
FILES = "files"
_LINK = re.compile(r"\[(?P<text>[^\]]*)\]\((?P<path>[^)#\s]+)(?P<anchor>#[^)\s]*)?\)")


def main(folder: Path) -> None:
    """Make `folder`, in place of what was there."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "docs", folder)
    write_gallery(folder)
    (folder / "reference/commands.md").write_text("\n".join(command_lines()), encoding="utf-8")
    (folder / "reference/api.md").write_text("\n".join(api_lines()), encoding="utf-8")
    shutil.copy(ROOT / "CHANGELOG.md", folder / "changelog.md")
    for page in sorted(folder.rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        page.write_text(led_inside(text, page.relative_to(folder), folder), encoding="utf-8")


def led_inside(text: str, page: Path, folder: Path) -> str:
    """Markdown of `page`, whose links to the repository's files outside docs/ lead to copies under `folder`."""
    top = "../" * (len(page.parts) - 1)
    begins_at_root = page.name == "changelog.md"

    def led(link: re.Match[str]) -> str:
        path = link["path"]
        if "://" in path or path.startswith("mailto:"):
            return link[0]
        here = ROOT if begins_at_root else ROOT / "docs" / page.parent
        target = (here / path).resolve()
        if target.is_relative_to(ROOT / "docs") or not target.is_relative_to(ROOT):
            if begins_at_root:
                return f"[{link['text']}]({target.relative_to(ROOT / 'docs')}{link['anchor'] or ''})"
            return link[0]
        if target == ROOT / "CHANGELOG.md":
            return f"[{link['text']}]({top}changelog.md{link['anchor'] or ''})"
        if not target.is_file():
            return link["text"]
        # Markdown that is no page of the site would have links of its own that lead nowhere
        copied = PurePosixPath(FILES, target.relative_to(ROOT).as_posix() + ".txt")
        (folder / copied).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(target, folder / copied)
        return f"[{link['text']}]({top}{copied})"

    return _LINK.sub(led, text)


def command_lines() -> Iterator[str]:
    """Every command with its arguments and options, as its own help says it."""
    yield "# Commands\n"
    yield "What `testbed COMMAND --help` says, of all of them.\n"
    yield from _lines_of(typer.main.get_command(app), None, "testbed")


def _lines_of(command: Any, parent: Any, name: str) -> Iterator[str]:
    """Of a command, or of all those of a group. Typer has classes of its own for what click has."""
    command = command.load() if isinstance(command, LazyCommand) else command
    context = typer.Context(command, info_name=name, parent=parent)
    if not hasattr(command, "list_commands"):
        yield from _command_lines(command, context)
        return
    for own in sorted(command.list_commands(context)):
        yield from _lines_of(command.get_command(context, own), context, own)


def _command_lines(command: Any, context: Any) -> Iterator[str]:
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    yield f"## {context.command_path}\n"
    yield f"{inspect.cleandoc(command.help or '')}\n"
    yield f"    {usage}\n"
    records = [record for one in command.params if (record := one.get_help_record(context))]
    if records:
        yield "| argument, option | |\n|---|---|"
        yield from (f"| <code>{_cell(names)}</code> | {_cell(help_)} |" for names, help_ in records)
        yield ""


def _cell(text: str) -> str:
    """Text in a table of Markdown, where bars part cells."""
    return html.escape(" ".join(text.split()), quote=False).replace("|", "&#124;")


def api_lines() -> Iterator[str]:
    """What `import testbed` has, as its docstrings say it."""
    yield "# Python, name by name\n"
    yield "What `import testbed` has, for scripts and notebooks; [From Python](python.md) shows it at work.\n"
    for name in sorted(testbed.__all__, key=str.lower):
        thing = getattr(testbed, name)
        if inspect.isclass(thing):
            yield f"## {name}\n"
            yield from _docstring(thing)
            for key, member in vars(thing).items():
                if not key.startswith("_") and inspect.isfunction(member):
                    yield f"### {name}.{key}\n"
                    yield f"    {key}{inspect.signature(member)}\n"
                    yield from _docstring(member)
        elif inspect.isfunction(thing):
            yield f"## {name}\n"
            yield f"    {name}{inspect.signature(thing)}\n"
            yield from _docstring(thing)


def _docstring(thing: object) -> Iterator[str]:
    text = inspect.getdoc(thing)
    if text:
        yield "```text"
        yield text
        yield "```\n"


PICTURES = "gallery"
GROUPS = {
    "": "Steps over several buildings",
    "controller": "Policies, queues and windows",
    "explore": "Searches for the quickest configuration",
    "faults": "What breaks, and who did it",
    "inference": "Requests served",
    "transports": "Transports side by side",
}
"""Headings by folder of the scenario."""


def network_svg(file: Path) -> str:
    """Return the network drawing of a scenario file, like `testbed graph`. Raises ConfigError."""
    return draw_topology(load_scenario(file).topology.resolve(), "svg")


def write_gallery(folder: Path, files: Mapping[str, Path] | None = None) -> list[Path]:
    """Write the page and its pictures into a folder, and return all files written.

    The page links to scenarios in a sibling folder `scenarios`. files: by name; None for all that are shipped.
    """
    scenarios = shipped("scenarios") if files is None else files
    pictures = folder / PICTURES
    written = []
    for name, file in scenarios.items():
        picture = pictures / f"{name}.svg"
        picture.parent.mkdir(parents=True, exist_ok=True)
        picture.write_text(network_svg(file), encoding="utf-8")
        written.append(picture)
    page = folder / "gallery.md"
    headers = {name: header(file.read_text(), name) for name, file in scenarios.items()}
    page.write_text(_page(headers), encoding="utf-8")
    return [page, *written]


def _page(headers: Mapping[str, Header]) -> str:
    """The gallery's text: question and commands come from each scenario's own comment."""
    lines = [
        "# Gallery",
        "",
        f"All {len(headers)} scenarios that come with the testbed: the question, the command that answers it, and the "
        "network of each. Every command takes them by name; `testbed init FOLDER --scenario NAME` copies one to edit.",
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
        f"[The file](../scenarios/{name}.yaml)",
        "",
    ]


if __name__ == "__main__":
    main(Path(sys.argv[1]))

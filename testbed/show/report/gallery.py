"""All scenarios that come with the testbed, as a page: each with its question, its command and its network drawn.

Question and commands are those of the scenario's own comment: `testbed.spec.examples.header`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from testbed.show.report.topology_graph import draw_topology
from testbed.spec.catalogue import shipped
from testbed.spec.examples import Header, header
from testbed.spec.scenario import load_scenario

PAGE = "gallery.md"
PICTURES = "gallery"
GROUPS = {
    "": "Steps over several buildings",
    "controller": "Policies, queues and windows",
    "explore": "Searches for the quickest configuration",
    "faults": "What breaks, and who did it",
    "inference": "Requests served",
    "transports": "Transports side by side",
}
"""Headings, by the folder of a scenario."""


def network_svg(file: Path) -> str:
    """The network of a scenario's file, as `testbed graph` draws it. ConfigError."""
    return draw_topology(load_scenario(file).topology.resolve(), "svg")


def write_gallery(folder: Path, files: Mapping[str, Path] | None = None) -> list[Path]:
    """Writes the page and its pictures into `folder`, and says what was written.

    The page's links to scenarios lead to a folder `scenarios` beside it. files: by name; None: all that are shipped.
    """
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
        f"[The file](../scenarios/{name}.yaml)",
        "",
    ]

"""The gallery page of all scenarios shipped with the testbed: question, command and network drawing of each.

Question and commands come from the scenario's own comment: `testbed.spec.examples.header`.
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
    page = folder / PAGE
    headers = {name: header(file.read_text(), name) for name, file in scenarios.items()}
    page.write_text(_page(headers), encoding="utf-8")
    return [page, *written]


def _page(headers: Mapping[str, Header]) -> str:
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

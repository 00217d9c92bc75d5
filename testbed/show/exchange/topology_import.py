"""Import of a topology from GraphML, GML or containerlab."""

from __future__ import annotations

from pathlib import Path

import yaml

from testbed.errors import BadInput
from testbed.show.exchange.containerlab_labs import read_lab
from testbed.show.exchange.graph_attributes import count_text
from testbed.show.exchange.graph_import import read_graph
from testbed.show.exchange.imported_graph import ImportDefaults, parse_hosts
from testbed.spec.topology import load_topology

__all__ = ["ImportDefaults", "import_topology", "parse_hosts"]
GRAPHS, LABS = (".graphml", ".xml", ".gml"), (".yml", ".yaml")


def import_topology(
    path: Path, given: ImportDefaults, netem: Path | None = None, strict: bool = False
) -> tuple[str, list[str]]:
    """Return the text of a topology file, and descriptions of what was left out or assumed.

    Args:
        path: A network; the suffix determines the format.
        given: Defaults for values that the file does not state.
        netem: The script with containerlab's link settings; by default netem.sh next to the file.
        strict: Whether anything left out or assumed is an error.

    Raises:
        BadInput: If the file does not have its format or, if strict, not all of it is in the topology.
        ConfigError: If the topology cannot be built.
    """
    if path.suffix in (*GRAPHS, *LABS) and not path.is_file():
        raise BadInput(where=str(path), got="no such file", expected="a network")
    if path.suffix in GRAPHS:
        found = read_graph(path, given)
    elif path.suffix in LABS and given.units:
        units = ", ".join(f"{name}={unit}" for name, unit in given.units.items())
        raise BadInput(where=f"--unit {units}", got="it with a lab", expected="it with GraphML or GML")
    elif path.suffix in LABS:
        found = read_lab(path, netem)
    else:
        raise BadInput(where=str(path), got=path.suffix or "no ending", expected=", ".join((*GRAPHS, *LABS)))
    data = found.topology(given)
    load_topology(data)
    notes = [f"left out: {what}" for what in found.left_out] + [f"assumed: {what}" for what in found.assumed]
    if strict and notes:
        raise BadInput(
            where=f"{path}: --strict",
            got=f"{count_text(len(notes), 'thing')} left out or assumed",
            expected="none",
            hint="\n".join(notes),
        )
    head = f"# From {path.name}; `testbed check` shows every default.\n"
    text = yaml.safe_dump(data, sort_keys=False, allow_unicode=True)
    for name, label in found.labels.items():
        if label:  # a comment with a building's label in the imported file
            text = text.replace(f"\n  {name}:\n", f"\n  {name}:  # {label}\n")
    return head + text, notes

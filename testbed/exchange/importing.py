"""A topology file from somebody else's: GraphML or GML, or containerlab's."""

from __future__ import annotations

from pathlib import Path

import yaml

from testbed.config import load_topology
from testbed.errors import BadInput
from testbed.exchange.containerlab import read_containerlab
from testbed.exchange.found import Given
from testbed.exchange.graphml import read_graphml

__all__ = ["Given", "import_topology"]
GRAPHS, LABS = (".graphml", ".xml", ".gml"), (".yml", ".yaml")


def import_topology(path: Path, given: Given, netem: Path | None = None) -> tuple[str, list[str]]:
    """The text of a topology file, and what was left out, in words. By the file's ending.

    netem: containerlab's settings of links. BadInput, and ConfigError where the topology is none that can be built.
    """
    if path.suffix in (*GRAPHS, *LABS) and not path.is_file():
        raise BadInput(where=str(path), got="no such file", expected="a network")
    if path.suffix in GRAPHS:
        found = read_graphml(path)
    elif path.suffix in LABS:
        found = read_containerlab(path, netem)
    else:
        raise BadInput(where=str(path), got=path.suffix or "no ending", expected=", ".join((*GRAPHS, *LABS)))
    data = found.topology(given)
    load_topology(data)
    head = f"# From {path.name}; `testbed check` shows every default.\n"
    return head + yaml.safe_dump(data, sort_keys=False, allow_unicode=True), found.notes

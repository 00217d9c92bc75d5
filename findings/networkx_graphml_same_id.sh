#!/usr/bin/env bash
# networkx 3.6.1 reads a GraphML file in which two nodes have one id as one node with the last one's attributes, and makes a
# node for an edge whose end is declared nowhere; neither is an error or a warning. (GraphML asks for ids that are
# unique, and for ends that exist.) Two sites of a network become one, and a misspelt end becomes a site.
# Expected: an error, as networkx raises for a GML file with the same two nodes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check networkx==3.6.1
cd "$folder"
venv/bin/python - <<'PYTHON'
import io
import warnings

import networkx

warnings.simplefilter("error")
FILE = """<?xml version="1.0"?>
<graphml xmlns="http://graphml.graphdrawing.org/xmlns">
<key id="site" for="node" attr.name="site" attr.type="string"/>
<graph edgedefault="undirected">
<node id="1"><data key="site">Paris</data></node>
<node id="1"><data key="site">Rome</data></node>
<node id="2"><data key="site">Vienna</data></node>
<edge source="1" target="2"/>
<edge source="2" target="21"/>
</graph>
</graphml>
"""
graph = networkx.read_graphml(io.BytesIO(FILE.encode()))
print("nodes:", dict(graph.nodes(data=True)), "edges:", list(graph.edges))
assert dict(graph.nodes(data=True)) == {"1": {"site": "Rome"}, "2": {"site": "Vienna"}, "21": {}}
assert list(graph.edges) == [("1", "2"), ("2", "21")]
try:
    networkx.parse_gml('graph [ node [ id 1 label "Paris" ] node [ id 1 label "Rome" ] ]', label="id")
except networkx.NetworkXError as error:
    print("the same in GML:", error)
else:
    raise AssertionError("GML with one id twice is read")
PYTHON
echo "networkx 3.6.1: as described"

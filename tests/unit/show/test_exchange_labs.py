"""Labs of containerlab as people and tools write them: every link, key and line is in the topology or in the notes.

The samples are written anew after containerlab 0.79 (`docs/manual/topo-def-file.md`, `links/`, `types/topology.go`,
`cmd/tools_netem.go`): brief links of strings, extended links of mappings with `type:`, links with one end; and after
generators that write `endpoints` of strings for kinds with aliases (nrx and netlab).
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from testbed.cli.main import app
from testbed.errors import BadInput
from testbed.show.exchange import ImportDefaults, import_topology
from testbed.show.exchange.containerlab_netem import linux_name
from testbed.spec.errors import ConfigError
from testbed.spec.topology import TopologySpec, load_topology

GIVEN = ImportDefaults(rate_bps=1e9, delay_s=1e-3, nic_bps=10e9)


def imported(folder: Path, lab: str, script: str = "") -> tuple[TopologySpec, list[str]]:
    """Return the topology and the notes of a lab, with a netem.sh beside it if there is a script."""
    (folder / "lab.clab.yml").write_text(lab)
    (folder / "netem.sh").unlink(missing_ok=True)
    if script:
        (folder / "netem.sh").write_text(script)
    text, notes = import_topology(folder / "lab.clab.yml", GIVEN)
    return load_topology(yaml.safe_load(text)), notes


def delays(spec: TopologySpec) -> dict[tuple[str, str], float]:
    """Return the delay of each direction of each link."""
    return {(here, there): way.delay_s for link in spec.resolve().wan for here, there, way in link.directions}


PAIR = """name: lab
topology:
  nodes:
    a: {kind: nokia_srlinux}
    b: {kind: nokia_srlinux}
  links:
    - endpoints: ["a:e1-1", "b:ethernet-1/2"]
"""


# --- links


@pytest.mark.parametrize(
    ("link", "note"),
    [
        (
            "{type: vxlan, endpoint: {node: a, interface: e1-9}, remote: 192.0.2.7, vni: 1}",
            "a vxlan link of a:e1-9",
        ),
        ("{type: vxlan-stitch, endpoint: {node: a, interface: e1-9}}", "a vxlan-stitch link of a:e1-9"),
        ("{type: host, endpoint: {node: a, interface: e1-9}, host-interface: x}", "a host link of a:e1-9"),
        ("{type: mgmt-net, endpoint: {node: a, interface: ethernet-1/9}}", "a mgmt-net link of a:e1-9"),
        ("{type: macvlan, endpoint: {node: a, interface: e1-9}}", "a macvlan link of a:e1-9"),
        ("{type: dummy, endpoint: {node: a, interface: e1-9}}", "a dummy link of a:e1-9"),
        ('{endpoints: ["a:e1-9", "host:x"]}', "a host link of a:e1-9"),
        ('{endpoints: ["mgmt-net:x", "a:e1-9"]}', "a mgmt-net link of a:e1-9"),
        ('{endpoints: ["a:e1-9", "macvlan:x"]}', "a macvlan link of a:e1-9"),
    ],
)
def test_a_link_that_leaves_the_lab_is_left_out_by_name(link: str, note: str, tmp_path: Path) -> None:
    spec, notes = imported(tmp_path, f"{PAIR}    - {link}\n")
    assert [(one.a, one.b) for one in spec.wan] == [("a", "b")]
    assert notes == [f"left out: {note}"]


def test_extended_links_are_links(tmp_path: Path) -> None:
    lab = PAIR.replace(
        '- endpoints: ["a:e1-1", "b:ethernet-1/2"]',
        "- {type: veth, mtu: 1500, endpoints: [{node: a, interface: e1-1, mac: '02:00:00:00:00:01'}, "
        "{node: b, interface: e1-2}]}",
    )
    spec, notes = imported(tmp_path, lab)
    assert [(one.a, one.b) for one in spec.wan] == [("a", "b")]
    assert notes == ["left out: mtu of 1 link (1500)", "left out: a's mac of 1 link (02:00:00:00:00:01)"]


@pytest.mark.parametrize(
    ("link", "message"),
    [
        (
            '{endpoints: ["a:e1-3"]}',
            r"lab.clab.yml:8: topology.links\[1\].endpoints: got \['a:e1-3'\], expected two",
        ),
        (
            '{endpoints: ["a:e1-3", "c:e1-1"]}',
            r":8: topology.links\[1\].endpoints: got no node c, expected one of a, b",
        ),
        (
            '{endpoints: ["a:e1-3", "b"]}',
            r":8: topology.links\[1\].endpoints: got b, expected a node and its interface",
        ),
        (
            '{endpoints: ["a:ethernet-1/1", "b:e1-3"]}',
            r":8: topology.links\[1\].endpoints: got a:e1-1, expected an interface of its own: \S+:7 has it",
        ),
    ],
)
def test_a_link_that_cannot_be_is_refused_by_line(link: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=message):
        imported(tmp_path, f"{PAIR}    - {link}\n")


def test_two_nodes_with_one_name_are_an_error_that_names_both(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r":6: topology.nodes.a: got this key again, expected it once; it is on line 4"
    ):
        imported(tmp_path, PAIR.replace("  links:", "    a: {kind: linux}\n  links:"))


def test_the_command_says_what_is_left_out_and_strict_fails_by_it(tmp_path: Path) -> None:
    (tmp_path / "lab.clab.yml").write_text(f'{PAIR}    - {{endpoints: ["a:e1-9", "host:x"]}}\n')
    words = ["import", str(tmp_path / "lab.clab.yml"), "--rate", "1 Gbit/s", "-o", str(tmp_path / "net.yaml")]
    runner = CliRunner()
    done = runner.invoke(app, [*words, "--delay", "1 ms"])
    assert (done.exit_code, "left out: a host link of a:e1-9" in done.stderr) == (0, True)
    (tmp_path / "net.yaml").unlink()
    failed = runner.invoke(app, [*words, "--delay", "1 ms", "--strict"])
    assert isinstance(failed.exception, BadInput)
    assert (failed.exception.status, (tmp_path / "net.yaml").exists()) == (2, False)
    assert "--strict: got 1 thing left out or assumed, expected none" in str(failed.exception)
    for unit, message in (
        ("latency=ms", "got it with a lab"),
        ("latency", "--unit NAME=UNIT, such as latency=ms"),
    ):
        refused = runner.invoke(app, [*words, "--unit", unit])
        assert message in str(refused.exception)


# --- kinds


@pytest.mark.parametrize(
    "kinds",
    [
        "nodes: {sw: {kind: srl}, pc1: {kind: linux}, pc2: {kind: linux}}",
        "groups: {pcs: {kind: linux}}\n  nodes: {sw: {kind: srl}, pc1: {group: pcs}, pc2: {group: pcs}}",
        "groups: {pcs: {kind: linux}}\n  defaults: {group: pcs, kind: srl}\n  nodes: {sw: {kind: srl}, pc1: , pc2: {}}",
        "defaults: {kind: linux}\n  nodes: {sw: {kind: srl}, pc1: {}, pc2: {}}",
    ],
)
def test_kinds_come_from_groups_and_defaults(kinds: str, tmp_path: Path) -> None:
    lab = f'name: lab\ntopology:\n  {kinds}\n  links: [{{endpoints: ["sw:e1-1", "pc1:eth1"]}}, '
    spec, notes = imported(tmp_path, lab + '{endpoints: ["sw:e1-2", "pc2:eth1"]}]\n')
    assert {name: building.hosts for name, building in spec.buildings.items()} == {"sw": 2}
    assert notes == []


def test_a_node_may_shape_its_interfaces_by_itself(tmp_path: Path) -> None:
    command = "tc qdisc add dev ethernet-1/1 root handle 1: netem delay 5ms 1ms loss 0.5% rate 100mbit"
    lab = PAIR.replace(
        "a: {kind: nokia_srlinux}", f"a: {{kind: nokia_srlinux, exec: [ip link, '{command}']}}"
    )
    spec, notes = imported(tmp_path, lab)
    (link,) = spec.resolve().wan
    there = link.a_to_b
    assert (there.delay_s, there.jitter_s, there.loss, there.rate_bps) == (5e-3, 1e-3, 0.005, 100e6)
    assert delays(spec)["b", "a"] == 1e-3
    assert notes == ["left out: exec of 1 node (['ip link'])"]
    spec, _ = imported(tmp_path, lab, "clab tools netem set -n clab-lab-a -i e1-1 --delay 7ms")
    assert delays(spec)["a", "b"] == 7e-3  # which is called when the lab is up


@pytest.mark.parametrize("more", ["distribution normal", "limit 100", "delay 7", "rate 1mbps"])
def test_a_node_that_shapes_its_interfaces_in_ways_that_are_not_read_is_named(
    more: str, tmp_path: Path
) -> None:
    command = f"tc qdisc add dev e1-1 root netem delay 5ms {more}"
    lab = PAIR.replace("a: {kind: nokia_srlinux}", f"a: {{kind: nokia_srlinux, exec: [ip link, {command}]}}")
    spec, notes = imported(tmp_path, lab)
    assert delays(spec)["a", "b"] == 1e-3
    assert notes[0] == f"left out: {tmp_path / 'lab.clab.yml'}:4: exec of a: {command}"


def test_nodes_may_be_called_by_numbers(tmp_path: Path) -> None:
    """As generators call them after a graph's nodes; Go reads such keys as text."""
    lab = PAIR.replace(" a:", " 1:").replace(" b:", " 2:").replace('"a:', '"1:').replace('"b:', '"2:')
    spec, notes = imported(tmp_path, lab, "clab tools netem set -n clab-lab-1 -i e1-1 --delay 5ms")
    assert (delays(spec), notes) == ({("n1", "n2"): 5e-3, ("n2", "n1"): 1e-3}, [])


# --- netem


@pytest.mark.parametrize(
    ("kind", "alias", "name"),
    [
        ("nokia_srlinux", "ethernet-1/2", "e1-2"),
        ("srl", "ethernet-1/2/3", "e1-2-3"),
        ("nokia_srsim", "1/1/c1/1", "e1-1-c1-1"),
        ("nokia_sros", "1/1/3", "eth3"),
        ("vr-sros", "1/1/3", "eth3"),
        ("juniper_vsrx", "ge-0/0/2", "eth3"),
        ("juniper_cjunosevolved", "et-0/0/0", "eth4"),
        ("cisco_csr1000v", "Gi5", "eth4"),
        ("cisco_xrv9k", "GigabitEthernet0/0/0/0", "eth1"),
        ("cisco_iol", "Ethernet0/1", "eth1"),
        ("cisco_iol", "e1/2", "eth6"),
        ("arista_veos", "Ethernet1/2", "eth2"),
        ("vr-n9kv", "Ethernet1/1", "eth1"),
        ("fortinet_fortigate", "port2", "eth1"),
        ("linux", "ethernet-1/2", "ethernet-1/2"),
        ("arista_ceos", "eth1_1", "eth1_1"),
        ("juniper_vsrx", "eth3", "eth3"),
    ],
)
def test_an_alias_is_the_interface_that_containerlab_makes_of_it(kind: str, alias: str, name: str) -> None:
    assert linux_name(kind, alias) == name


def test_a_line_may_name_an_interface_by_its_alias_or_not(tmp_path: Path) -> None:
    script = "clab tools netem set -n clab-lab-a -i ethernet-1/1 --delay 5ms --rate 2000000 --corruption 1\n"
    script += "clab tools netem set -nclab-lab-b -i=e1-2 --delay 1m1.5s\n"
    spec, notes = imported(tmp_path, PAIR, script)
    assert delays(spec) == {("a", "b"): 5e-3, ("b", "a"): 61.5}
    assert (spec.wan[0].a_to_b.rate_bps, spec.wan[0].a_to_b.corrupt) == (2e9, 0.01)
    assert notes == []


@pytest.mark.parametrize(
    ("prefix", "container"),
    [("prefix: my\n", "my-lab-a"), ("prefix: __lab-name\n", "lab-a"), ('prefix: ""\n', "a")],
)
def test_containers_are_called_as_the_prefix_says(prefix: str, container: str, tmp_path: Path) -> None:
    spec, notes = imported(
        tmp_path, prefix + PAIR, f"clab tools netem set -n {container} -i e1-1 --delay 5ms"
    )
    assert (delays(spec)["a", "b"], notes) == (5e-3, [])


NETEM = "clab tools netem set -n clab-lab-a -i e1-1"


@pytest.mark.parametrize(
    ("script", "delay_ms", "notes"),
    [
        (f"D=5ms\n{NETEM} --delay $D", 5, []),
        (f"LAB=lab; NODE=clab-${{LAB}}-a\nsudo {NETEM.replace('clab-lab-a', '$NODE')} --delay 5ms", 5, []),
        (f"set -e; {NETEM} \\\n  --delay 5ms  # slow\n", 5, []),
        (
            f"{NETEM} --delay $1",
            1,
            [f"left out: netem.sh:1: {NETEM} --delay $1: its variables are unknown"],
        ),
        (
            f"L=clab-lab\nD=1ms\ncase $1 in\nslow)\n  D=2ms; {NETEM.replace('clab-lab', '$L')} --delay 5ms ;;\nesac",
            5,
            [
                "left out: 1 command of netem.sh that set no link (line 4: slow))",
                "assumed: each line of netem.sh is read once, though it has case",
            ],
        ),
        (
            f"D=1ms\nif true; then D=2ms; fi\n{NETEM} --delay $D",
            1,
            [
                f"left out: netem.sh:3: {NETEM} --delay $D: its variables are unknown",
                "assumed: each line of netem.sh is read once, though it has if",
            ],
        ),
        (
            f"for d in 5ms; do {NETEM} --delay $d; done",
            1,
            [
                f"left out: netem.sh:1: do {NETEM} --delay $d: its variables are unknown",
                "assumed: each line of netem.sh is read once, though it has for",
            ],
        ),
        (
            f"{NETEM} --delay 5ms\n{NETEM} --loss 1",
            1,
            [f"left out: netem.sh:1: {NETEM} --delay 5ms: line 2 sets the same interface"],
        ),
        (
            f"{NETEM} --delay 5ms && {NETEM.replace(' set ', ' reset ')}",
            1,
            [f"left out: netem.sh:1: {NETEM} --delay 5ms: line 1 sets the same interface"],
        ),
        (
            f"{NETEM} --delay 5ms\n{NETEM.replace('e1-1', 'ethernet-1/1')} --delay 6ms",
            6,
            [f"left out: netem.sh:1: {NETEM} --delay 5ms: a later line sets the same interface"],
        ),
        (
            f"{NETEM.replace('e1-1', 'e1-7')} --delay 5ms",
            1,
            [
                f"left out: netem.sh:1: {NETEM.replace('e1-1', 'e1-7')} --delay 5ms: "
                "no link at this interface (e1-1 of a)"
            ],
        ),
        (
            f"{NETEM.replace('-a', '-c')} --delay 5ms",
            1,
            [f"left out: netem.sh:1: {NETEM.replace('-a', '-c')} --delay 5ms: no node of this lab"],
        ),
        (
            f"{NETEM} --delay 5ms --speed 3",
            5,
            [f"left out: netem.sh:1: {NETEM} --delay 5ms --speed 3: speed"],
        ),
        (
            "echo ready\ndocker exec clab-lab-a tc qdisc add dev e1-1 root netem delay 5ms",
            1,
            [
                "left out: 2 commands of netem.sh that set no link (line 1: echo ready; "
                "2: docker exec clab-lab-a tc qdisc add dev e1-1 root netem d...)"
            ],
        ),
    ],
)
def test_each_line_of_a_script_is_used_or_named(
    script: str, delay_ms: float, notes: list[str], tmp_path: Path
) -> None:
    spec, got = imported(tmp_path, PAIR, script)
    assert delays(spec)["a", "b"] == pytest.approx(delay_ms * 1e-3)
    assert got == notes


@pytest.mark.parametrize("option", ["--delay 5", "--delay 5msx", "--rate 1Gbit", "--loss 101", "--loss x"])
def test_what_containerlab_refuses_is_refused_by_line(option: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"netem\.sh:2: got set .*, expected "):
        imported(tmp_path, PAIR, f"#!/bin/sh\n{NETEM} {option}\n")


def test_cards_of_a_building_are_alike_or_said_to_differ(tmp_path: Path) -> None:
    lab = """name: lab
topology:
  nodes: {sw: {kind: srl}, pc1: {kind: linux}, pc2: {kind: linux}}
  links: [{endpoints: ["sw:e1-1", "pc1:eth1"]}, {endpoints: ["sw:e1-2", "pc2:eth1"]}]
"""
    line = "clab tools netem set -n clab-lab-{} -i {} --rate {} --loss {}"
    script = [
        line.format("pc1", "eth1", 1000, 0),
        line.format("sw", "e1-1", 1000, 0),
        line.format("pc2", "eth1", 50, 1),
    ]
    spec, notes = imported(tmp_path, lab, "\n".join(script))
    assert [one.nic and one.nic.rate_bps for one in spec.buildings.values()] == [1e6]
    assert notes == [
        f"left out: netem.sh:3: {script[2]}: all NICs of a building are the same, in both directions"
    ]
    spec, notes = imported(tmp_path, lab, script[2])
    assert [one.nic and one.nic.rate_bps for one in spec.buildings.values()] == [50e3]
    assert notes == [f"left out: netem.sh:1: {script[2]}: jitter, loss and corruption: a NIC has none"]


# --- every key


LAB: dict[str, Any] = {
    "name": "lab",
    "prefix": "clab",
    "mgmt": {"network": "custom"},
    "topology": {
        "defaults": {"kind": "arista_ceos", "image": "alpine", "env": {"A": "1"}},
        "kinds": {"nokia_srlinux": {"image": "srl"}},
        "groups": {"pcs": {"kind": "linux", "image": "busybox"}},
        "nodes": {
            "spine": {"kind": "nokia_srlinux", "type": "ixr-d3l"},
            "leaf": {"kind": "nokia_srlinux", "startup-config": "leaf.cfg"},
            "pc1": {"group": "pcs", "exec": ["ip addr add 192.0.2.1/24 dev eth1"]},
            "pc2": {"kind": "linux", "labels": {"role": "client"}},
            "br1": {"kind": "bridge"},
        },
        "links": [
            {"endpoints": ["spine:e1-1", "leaf:e1-1"], "mtu": 9000},
            {"endpoints": ["leaf:e1-2", "pc1:eth1"]},
            {
                "type": "veth",
                "endpoints": [{"node": "leaf", "interface": "e1-3"}, {"node": "pc2", "interface": "eth1"}],
            },
            {"type": "host", "endpoint": {"node": "leaf", "interface": "e1-4"}, "host-interface": "x"},
            {"endpoints": ["spine:e1-2", "br1:eth1"], "vars": {"cost": 3}},
        ],
    },
}


def leaves(value: Any, location: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the location of every key and item."""
    items = (
        value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    )
    for key, inner in items:
        yield (*location, key)
        yield from leaves(inner, (*location, key))


def outcome(folder: Path, lab: Any, script: str) -> tuple[str, list[str]]:
    """Return what an import says, be it an error."""
    (folder / "net.clab.yml").write_text(yaml.safe_dump(lab, sort_keys=False))
    (folder / "netem.sh").write_text(script)
    try:
        return import_topology(folder / "net.clab.yml", GIVEN)
    except (BadInput, ConfigError) as error:
        return str(error), []


SCRIPT = """echo start
clab tools netem set -n clab-lab-spine -i e1-1 --delay 5ms --jitter 1ms --loss 2 --rate 1000 --corruption 1
clab tools netem set -n clab-lab-pc1 -i eth1 --rate 500
"""


def test_no_key_changes_without_a_change_of_the_topology_or_the_notes(tmp_path: Path) -> None:
    """Take away any one key; or change any one value, unless the notes leave it out by name."""
    before = outcome(tmp_path, LAB, SCRIPT)
    assert before[0].startswith("# From net.clab.yml")
    unnoticed = []
    for location in leaves(LAB):
        for change in ("taken away", "changed"):
            lab = copy.deepcopy(LAB)
            around = lab
            for key in location[:-1]:
                around = around[key]
            if change == "taken away":
                del around[location[-1]]
            elif isinstance(value := around[location[-1]], (Mapping, list)):
                continue
            else:
                around[location[-1]] = f"{value}x" if isinstance(value, str) else 2 * value
            after = outcome(tmp_path, lab, SCRIPT)
            keys = [str(key) for key in location if key not in ("topology", "nodes", "links")]
            named = any(re.search(rf"[ .]{re.escape(key)}\b", note) for note in before[1] for key in keys)
            if after == before and not named:
                unnoticed.append((*location, change))
    assert unnoticed == [("prefix", "taken away")]  # it is the default


def test_no_line_of_the_script_changes_without_a_change_of_the_topology_or_the_notes(tmp_path: Path) -> None:
    before = outcome(tmp_path, LAB, SCRIPT)
    lines = SCRIPT.splitlines()
    for number, line in enumerate(lines):
        words = line.split()
        for position in range(len(words)):
            changed = " ".join((*words[:position], words[position] + "1", *words[position + 1 :]))
            script = "\n".join((*lines[:number], changed, *lines[number + 1 :]))
            program = number > 0 and position < 2  # whatever runs `tools netem set`
            assert program or outcome(tmp_path, LAB, script) != before, changed
        assert outcome(tmp_path, LAB, "\n".join((*lines[:number], *lines[number + 1 :]))) != before

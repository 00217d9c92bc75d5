"""Files that are sound: what they resolve to, overrides, the expanded form, schemas, the small command."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from testbed.spec.__main__ import main
from testbed.spec.buildings import Host
from testbed.spec.control_delays import INSTANT, Control
from testbed.spec.file_formats import json_schema, load
from testbed.spec.link_direction import Direction
from testbed.spec.scale import Scale
from testbed.spec.scenario import Scenario, load_scenario
from testbed.spec.topology import TopologySpec, load_topology, probe_address

REPOSITORY = Path(__file__).parents[3]
QUICKSTART = REPOSITORY / "scenarios" / "quickstart.yaml"
STRIPE = {"segment": "512 KiB", "outstanding": 128, "mode": "dqplb"}
TRANSPORT = {
    "kind": "tcp",
    "protocol": "eager",
    "staging": {"chunk": "256 KiB", "slots": 8, "announced": False},
    "bootstrap": "static",
    "stripes": {
        "same_rack": {"connections": 1, **STRIPE},
        "same_building": {"connections": 2, **STRIPE},
        "same_region": {"connections": 4, **STRIPE},
        "other_region": {"connections": 8, **STRIPE},
    },
    "rdma": {"ack_timeout": "67 ms", "window": 4194304},
    "subflows": 4,
    "datagram": {
        "recovery": "selective_repeat",
        "erasure": {"data": 32, "parity": 8},
        "control": "window",
        "window": "bdp",
        "spray": "none",
        "paths": 4,
    },
    "congestion_control": "cubic",
    "sockets": [],
    "timeout": "30 s",
    "software_cost": {
        "per_message": "4.8 us",
        "per_gigabyte": "2.2 ms",
        "copy_per_gigabyte": "0 ms",
        "handover": "0 ms",
        "launch": "0 ms",
        "completion": "0 ms",
        "synchronisation": "0 ms",
        "registration": {
            "mode": "pooled",
            "least": "100 us",
            "most": "1 ms",
            "rare": "100 ms",
            "rare_share": "0.1 %",
        },
        "sm_cost": "0 %",
    },
}
FILES = [QUICKSTART, *sorted((REPOSITORY / "topologies").glob("*.yaml"))]


def resolved(text: str, tmp_path: Path, size_scale: float = 1.0) -> Any:
    file = tmp_path / "topology.yaml"
    file.write_text(text)
    return load_topology(file).resolve(Scale(size_scale))


PAIR = """\
name: pair
mtu: 1500
buildings:
  east: {hosts: 202, nic: {rate: 10 Gbit/s, queue: 8 MB}}
  west: {hosts: 1, nic: {rate: 100 Gbit/s}}
wan:
  - {a: east, b: west, planes: 2, rate: 8 Gbit/s, delay: 5 ms}
  - a: west
    b: east
    rate: 1 Gbit/s
    delay: 1 ms
    loss: 1 %
    queue: 200 kB
    b_to_a: {rate: 500 Mbit/s, delay: 2 ms, jitter: 1 ms, loss: 0 %, queue: 600 kB}
"""


def card(rate_bps: float, queue_bytes: int) -> Direction:
    return Direction(rate_bps, 0.0, 0.0, 0.0, queue_bytes)


def test_hosts_have_names_addresses_and_cards(tmp_path: Path) -> None:
    topology = resolved(PAIR, tmp_path)
    assert topology.hosts[0] == Host(
        "east1", "east", 0, "10.0.0.1", "02:00:0a:00:00:01", card(10e9, 8_000_000)
    )
    assert topology.hosts[199].ip == "10.0.0.200"
    assert topology.hosts[201] == Host(
        "east202", "east", 201, "10.0.1.2", "02:00:0a:00:01:02", card(10e9, 8_000_000)
    )
    west1 = topology.host("west1")
    queue_bytes = 12_500_000  # 1 ms at 100 Gbit/s
    assert west1 == Host("west1", "west", 202, "10.1.0.1", "02:00:0a:01:00:01", card(100e9, queue_bytes))
    assert topology.building("west").hosts == (west1,)
    assert len({host.ip for host in topology.hosts}) == len({host.mac for host in topology.hosts}) == 203


def test_links_count_their_planes_and_take_settings_per_direction(tmp_path: Path) -> None:
    topology = resolved(PAIR, tmp_path)
    assert [link.name for link in topology.wan] == ["east-west-0", "east-west-1", "west-east-2"]
    # rate x 2 x delay: 8 Gbit/s x 10 ms
    assert topology.wan[0].a_to_b == topology.wan[1].b_to_a == Direction(8e9, 0.005, 0.0, 0.0, 10_000_000)
    assert topology.wan[2].a_to_b == Direction(1e9, 0.001, 0.0, 0.01, 200_000)
    assert topology.wan[2].b_to_a == Direction(500e6, 0.002, 0.001, 0.0, 600_000)


def test_the_size_scale_divides_rates_and_queues_and_leaves_times(tmp_path: Path) -> None:
    topology = resolved(PAIR, tmp_path, 10)
    assert topology.hosts[0].nic.rate_bps == 1e9
    assert topology.hosts[0].nic.queue_bytes == 800_000
    assert topology.wan[0].a_to_b == Direction(8e8, 0.005, 0.0, 0.0, 1_000_000)
    assert topology.wan[2].b_to_a == Direction(50e6, 0.002, 0.001, 0.0, 60_000)


def test_queues_always_hold_some_packets_because_those_are_not_scaled(tmp_path: Path) -> None:
    topology = resolved(PAIR, tmp_path, 1e6)
    assert topology.wan[0].a_to_b.queue_bytes == 64 * 1500
    assert topology.wan[2].a_to_b.queue_bytes == 4 * 1500


def test_links_between_tiers_hold_what_is_asked_for_or_a_millisecond(tmp_path: Path) -> None:
    clos = "{leaves: 2, spines: 2, leaf: {queue: 8 MB}, spine: {oversubscription: '1:2'}}"
    text = f"name: tiers\nbuildings:\n  east: {{hosts: 4, nic: {{rate: 10 Gbit/s}}, clos: {clos}}}\n"
    [east] = resolved(text, tmp_path).buildings
    assert east.clos.leaf_uplink.queue_bytes == 8_000_000
    assert east.clos.spine_uplink.queue_bytes == 10e9 * 0.001 / 8  # of two leaves' 10 Gbit/s each, halved
    [smaller] = resolved(text, tmp_path, 10).buildings
    assert smaller.clos.leaf_uplink.queue_bytes == 800_000


def test_probes_have_addresses_apart_from_hosts() -> None:
    assert probe_address(0, "a") == "10.254.0.1"
    assert probe_address(255, "b") == "10.254.255.2"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_the_expanded_form_loads_to_the_same(file: Path, tmp_path: Path) -> None:
    copy = tmp_path / "expanded.yaml"
    copy.write_text(load(file).to_yaml())
    assert load(copy) == load(file)
    assert load(copy).to_yaml() == load(file).to_yaml()
    assert yaml.safe_load(load(file).to_yaml()) == load(file).to_data()


def test_the_expanded_form_shows_defaults_and_units(tmp_path: Path) -> None:
    file = tmp_path / "short.yaml"
    file.write_text(
        f"name: short\ntopology: {REPOSITORY}/topologies/three-buildings.yaml\n"
        "workload:\n  model: {dim: 8, n_layers: 1, n_heads: 2, n_kv_heads: 1, ffn_dim: 16, vocab_size: 32}\n"
        "  peak_flops: 1e3 Gflops\n"
    )
    shown = load(file).to_data()
    assert shown["ranks"] == 6
    assert shown["topology"]["wan"][2]["a_to_b"] == {"rate": "40 Mbit/s", "delay": "6 ms"}
    assert shown["topology"]["wan"][0]["jitter"] == "0 ms"
    assert shown["workload"] == {
        "model": {
            **{"dim": 8, "n_layers": 1, "n_heads": 2, "n_kv_heads": 1, "ffn_dim": 16, "vocab_size": 32},
            **{"experts": 0, "experts_per_token": 0},
        },
        "gradient_dtype": "float32",
        "bucket_cap": "25 MiB",
        "first_bucket_cap": "1 MiB",
        "sequence_length": 8192,
        "attention_scores": "left_out",
        "local_batch_size": 1,
        "compute_dtype": "bf16",
        "peak_flops": "1 Tflop/s",
        "flops_utilisation": "40 %",
    }
    assert shown["algorithms"] == ["ring"]
    assert shown["transport"] == TRANSPORT
    assert shown["scale"] == {"size_scale": "auto", "time_dilation": 1}


def test_overrides_change_a_scenario_and_the_topology_it_names() -> None:
    scenario = load_scenario(
        QUICKSTART,
        [
            "trials=3",
            "topology.wan.0.delay=5 ms",
            "topology.wan.0.b_to_a.loss=0.1 %",
            "topology.buildings.east.hosts=6",
            "ranks=10",
            "workload.bucket_cap=100 MiB",
            "algorithms=[ring]",
            "scale={size_scale: auto}",
        ],
    )
    assert (scenario.trials, scenario.ranks, scenario.algorithms) == (3, 10, ("ring",))
    assert scenario.scale.size_scale == "auto"
    assert scenario.workload.bucket_cap_bytes == 100 * 2**20
    link = scenario.topology.resolve().wan[0]
    assert (link.a_to_b.delay_s, link.a_to_b.loss, link.b_to_a.loss) == (0.005, 0.0, 0.001)


def test_how_long_control_takes_may_be_nothing_and_is_stretched() -> None:
    usual = load_scenario(QUICKSTART).control
    assert usual.resolve(Scale(4000, 2)) == Control(0.02, 0.02, 0.1, 0.002)
    parts = ("carrier_down", "carrier_up", "reaction_time", "rule_time")
    free = load_scenario(QUICKSTART, [f"control.{part}=0 s" for part in parts]).control
    assert free.resolve() == INSTANT


def test_overrides_change_one_item_of_a_list_and_later_ones_win() -> None:
    scenario = load_scenario(
        QUICKSTART, ["algorithms=[ring, ring]", "algorithms.1=hierarchical", "seed=7", "seed=8"]
    )
    assert scenario.algorithms == ("ring", "hierarchical")
    assert scenario.seed == 8


def test_an_override_names_another_topology_from_the_current_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPOSITORY / "topologies")
    scenario = load_scenario(QUICKSTART, ["topology.mtu=1500", "topology=three-buildings.yaml", "ranks=6"])
    assert scenario.topology.name == "three-buildings"
    assert scenario.topology.mtu == 1500


def test_overrides_of_topology_files() -> None:
    assert load(REPOSITORY / "topologies" / "two-buildings.yaml", ["mtu=1500"]).to_data()["mtu"] == 1500


def test_models_are_frozen_and_can_be_made_in_python() -> None:
    nic = {"rate": "1 Gbit/s"}
    wan = [{"a": "a", "b": "b", "rate": "1 Gbit/s", "delay": "1 ms"}]
    topology = TopologySpec.model_validate(
        {"name": "t", "buildings": {"a": {"hosts": 2, "nic": nic}, "b": {"hosts": 1, "nic": nic}}, "wan": wan}
    )
    scenario = Scenario.model_validate(
        {"name": "s", "topology": topology, "workload": {"model": "llama3-8b", "peak_flops": "1 Tflop/s"}}
    )
    assert scenario.topology is topology
    assert scenario.ranks == 3
    with pytest.raises(ValidationError, match="frozen"):
        scenario.ranks = 2
    with pytest.raises(ValidationError, match="got 4, expected at most 3, one on each host of the topology"):
        Scenario.model_validate({**scenario.to_data(), "ranks": 4})


def test_schemas_describe_files_as_people_write_them() -> None:
    schema = json_schema("scenario")
    assert schema["required"] == ["name", "topology", "workload"]
    assert schema["properties"]["topology"]["anyOf"][0]["type"] == "string"
    assert schema["properties"]["transport"]["default"] == TRANSPORT
    assert "default" not in schema["properties"]["ranks"]
    wan = json_schema("topology")["$defs"]["WanSpec"]
    assert wan["additionalProperties"] is False
    assert wan["properties"]["jitter"]["default"] == "0 ms"
    assert wan["properties"]["rate"]["type"] == "string"
    json.dumps(schema)


def test_mappings_are_merged_as_yaml_has_it(tmp_path: Path) -> None:
    file = tmp_path / "merged.yaml"
    file.write_text(
        f"name: merged\ntopology: {REPOSITORY}/topologies/two-buildings.yaml\n"
        "workload: {model: gpt2-124m, accelerator: h100}\nvariants:\n"
        "  a: &a {topology.wan.0.delay: 1 ms, policy: te}\n"
        "  b: {<<: *a, policy: shortest}\n"
        "  c: {<<: [{policy: wcmp}, *a]}\n"
    )
    variants = load_scenario(file).variants
    assert variants is not None
    assert variants["b"] == {"topology.wan.0.delay": "1 ms", "policy": "shortest"}
    assert variants["c"] == {"topology.wan.0.delay": "1 ms", "policy": "wcmp"}


def test_the_reference_in_docs_is_current() -> None:
    # in a process of its own: names are in the order in which what has them was imported
    command = [sys.executable, "-m", "testbed.spec", "reference"]
    said = subprocess.run(command, check=True, capture_output=True, text=True, cwd=REPOSITORY).stdout
    assert (REPOSITORY / "docs/reference/configuration.md").read_text(encoding="utf-8") == said, (
        "run: python -m testbed.spec reference > docs/reference/configuration.md"
    )


def test_kinds_are_told_by_their_keys() -> None:
    kinds = {file.name: type(load(file)) for file in FILES}
    assert kinds["quickstart.yaml"] is Scenario
    assert kinds["two-buildings.yaml"] is kinds["three-buildings.yaml"] is TopologySpec
    assert set(kinds.values()) == {Scenario, TopologySpec}


def test_the_small_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = str(REPOSITORY / "topologies" / "two-buildings.yaml")
    assert main(["check", file]) == 0
    assert capsys.readouterr().out == load(file).to_yaml()
    assert main(["check", file, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == load(file).to_data()
    assert main(["resolve", file, "--size-scale", "400"]) == 0
    assert json.loads(capsys.readouterr().out)["buildings"][1]["hosts"][0]["nic"]["rate_bps"] == 1e9
    assert main(["check", str(tmp_path / "none.yaml")]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == f"{tmp_path}/none.yaml: got no such file, expected a YAML file\n"

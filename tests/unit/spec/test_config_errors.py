"""What people are told about mistakes in their files, word for word."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.spec.errors import ConfigError
from testbed.spec.file_formats import load
from testbed.spec.link_direction import LINK_PROPERTIES
from testbed.spec.scenario import load_scenario
from testbed.spec.topology import load_topology
from testbed.spec.value_types import algorithm_names

TOPOLOGY = """\
name: pair
buildings:
  east: {hosts: 2, nic: {rate: 1 Gbit/s}}
  west: {hosts: 2, nic: {rate: 1 Gbit/s}}
wan:
  - {a: east, b: west, rate: 1 Gbit/s, delay: 1 ms}
"""
SCENARIO = """\
name: short
topology: pair.yaml
ranks: 4
workload:
  model: llama3-8b
  peak_flops: 989 Tflop/s
algorithms: [ring]
"""
RATE = "a rate with its unit, such as 400 Gbit/s (bit/s, kbit/s, Mbit/s, Gbit/s, Tbit/s; or bps, kbps, ...)"
DURATION = "a duration with its unit, such as 2.5 ms (ns, us, ms, s, min, h)"
SIZE = "a size with its unit, such as 64 MiB (B, kB, MB, GB, TB, KiB, MiB, GiB, TiB)"
DELAY = "a duration, such as 2.5 ms (ns, us, ms, s), or a length of fibre, such as 500 km (m, km)"
PROPERTIES = ", ".join(each.key for each in LINK_PROPERTIES.values())
WAN_KEYS = f"a, b, planes, {PROPERTIES}, pause, a_to_b, b_to_a"


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("pair.yaml").write_text(TOPOLOGY)
    Path("short.yaml").write_text(SCENARIO)


def changed(text: str, old: str, new: str) -> str:
    assert old in text
    return text.replace(old, new, 1)


def topology_problems(old: str, new: str) -> list[str]:
    Path("pair.yaml").write_text(changed(TOPOLOGY, old, new))
    with pytest.raises(ConfigError) as caught:
        load_topology("pair.yaml")
    return str(caught.value).splitlines()


def scenario_problems(old: str, new: str) -> list[str]:
    Path("short.yaml").write_text(changed(SCENARIO, old, new))
    with pytest.raises(ConfigError) as caught:
        load_scenario("short.yaml")
    return str(caught.value).splitlines()


def override_problems(*overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_scenario("short.yaml", overrides)
    return str(caught.value).splitlines()


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        (
            "delay: 1 ms",
            "dealy: 1 ms, delay: 1 ms",
            f":6: wan.0.dealy: got an unknown key, expected one of: {WAN_KEYS}; did you mean delay?",
        ),
        ("rate: 1 Gbit/s", "rate: 400", f":3: buildings.east.nic.rate: got 400, expected {RATE}"),
        ("rate: 1 Gbit/s", "rate: 1 GB/s", f":3: buildings.east.nic.rate: got '1 GB/s', expected {RATE}"),
        ("rate: 1 Gbit/s, d", "rate: 0 bps, d", ":6: wan.0.rate: got '0 bps', expected a rate above 0"),
        ("rate: 1 Gbit/s, d", "rate: , d", f":6: wan.0.rate: got nothing, expected {RATE}"),
        (
            "rate: 1 Gbit/s, d",
            "d",
            ":6: wan.0.rate: got nothing, expected a rate, here or in both a_to_b and b_to_a",
        ),
        (
            "delay: 1 ms",
            "a_to_b: {delay: 1 ms}",
            ":6: wan.0.delay: got nothing, expected a delay, here or in both a_to_b and b_to_a",
        ),
        ("delay: 1 ms", "delay: -1 ms", ":6: wan.0.delay: got '-1 ms', expected a delay of 0 or more"),
        (
            "delay: 1 ms",
            "delay: 1 ms, loss: 1 %, b_to_a: {loss_bursts: {enter: 1 %, leave: 10 %}}",
            ":6: wan.0.loss: got 1 % with loss_bursts, expected only one of the two",
        ),
        (
            "delay: 1 ms",
            "delay: 1 ms, queue: 1 MB, queue_packets: 9",
            ":6: wan.0.queue: got 1 MB with queue_packets, expected only one of the two",
        ),
        (
            "delay: 1 ms",
            "delay: 1 ms, loss_bursts: {enter: 0 %, leave: 10 %}",
            ":6: wan.0.loss_bursts.enter: got '0 %', expected a share above 0, such as 40 % or 0.4",
        ),
        (
            "delay: 1 ms",
            "delay: 1 ms, jitter_distribution: gauss",
            ":6: wan.0.jitter_distribution: got 'gauss', expected a distribution: uniform, normal, pareto",
        ),
        ("delay: 1 ms", "delay: 1", f":6: wan.0.delay: got 1, expected {DELAY}"),
        (
            "delay: 1 ms",
            "delay: 1 ms, jitter: 2 ms",
            ":6: wan.0.jitter: got 2 ms with a delay of 1 ms, expected jitter of at most the delay",
        ),
        (
            "delay: 1 ms",
            "delay: 3 ms, jitter: 2 ms, b_to_a: {delay: 1 ms}",
            ":6: wan.0.jitter: got 2 ms with a delay of 1 ms, expected jitter of at most the delay",
        ),
        (
            "delay: 1 ms",
            "delay: 1 ms, b_to_a: {jitter: 2 ms}",
            ":6: wan.0.b_to_a.jitter: got 2 ms with a delay of 1 ms, expected jitter of at most the delay",
        ),
        (
            "delay: 1 ms",
            "delay: 1 ms, loss: 1.5",
            ":6: wan.0.loss: got 1.5, expected a share from 0 % to 100 %, such as 0.1 % or 0.001",
        ),
        ("delay: 1 ms", "delay: 1 ms, queue: big", f":6: wan.0.queue: got 'big', expected auto, or {SIZE}"),
        (
            "delay: 1 ms",
            "delay: 1 ms, queue: 4 kB",
            ":6: wan.0.queue: got '4 kB', expected auto, or at least the mtu (9000 B)",
        ),
        (
            "delay: 1 ms",
            "delay: 1 ms, b_to_a: {queue: 8999 B}",
            ":6: wan.0.b_to_a.queue: got '8.999 kB', expected auto, or at least the mtu (9000 B)",
        ),
        (
            "delay: 1 ms",
            "delay: 1 ms, planes: 0",
            ":6: wan.0.planes: got 0, expected a whole number of at least 1",
        ),
        (
            "delay: 1 ms",
            "delay: 1 ms, planes: 257",
            ":5: wan: got 257 links, expected at most 256, counting every plane",
        ),
        (
            "delay: 1 ms",
            "delay: 1 ms, a_to_b: 5",
            ":6: wan.0.a_to_b: got 5, expected a mapping (keys and values)",
        ),
        (
            "b: west",
            "b: wset",
            ":6: wan.0.b: got 'wset', expected a building: east, west; did you mean west?",
        ),
        ("a: east", "a: nowhere", ":6: wan.0.a: got 'nowhere', expected a building: east, west"),
        ("b: west", "b: east", ":6: wan.0.b: got 'east', expected another building than a"),
        (
            "hosts: 2",
            "hosts: -1",
            ":3: buildings.east.hosts: got -1, expected a whole number from 0 to 2000",
        ),
        (
            "hosts: 2",
            "hosts: two",
            ":3: buildings.east.hosts: got 'two', expected a whole number from 0 to 2000",
        ),
        (
            "hosts: 2",
            "hosts: 2001",
            ":3: buildings.east.hosts: got 2001, expected a whole number from 0 to 2000",
        ),
        ("hosts: 2, ", "", ":3: buildings.east.hosts: got nothing, expected this key, which has no default"),
        (
            "  west: ",
            "  south: {hosts: 1, nic: {rate: 1 Gbit/s}}\n  west: ",
            ":6: wan: got no path from east to south, expected WAN links that connect all buildings",
        ),
        (
            "wan:\n  - {a: east, b: west, rate: 1 Gbit/s, delay: 1 ms}\n",
            "",
            ": wan: got no path from east to west, expected WAN links that connect all buildings",
        ),
        (
            "wan:\n  - {a",
            "wan: {a",
            ":5: wan: got a mapping, expected a list",
        ),
        ("name: pair", "name: pair\nmtu: 100", ":2: mtu: got 100, expected a whole number from 576 to 9216"),
        (
            "name: pair",
            "name: A Pair",
            ":1: name: got 'A Pair', expected a name: lower-case letters, digits, '.', '_', '-'",
        ),
    ],
)
def test_topology(old: str, new: str, problem: str) -> None:
    assert topology_problems(old, new) == [f"pair.yaml{problem}"]


def test_host_names_that_two_buildings_would_share() -> None:
    other = "  east1: {hosts: 1, nic: {rate: 1 Gbit/s}}\n  west: "
    apart = "wan: got no path from east to east1, expected WAN links that connect all buildings"
    assert topology_problems("  west: ", other) == [f"pair.yaml:6: {apart}"]  # east has no host 11
    shared = "buildings.east1: got the building east1, expected another name: east11 would be a host of it and of east"
    Path("pair.yaml").write_text(TOPOLOGY.replace("  west: ", other).replace("hosts: 2", "hosts: 11", 1))
    with pytest.raises(ConfigError) as caught:
        load_topology("pair.yaml")
    assert str(caught.value).splitlines() == [f"pair.yaml:4: {shared}", f"pair.yaml:6: {apart}"]


@pytest.mark.parametrize("name", ["East", "9east", "east-1", "buildingnumber1"])
def test_building_names(name: str) -> None:
    expected = "a lower-case letter, then up to 11 lower-case letters or digits"
    assert f"pair.yaml:3: buildings.{name}: got '{name}', expected {expected}" in topology_problems(
        "east", name
    )


def test_too_many_buildings() -> None:
    names = [f"x{letter}{number}" for letter in "ab" for number in range(100)]
    more = "".join(f"  {name}: {{hosts: 1, nic: {{rate: 1 Gbit/s}}}}\n" for name in names)
    assert "pair.yaml:2: buildings: got 202 buildings, expected at most 200" in topology_problems(
        "wan:", f"{more}wan:"
    )


def test_no_buildings() -> None:
    Path("pair.yaml").write_text("name: none\nbuildings: {}\n")
    with pytest.raises(
        ConfigError, match=r"^pair.yaml:2: buildings: got no building, expected at least one building$"
    ):
        load_topology("pair.yaml")


def test_every_problem_of_a_file_is_told_at_once_in_its_order() -> None:
    text = TOPOLOGY.replace("name: pair", "nam: pair").replace("rate: 1 Gbit/s", "rate: 5", 1)
    text = text.replace("b: west", "b: wst")
    Path("pair.yaml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_topology("pair.yaml")
    assert str(caught.value).splitlines() == [
        "pair.yaml: name: got nothing, expected this key, which has no default",
        "pair.yaml:1: nam: got an unknown key, expected one of: name, mtu, buildings, wan; did you mean name?",
        f"pair.yaml:3: buildings.east.nic.rate: got 5, expected {RATE}",
        "pair.yaml:6: wan.0.b: got 'wst', expected a building: east, west; did you mean west?",
    ]
    first = caught.value.problems[2]
    assert (first.file, first.line, first.field, first.value) == (
        "pair.yaml",
        3,
        "buildings.east.nic.rate",
        "5",
    )


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("ranks: 4", "ranks: 0", "3: ranks: got 0, expected a whole number of at least 1"),
        ("ranks: 4", "ranks: 5", "3: ranks: got 5, expected at most 4, one on each host of the topology"),
        ("ranks: 4", "ranks: four", "3: ranks: got 'four', expected a whole number of at least 1"),
        (
            "llama3-8b",
            "llama3-8",
            "5: workload.model: got 'llama3-8', expected a model (gpt2-124m, llama3-8b, llama3-70b, llama3-405b, "
            "mixtral-8x7b, deepseek-v3; did you mean llama3-8b?) or its dimensions "
            "(dim, n_layers, n_heads, n_kv_heads, ffn_dim, vocab_size, experts, experts_per_token)",
        ),
        (
            "llama3-8b",
            "{dim: 9, n_layers: 1, n_heads: 3, n_kv_heads: 2, ffn_dim: 4, vocab_size: 8}",
            "5: workload.model.n_kv_heads: got 2, expected a divisor of n_heads (3)",
        ),
        (
            "llama3-8b",
            "{dim: 8, n_layers: 1, n_heads: 3, n_kv_heads: 1, ffn_dim: 4, vocab_size: 8}",
            "5: workload.model.n_heads: got 3, expected a divisor of dim (8)",
        ),
        (
            "llama3-8b",
            "{dim: 0, n_layers: 1, n_heads: 3, n_kv_heads: 1, ffn_dim: 4, vocab_size: 8}",
            "5: workload.model.dim: got 0, expected a whole number of at least 1",
        ),
        (
            "989 Tflop/s",
            "989",
            "6: workload.peak_flops: got 989, expected a compute speed with its unit, "
            "such as 989 Tflop/s (flop/s, Gflop/s, Tflop/s, Pflop/s)",
        ),
        (
            "989 Tflop/s",
            "989 Tflop/s\n  flops_utilisation: 0",
            "7: workload.flops_utilisation: got 0, expected a share above 0, such as 40 % or 0.4",
        ),
        (
            "989 Tflop/s",
            "989 Tflop/s\n  bucket_cap: 100",
            f"7: workload.bucket_cap: got 100, expected {SIZE}",
        ),
        (
            "989 Tflop/s",
            "989 Tflop/s\n  bucket_cap: 0 B",
            "7: workload.bucket_cap: got '0 B', expected a size above 0",
        ),
        (
            "989 Tflop/s",
            "989 Tflop/s\n  gradient_dtype: int8",
            "7: workload.gradient_dtype: got 'int8', expected a type: float32, float64",
        ),
        (
            "[ring]",
            "[rings]",
            "7: algorithms.0: got 'rings', expected FILE.py:NAME or an algorithm: "
            + ", ".join(algorithm_names(["all_reduce"]))
            + "; did you mean ring?",
        ),
        ("[ring]", "[ring, ring]", "7: algorithms.1: got 'ring' again, expected each algorithm once"),
        (
            "[ring]",
            "[]",
            "7: algorithms: got an empty list, expected at least one of: "
            + ", ".join(algorithm_names(["all_reduce"])),
        ),
        ("[ring]", "ring", "7: algorithms: got 'ring', expected a list"),
        (
            "algorithms: [ring]",
            "policy: ecpm",
            "7: policy: got 'ecpm', expected FILE.py:NAME or a policy: shortest, ecmp, wcmp, qp_aware, spray, "
            "pinned, te, priority, isolate, limit, failover; did you mean ecmp?",
        ),
        (
            "algorithms: [ring]",
            "policy: {name: isolate, jobs: [{name: a, hosts: [e1], share: 70 %}, {name: b, hosts: [e2], share: 0.5}]}",
            "7: policy.jobs: got shares of 1.2 in all, expected at most 1, or 100 %",
        ),
        (
            "algorithms: [ring]",
            "policy: {name: te, over: ecmp}",
            "7: policy.over: got over with policy te, expected it only with priority or isolate or limit or failover",
        ),
        (
            "algorithms: [ring]",
            "policy: pinned",
            "7: policy.paths: got nothing, expected what policy pinned is to do",
        ),
        (
            "algorithms: [ring]",
            "policy: /nowhere/own.py:Mine",
            "7: policy: got '/nowhere/own.py:Mine', expected a policy of a Python file; there is no /nowhere/own.py",
        ),
        (
            "algorithms: [ring]",
            "variants: {a: {policy: ecmp}, b: {policy: ecpm}}",
            "7: variants.b.policy: got 'ecpm', expected FILE.py:NAME or a policy: shortest, ecmp, wcmp, qp_aware, "
            "spray, pinned, te, priority, isolate, limit, failover; did you mean ecmp?",
        ),
        (
            "algorithms: [ring]",
            "variants: {a: {policy: ecmp}, b: {trials: 3}}",
            "7: variants.b.trials: got trials in a variant, expected only keys that may differ between variants",
        ),
        (
            "algorithms: [ring]",
            "variants: {a: {policy: ecmp}}",
            "7: variants: got a mapping, expected two or more names, with what differs, such as "
            "{shallow: {topology.wan.0.queue: 1 MiB}}",
        ),
        (
            "algorithms: [ring]",
            "transport: {congestion_control: Cubic}",
            "7: transport.congestion_control: got 'Cubic', "
            "expected a TCP congestion control by its kernel name, such as cubic or bbr",
        ),
        (
            "algorithms: [ring]",
            "transport: {timeout: 0 s}",
            "7: transport.timeout: got '0 s', expected a duration above 0",
        ),
        (
            "algorithms: [ring]",
            "scale: {size_scale: 0.5}",
            "7: scale.size_scale: got 0.5, expected auto, or a number of at least 1",
        ),
        ("algorithms: [ring]", "trials: 2.5", "7: trials: got 2.5, expected a whole number of at least 1"),
        ("algorithms: [ring]", "warmup: -1", "7: warmup: got -1, expected a whole number of at least 0"),
        ("algorithms: [ring]", "seed: true", "7: seed: got true, expected a whole number of at least 0"),
        (
            "pair.yaml",
            "pear.yaml",
            "2: topology: got 'pear.yaml', expected a topology file; there is no pear.yaml",
        ),
        ("pair.yaml", "7", "2: topology: got 7, expected a mapping (keys and values)"),
    ],
)
def test_scenario(old: str, new: str, problem: str) -> None:
    assert scenario_problems(old, new) == [f"short.yaml:{problem}"]


def test_mistakes_in_the_topology_of_a_scenario_name_its_own_file() -> None:
    Path("deeper").mkdir()
    Path("deeper/pair.yaml").write_text(TOPOLOGY.replace("delay: 1 ms", "delay: 1"))
    assert scenario_problems("pair.yaml\nranks: 4", "deeper/pair.yaml\nranks: 0") == [
        f"deeper/pair.yaml:6: wan.0.delay: got 1, expected {DELAY}",
        "short.yaml:3: ranks: got 0, expected a whole number of at least 1",
    ]


def test_mistakes_in_a_topology_inside_a_scenario() -> None:
    inside = "\n  ".join(["topology:", *TOPOLOGY.replace("b: west", "b: wset").splitlines()])
    assert scenario_problems("topology: pair.yaml", inside) == [
        "short.yaml:8: topology.wan.0.b: got 'wset', expected a building: east, west; did you mean west?"
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            b"name: pair\nbuildings: {}\nname: twin\n",
            ":3: name: got this key again, expected it once; it is on line 1",
        ),
        (
            b"name: pair\nbuildings: {<<: 3}\n",
            ":2: buildings: got <<, expected an alias of a mapping, or a list of them",
        ),
        (
            b"name: [1, {a: 1,\n a: 2}]\n",
            ":2: name.1.a: got this key again, expected it once; it is on line 1",
        ),
        (b"name: pair\n7: 3\n", ":2: got the key 7, expected a key that is text"),
        (b"name: a\n  b: c\n", ":2: got mapping values are not allowed here, expected valid YAML"),
        (
            b"name: 'a\n",
            ":2: got while scanning a quoted scalar, found unexpected end of stream, expected valid YAML",
        ),
        (b"a: &x [*x]\n", ": got infinite nesting, expected valid YAML"),
        (b"name: pair\nmtu: \x01\n", ":2: got the character '\\x01', expected valid YAML"),
        (b"name: 2024-13-45\n", ":1: name: got 2024-13-45 (month must be in 1..12), expected valid YAML"),
        (b"\xff\xfe", ": got bytes that are not UTF-8, expected a readable YAML file"),
        (b"- 1\n", ":1: got a list, expected keys and values (a mapping) at the top level"),
        (b"", ":1: got nothing, expected keys and values (a mapping) at the top level"),
        (
            b"a: 1\n---\nb: 1\n",
            ":2: got expected a single document in the stream, but found another document, "
            "expected valid YAML",
        ),
    ],
)
def test_files_that_are_not_a_mapping_in_yaml(text: bytes, problem: str) -> None:
    Path("pair.yaml").write_bytes(text)
    with pytest.raises(ConfigError) as caught:
        load_topology("pair.yaml")
    assert str(caught.value) == f"pair.yaml{problem}"


def test_files_that_cannot_be_read() -> None:
    with pytest.raises(ConfigError, match=r"^nowhere\.yaml: got no such file, expected a YAML file$"):
        load_topology("nowhere.yaml")
    with pytest.raises(ConfigError, match=r"^\.: got Is a directory, expected a readable YAML file$"):
        load_scenario(".")


def test_the_other_kind_of_file() -> None:
    with pytest.raises(
        ConfigError, match=r"^short.yaml:2: topology: got a scenario file, expected a topology file"
    ):
        load_topology("short.yaml")
    with pytest.raises(
        ConfigError, match=r"^pair.yaml:2: buildings: got a topology file, expected a scenario file"
    ):
        load_scenario("pair.yaml")
    Path("neither.yaml").write_text("name: x\ntoplogy: y\n")
    with pytest.raises(ConfigError) as caught:
        load("neither.yaml").to_yaml()
    expected = "the key buildings (a topology) or topology (a scenario)"
    assert str(caught.value) == f"neither.yaml:1: got the keys name, toplogy, expected {expected}"


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("trials=0", "trials: got 0, expected a whole number of at least 1"),
        ("workload.bucket_cap=100", f"workload.bucket_cap: got 100, expected {SIZE}"),
        ("topology.wan.0.rate=5", f"topology.wan.0.rate: got 5, expected {RATE}"),
        ("topology.wan.0.a_to_b.rate=5", f"topology.wan.0.a_to_b.rate: got 5, expected {RATE}"),
        (
            "topology.wan.0.dealy=5 ms",
            f"topology.wan.0.dealy: got an unknown key, expected one of: {WAN_KEYS}; did you mean delay?",
        ),
        (
            "trails=3",
            "trails: got an unknown key, expected one of: name, topology, ranks, hosts, allocation, workload, "
            "algorithms, policy, control, preset, transport, background_traffic, events, failures, telemetry, "
            "variants, explore, trials, warmup, seed, scale; did you mean trials?",
        ),
        (
            "topology.wan.1.delay=5 ms",
            "topology.wan.1.delay: got '1', expected in topology.wan a position from 0 to 0",
        ),
        ("topology.wan.x=5 ms", "topology.wan.x: got 'x', expected in topology.wan a position from 0 to 0"),
        ("ranks.x=5", "ranks.x: got an unknown path, expected nothing below ranks, which is 4"),
        ("topology=nix.yaml", "topology: got 'nix.yaml', expected a topology file; there is no nix.yaml"),
        ("trials=[", "trials: got '[', expected a value in YAML, such as 3, 5 ms or [ring]"),
        ("trials", "got 'trials', expected PATH=VALUE, such as trials=3"),
        ("=3", "got '=3', expected PATH=VALUE, such as trials=3"),
        ("a..b=3", "got 'a..b=3', expected PATH=VALUE, such as trials=3"),
    ],
)
def test_overrides(override: str, problem: str) -> None:
    assert override_problems(override) == [f"--set: {problem}"]


def test_an_empty_list_has_no_positions() -> None:
    assert override_problems("algorithms=[]", "algorithms.0=ring") == [
        "--set: algorithms.0: got '0', expected in algorithms nothing below it: it is empty"
    ]

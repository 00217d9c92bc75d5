"""Networks that stay up: up, inspect, exec, down, clean, as a user calls them."""

from __future__ import annotations

import json
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from testbed.net.fabric.fabric_state import ENVIRONMENT_MARK, load_all

pytestmark = [pytest.mark.net, pytest.mark.quiet]

TOPOLOGIES = Path(__file__).parents[2] / "topologies"


def call(*arguments: object, stdin: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "testbed", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, input=stdin)


def ids_here() -> set[str]:
    """Fabrics of the topology that these tests use; other runs on the machine come and go meanwhile."""
    return {state.id for state in load_all() if state.topology == "three-buildings"}


def bring_up(*options: str) -> str:
    done = call("up", TOPOLOGIES / "three-buildings.yaml", *options)
    assert done.returncode == 0, done.stderr
    found = re.search(r"three-buildings is up as fabric (\w{4}): 6 hosts, 3 WAN links", done.stderr)
    assert found, done.stderr
    return found[1]


@pytest.fixture(scope="module")
def fabric_id() -> Iterator[str]:
    made = bring_up()
    yield made
    done = call("down", "--fabric", made)
    assert done.returncode == 0, done.stderr
    assert f"fabric {made} (three-buildings) is down" in done.stderr
    assert made not in {state.id for state in load_all()}


def test_inspect_as_json_has_hosts_and_wan_links_in_si_units(fabric_id: str) -> None:
    done = call("inspect", "--fabric", fabric_id, "--json")
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert set(shown["hosts"][0]) >= {"name", "building", "rank", "ip"}
    assert [host["rank"] for host in shown["hosts"]] == list(range(6))
    asymmetric = next(link for link in shown["wan"] if link["a"] == "coast")
    assert asymmetric["plane"] == 0
    assert asymmetric["a_to_b"]["rate_bps"] != asymmetric["b_to_a"]["rate_bps"]
    assert asymmetric["a_to_b"]["delay_s"] != asymmetric["b_to_a"]["delay_s"]
    assert set(asymmetric["a_to_b"]) >= {"rate_bps", "delay_s", "jitter_s", "loss", "queue_bytes"}


def test_inspect_for_people_fits_a_terminal(fabric_id: str) -> None:
    said = call("inspect", "--fabric", fabric_id).stdout
    assert "100 Mbit/s" in said
    assert "10.0.0.1" in said


def test_exec_hands_on_streams_and_exit_status(fabric_id: str) -> None:
    done = call(
        "exec", "--fabric", fabric_id, "south2", "--", "sh", "-c", "cat; echo oops >&2; exit 7", stdin="hello"
    )
    assert (done.returncode, done.stdout, done.stderr) == (7, "hello", "oops\n")
    address = call(
        "exec", "--fabric", fabric_id, "south2", "--", "ip", "-br", "address", "show", "eth0"
    ).stdout
    assert "10.1.0.2/8" in address
    ping = call("exec", "--fabric", fabric_id, "north1", "--", "ping", "-c", "2", "-i", "0.2", "coast1")
    assert ping.returncode == 0
    assert "2 received" in ping.stdout


def test_exec_says_what_is_wrong(fabric_id: str) -> None:
    unknown = call("exec", "--fabric", fabric_id, "west1", "--", "true")
    assert unknown.returncode == 2
    assert "north1" in unknown.stderr
    absent = call("exec", "--fabric", fabric_id, "north1", "--", "no-such-program")
    assert absent.returncode == 127
    assert "no-such-program: command not found" in absent.stderr
    nothing = call("exec", "--fabric", fabric_id, "north1")
    assert nothing.returncode == 2
    stranger = call("inspect", "--fabric", "zzzz")
    assert stranger.returncode == 1
    assert re.search(rf"no fabric 'zzzz' is up; up: .*\b{fabric_id}\b", stranger.stderr)


def test_a_broken_part_is_shown(fabric_id: str) -> None:
    second = bring_up()
    try:
        (state,) = [state for state in load_all() if state.id == second]
        os.kill(state.pids["north1"], signal.SIGKILL)
        deadline = time.monotonic() + 10
        while (shown := json.loads(call("inspect", "--fabric", second, "--json").stdout))["phase"] == "up":
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert shown["phase"] == "failed"
        assert "the namespace of north1 is gone" in shown["failure"]
        assert json.loads(call("inspect", "--fabric", fabric_id, "--json").stdout)["phase"] == "up"
    finally:
        assert call("down", "--fabric", second).returncode == 0


def controllers(fabric: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if (
                process.environ().get(ENVIRONMENT_MARK) == fabric
                and "testbed.net.controller" in process.cmdline()
            ):
                found.append(process)
        except psutil.Error:
            continue
    return found


def test_a_killed_controller_is_started_again() -> None:
    second = bring_up()
    try:
        (before,) = controllers(second)
        before.kill()
        deadline = time.monotonic() + 20
        while before in (now := controllers(second)) or not now:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        while call("policy", "show", "--fabric", second).returncode != 0:
            assert time.monotonic() < deadline
        assert json.loads(call("inspect", "--fabric", second, "--json").stdout)["phase"] == "up"
    finally:
        assert call("down", "--fabric", second).returncode == 0


def test_the_policy_is_shown_compared_and_changed_while_connections_go_on(fabric_id: str) -> None:
    shown = json.loads(call("policy", "show", "--fabric", fabric_id, "--json").stdout)
    assert shown["policy"]["name"] == "ecmp"
    assert sum(shown["rules"].values()) == sum(map(len, shown["bridges"].values()))
    differing = call("policy", "diff", "failover", "--fabric", fabric_id)
    assert differing.returncode == 0, differing.stderr
    assert "the rules would not change" in differing.stdout  # no two links are parallel here
    ping = subprocess.Popen(
        [
            *(sys.executable, "-m", "testbed", "exec", "--fabric", fabric_id, "north1", "--"),
            *("ping", "-c", "60", "-i", "0.05", "coast1"),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    share = "jobs=[{name: ours, hosts: [north1, coast1], share: 0.4}]"
    done = call("policy", "set", "isolate", share, "over=shortest", "--fabric", fabric_id)
    assert done.returncode == 0, done.stderr
    assert "policy isolate:" in done.stderr
    said, _ = ping.communicate(timeout=60)
    assert " 0% packet loss" in said
    wan = json.loads(call("inspect", "--fabric", fabric_id, "--json").stdout)["wan"]
    queues = [entry["name"] for link in wan for entry in link["a_to_b"]["classes"]]
    assert queues == ["ours", "rest"] * 3
    assert "queues" in call("inspect", "--fabric", fabric_id).stdout
    rules = call("policy", "show", "--rules", "--fabric", fabric_id).stdout
    assert "set_dscp" in rules
    assert call("policy", "set", "shortest", "--fabric", fabric_id).returncode == 0
    wan = json.loads(call("inspect", "--fabric", fabric_id, "--json").stdout)["wan"]
    assert all(link[way]["classes"] == [] for link in wan for way in ("a_to_b", "b_to_a"))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("fastest",), "name: got 'fastest', expected FILE.py:NAME or a policy: shortest"),
        (("isolate",), "jobs: got nothing, expected what policy isolate is to do"),
        (("isolate", "jobs=[{name: a, hosts: [moon1], share: 0.4}]"), "got 'moon1', expected a host"),
        (("isolate", "jobs=[{name: a, hosts: [north1], share: 1.4}]"), "expected a share from 0 % to 100 %"),
        (("pinned", "paths=[{from: north, to: south, links: [north-south-9]}]"), "got 'north-south-9'"),
        (("shortest", "over=ecmp"), "over: got over with policy shortest"),
    ],
)
def test_a_policy_that_cannot_be_is_one_clear_error(
    fabric_id: str, arguments: tuple[str, ...], words: str
) -> None:
    before = call("policy", "show", "--fabric", fabric_id).stdout
    done = call("policy", "set", *arguments, "--fabric", fabric_id)
    assert done.returncode == 2, done.stderr
    assert words in done.stderr.replace("\n", " ")
    assert "Traceback" not in done.stderr
    assert call("policy", "show", "--fabric", fabric_id).stdout == before


def test_a_killed_holder_is_cleaned_up_and_others_stay(fabric_id: str) -> None:
    second = bring_up("--policy", "ecmp")
    (state,) = [state for state in load_all() if state.id == second]
    os.kill(state.owner_pid, signal.SIGKILL)
    time.sleep(0.2)
    done = call("clean")
    assert done.returncode == 0
    assert f"fabric {second}:" in done.stderr
    assert f"removed bridge tb{second}e0" in done.stderr
    names = subprocess.run(["ip", "-br", "link"], capture_output=True, text=True, check=True).stdout
    assert f"tb{second}" not in names
    assert f"tb{fabric_id}" in names
    assert call("clean").stderr.strip() == "nothing to clean"


def test_bad_topologies_are_refused_with_status_2(tmp_path: Path) -> None:
    text = (TOPOLOGIES / "three-buildings.yaml").read_text()
    for old, new, message in (
        ("delay: 5 ms", "delai: 5 ms", "did you mean delay?"),
        ("rate: 100 Mbit/s", "rate: 100", "expected a rate"),
        ("b: coast", "b: moon", "moon"),
        ("hosts: 3", "hosts: -1", "from 0 to 2000"),
        ("hosts: 3", "hosts: 0", "a transit site only forwards"),
    ):
        assert old in text
        path = tmp_path / "bad.yaml"
        path.write_text(text.replace(old, new))
        done = call("up", path)
        assert done.returncode == 2, done.stderr
        assert f"{path}:" in done.stderr
        assert message in done.stderr.replace("\n", " ")
        assert len(done.stderr.strip().splitlines()) <= 3


@pytest.mark.parametrize(
    "option", [("--link-engine", "magic"), ("--size-scale", "0.5"), ("--policy", "magic")]
)
def test_bad_options_are_refused_with_status_2(option: tuple[str, str]) -> None:
    before = ids_here()
    done = call("up", TOPOLOGIES / "three-buildings.yaml", *option)
    assert done.returncode == 2, done.stderr
    assert option[1] in done.stderr
    assert ids_here() == before


def test_a_link_is_set_anew_while_it_runs_and_back(fabric_id: str) -> None:
    def direction(way: str) -> dict[str, object]:
        shown = json.loads(call("inspect", "--fabric", fabric_id, "--json").stdout)
        found: dict[str, object] = next(link for link in shown["wan"] if link["a"] == "north")[way]
        return found

    def pings_lost_and_fastest_ms() -> tuple[int, float]:
        ping = ("ping", "-c", "10", "-i", "0.05", "-W", "1", "south1")
        said = call("exec", "north1", "--fabric", fabric_id, "--", *ping).stdout
        times = [float(found) for found in re.findall(r"time=([\d.]+) ms", said)]
        return 10 - len(times), min(times, default=0.0)

    before = direction("a_to_b"), direction("b_to_a")
    change = ("link", "set", "north-south-0", "--fabric", fabric_id)
    done = call(*change, "--direction", "a_to_b", "delay=30 ms", "jitter=1 ms", "queue_packets=500")
    assert done.returncode == 0, done.stderr
    assert "north-south-0 a_to_b: 100 Mbit/s, 30 ms, 1 ms, 0 %, 500 packets" in done.stderr
    assert direction("b_to_a") == before[1]
    assert direction("a_to_b")["delay_s"] == 0.03
    lost, fastest_ms = pings_lost_and_fastest_ms()
    assert lost == 0
    assert 33.5 < fastest_ms < 40
    assert call(*change, "loss=100 %").returncode == 0
    assert pings_lost_and_fastest_ms()[0] == 10
    done = call(*change, "--direction", "a_to_b", "delay=5 ms", "jitter=0 s", "loss=0 %", "queue=auto")
    assert done.returncode == 0, done.stderr
    assert call(*change, "--direction", "b_to_a", "loss=0 %").returncode == 0
    assert (direction("a_to_b"), direction("b_to_a")) == before
    assert 9 < pings_lost_and_fastest_ms()[1] < 15


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("north-south-1", "loss=1 %"), "LINK: got north-south-1, expected all, or a link: "),
        (("north-south-0", "dealy=1 ms"), "link set: dealy: got an unknown key"),
        (("north-south-0", "delay"), "link set: got 'delay', expected KEY=VALUE"),
        (("north-south-0", "delay=1"), "delay: got 1, expected a duration"),
        (("north-south-0", "jitter=1 s"), "jitter: got 1 s with a delay of 0.005 s"),
        (("all", "loss=1 %", "--direction", "up"), "--direction: got up, expected a_to_b or b_to_a"),
        (
            ("all", "loss=1 %", "--way", "a_to_b"),
            "--way: got an option that was renamed, expected --direction",
        ),
    ],
)
def test_a_wrong_setting_of_a_link_changes_nothing(
    fabric_id: str, arguments: tuple[str, ...], words: str
) -> None:
    before = call("inspect", "--fabric", fabric_id, "--json").stdout
    done = call("link", "set", *arguments, "--fabric", fabric_id)
    assert done.returncode == 2, done.stderr
    assert words in done.stderr
    assert call("inspect", "--fabric", fabric_id, "--json").stdout == before


def test_probe_tells_the_way_the_time_and_the_class(fabric_id: str) -> None:
    shown = json.loads(
        call("probe", "--fabric", fabric_id, "north1", "coast1", "--dscp", "46", "--json").stdout
    )
    assert (shown["sent"], shown["arrived"]) == (10, 10)
    (path,) = shown["paths"]
    assert path["links"] == [{"link": "coast-north-0", "direction": "b_to_a"}]
    assert shown["dscp"] == {"46": 10}
    assert 0.010 < statistics.median(shown["one_way_s"]) < 0.030
    inside = call(
        "probe", "--fabric", fabric_id, "south1", "south2", "--protocol", "tcp", "--count", "2"
    ).stdout
    assert "2 of 2 packets arrived" in inside
    assert "path      no WAN link" in inside


def test_probe_names_a_host_that_is_not_there(fabric_id: str) -> None:
    done = call("probe", "--fabric", fabric_id, "north1", "nort")
    assert done.returncode == 2
    assert "TARGET: got nort, expected a host: north1" in done.stderr

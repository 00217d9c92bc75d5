"""RDMA under the virtual clock: the transport's conformance on soft-RoCE, what links give, others' programs, a run."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from testbed.net.errors import NoKernelError
from testbed.net.virtual.kernel_image import find_image
from tests.go_back_n import ReliablePath
from tests.unit.prediction.test_model_predicting import RING
from tests.virtual.conftest import REPOSITORY, WALL_S, Person


def lacking() -> str:
    try:
        if "soft-RoCE" not in find_image().checked:
            return "this kernel has no soft-RoCE"
    except NoKernelError as error:
        return str(error).splitlines()[0]
    packaged = Path("/usr/lib/python3/dist-packages/pyverbs")
    return "" if packaged.exists() else "there is no pyverbs: tools/bootstrap rdma installs it"


pytestmark = [
    pytest.mark.virtual,
    pytest.mark.timeout(WALL_S),
    pytest.mark.skipif(bool(lacking()), reason=lacking() or "nothing is lacking"),
]


def inside(person: Person, *words: str) -> Any:
    program = [sys.executable, "-m", "tests.virtual.rdma_inside", *words]
    done = person.inside("env", "-C", str(REPOSITORY), f"PYTHONPATH={REPOSITORY}", *program)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_the_transport_does_what_any_must(person: Person) -> None:
    assert inside(person, "conformance") == "conforms"


@pytest.mark.parametrize("rate", [1, pytest.param(10, marks=pytest.mark.thorough)])
def test_a_link_gives_a_queue_pair_its_delay_and_its_rate(person: Person, rate: int) -> None:
    found = inside(person, "link", f"{rate}gbit", "10ms")
    assert found["round_trip_s"] == pytest.approx(0.02, abs=2e-6)
    expected_bps = ReliablePath(rate * 1e9, 0.02).goodput_bps(1 << 20)
    assert found["goodput_bps"] == pytest.approx(expected_bps, rel=0.0005)


def test_a_window_of_a_buildings_size_is_all_that_a_long_path_carries(person: Person) -> None:
    found = inside(person, "link", "1gbit", "10ms", "0%", "128")
    expected_bps = ReliablePath(1e9, 0.02, window_packets=128).goodput_bps(1 << 20)
    assert 0.6 * expected_bps < found["goodput_bps"] < 1.01 * expected_bps


ACK_TIMEOUT_S = 4.096e-6 * 2**14  # the default of `transport.rdma.ack_timeout`, as cards know it


def test_what_is_lost_costs_all_that_was_sent_behind_it(person: Person) -> None:
    first, again = (inside(person, "link", "1gbit", "10ms", "0.1%") for _ in range(2))
    assert first == again
    # some fifty losses, by which draws differ: at best each costs a round trip, at worst the card's timer as well
    best_bps, worst_bps = (
        ReliablePath(1e9, mended_s, 0.001).goodput_bps(1 << 20) for mended_s in (0.02, 0.02 + ACK_TIMEOUT_S)
    )
    assert worst_bps < first["goodput_bps"] < 1.15 * best_bps


TOPOLOGY = """\
name: pair
mtu: 9000
buildings:
  east: {hosts: 1, nic: {rate: 10 Gbit/s}}
  west: {hosts: 1, nic: {rate: 10 Gbit/s}}
wan:
  - {a: east, b: west, rate: 10 Gbit/s, delay: 10 ms}
"""
PINGPONG = """
cd /
peer=$([ $RANK = 0 ] || echo $MASTER_ADDR)
[ $RANK = 0 ] || sleep 0.2
device=rxe_$([ $RANK = 0 ] && echo east1 || echo west1)
exec ibv_rc_pingpong -e -d $device -g 1 -n 50 -s 64 $peer
"""


@pytest.mark.skipif(shutil.which("ibv_rc_pingpong") is None, reason="there is no ibv_rc_pingpong")
def test_somebodys_program_with_verbs_runs_in_the_hosts(person: Person) -> None:
    topology = person.home / "pair.yaml"
    topology.write_text(TOPOLOGY)
    options = ("-t", str(topology), "--clock", "virtual", "--transport", "rdma")
    done = person.call("launch", *options, "--", "sh", "-c", PINGPONG)
    assert done.returncode == 0, done.stdout + done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("[1]") and "usec/iter" in line]
    assert float(line.split("=")[1].split()[0]) == pytest.approx(20_000, abs=10)


def test_a_step_over_rdma_is_trusted(person: Person) -> None:
    file, folder = person.home / "small.yaml", person.home / "run"
    file.write_text(RING + "trials: 2\nwarmup: 1\n")
    done = person.call("run", str(file), "-o", str(folder), "--clock", "virtual")
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads((folder / "summary.json").read_text())
    (variant,) = summary["variants"]
    assert variant["verdict"]["status"] == "trusted", variant["verdict"]
    assert abs(variant["predicted"]["error"]) < 0.05

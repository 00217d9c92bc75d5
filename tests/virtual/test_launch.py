"""Programs of anybody under the virtual clock: PyTorch over the backend `testbed`, exact to the nanosecond."""

from __future__ import annotations

import json
import subprocess

import pytest

from tests.virtual.conftest import REPOSITORY, WALL_S, Person

PEERS = REPOSITORY / ".venv-peers" / "bin" / "python"
pytestmark = [
    pytest.mark.virtual,
    pytest.mark.timeout(WALL_S),
    pytest.mark.skipif(
        not PEERS.exists(), reason="there is no .venv-peers: tools/bootstrap peers could not make it"
    ),
]

TOPOLOGY = """\
name: pair
mtu: 9000
buildings:
  east: {hosts: 1, nic: {rate: 400 Gbit/s}}
  west: {hosts: 1, nic: {rate: 400 Gbit/s}}
wan:
  - {a: east, b: west, rate: 100 Mbit/s, delay: 20 ms}
"""

PROGRAM = """
import json, os, time, torch, torch.distributed as dist
from testbed.contrib.torch import Roofline, computing
dist.init_process_group()  # --torch-default says which
rank = dist.get_rank()
def timed(what):
    dist.barrier()
    began_s = time.monotonic()
    what()
    return time.monotonic() - began_s
def there_and_back():
    if rank == 0:
        dist.send(torch.zeros(1), 1), dist.recv(torch.zeros(1), 1)
    else:
        dist.recv(torch.zeros(1), 0), dist.send(torch.zeros(1), 0)
def computes():
    with computing(Roofline(1e9, 1e18)):
        torch.ones(100, 500) @ torch.ones(500, 1000)
whole = torch.ones(1_000_000)
for what in (there_and_back, lambda: dist.all_reduce(whole)):
    what()
found = [timed(there_and_back), timed(lambda: dist.all_reduce(whole)), timed(computes)]
if rank == 0:
    print(json.dumps([dist.group.WORLD.name(), os.environ["WORDS"], *found]))
dist.destroy_process_group()
"""


@pytest.mark.parametrize("times", [1, pytest.param(2, marks=pytest.mark.thorough)])
def test_a_program_takes_what_line_and_accelerator_allow_and_the_same_each_time(
    person: Person, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    monkeypatch.setenv("WORDS", "of the caller")
    topology = person.home / "pair.yaml"
    topology.write_text(TOPOLOGY)

    def launched() -> subprocess.CompletedProcess[str]:
        options = ("-t", str(topology), "--clock", "virtual", "--strict", "--torch-default")
        return person.call("launch", *options, "--", str(PEERS), "-W", "ignore", "-c", PROGRAM)

    first, *others = (launched() for _ in range(times))
    assert first.returncode == 0, first.stderr
    assert "the network: trusted, 6 checks" in first.stderr
    assert [other.stdout for other in others] == [first.stdout] * (times - 1)
    backend, words, trip_s, reduced_s, computed_s = json.loads(first.stdout.removeprefix("[0] "))
    assert (backend, words) == ("testbed", "of the caller")
    assert trip_s == pytest.approx(0.040, abs=0.0005)
    # half of it each way, and the other half, each with a way there; windows that have closed take trips to open
    assert 0.32 + 0.04 < reduced_s < 0.32 * 1.01 + 0.04 + 3 * trip_s
    assert computed_s == pytest.approx(0.1, abs=1e-6)


ABSENT = """
import time, torch, torch.distributed as dist
from datetime import timedelta
dist.init_process_group("testbed")
hurried = dist.new_group(timeout=timedelta(seconds=5))
dist.all_reduce(torch.ones(1000), group=hurried)
if dist.get_rank() == 1:
    time.sleep(600)
dist.all_reduce(torch.ones(1000), group=hurried)
"""


@pytest.mark.thorough
def test_dumps_of_a_program_that_fails_come_out_of_the_guest(person: Person) -> None:
    topology, output = person.home / "pair.yaml", person.home / "failed"
    topology.write_text(TOPOLOGY)
    options = ("-t", str(topology), "--clock", "virtual", "--output", str(output))
    done = person.call("launch", *options, "--", str(PEERS), "-W", "ignore", "-c", ABSENT)
    assert done.returncode == 1, done.stderr
    told = person.call("diagnose", str(output))
    assert "RANK_NOT_JOINED: rank 1" in told.stdout, told.stdout + told.stderr

"""Exact for everybody: nothing that differs between two people changes a byte of a run's samples.

The network is as unkind as it can be, since what is left to chance shows first there: it loses, delays, doubles and
damages packets and marks others, for several connections to a pair, for subflows of MPTCP, and for sprayed datagrams.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.virtual.conftest import AS_NOBODY, REPOSITORY, TESTBED, WALL_S, Person, ordinary_user

pytestmark = [pytest.mark.virtual, pytest.mark.timeout(300)]

SCENARIO = """
name: ill
topology:
  name: ill
  mtu: 9000
  buildings:
    east: {hosts: 2, nic: {rate: 10 Gbit/s, queue: 64 MB}}
    west: {hosts: 2, nic: {rate: 10 Gbit/s, queue: 64 MB}}
  wan:
    - {a: east, b: west, planes: 2, rate: 2 Gbit/s, delay: 2 ms, queue: 2 MB, ecn_threshold: 100 kB,
       jitter: 20 us, jitter_distribution: normal, jitter_correlation: 0.25,
       loss: 0.5 %, duplicate: 0.1 %, corrupt: 0.1 %}
ranks: 4
workload: {collectives: [{collective: all_reduce, size: 4 MiB}]}
policy: qp_aware
variants:
  striped: {transport.kind: striped, transport.congestion_control: dctcp}
  mptcp: {transport.kind: mptcp, transport.subflows: 2, transport.congestion_control: bbr}
  sprayed: {transport.kind: datagram, transport.datagram.spray: packet, transport.datagram.recovery: nack}
trials: 1
warmup: 0
seed: 2
scale: {size_scale: 1}
"""
VARIANTS = ("striped", "mptcp", "sprayed")
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
ONE_CORE = ("taskset", "-c", str(min(os.sched_getaffinity(0))))
# A tc that says it knows netem's seeds, and one that says it does not, whichever this machine's is.
STAND_IN = """#!/bin/sh
case "$*" in *help*) echo "                 {words}" >&2;; *) exec {real} "$@";; esac
"""


@dataclass(frozen=True)
class Somebody:
    """Who else runs the scenario, and how.

    `prefix`: what starts their `testbed`. `environment`: all that they have of it. `options`: of `testbed run`.
    """

    home: Path
    testbed: Sequence[str] = (str(TESTBED),)
    prefix: Sequence[str] = ()
    environment: Mapping[str, str] = field(
        default_factory=lambda: {"PATH": "/usr/bin:/bin", "TMPDIR": "/tmp"}
    )
    options: Sequence[str] = ()

    def run(self, scenario: str = SCENARIO, output: str = "run") -> Path:
        """Run a scenario in their home, and return the run's folder."""
        (self.home / "ill.yaml").write_text(scenario)
        folder = self.home / output
        command = ["run", "ill.yaml", "-o", str(folder), "--clock", "virtual", *self.options]
        done = subprocess.run(
            [*self.prefix, *self.testbed, *command],
            cwd=self.home,
            env={"HOME": str(self.home), **self.environment},
            capture_output=True,
            text=True,
            timeout=2 * WALL_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return folder


@pytest.fixture(scope="module")
def reference() -> Iterator[Path]:
    """The run of an ordinary user from this checkout, two guests at once."""
    with ordinary_user() as person:
        file = person.home / "ill.yaml"
        file.write_text(SCENARIO)
        done = person.call(
            "run", str(file), "-o", str(person.home / "run"), "--clock", "virtual", timeout_s=2 * WALL_S
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "Fingerprint: samples " in done.stdout
        yield person.home / "run"


@pytest.fixture
def home(person: Person) -> Path:
    """Somebody's home whose path is longer than most."""
    folder = person.home / "the-home-of-somebody-else/whose-path-is-rather-long"
    folder.mkdir(parents=True)
    return folder


def environment_elsewhere(folder: Path) -> Path:
    """Make an environment in `folder` with this one's packages, but for the testbed; return its Python."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    ours = [path for path in sys.path if path.endswith("site-packages")]
    (site / "others.pth").write_text("\n".join(ours) + "\n")
    return folder / "bin/python"


def checkout_elsewhere(home: Path) -> Somebody:
    """Somebody with a copy of the checkout and of its environment."""
    python = environment_elsewhere(home / "checkout/.venv")
    (site,) = (home / "checkout/.venv").glob("lib/python*/site-packages")
    shutil.copytree(REPOSITORY / "testbed", home / "checkout/testbed")
    (site / "checkout.pth").write_text(f"import sys; sys.path.insert(0, {str(home / 'checkout')!r})\n")
    return Somebody(home, (str(python), "-m", "testbed"))


def wheel_elsewhere(home: Path) -> Somebody:
    """Somebody who has installed the wheel."""
    command = [
        str(Path(sys.executable).with_name("uv")),
        "build",
        "--wheel",
        "--quiet",
        "--out-dir",
        str(home),
    ]
    command += ["--build-constraints", str(REPOSITORY / "requirements/build.lock"), "--require-hashes"]
    subprocess.run([*command, str(REPOSITORY)], check=True, capture_output=True)
    python = environment_elsewhere(home / "environment")
    (site,) = (home / "environment").glob("lib/python*/site-packages")
    (wheel,) = home.glob("*.whl")
    shutil.unpack_archive(wheel, site, "zip")
    return Somebody(home, (str(python), "-m", "testbed"))


def with_tc(home: Path, *, knows_seeds: bool) -> tuple[str, ...]:
    """What starts a program for which another `tc` stands where this machine's does."""
    real, stand_in = home / "real-tc", home / "stand-in-tc"
    found = Path(shutil.which("tc", path="/usr/sbin:/sbin:/usr/bin:/bin") or "").resolve()
    shutil.copy(found, real)
    stand_in.write_text(STAND_IN.format(words="[ seed SEED ]" if knows_seeds else "", real=real))
    stand_in.chmod(0o755)
    return ("unshare", "--mount", "sh", "-c", f'mount --bind {stand_in} {found}; exec "$@"', "sh")


def on_host(name: str) -> tuple[str, ...]:
    """What starts a program on a machine of another name."""
    return ("unshare", "--uts", "sh", "-c", f'hostname {name}; exec "$@"', "sh")


def compare(one: Path, other: Path) -> None:
    """Assert that two runs are equal to the last byte, and that their fingerprints say so."""
    samples = [(run / "samples.jsonl").read_bytes() for run in (one, other)]
    assert samples[0] == samples[1]
    fingerprints = [json.loads((run / "manifest.json").read_text())["fingerprint"] for run in (one, other)]
    assert fingerprints[0] == fingerprints[1]


def test_the_network_leaves_much_to_chance(reference: Path) -> None:
    """Else the other tests would show nothing."""
    manifest = json.loads((reference / "manifest.json").read_text())
    assert manifest["fabric"]["seeded"] or manifest["clock"]["kernel"] < "6.6"
    readings = [json.loads(line) for line in (reference / "sockets.jsonl").read_text().splitlines()]
    for variant in VARIANTS:
        assert any(one["retransmits"] for one in readings if one["variant"] == variant), variant
    links = [json.loads(line) for line in (reference / "links.jsonl").read_text().splitlines()]
    assert max(link["marks"] for link in links) > 0


def test_somebody_else_on_another_machine_gets_the_same_bytes(reference: Path, home: Path) -> None:
    """Another user, path, home, host name, locale, time zone, tc, environment, memory, one core, traced."""
    somebody = checkout_elsewhere(home)
    prefix: tuple[str, ...] = ONE_CORE
    if os.geteuid() == 0:
        prefix += (*on_host("somebody-elses-laptop"), *with_tc(home, knows_seeds=True))
    somebody = Somebody(
        home,
        somebody.testbed,
        prefix,
        {
            "PATH": "/usr/local/bin:/usr/bin:/bin:/opt/somewhere",
            "LANG": "de_DE.UTF-8",
            "LC_ALL": "de_DE.UTF-8",
            "TZ": "Asia/Tokyo",
            "PYTHONHASHSEED": "7",
            "PADDING": "x" * 20_000,
            "TESTBED_GUEST_SECCOMP": "off",
        },
        ("--memory", "1 GiB"),
    )
    compare(reference, somebody.run())


@pytest.mark.thorough
def test_a_checkout_elsewhere(reference: Path, home: Path) -> None:
    compare(reference, checkout_elsewhere(home).run())


@pytest.mark.thorough
def test_an_installed_wheel(reference: Path, home: Path) -> None:
    compare(reference, wheel_elsewhere(home).run())


@pytest.mark.thorough
@AS_ROOT
@pytest.mark.parametrize("prefix", [(), AS_NOBODY], ids=["root", "nobody"])
def test_a_user(reference: Path, home: Path, prefix: tuple[str, ...]) -> None:
    subprocess.run(["chown", "-R", "nobody", str(home)], check=True)
    compare(reference, Somebody(home, prefix=prefix).run())


@pytest.mark.thorough
@AS_ROOT
@pytest.mark.parametrize("knows_seeds", [True, False])
def test_a_tc(reference: Path, home: Path, knows_seeds: bool) -> None:
    compare(reference, Somebody(home, prefix=with_tc(home, knows_seeds=knows_seeds)).run())


@pytest.mark.thorough
@AS_ROOT
def test_a_host_name(reference: Path, home: Path) -> None:
    compare(reference, Somebody(home, prefix=on_host("x")).run())


@pytest.mark.thorough
@pytest.mark.parametrize(
    "environment",
    [
        {"LC_ALL": "tr_TR.UTF-8", "LANGUAGE": "tr"},
        {"PADDING": "x" * 20_000},
        {"PYTHONHASHSEED": "random", "PYTHONUNBUFFERED": "1", "PYTHONOPTIMIZE": "1"},
        {"TESTBED_GUEST_SECCOMP": "off"},
    ],
    ids=["locale", "much of it", "Python's", "traced"],
)
def test_an_environment(reference: Path, home: Path, environment: dict[str, str]) -> None:
    compare(reference, Somebody(home, environment={"PATH": "/usr/bin:/bin", **environment}).run())


@pytest.mark.thorough
@pytest.mark.parametrize(
    "options",
    [("--memory", "2 GiB"), ("--jobs", "1")],
    ids=" ".join,
)
def test_an_option(reference: Path, home: Path, options: tuple[str, ...]) -> None:
    compare(reference, Somebody(home, options=options).run())


@pytest.mark.thorough
@pytest.mark.parametrize("ranks", [1, 2])
def test_ranks_in_each_process(home: Path, ranks: int) -> None:
    """Without MPTCP: the kernel draws its connections' keys in the order in which processes open them."""
    scenario = re.sub(r"  mptcp: .*\n", "", SCENARIO)
    packed = Somebody(home).run(scenario, "packed")
    apart = Somebody(home, options=("--ranks-per-process", str(ranks))).run(scenario, "apart")
    samples = [(run / "samples.jsonl").read_bytes() for run in (packed, apart)]
    assert samples[0] == samples[1]


@pytest.mark.thorough
def test_a_single_core(reference: Path, home: Path) -> None:
    compare(reference, Somebody(home, prefix=ONE_CORE).run())


@pytest.mark.thorough
def test_a_busy_machine(reference: Path, home: Path) -> None:
    hogs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(4)]
    try:
        compare(reference, Somebody(home).run())
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()


@pytest.mark.thorough
def test_another_seed_gives_other_samples(reference: Path, home: Path) -> None:
    other = Somebody(home, options=("--set", "seed=3")).run()
    assert (other / "samples.jsonl").read_bytes() != (reference / "samples.jsonl").read_bytes()

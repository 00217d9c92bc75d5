"""Mininet's own command line with the module in topologies/, in namespaces of its own: `mn` cannot touch anything."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.net,
    pytest.mark.quiet,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root"),
    pytest.mark.skipif(shutil.which("mn") is None, reason="needs Mininet's `mn`"),
]

REPOSITORY = Path(__file__).parents[2]
# Process ids, interfaces and the Open vSwitch socket of the machine are out of reach, whatever `mn` does.
SANDBOX = ["unshare", "--fork", "--pid", "--kill-child", "--net", "--mount", "--mount-proc", "sh", "-ec"]
RUN_IN_SANDBOX = """
[ ! -d /run/openvswitch ] || mount -t tmpfs none /run/openvswitch
ip link set lo up
exec "$@"
"""


def run_mn(topo: str, script: Path, commands: str) -> str:
    """Ping all pairs with `mn`, after running commands of its own in it; everything it said."""
    script.write_text(commands)
    customs = f"{REPOSITORY / 'topologies/mininet_topos.py'},{Path(__file__).with_name('mininet_bridge.py')}"
    mn = ["mn", "--custom", customs, "--topo", topo, "--switch", "ipbridge", "--controller", "none"]
    return run_in_sandbox([*mn, "--pre", str(script), "--test", "pingall"])


def run_in_sandbox(command: Sequence[str]) -> str:
    """A program that makes networks, in namespaces of its own; everything it said. It has to end well."""
    done = subprocess.run(
        [*SANDBOX, RUN_IN_SANDBOX, "sh", *command],
        env={**os.environ, "VIRTUAL_ENV": sys.prefix},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def kernel_has_netem(tmp_path: Path) -> bool:
    command = "ip link add t0 type dummy && tc qdisc add dev t0 root netem delay 1ms"
    return subprocess.run([*SANDBOX, command], cwd=tmp_path, capture_output=True, check=False).returncode == 0


def test_two_buildings_ping_each_other_scaled_to_what_tclink_takes(tmp_path: Path) -> None:
    said = run_mn("two_buildings", tmp_path / "script", "sh tc class show dev s1-eth5\n")
    assert "two-buildings: all rates divided by 400" in said
    assert "1 of 2 WAN links left out" in said
    assert "rate 714250Kbit" in said
    assert "0% dropped (56/56 received)" in said


def test_three_buildings_have_rates_per_direction_and_tell_when_there_is_no_delay(tmp_path: Path) -> None:
    shown = "".join(
        f"sh tc class show dev {interface}\n" for interface in ("s1-eth3", "s2-eth4", "s3-eth2", "s1-eth4")
    )
    said = run_mn("three_buildings", tmp_path / "script", shown)
    # where there is netem, it is a leaf below
    rates = re.findall(r"htb 5:1 root (?:leaf \w+: )?prio 0 rate (\w+)", said)
    assert rates == ["100Mbit", "100Mbit", "40Mbit", "20Mbit"]
    assert "0% dropped (30/30 received)" in said
    without_delay = re.findall(r"\*\*\* (\S+): no delay (\w+): this kernel has no netem", said)
    expected = [("s1-eth3", "5000us"), ("s2-eth4", "5000us"), ("s3-eth2", "6000us"), ("s1-eth4", "12000us")]
    assert without_delay == ([] if kernel_has_netem(tmp_path) else expected)

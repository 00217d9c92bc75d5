"""The script of `testbed export --to mininet`, carried out in namespaces of its own: all hosts hear each other."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from testbed.show.exchange import export_mininet
from testbed.spec.topology import load_topology
from tests.net.test_topologies_mininet import REPOSITORY, kernel_has_netem, run_in_sandbox

pytestmark = [
    pytest.mark.net,
    pytest.mark.quiet,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root"),
    pytest.mark.skipif(shutil.which("mnexec") is None, reason="needs Mininet's `mnexec`"),
]


@pytest.mark.parametrize(
    ("name", "rate", "pings"),
    [("three-buildings", "(20.00Mbit", "30/30"), ("two-buildings-4-planes", "(357.15Mbit", "56/56")],
)
def test_all_hosts_hear_each_other(name: str, rate: str, pings: str, tmp_path: Path) -> None:
    script = tmp_path / "net.py"
    export_mininet(load_topology(REPOSITORY / f"topologies/{name}.yaml"), script)
    said = run_in_sandbox([sys.executable, str(script), "--ping"])
    assert f"0% dropped ({pings} received)" in said
    assert rate in said  # as TCLink says what it sets
    assert ("Specified qdisc kind is unknown" in said) != kernel_has_netem(tmp_path)

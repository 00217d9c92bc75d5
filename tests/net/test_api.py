"""`testbed.up`: a network for the length of a block."""

from __future__ import annotations

import subprocess

import psutil
import pytest

import testbed

pytestmark = [pytest.mark.net, pytest.mark.quiet]  # looks at all interfaces of the machine
TOPOLOGY = {
    "name": "pair",
    "buildings": {name: {"hosts": 1, "nic": {"rate": "100 Mbit/s"}} for name in ("east", "west")},
    "wan": [{"a": "east", "b": "west", "rate": "100 Mbit/s", "delay": "5 ms"}],
}


def test_a_network_stands_for_a_block_and_goes_with_it_even_by_an_exception() -> None:
    before = set(psutil.net_if_addrs())
    with pytest.raises(subprocess.CalledProcessError):
        look_round()
    # that one is Open vSwitch's own, from its first datapath on
    assert set(psutil.net_if_addrs()) - before <= {"ovs-netdev"}


def look_round() -> None:
    with testbed.up(TOPOLOGY, size_scale=1) as network:
        assert network.hosts == ("east1", "west1")
        said = network.exec("east1", "ping", "-c", "3", "-i", "0.2", "west1").stdout
        assert "3 received" in said
        assert float(said.rsplit("= ", 1)[1].split("/")[0]) > 9
        with pytest.raises(ValueError, match="expected one of east1, west1"):
            network.exec("east9", "true")
        assert network.exec("east1", "false", check=False).returncode == 1
        network.exec("west1", "false")

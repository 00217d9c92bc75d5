"""The network tests of the `net` lane, unmodified, in guests: netem and the kernel's own Open vSwitch datapath."""

from __future__ import annotations

import re
import sys

import pytest

from tests.virtual.conftest import REPOSITORY, Person

pytestmark = [pytest.mark.virtual, pytest.mark.timeout(1200)]

# The others try what processes and terminals of this machine do, in its own time.
PARTS = (
    ("test_fabric.py", "test_links_engines.py", "test_topologies_mininet.py", "test_fidelity_probe.py"),
    ("test_controller_switches.py", "test_clos.py", "test_links_cut.py", "test_control.py"),
    ("test_events_cards.py", "test_events_returns.py", "test_commands.py"),
)


# What carries frames in a process of its own does so in the net lane, too; in guests, the whole of it in a night.
NOT_BY_THE_KERNEL = ("test_links_engines.py", "test_links_cut.py", "test_control.py")
NOT_BY_ITSELF = "not thorough and not vagrant and not machines"


@pytest.mark.parametrize("files", PARTS, ids=lambda files: files[0].removesuffix(".py"))
def test_the_net_lane_passes_under_the_virtual_clock(files: tuple[str, ...], person: Person) -> None:
    _pass_in_a_guest(files, "not ryu and not userspace", f"{NOT_BY_ITSELF} and not by_any_datapath", person)


@pytest.mark.thorough
def test_what_the_kernel_does_not_carry_passes_under_the_virtual_clock(person: Person) -> None:
    _pass_in_a_guest(NOT_BY_THE_KERNEL, "not ryu and userspace", NOT_BY_ITSELF, person)


@pytest.mark.thorough
def test_networks_that_pause_pass_under_the_virtual_clock(person: Person) -> None:
    _pass_in_a_guest(("test_pause.py",), "not ryu", NOT_BY_ITSELF, person)


@pytest.mark.thorough
def test_what_no_datapath_changes_passes_under_the_virtual_clock(person: Person) -> None:
    _pass_in_a_guest(
        ("test_controller_switches.py",), "not ryu", f"{NOT_BY_ITSELF} and by_any_datapath", person
    )


def _pass_in_a_guest(files: tuple[str, ...], which: str, marked: str, person: Person) -> None:
    done = person.call(
        *("virtual", "exec", "--memory", "3 GiB", "--timeout", "1100 s", "--"),
        *(sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "--rootdir", str(REPOSITORY)),
        *("-m", marked),
        *("-k", which),  # switches do not see which of the two controllers it is; the net lane tries both
        "--basetemp=/tmp/net-lane",  # pytest's usual place may be there already, of a user of this machine
        *(str(REPOSITORY / "tests/net" / name) for name in files),
        timeout_s=1150,
    )
    print(done.stdout[-6000:], done.stderr[-2000:])
    assert done.returncode == 0
    assert re.search(r"\d+ passed", done.stdout)


def test_a_machine_with_an_eth0_has_hosts_with_one_too(person: Person) -> None:
    """Kernels before 6.15 look a new link's name up where it is asked for, not where it is to be."""
    topology = REPOSITORY / "topologies/two-buildings.yaml"
    testbed = f"{sys.executable} -m testbed"
    commands = f"ip link add eth0 type veth peer name other && {testbed} up {topology} && {testbed} down"
    done = person.call("virtual", "exec", "--", "sh", "-c", commands)
    print(done.stdout[-3000:], done.stderr[-2000:])
    assert done.returncode == 0
    assert "is down" in done.stderr

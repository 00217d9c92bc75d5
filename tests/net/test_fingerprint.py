"""The fingerprint of a namespace of this kernel's: what is changed is named, what is changed back as well."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from testbed.net.fabric.fingerprint import EVERYTHING, Fingerprint
from testbed.net.fabric.namespace_setup import NamespaceSettings
from testbed.net.links.netns import run_script
from tests.net.namespaces import namespaces

pytestmark = pytest.mark.net

MTU, BACK = "ip link set lo mtu 1500", "ip link set lo mtu 65536"


@pytest.fixture
def pid() -> Iterator[int]:
    with namespaces(1) as (place,):
        run_script(place.pid, ["ip link set lo up", "ip address add 10.9.0.1/24 dev lo"])
        yield place.pid


@pytest.fixture
def print_of(pid: int) -> Iterator[Fingerprint]:
    found = Fingerprint([NamespaceSettings("east1", pid, ("eth0",), 1500)])
    try:
        found.take()
        yield found
    finally:
        found.close()


def test_what_stays_as_it_is_is_not_told(pid: int, print_of: Fingerprint) -> None:
    run_script(pid, ["ping -c 1 -q 10.9.0.1 >/dev/null"])  # counters, and what the kernel finds out by itself
    assert print_of.look(thorough=True) == []


def test_what_was_changed_back_is_told_in_order(pid: int, print_of: Fingerprint) -> None:
    run_script(pid, [MTU, BACK])
    there, again, *_ = print_of.look()
    assert there == "east1: lo: mtu 65536 -> 1500"
    assert again.startswith("east1: lo: mtu 1500 -> 65536")
    print_of.look(thorough=True)
    assert print_of.look(thorough=True) == []


def test_parameters_are_told_with_old_and_new_and_when_they_are_as_before(
    pid: int, print_of: Fingerprint
) -> None:
    sack = "/proc/sys/net/ipv4/tcp_sack"
    run_script(pid, [f"echo 0 > {sack}"])
    assert print_of.look() == ["east1: net.ipv4.tcp_sack: 1 -> 0"]
    run_script(pid, [f"echo 1 > {sack}", f"echo 0 > {sack}"])
    assert print_of.look() == ["east1: net.ipv4.tcp_sack: written, still 0"]
    assert print_of.look(thorough=True) == []


def test_routes_addresses_and_rules_are_named(pid: int, print_of: Fingerprint) -> None:
    run_script(pid, ["ip route add blackhole 10.8.0.0/16", "ip rule add to 10.8.0.1 prohibit"])
    assert print_of.look() == ["east1: route to 10.8.0.0/16: added", "east1: rule 32765: added"]
    run_script(pid, ["ip address del 10.9.0.1/24 dev lo"])
    assert "east1: address 10.9.0.1/24 of lo: gone" in print_of.look()


def test_what_is_the_testbed_s_own_doing_is_not_told(pid: int, print_of: Fingerprint) -> None:
    run_script(pid, [MTU, "echo 0 > /proc/sys/net/ipv4/tcp_sack"])
    print_of.take()
    assert print_of.look(thorough=True) == []


def test_more_changes_than_the_kernel_keeps_are_told_as_such(pid: int, print_of: Fingerprint) -> None:
    batch = "\n".join(
        f"route {what} blackhole 10.8.{n % 250}.0/24" for n in range(60_000) for what in ("add", "del")
    )
    run_script(pid, [f"ip -batch - <<END\n{batch}\nEND"])
    assert "east1: the kernel dropped change events because there were too many" in print_of.look()
    print_of.take()
    assert print_of.look(thorough=True) == []


def test_what_events_change_is_left_out(pid: int) -> None:
    for left_out in (("east1", "lo"), ("east1", EVERYTHING)):
        found = Fingerprint([NamespaceSettings("east1", pid, ("lo",), 1500)], [left_out])
        found.take()
        run_script(pid, [MTU])
        assert found.look(thorough=True) == []
        run_script(pid, [BACK])
        found.close()

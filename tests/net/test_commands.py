"""Commands that go to the kernel as netlink messages leave there what the programs leave, byte by byte."""

from __future__ import annotations

import re

import pytest

from testbed.net.links import LinkError, network_namespace
from testbed.net.links.ingress import (
    INGRESS_DEVICE_PREFIX,
    IngressDelay,
    add_ingress_delays,
    netem_change_command,
)
from testbed.net.links.interfaces import NetemOptions, read_qdiscs
from testbed.net.links.namespace_state import OFFLOADS, ROOT, State
from testbed.net.links.namespace_state import NamespaceState as Kernel
from testbed.net.links.netlink import LINK, MESSAGE_STRUCTS, QDISC, Netlink
from testbed.net.links.netlink_requests import encode_command
from testbed.net.links.netns import run_script
from testbed.net.links.setup import Setup, run_batch
from testbed.net.links.shaping import Shape, shape_commands
from tests.net.conftest import skip_without
from tests.net.namespaces import Namespace, namespaces

RATES_BPS = (1e6, 1e9, 25e9, 400e9)
MTU = 9000
_SEED = re.compile(rb"\x0c\x00\x0e\x00.{8}", re.DOTALL)  # TCA_NETEM_PRNG_SEED, of newer kernels


def of_hosts(rate_bps: float) -> Setup:
    """As a host of a fabric has it, with two interfaces, one of whose queues counts packets."""
    setup = Setup(ip=["link set dev lo up", "address add 10.1.0.2/8 dev eth0"])
    for interface in ("eth0", "eth1"):
        setup.add_interface(interface, MTU)
    setup.ip += [
        f"neigh replace 10.1.0.{number} lladdr 02:00:00:00:00:{number:02x} dev eth0 nud permanent"
        for number in range(3, 200)
    ]
    setup.tc += shape_commands("eth0", Shape(rate_bps, 1 << 20), MTU)
    setup.tc += shape_commands("eth1", Shape(rate_bps, 0, queue_packets=77), MTU)
    return setup


def by_programs(setup: Setup, pid: int) -> None:
    """What `apply` sets by messages."""
    with network_namespace(pid):
        run_batch("ip", setup.ip)
        run_batch("tc", setup.tc)


def interfaces(place: Namespace) -> None:
    """Those that are set up, with the same addresses in every namespace."""
    pairs = [
        f"ip link add eth{n} address 02:00:00:00:01:0{n} type veth peer name peer{n} address 02:00:00:00:02:0{n}"
        for n in range(2)
    ]
    quiet = [f"sysctl -qw net.ipv6.conf.{which}.disable_ipv6=1" for which in ("all", "default")]
    run_script(place.pid, [*quiet, *pairs, "ip link set peer0 up", "ip link set peer1 up"])


def held(place: Namespace) -> State:
    """Everything that the kernel holds, but for the addresses that it draws for devices by itself."""
    kernel = Kernel(place.pid)
    try:
        drawn = {LINK, OFFLOADS}
        return {
            key: _numbered_alike(left) if key[0] == QDISC else left
            for key, left in kernel.read_state().items()
            if key[0] not in drawn or not kernel.names[key[1]].startswith(INGRESS_DEVICE_PREFIX)
        }
    finally:
        kernel.close()


def _numbered_alike(left: bytes) -> bytes:
    """Without what the kernel draws: a queueing discipline's number, of all namespaces', and the seed of a netem."""
    family, index, handle, parent, info = MESSAGE_STRUCTS[QDISC].unpack_from(left)
    handle = 0x80000000 if handle >= 0x80000000 and parent == ROOT else handle
    return MESSAGE_STRUCTS[QDISC].pack(family, index, handle, parent, info) + _SEED.sub(
        b"", left[MESSAGE_STRUCTS[QDISC].size :]
    )


@pytest.mark.parametrize("rate_bps", RATES_BPS)
@pytest.mark.parametrize("delayed", [None, (0.0, 0.0), (128e-6, 0.015)])
def test_the_kernel_holds_the_same(rate_bps: float, delayed: tuple[float, float] | None) -> None:
    setup = of_hosts(rate_bps)
    if delayed is not None:
        skip_without("netem")
        delay_s, loss = delayed
        asked = IngressDelay(rate_bps, delay_s=delay_s, loss=loss)
        add_ingress_delays(setup, dict.fromkeys(("eth0", "eth1"), asked))
    known = {"lo": 1}
    for program, commands in (("ip", setup.ip), ("tc", setup.tc)):
        assert all(encode_command(program, command, lambda name: known.get(name, 2)) for command in commands)
    with namespaces(2) as (ours, theirs):
        for place in (ours, theirs):
            interfaces(place)
        setup.without_offloads.clear()  # offloads are not these programs' business
        setup.apply(ours.pid)
        by_programs(setup, theirs.pid)
        found, expected = held(ours), held(theirs)
    assert len(found) > 200
    assert found == expected


ILL_LINKS = (
    "delay 5000.000us 1024.000us 25.00000000% distribution pareto loss random 1.00000000%",
    "delay 5000.000us 1024.000us 0.00000000% distribution normal",
    "delay 5000.000us 1024.000us 0.00000000% corrupt 0.12345678%",
    "delay 64.000us loss gemodel 1.00000000% 30.00000000% 90.00000000% 2.00000000% duplicate 1.00000000%"
    " corrupt 2.00000000% reorder 3.00000000%",
)


@pytest.mark.parametrize("ills", ILL_LINKS)
def test_netem_gets_every_ill_as_by_tc_and_a_seed_besides(ills: str) -> None:
    skip_without("netem")
    command = f"qdisc add dev eth0 root netem limit 1234 {ills}"
    assert encode_command("tc", f"{command} seed 77", lambda name: 1)
    with namespaces(2) as (ours, theirs):
        for place in (ours, theirs):
            interfaces(place)
        Setup(tc=[f"{command} seed 77"]).apply(ours.pid)
        by_programs(Setup(tc=[command]), theirs.pid)
        assert held(ours) == held(theirs)
        with network_namespace(ours.pid), Netlink() as netlink:
            (seed,) = {
                NetemOptions.parse(one.options).seed for one in read_qdiscs(netlink) if one.kind == "netem"
            }
        assert seed in (77, None)  # None: before Linux 6.6


def test_a_distribution_that_iproute2_does_not_have_is_an_error() -> None:
    with pytest.raises(LinkError, match=r"iproute2's cauchy\.dist is not in .*TC_LIB_DIR"):
        encode_command(
            "tc", "qdisc add dev x root netem limit 1 delay 1us 1us 0% distribution cauchy", lambda name: 1
        )


def test_delays_are_exact_to_the_nanosecond() -> None:
    skip_without("netem")
    with namespaces(1) as (place,):
        interfaces(place)
        asked = {"eth0": IngressDelay(1e9, delay_s=2.345e-6), "eth1": IngressDelay(1e9, delay_s=0.3e-6)}
        setup = Setup()
        add_ingress_delays(setup, asked)
        setup.apply(place.pid)
        assert held_delays(place) == [300e-9, 2345e-9]
        Setup(tc=[netem_change_command("eth1", IngressDelay(1e9, delay_s=7e-9))]).apply(place.pid)
        assert held_delays(place) == [7e-9, 2345e-9]


def held_delays(place: Namespace) -> list[float]:
    """Of all netems there, seconds."""
    with network_namespace(place.pid), Netlink() as netlink:
        return sorted(
            NetemOptions.parse(one.options).delay_s for one in read_qdiscs(netlink) if one.kind == "netem"
        )


def test_an_error_has_the_kernels_words_and_the_command() -> None:
    with namespaces(1) as (place,):
        interfaces(place)
        with pytest.raises(
            LinkError, match=r"(?s)File exists.*while running: ip address add 10.0.0.1/8 dev eth0"
        ):
            Setup(ip=["address add 10.0.0.1/8 dev eth0"] * 2 + ["link set dev eth0 up"]).apply(place.pid)
        with pytest.raises(LinkError, match="tc qdisc add dev nowhere root"):
            Setup(tc=["qdisc add dev nowhere root handle 1: htb default 10"]).apply(place.pid)


def test_programs_and_messages_keep_their_order() -> None:
    with namespaces(1) as (place,):
        ip = [
            "link add one type veth peer name two",
            "link set dev one mtu 1234 up",
            "link set dev one down",
            "link set dev one name three",
        ]
        Setup(ip=[*ip, "address add 10.0.0.1/8 dev three", "link set dev two mtu 1300"]).apply(place.pid)
        shown = run_script(place.pid, ["ip address show dev three", "ip link show dev two"])
    assert "mtu 1234" in shown
    assert "inet 10.0.0.1/8" in shown
    assert "mtu 1300" in shown

"""Serialisation delay on ingress: a frame is delivered when its last bit would arrive.

A shaper releases a frame when the wire is free, but the frame is complete at the other end only its size over the rate
later. So each receiving interface redirects its frames to its own IFB device, where netem with a rate serialises them
exactly, however early the shaper released them. netem also detaches the frame from its sending socket: TCP Small Queues
must not count packets that wait in switches and links as if they waited in the sender's own NIC.

Settings are made with `tc` and read back over netlink.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from testbed.net.errors import SettingMismatch
from testbed.net.links.interfaces import NetemOptions, Qdisc, read_redirect_targets
from testbed.net.links.link_engine import SHARE_TOLERANCE, TIME_TOLERANCE_S
from testbed.net.links.netlink import Netlink
from testbed.net.links.setup import Setup

INGRESS_DEVICE_PREFIX = "in-"
CUT_THROUGH_DEVICE = "early"
# Latency of a cut-through switch: 0.3 to 0.8 us by data sheets, rounded up to the microseconds of tc.
CUT_THROUGH_S = 1e-6
# More than the frames that a shaper can release early, at any rate and with the smallest frames.
QUEUE_LIMIT_PACKETS = 1_000_000
CUT_THROUGH_PREFERENCE, REDIRECT_PREFERENCE = 10, 20
INGRESS_PARENT = 0xFFFF0000


@dataclass(frozen=True)
class IngressDelay:
    """The serialisation delay of an interface's incoming frames, and the faults of a degraded NIC.

    rate_bps: the rate at which frames are serialised. cut_through_to: a network, such as "10.3.0.0/16", whose frames
    pass without delay, as in a cut-through switch. delay_s, loss: extra delay and share of packets lost of a degraded
    NIC, which then apply to all frames.
    """

    rate_bps: float
    cut_through_to: str | None = None
    delay_s: float = 0.0
    loss: float = 0.0

    @property
    def bytes_per_second(self) -> int:
        """The rate in the kernel's unit."""
        return max(1, round(self.rate_bps / 8))

    @property
    def bypass_network(self) -> str | None:
        """The network whose frames bypass the delay; None if all frames are delayed."""
        return None if self.delay_s or self.loss else self.cut_through_to


def ingress_device(interface: str) -> str:
    """Return the name of the IFB device that delays an interface's incoming frames."""
    return INGRESS_DEVICE_PREFIX + interface


def add_ingress_delays(setup: Setup, delays: Mapping[str, IngressDelay]) -> None:
    """Add the commands that delay the incoming frames of interfaces in one namespace."""
    if any(delay.cut_through_to for delay in delays.values()):
        setup.ip += _device_commands(CUT_THROUGH_DEVICE)
        setup.tc.append(
            f"qdisc add dev {CUT_THROUGH_DEVICE} root netem limit {QUEUE_LIMIT_PACKETS} delay {CUT_THROUGH_S * 1e6:g}us"
        )
    for interface, delay in delays.items():
        setup.ip += _device_commands(ingress_device(interface))
        setup.tc += [
            f"qdisc add dev {ingress_device(interface)} root {_netem(delay)}",
            f"qdisc add dev {interface} handle ffff: ingress",
        ]
        if delay.bypass_network:
            setup.tc.append(_cut_through(interface, delay.bypass_network))
        setup.tc.append(
            _redirect(
                interface, f"protocol all pref {REDIRECT_PREFERENCE} matchall", ingress_device(interface)
            )
        )


def netem_change_command(interface: str, delay: IngressDelay) -> str:
    """Return the `tc` command that changes the netem of an interface's incoming frames."""
    return f"qdisc change dev {ingress_device(interface)} root {_netem(delay)}"


def ingress_change_commands(interface: str, wanted: IngressDelay, now: IngressDelay) -> list[str]:
    """Return the `tc` commands that change the ingress delay of an interface from `now` to `wanted`."""
    commands = [netem_change_command(interface, wanted)]
    if now.bypass_network and not wanted.bypass_network:
        commands.append(f"filter del dev {interface} parent ffff: pref {CUT_THROUGH_PREFERENCE}")
    if wanted.bypass_network and not now.bypass_network:
        commands.append(_cut_through(interface, wanted.bypass_network))
    return commands


def _cut_through(interface: str, network: str) -> str:
    match = f"protocol ip pref {CUT_THROUGH_PREFERENCE} u32 match ip dst {network}"
    return _redirect(interface, match, CUT_THROUGH_DEVICE)


def _device_commands(name: str) -> list[str]:
    return [f"link add {name} type ifb", f"link set dev {name} txqueuelen 1000 up"]


def _netem(delay: IngressDelay) -> str:
    faults = f" delay {delay.delay_s * 1e6:.3f}us" if delay.delay_s else ""
    faults += f" loss random {delay.loss * 100:.8f}%" if delay.loss else ""
    # in tc `bps` means bytes per second
    return f"netem limit {QUEUE_LIMIT_PACKETS}{faults} rate {delay.bytes_per_second}bps"


def _redirect(interface: str, match: str, to: str) -> str:
    return f"filter add dev {interface} parent ffff: {match} action mirred egress redirect dev {to}"


def verify_ingress_delays(
    netlink: Netlink,
    asked: Mapping[str, IngressDelay],
    names: Mapping[int, str],
    found: Iterable[Qdisc],
) -> None:
    """Compare the ingress delays of interfaces with the requested ones.

    Args:
        netlink: A socket in the namespace of the interfaces.
        asked: The requested delays by interface.
        names: Names of all interfaces in the namespace, by index.
        found: The qdiscs of these interfaces.

    Raises:
        SettingMismatch: A delay differs, or frames are redirected to other devices.
    """
    if not asked:
        return
    indexes = {name: index for index, name in names.items()}
    netems = {names[one.index]: NetemOptions.parse(one.options) for one in found if one.kind == "netem"}
    for interface, delay in asked.items():
        netem = netems.get(ingress_device(interface))
        if netem is None or netem.rate != delay.bytes_per_second:
            rate = netem and netem.rate
            raise SettingMismatch(interface, "ingress rate in bytes/s", delay.bytes_per_second, rate)
        if abs(netem.delay_s - delay.delay_s) > TIME_TOLERANCE_S:
            raise SettingMismatch(interface, "ingress delay in s", delay.delay_s, netem.delay_s)
        if abs(netem.loss - delay.loss) > SHARE_TOLERANCE:
            raise SettingMismatch(interface, "ingress loss", delay.loss, netem.loss)
        devices = read_redirect_targets(netlink, indexes[interface], INGRESS_PARENT)
        targets = [names.get(index, "nowhere") for index in devices]
        wanted = [*([CUT_THROUGH_DEVICE] if delay.bypass_network else []), ingress_device(interface)]
        if targets != wanted:
            raise SettingMismatch(interface, "ingress redirect targets", wanted, targets)

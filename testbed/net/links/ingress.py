"""What comes in at an interface is handed on when its last bit would be there: a frame's own time on the wire.

A shaper lets a frame go when the wire is free; whole it is at the other end its size over the rate later. So each
receiving interface hands what comes in to a device of its own (IFB) on which netem gives each frame that time, one
after the other: exactly, however early the shaper was. netem also ends the sending socket's hold on the frame: TCP is
not to hold back for what waits in switches and links as for its own card's queue (small queues).

Set with `tc`, read back over netlink.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from testbed.net.errors import SettingMismatch
from testbed.net.links.interfaces import Discipline, netem_delay_and_loss, netem_rate, redirect_targets
from testbed.net.links.link_engine import SHARE_TOLERANCE, TOLERANCES
from testbed.net.links.netlink import Netlink
from testbed.net.links.setup import Setup

PREFIX = "in-"
CUT_THROUGH_DEVICE = "early"
# A cut-through switch needs the header and some time of its own: 0.3 to 0.8 us by data sheets. tc knows no less.
CUT_THROUGH_S = 1e-6
# What a shaper lets go early waits here: never as much as this, of any rate and of the smallest frames.
MOST_PACKETS = 1_000_000
CUT_THROUGH_PREFERENCE, PREFERENCE = 10, 20
INGRESS = 0xFFFF0000


@dataclass(frozen=True)
class IngressDelay:
    """How long frames are held that come in: their size over `rate_bps`, one after the other.

    cut_through_to: the network, such as "10.3.0.0/16", frames to which go on at once, as from a cut-through switch.
    delay_s, loss: what a card that is not well adds, and the share of packets that it loses; it holds all frames then.
    """

    rate_bps: float
    cut_through_to: str | None = None
    delay_s: float = 0.0
    loss: float = 0.0

    @property
    def bytes_per_second(self) -> int:
        """As the kernel keeps it."""
        return max(1, round(self.rate_bps / 8))

    @property
    def passes(self) -> str | None:
        """Where frames go to that are not held."""
        return None if self.delay_s or self.loss else self.cut_through_to


def device(interface: str) -> str:
    """Where an interface's frames are held."""
    return PREFIX + interface


def add_ingress_delays(setup: Setup, delays: Mapping[str, IngressDelay]) -> None:
    """Add what holds the frames that come in at interfaces of one namespace."""
    if any(delay.cut_through_to for delay in delays.values()):
        setup.ip += _device_commands(CUT_THROUGH_DEVICE)
        setup.tc.append(
            f"qdisc add dev {CUT_THROUGH_DEVICE} root netem limit {MOST_PACKETS} delay {CUT_THROUGH_S * 1e6:g}us"
        )
    for interface, delay in delays.items():
        setup.ip += _device_commands(device(interface))
        setup.tc += [
            f"qdisc add dev {device(interface)} root {_netem(delay)}",
            f"qdisc add dev {interface} handle ffff: ingress",
        ]
        if delay.passes:
            setup.tc.append(_cut_through(interface, delay.passes))
        setup.tc.append(_redirect(interface, f"protocol all pref {PREFERENCE} matchall", device(interface)))


def change_command(interface: str, delay: IngressDelay) -> str:
    """For `tc`: what gives the frames that come in from now on another rate."""
    return f"qdisc change dev {device(interface)} root {_netem(delay)}"


def change_commands(interface: str, wanted: IngressDelay, now: IngressDelay) -> list[str]:
    """For `tc`: what changes more than the rate for frames that come in from now on."""
    commands = [change_command(interface, wanted)]
    if now.passes and not wanted.passes:
        commands.append(f"filter del dev {interface} parent ffff: pref {CUT_THROUGH_PREFERENCE}")
    if wanted.passes and not now.passes:
        commands.append(_cut_through(interface, wanted.passes))
    return commands


def _cut_through(interface: str, network: str) -> str:
    match = f"protocol ip pref {CUT_THROUGH_PREFERENCE} u32 match ip dst {network}"
    return _redirect(interface, match, CUT_THROUGH_DEVICE)


def _device_commands(name: str) -> list[str]:
    return [f"link add {name} type ifb", f"link set dev {name} txqueuelen 1000 up"]


def _netem(delay: IngressDelay) -> str:
    ills = f" delay {delay.delay_s * 1e6:.3f}us" if delay.delay_s else ""
    ills += f" loss random {delay.loss * 100:.8f}%" if delay.loss else ""
    return (
        f"netem limit {MOST_PACKETS}{ills} rate {delay.bytes_per_second}bps"  # tc's word for bytes per second
    )


def _redirect(interface: str, match: str, to: str) -> str:
    return f"filter add dev {interface} parent ffff: {match} action mirred egress redirect dev {to}"


def verify_ingress_delays(
    netlink: Netlink,
    asked: Mapping[str, IngressDelay],
    names: Mapping[int, str],
    found: Iterable[Discipline],
) -> None:
    """Read back: every frame in goes to its device, which has the rate. SettingMismatch.

    names, found: the interfaces of the namespace behind `netlink` by number, and their queueing disciplines.
    """
    if not asked:
        return
    indexes = {name: index for index, name in names.items()}
    netems = {names[one.index]: one.options for one in found if one.kind == "netem"}
    for interface, delay in asked.items():
        options = netems.get(device(interface))
        rate = None if options is None else netem_rate(options)
        if options is None or rate != delay.bytes_per_second:
            raise SettingMismatch(interface, "bytes per second in", delay.bytes_per_second, rate)
        delay_s, loss = netem_delay_and_loss(options)
        if abs(delay_s - delay.delay_s) > TOLERANCES["delay_s"]:
            raise SettingMismatch(interface, "delay in", delay.delay_s, delay_s)
        if abs(loss - delay.loss) > SHARE_TOLERANCE:
            raise SettingMismatch(interface, "loss in", delay.loss, loss)
        leads = [names.get(to, "nowhere") for to in redirect_targets(netlink, indexes[interface], INGRESS)]
        wanted = [*([CUT_THROUGH_DEVICE] if delay.passes else []), device(interface)]
        if leads != wanted:
            raise SettingMismatch(interface, "frames in go to", wanted, leads)

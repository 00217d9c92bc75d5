"""The `netem` link engine: a two-port kernel bridge in the WAN namespace with netem on each port's way out.

netem sits neither on the shaped interface (HTB and netem on one interface hide each other's drops) nor in the sender's
namespace (loss there would be seen as local and TCP Small Queues would stall). Its packet limit is computed from rate
and delay: the default of 1000 packets overruns at 1 Gbit/s beyond 12 ms.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping

from pyroute2 import IPRoute

from testbed.links.command import run_script
from testbed.links.errors import LinkError, SettingMismatch
from testbed.links.netns import network_namespace
from testbed.links.setup import Setup
from testbed.links.wire import DirectionAccount, EngineAccount, Impairment, LinkWire

SMALLEST_FRAME_BYTES = 64
TIME_TOLERANCE_S = 1.5e-6  # tc shows microseconds, cut off
LOSS_TOLERANCE = 1e-6


class NetemEngine:
    """Delay, jitter and loss by the kernel; `rates_bps` (largest of both directions per link) sizes netem's limit."""

    name = "netem"
    shaped_after = False  # netem and HTB on one interface hide each other's drops

    def __init__(self, pid: int, wires: list[LinkWire], rates_bps: dict[str, float]) -> None:
        self._pid = pid
        self._wires = wires
        self._rates_bps = rates_bps
        self._ipr: IPRoute | None = None

    def _ports(self) -> list[tuple[str, str, str, Impairment]]:
        """(link, way, interface out of which that way leaves, impairment) of every direction."""
        return [
            port
            for wire in self._wires
            for port in (
                (wire.name, "a_to_b", wire.interface_b, wire.a_to_b),
                (wire.name, "b_to_a", wire.interface_a, wire.b_to_a),
            )
        ]

    def start(self) -> None:
        """Make the bridges and qdiscs, then read every setting back."""
        setup = Setup()
        for number, wire in enumerate(self._wires):
            bridge = f"br{number}"
            setup.ip.append(f"link add {bridge} type bridge stp_state 0 forward_delay 0 mcast_snooping 0")
            for port in (wire.interface_a, wire.interface_b):
                setup.ip += [
                    f"link set dev {port} master {bridge}",
                    f"link set dev {port} type bridge_slave learning off",
                ]
            setup.ip.append(f"link set dev {bridge} up")
        for name, _way, interface, asked in self._ports():
            held_s = asked.delay_s + asked.jitter_s + 0.1
            limit = max(1000, math.ceil(self._rates_bps[name] / 8 / SMALLEST_FRAME_BYTES * held_s))
            setup.tc.append(
                f"qdisc add dev {interface} root netem limit {limit} delay {asked.delay_s * 1e6:.3f}us"
                + (f" {asked.jitter_s * 1e6:.3f}us" if asked.jitter_s else "")
                + (f" loss random {asked.loss * 100:.8f}%" if asked.loss else "")
            )
        setup.apply(self._pid)
        found = self.settings()
        for name, way, _interface, asked in self._ports():
            _compare(f"link {name} {way}", asked, found[name, way])

    def _qdiscs(self) -> dict[str, dict[str, object]]:
        shown = json.loads(run_script(self._pid, ["tc -j -s qdisc show"]))
        return {item["dev"]: item for item in shown if item["kind"] == "netem"}

    def settings(self) -> dict[tuple[str, str], Impairment]:
        """What the kernel's qdiscs hold."""
        qdiscs = self._qdiscs()
        found = {}
        for name, way, interface, _asked in self._ports():
            item = qdiscs.get(interface)
            if item is None:
                raise LinkError(f"link {name} {way}: netem is gone from {interface}")
            options = item["options"]
            assert isinstance(options, dict)
            delay, loss = options.get("delay", {}), options.get("loss-random", {})
            found[name, way] = Impairment(
                delay_s=float(delay.get("delay", 0.0)),
                jitter_s=float(delay.get("jitter", 0.0)),
                loss=float(loss.get("loss", 0.0)),
            )
        return found

    def compensate(self, excess_s: Mapping[tuple[str, str], float]) -> None:
        """Nothing: on the kernel's path the rest adds microseconds."""

    def account(self) -> EngineAccount:
        """The kernel's counters; netem drops on purpose and for want of room alike, so all drops count as `lost`."""
        if self._ipr is None:
            with network_namespace(self._pid):
                self._ipr = IPRoute()
        indices = {link["index"]: link.get_attr("IFLA_IFNAME") for link in self._ipr.get_links()}
        qdiscs = {
            indices[message["index"]]: message.get_attr("TCA_STATS2")
            for message in self._ipr.get_qdiscs()
            if message.get_attr("TCA_KIND") == "netem"
        }
        directions = {}
        for name, way, interface, _asked in self._ports():
            stats = qdiscs.get(interface)
            if stats is None:
                raise LinkError(f"link {name} {way}: netem is gone from {interface}")
            basic, queue = stats.get_attr("TCA_STATS_BASIC"), stats.get_attr("TCA_STATS_QUEUE")
            sent, dropped, held = int(basic["packets"]), int(queue["drops"]), int(queue["qlen"])
            directions[name, way] = DirectionAccount(
                in_packets=sent + dropped + held,
                in_bytes=int(basic["bytes"]),
                out_packets=sent,
                out_bytes=int(basic["bytes"]),
                lost=dropped,
                overrun=0,
                held=held,
            )
        return EngineAccount(time_s=time.monotonic(), directions=directions)

    def failure(self) -> str | None:
        """None: the kernel does not end on its own."""
        return None

    def stop(self) -> None:
        """Bridges and qdiscs go with their namespace."""
        if self._ipr is not None:
            self._ipr.close()
            self._ipr = None


def _compare(where: str, asked: Impairment, found: Impairment) -> None:
    for setting, tolerance in (
        ("delay_s", TIME_TOLERANCE_S),
        ("jitter_s", TIME_TOLERANCE_S),
        ("loss", LOSS_TOLERANCE),
    ):
        wanted, seen = getattr(asked, setting), getattr(found, setting)
        if abs(wanted - seen) > tolerance:
            raise SettingMismatch(where, setting, wanted, seen)

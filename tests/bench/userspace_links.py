"""How much one userspace link carries, and how late: `sudo .venv/bin/python -m tests.bench.userspace_links`.

One-way UDP of 1500-byte packets (iperf3) between two namespaces, 5 ms of delay, through the userspace link engine and,
after it, through `wirefilter` of vde2 under the same delay, where that is installed (apt install vde2). For each:
the highest rate of which less than 0.1 % is lost (the better of two tries each), and at 60 % of that the engine's own
account of how late it released frames. wirefilter keeps no account: its packets' delays are measured from outside, and
the engine's too. Do it on an otherwise idle machine.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from testbed.net.links import LinkWire
from testbed.net.links.netns import command_in_namespace, run_script
from testbed.net.links.packet_sockets import measure_one_way_delays
from testbed.net.links.setup import Setup
from testbed.net.links.userspace import UserspaceEngine
from testbed.spec.link_direction import Direction
from tests.net.iperf import iperf_server
from tests.net.namespaces import Namespace, namespaces

MTU, DELAY_S = 1500, 0.005
LEFT, RIGHT = "10.99.0.1", "10.99.0.2"
RATES_BPS = [rate * 1e8 for rate in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 14, 16, 18, 20)]
LOSS = 0.001
TRIES, SECONDS = 2, 3

Hosts = tuple[Namespace, Namespace]


@contextlib.contextmanager
def userspace() -> Iterator[tuple[Hosts, UserspaceEngine]]:
    """Two hosts with a link of the engine between them."""
    with namespaces(3) as (left, right, middle), tempfile.TemporaryDirectory() as folder:
        for host, inner in ((left, "wa"), (right, "wb")):
            run_script(host.pid, [f"ip link add eth0 type veth peer name {inner} netns {middle.pid}"])
            _configure(host, "eth0", LEFT if host is left else RIGHT)
        _plain(middle, "wa", "wb")
        forth = Direction(100e9, DELAY_S, 0.0, 0.0, 1 << 30)
        engine = UserspaceEngine(
            middle.pid, [LinkWire("l", "wa", "wb", "", "", forth, forth)], Path(folder, "links.sock"), 1
        )
        engine.start()
        try:
            yield (left, right), engine
        finally:
            engine.stop()


@contextlib.contextmanager
def wirefilter() -> Iterator[tuple[Hosts, None]]:
    """Two hosts, each with a tap on a switch of its own, and wirefilter between the switches."""
    with namespaces(2) as (left, right), tempfile.TemporaryDirectory() as folder:
        running = []
        for host, name in ((left, "left"), (right, "right")):
            switch = ["vde_switch", "-s", f"{folder}/{name}", "-tap", "eth0", "-m", "600"]
            running.append(
                subprocess.Popen(
                    command_in_namespace(host.pid, switch), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
                )
            )
        time.sleep(0.5)
        for host in (left, right):
            _configure(host, "eth0", LEFT if host is left else RIGHT)
        command = ["wirefilter", "-v", f"{folder}/left:{folder}/right", "-d", f"{DELAY_S * 1e3:g}"]
        running.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL))
        time.sleep(0.5)
        try:
            yield (left, right), None
        finally:
            for process in reversed(running):
                process.kill()
                process.communicate()


def _configure(host: Namespace, interface: str, address: str) -> None:
    run_script(host.pid, ["sysctl -qw net.ipv6.conf.all.disable_ipv6=1"])
    _plain(host, interface)
    run_script(host.pid, [f"ip address add {address}/24 dev {interface}"])


def _plain(host: Namespace, *interfaces: str) -> None:
    setup = Setup()
    for interface in interfaces:
        setup.add_interface(interface, MTU)
    setup.apply(host.pid)


def lost(hosts: Hosts, rate_bps: float) -> tuple[float, float]:
    """(share of packets lost, bit/s of Ethernet frames received) of UDP at this rate."""
    left, right = hosts
    with iperf_server(right.pid):
        payload = MTU - 28
        command = [
            "iperf3",
            "-c",
            RIGHT,
            "-u",
            "-b",
            f"{rate_bps * payload / (MTU + 14):.0f}",
            "-l",
            str(payload),
        ]
        command += ["-t", str(SECONDS), "-w", "4M", "-J"]
        said = json.loads(
            subprocess.run(command_in_namespace(left.pid, command), capture_output=True, check=True).stdout
        )
        total = said["end"]["sum"]
        received = total["packets"] - total["lost_packets"]
        return total["lost_percent"] / 100, received * (MTU + 14) * 8 / total["seconds"]


def highest(hosts: Hosts) -> float:
    """The highest rate of which less than LOSS is lost."""
    best = 0.0
    for rate_bps in RATES_BPS:
        found = [lost(hosts, rate_bps) for _ in range(TRIES)]
        carried = [got for share, got in found if share < LOSS and got > 0.97 * rate_bps]
        if not carried:
            break
        best = max(carried)
    return best


def lateness(engine: UserspaceEngine, work: Callable[[], None]) -> dict[str, float]:
    """Share of frames released within so many seconds of their time during `work`, by the engine's account."""
    before = engine.stats().directions["l", "a_to_b"]
    work()
    after = engine.stats().directions["l", "a_to_b"]
    counts = [b - a for a, b in zip(before.lateness_counts, after.lateness_counts, strict=True)]
    shares, total = {}, 0
    for bound_s, count in zip(after.lateness_bounds_s, counts, strict=False):
        total += count
        shares[f"{bound_s * 1e3:g} ms"] = total / sum(counts)
    return shares


def one_way(hosts: Hosts) -> str:
    """Median and 99th percentile of what small packets take beyond the delay on the idle link."""
    left, right = hosts
    times = sorted(
        time_s - DELAY_S for time_s in measure_one_way_delays((left.pid, LEFT), (right.pid, RIGHT), 500)
    )
    return f"{statistics.median(times) * 1e3:.2f} ms, 99 %: {times[int(0.99 * len(times))] * 1e3:.2f} ms"


def main() -> None:
    """Both, one after the other."""
    best = 0.0
    with userspace() as (hosts, engine):
        print(f"userspace engine: idle, a packet takes {one_way(hosts)} longer than the delay", flush=True)
        best = highest(hosts)
        print(f"userspace engine: {best / 1e9:.2f} Gbit/s one way with under {LOSS:.1%} lost", flush=True)
        shares = lateness(engine, lambda: lost(hosts, 0.6 * best) and None)
        text = ", ".join(f"{bound} {share:.2%}" for bound, share in shares.items() if share < 0.99995)
        print(f"userspace engine: at {0.6 * best / 1e9:.2f} Gbit/s released within {text}", flush=True)
    if shutil.which("wirefilter") is None:
        print("wirefilter: not installed (apt install vde2)")
        return
    with wirefilter() as (hosts, _):
        print(f"wirefilter: idle, a packet takes {one_way(hosts)} longer than the delay", flush=True)
        print(f"wirefilter: {highest(hosts) / 1e9:.2f} Gbit/s one way", flush=True)


if __name__ == "__main__":
    main()

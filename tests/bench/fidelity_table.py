"""Asked against measured, by tools that are not ours: `sudo .venv/bin/python -m tests.bench.fidelity_table [--write]`.

Two hosts with one link between them, its two ways alike: the userspace engine on this machine, netem on it where its
kernel has that, and netem inside a guest of the virtual clock. iperf3 measures rates and loss, ping round trips and
queues, tcpdump records what scapy reads for jitter. With `--write` the tables replace those in
docs/evidence/fidelity.md.
"""

from __future__ import annotations

import itertools
import json
import math
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from scapy.layers.inet import UDP
from scapy.utils import PcapReader

from testbed.clock import clock_here
from testbed.measure.fidelity.probe import SPREADS
from testbed.net.fabric.selftest import EXCESS_PACKETS, EXCESS_PAUSE_S
from testbed.net.links import LinkError
from testbed.net.links.netns import command_in_namespace
from testbed.net.links.packet_sockets import measure_one_way_delays
from testbed.spec.link_direction import Direction
from tests.net.iperf import iperf_server
from tests.net.line import BACK, FORTH, LEFT, MTU, RIGHT, Line, direction, running, stream, two_hosts

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs/evidence/fidelity.md"
BEGIN, END = "<!-- tables: python -m tests.bench.fidelity_table --write -->", "<!-- end of tables -->"
HEADER_BYTES = 14 + 52  # Ethernet, IPv4 and TCP with timestamps
RATES_BPS = (1e6, 10e6, 100e6, 1e9, 4e9)
ROUND_TRIPS_S = (0.0002, 0.001, 0.01, 0.05, 0.2)
LOSSES = (0.0001, 0.001, 0.01, 0.1)
JITTERS = (("uniform", 0.001), ("normal", 0.001), ("pareto", 0.001), ("normal", 0.005))
QUEUES_BYTES = (100_000, 1_000_000)
DELAYS_S = (0.0, 0.001, 0.005, 0.02, 0.05)


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    what: str
    asked: str
    measured: str
    error: str
    met: bool


def iperf(line: Line, seconds: int, *options: str) -> dict[str, dict[str, float]]:
    """The end of iperf3's own report, from left to right."""
    with iperf_server(line.right.pid):
        command = ["iperf3", "-c", RIGHT, "-J", "-t", str(seconds), *options]
        done = subprocess.run(
            command_in_namespace(line.left.pid, command), capture_output=True, text=True, check=False
        )
        end: dict[str, dict[str, float]] = json.loads(done.stdout)["end"]
        return end


def goodput(line: Line, seconds: int = 3) -> float:
    """Of one TCP connection, bit/s at the receiver."""
    return iperf(line, seconds, "-O", "2")["sum_received"]["bits_per_second"]


def pings(line: Line, count: int, interval_s: float) -> list[float]:
    """Round trips in seconds."""
    command = ["ping", "-c", str(count), "-i", str(interval_s), "-W", "3", RIGHT]
    said = subprocess.run(
        command_in_namespace(line.left.pid, command), capture_output=True, text=True, check=False
    ).stdout
    return [float(found) / 1e3 for found in re.findall(r"time=([\d.]+) ms", said)]


def rates(kind: str) -> Iterator[Row]:
    """Goal: within 1 % up to 1 Gbit/s."""
    for asked in RATES_BPS:
        both = direction(asked, 0.001, queue_bytes=max(100_000, round(asked / 8 * 0.01)))
        seconds = 3 if asked > 1e6 else 20  # 14 packets a second are few to count
        found = with_link(kind, both, partial(goodput, seconds=seconds))
        found *= (MTU + 14) / (MTU + 14 - HEADER_BYTES)
        error = found / asked - 1
        text = f"{asked / 1e6:g} Mbit/s"
        met = abs(error) <= 0.01
        yield Row("rate (iperf3)", text, f"{found / 1e6:.4g} Mbit/s", f"{error:+.2%}", met)


def round_trips(kind: str) -> Iterator[Row]:
    """Goal: within max(1 %, 0.3 ms) on the idle link, less the path's own latency, as in a testbed network."""
    for asked in ROUND_TRIPS_S:
        both = direction(1e9, asked / 2)
        with (
            two_hosts() as line,
            tempfile.TemporaryDirectory() as folder,
            running(kind, line, Path(folder), both, both) as engine,
        ):
            ends = (line.left.pid, LEFT), (line.right.pid, RIGHT)
            excess_s = {}
            for key, (here, there) in ((FORTH, ends), (BACK, ends[::-1])):
                times = measure_one_way_delays(here, there, EXCESS_PACKETS, EXCESS_PAUSE_S)
                excess_s[key] = min(times) - both.delay_s
            engine.compensate(excess_s, {})
            found = statistics.median(pings(line, 15, 0.2))
        error = found - asked
        met = abs(error) <= max(0.01 * asked, 0.0003)
        yield Row(
            "round trip (ping)", f"{asked * 1e3:g} ms", f"{found * 1e3:.3f} ms", f"{error * 1e3:+.3f} ms", met
        )


def losses(kind: str) -> Iterator[Row]:
    """Goal: within the 99 % interval of the binomial distribution."""
    for asked in LOSSES:
        seen: list[int] = []

        def count(line: Line, seen: list[int] = seen) -> float:
            for _ in range(5):  # its own connection has to get through the loss, too
                end = iperf(line, 10, "-u", "-b", "50M", "-l", "500", "-w", "4M")
                if "sum" in end:
                    break
            seen += [round(end["sum"]["lost_packets"]), round(end["sum"]["packets"])]
            return 0.0

        with_link(kind, direction(1e9, 0.001, loss=asked), count, direction(1e9, 0.001))
        lost, sent = seen
        low, high = binomial_interval(sent, asked)
        yield Row(
            "loss (iperf3)",
            f"{asked:.2%}",
            f"{lost / sent:.4%}",
            f"{lost} of {sent}, expected {low} to {high}",
            low <= lost <= high,
        )


def jitters(kind: str) -> Iterator[Row]:
    """Goal: interquartile range within 10 % plus 0.1 ms."""
    for distribution, size_s in JITTERS:
        both = direction(1e9, 0.02, jitter_s=size_s, jitter_distribution=distribution)
        found = with_link(kind, both, spread)
        expected = size_s * SPREADS[distribution]
        error = found - expected
        yield Row(
            "jitter (tcpdump, scapy)",
            f"{distribution} {size_s * 1e3:g} ms",
            f"interquartile range {found * 1e3:.3f} ms",
            f"{error * 1e3:+.3f} ms",
            abs(error) <= 0.1 * expected + 0.0001,
        )


def spread(line: Line) -> float:
    """Interquartile range of one-way times, from captures at both hosts."""
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, name) for name in ("left", "right")]
        recorders = []
        for host, file in zip((line.left, line.right), files, strict=True):
            command = ["tcpdump", "-i", "eth0", "-w", str(file), "-Z", "root", "-s", "64", "udp"]
            recorders.append(
                subprocess.Popen(command_in_namespace(host.pid, command), stderr=subprocess.PIPE, text=True)
            )
        for recorder in recorders:
            assert recorder.stderr is not None
            while "listening on" not in recorder.stderr.readline():
                pass
        stream(line, 1000, pause_s=0.01)
        for recorder in recorders:
            recorder.terminate()
            recorder.communicate()
        seen = []
        for file in files:
            with PcapReader(str(file)) as packets:
                seen.append({bytes(p[UDP].payload)[:4]: float(p.time) for p in packets if UDP in p})
    left, right = seen
    low, _, high = statistics.quantiles(right[number] - left[number] for number in left if number in right)
    return high - low


def queues(kind: str) -> Iterator[Row]:
    """Goal: the delay that a full queue adds is within 5 % plus two packets of its size over the rate."""
    rate_bps = 50e6
    for asked in QUEUES_BYTES:
        both = direction(rate_bps, 0.001, queue_bytes=asked)
        found = (with_link(kind, both, full_queue) - 0.002) * rate_bps / 8
        error = found - asked
        met = abs(error) <= 0.05 * asked + 2 * 1500
        yield Row(
            "queue (ping during iperf3)",
            f"{asked / 1e3:g} kB",
            f"{found / 1e3:.4g} kB",
            f"{error / asked:+.1%}",
            met,
        )


def full_queue(line: Line) -> float:
    """The longest round trip while UDP asks for half as much again as the link carries."""
    # many sockets: the kernel lets each have only so much under direction
    command = ["iperf3", "-c", RIGHT, "-u", "-b", "3750k", "-P", "20", "-l", "1400", "-t", "5"]
    with iperf_server(line.right.pid):
        client = subprocess.Popen(command_in_namespace(line.left.pid, command), stdout=subprocess.DEVNULL)
        try:
            return sorted(pings(line, 150, 0.02))[-5]
        finally:
            client.kill()
            client.wait()


def added_delay(kind: str) -> Iterator[Row]:
    """Goal: goodput never rises by more than 0.5 % when delay is added."""
    measure = partial(goodput, seconds=8)
    found = [
        with_link(kind, direction(100e6, delay_s, queue_bytes=2_000_000), measure) for delay_s in DELAYS_S
    ]
    rises = max(after / before - 1 for before, after in itertools.pairwise(found))
    yield Row(
        "goodput as delay is added (iperf3)",
        ", ".join(f"{delay_s * 1e3:g}" for delay_s in DELAYS_S) + " ms at 100 Mbit/s",
        ", ".join(f"{value / 1e6:.2f}" for value in found) + " Mbit/s",
        f"rises by at most {max(rises, 0):.2%}",
        rises <= 0.005,
    )


def binomial_interval(trials: int, chance: float) -> tuple[int, int]:
    """What 99 % of such series have, half a percent beyond each end."""
    below, low = 0.0, None
    for number in range(trials + 1):
        logarithm = math.lgamma(trials + 1) - math.lgamma(number + 1) - math.lgamma(trials - number + 1)
        logarithm += number * math.log(chance) + (trials - number) * math.log1p(-chance)
        below += math.exp(logarithm)
        if low is None and below >= 0.005:
            low = number
        if below >= 0.995:
            return low or 0, number
    return low or 0, trials


def with_link(
    kind: str, forth: Direction, measure: Callable[[Line], float], back: Direction | None = None
) -> float:
    """Measure on a fresh pair of hosts; both ways are alike unless `back` is given."""
    with (
        two_hosts() as line,
        tempfile.TemporaryDirectory() as folder,
        running(kind, line, Path(folder), forth, back or forth),
    ):
        return measure(line)


PARTS = (rates, round_trips, losses, jitters, queues, added_delay)


def table(kind: str) -> str:
    """One engine's, as Markdown; says on standard error how far it is."""
    lines = ["| property (tool) | configured | measured | error | goal met |", "|---|---|---|---|---|"]
    for part in PARTS:
        for row in part(kind):
            met = "yes" if row.met else "**no**"
            lines.append(f"| {row.what} | {row.asked} | {row.measured} | {row.error} | {met} |")
            print(lines[-1], file=sys.stderr, flush=True)
    goals = dict.fromkeys((part.__doc__ or "").removeprefix("Goal: ").rstrip(".") for part in PARTS)
    return "\n".join([*lines, "", "Goals, in this order: " + "; ".join(goals) + "."])


def here(kind: str) -> str | None:
    """An engine's table on this kernel; None where it has no such thing."""
    try:
        with_link(kind, direction(1e9, 0.001), lambda line: len(pings(line, 1, 0.2)))
    except LinkError:
        return None
    return table(kind)


def in_guest() -> str:
    """netem's under the virtual clock."""
    command = [sys.executable, "-m", "testbed", "virtual", "exec", "--memory", "3 GiB", "--timeout", "3000 s"]
    command += ["--", sys.executable, "-m", "tests.bench.fidelity_table"]
    return subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def main() -> None:
    """All engines; inside a guest, netem alone."""
    if clock_here():
        print(table("netem"))
        return
    sections = ["### userspace, real clock", "", here("userspace") or "not here", ""]
    netem = here("netem")
    sections += ["### netem, real clock", "", netem, ""] if netem else []
    sections += ["### netem, virtual clock", "", in_guest()]
    text = "\n".join(sections)
    print(text)
    if "--write" in sys.argv:
        document = DOCUMENT.read_text()
        before, rest = document.split(BEGIN)
        _, after = rest.split(END)
        DOCUMENT.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}")


if __name__ == "__main__":
    main()

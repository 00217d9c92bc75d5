"""Is the model's TCP Linux'? The same packets lost, to the same messages.

    .venv/bin/testbed run benchmarks/losses/windows.yaml --clock virtual --set telemetry.capture=all -o FOLDER
    .venv/bin/python benchmarks/losses/replay.py FOLDER [--only NAME ...]

From the captures of the WAN link: which bytes were lost, at which of their sendings, when messages began, and when
their last byte had crossed the link. The model's sender (`prediction/packets`) is given messages of that size at
that time over the scenario's path, on which the same bytes are lost at the same sendings; what it takes for all
messages of a variant is held against what the kernel took. No figure is drawn, so that a difference is the model's.
"""

from __future__ import annotations

import argparse
import heapq
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import NamedTuple

from scapy.layers.inet import IP, TCP
from scapy.utils import PcapNgReader

from testbed.net.paths.hops import PacketHop, PacketPath
from testbed.prediction.events import Event, EventQueue
from testbed.prediction.packets.links import LinkQueue
from testbed.prediction.packets.send_queue import Packet
from testbed.prediction.packets.sender import Sender
from testbed.prediction.step_prediction import prepare_step
from testbed.spec.scale import Scale
from testbed.spec.scenario import load_scenario
from testbed.workload.job.job import job_of

IDLE_S = 2e-3  # after which what is sent is another message, if all is acknowledged
LEAST_BYTES = 100_000  # of messages that are told of
SPLIT_BYTES = 1000  # what is less of a packet that is sent again in two parts


Key = tuple[int, int, int, int]  # that no two packets with data share


class Seen(NamedTuple):
    """A packet with data at the link's near end. byte: its first, from the connection's first on."""

    at_s: float
    byte: int
    size_bytes: int
    there_s: float | None


@dataclass
class Sent:
    """A message. size_bytes: of it; from_byte: the first; there_s: when the last one has crossed the link."""

    at_s: float
    from_byte: int
    size_bytes: int = 0
    there_s: float = 0.0


class Clock(EventQueue):
    """That goes on as far as one wants."""

    def run(self, until_s: float) -> None:
        """All that is before."""
        while self.heap and self.heap[0][0] <= until_s:
            self.now_s, _, action = heapq.heappop(self.heap)
            action()
        self.now_s = max(self.now_s, until_s)


class LosingLine(LinkQueue):
    """Of the link: loses what was lost. lost: bytes, and at which of their sendings."""

    def __init__(self, hop: PacketHop, lost: set[tuple[int, int]]) -> None:
        super().__init__(hop._replace(loss=0.0), None)
        self._lost = lost
        self.coming: deque[tuple[Packet, int]] = deque()
        self.last_s = 0.0

    def take(self, now_s: float, size_bytes: int) -> float | None:
        """The sender's packet, which is known here."""
        there_s = super().take(now_s, size_bytes)
        packet, sending = self.coming.popleft()
        first, end = packet.number, packet.number + packet.size_bytes
        if any(first <= byte < end and nth == sending for byte, nth in self._lost):
            return None
        self.last_s = there_s or 0.0
        return there_s


def packets(file: Path) -> Iterator[tuple[str, float, IP]]:
    """Of a capture: which end, when in seconds, and the packet."""
    for frame in PcapNgReader(str(file)):
        if TCP in frame:
            yield str(frame.sniffed_on), float(frame.time), frame[IP]


def seen(there: Path, back: Path) -> tuple[list[Seen], list[tuple[float, int]]]:
    """What was sent, and the acknowledgements that came back: when, and of how many bytes."""
    near: list[tuple[float, Key]] = []
    far: dict[Key, list[float]] = {}
    for end, at_s, ip in packets(there):
        key = (ip.id, ip[TCP].seq, ip.len - 4 * (ip.ihl + ip[TCP].dataofs), ip[TCP].ack)
        if not key[2]:
            continue
        if end == "entry":
            near.append((at_s, key))
        else:
            far.setdefault(key, []).append(at_s)
    base, taken = near[0][1][1], Counter[Key]()
    found = []
    for at_s, key in near:
        came = far.get(key, [])
        there_s = came[taken[key]] if taken[key] < len(came) else None
        taken[key] += there_s is not None
        found.append(Seen(at_s, (key[1] - base) % 2**32, key[2], there_s))
    heard = [(at_s, (ip[TCP].ack - base) % 2**32) for end, at_s, ip in packets(back) if end == "exit"]
    return found, heard


def messages(sent: list[Seen], heard: list[tuple[float, int]]) -> list[Sent]:
    """As they were sent: what follows on all being acknowledged, and a pause."""
    found: list[Sent] = []
    events = [(one.at_s, True, one.byte, one.size_bytes) for one in sent]
    events += [(at_s, False, byte, 0) for at_s, byte in heard]
    end = acknowledged = 0
    last_s = 0.0
    for at_s, is_sent, byte, size_bytes in sorted(events):
        if not is_sent:
            if acknowledged < byte <= end:  # what came before the first byte that is known means nothing here
                acknowledged, last_s = byte, at_s
            continue
        if byte + size_bytes > end:
            if not found or (acknowledged >= end and at_s - last_s > IDLE_S):
                found.append(Sent(at_s, end))
            found[-1].size_bytes += byte + size_bytes - end
            end = byte + size_bytes
        last_s = at_s
    for one in found:
        ends = one.from_byte + one.size_bytes
        one.there_s = max(own.there_s for own in sent if own.there_s and one.from_byte <= own.byte < ends)
    return found


def replayed(path: PacketPath, own: list[Sent], sent: list[Seen]) -> list[float]:
    """What the model takes for each, seconds."""
    sendings, lost = Counter[int](), set[tuple[int, int]]()
    for seen_one in sent:
        sendings[seen_one.byte] += 1
        if seen_one.there_s is None and seen_one.size_bytes > SPLIT_BYTES:
            lost.add((seen_one.byte, sendings[seen_one.byte]))
    clock, start_s = Clock(), own[0].at_s
    slowest = min(path.hops, key=lambda hop: hop.rate_bps)
    line = LosingLine(slowest, lost)
    there = [line if hop is slowest else LinkQueue(hop, None) for hop in path.hops]
    sender = Sender(
        clock, path, there, [LinkQueue(hop._replace(loss=0.0), None) for hop in path.back], 1e12, Random(0)
    )
    transmit = sender._transmit

    times = Counter[int]()

    def told(packet: Packet, most: int, now_s: float) -> None:
        times[packet.number] += 1
        line.coming.append((packet, times[packet.number]))
        transmit(packet, most, now_s)

    sender._transmit = told  # type: ignore[method-assign]
    took = []
    for one in own:
        clock.run(one.at_s - start_s)
        there_s: list[float] = []
        sender.send(one.size_bytes, Event(), lambda: None, lambda own=there_s: own.append(clock.now_s))  # type: ignore[misc]
        while not there_s:
            clock.run(clock.heap[0][0])
        took.append(line.last_s - (one.at_s - start_s))
    return took


def main() -> None:
    """Print a line for each variant, trial and direction."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="*", default=[])
    options = parser.parse_args()
    scenario = load_scenario(options.folder / "scenario.yaml")
    print("variant               messages   lost   Linux    model   error")
    for folder in sorted((options.folder / "captures").iterdir()):
        name = next(
            own
            for own in sorted(scenario.variant_names, key=len, reverse=True)
            if folder.name.startswith(own)
        )
        if options.only and name not in options.only:
            continue
        job = job_of(scenario.variant(name), Scale())
        network = prepare_step(job, job.scenario.algorithms[0]).network
        ends = [
            folder / f"{scenario.topology.resolve().wan[0].name}.{way}.pcapng" for way in ("a_to_b", "b_to_a")
        ]
        for pair, (there, back) in (((0, 1), ends), ((1, 0), ends[::-1])):
            sent, heard = seen(there, back)
            own = messages(sent, heard)
            took = replayed(network.packet_paths(pair, 0)[0], own, sent)
            large = [place for place, one in enumerate(own) if one.size_bytes >= LEAST_BYTES]
            kernel_s = sum(own[place].there_s - own[place].at_s for place in large)
            model_s = sum(took[place] for place in large)
            lost = sum(one.there_s is None for one in sent)
            row = f"{folder.name:<20} {len(large):9} {lost:6} {kernel_s:7.3f} {model_s:8.3f}"
            print(f"{row} {model_s / kernel_s - 1:+7.1%}", flush=True)


if __name__ == "__main__":
    main()

"""What pauses cost: a jam and who stands behind it, and the buffers that a long link takes. Under the virtual clock.

    .venv/bin/python benchmarks/pausing.py [jam | buffers | circle]...        default: all

Packets are UDP's, as many as cards let through, so that nothing reacts but the pauses. `jam`: eight hosts send to one
in another building, a ninth to its neighbour there, whose port is free, over a link that is quick enough for all.
`buffers`: one host sends over 10 ms to a card of half the rate, with thresholds of several sizes, beside the closed
form of a fluid that comes from a resume to a pause, each a way there and back late. `circle`: five buildings in a ring,
each one's host sends to the building two on. Prints tables in Markdown.
"""

from __future__ import annotations

import json
import selectors
import socket
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from testbed.clock import clock_here
from testbed.net.links import network_namespace
from testbed.net.links.packet_sockets import SO_RCVBUFFORCE
from testbed.net.paths.buffer_checks import find_pause_cycle
from testbed.net.virtual.guest import Guest, GuestSettings
from testbed.net.virtual.kernel_image import find_image
from testbed.spec.link_direction import Pause
from testbed.spec.topology import Topology, TopologySpec

FRAME, PAYLOAD = 9014, 8972
PORT = 5000
JAM_BPS, JAM_SENDERS = 100e6, 8
LINE_BPS, OUT_BPS, DELAY_S = 1e9, 500e6, 0.010
RING, RING_S = 5, 0.6
SHARES = (0.05, 0.25, 0.5, 0.75, 1.0, 1.5)  # of what keeps the drain busy while a resume is under way


@dataclass(frozen=True)
class Flow:
    """Packets from one host to another, one after the other."""

    source: str
    target: str


def blast(fabric: Any, flows: Sequence[Flow], settle_s: float, measured_s: float) -> list[float]:
    """Bit/s of frames of each flow that arrive at its target, once `settle_s` has passed."""
    topology, pids = fabric.topology, fabric.state.pids
    came = [0] * len(flows)
    with selectors.DefaultSelector() as selector:
        for number, flow in enumerate(flows):
            address = topology.host(flow.target).ip, PORT + number
            with network_namespace(pids[flow.target]):
                receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            receiver.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 64 << 20)
            receiver.bind(address)
            with network_namespace(pids[flow.source]):
                sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            sender.connect(address)
            for one, event in ((receiver, selectors.EVENT_READ), (sender, selectors.EVENT_WRITE)):
                one.setblocking(False)
                selector.register(one, event, number)
        begin_s, payload = time.monotonic(), bytes(PAYLOAD)
        before: list[int] | None = None
        while (now_s := time.monotonic()) < begin_s + settle_s + measured_s:
            if before is None and now_s >= begin_s + settle_s:
                before, begun_s = came.copy(), now_s
            for key, event in selector.select(0.001):
                if event == selectors.EVENT_WRITE:
                    key.fileobj.send(payload)  # type: ignore[union-attr]
                else:
                    key.fileobj.recv(FRAME)  # type: ignore[union-attr]
                    came[key.data] += FRAME
        took_s = time.monotonic() - begun_s
        for key in list(selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
    assert before is not None
    return [(late - early) * 8 / took_s for early, late in zip(before, came, strict=True)]


def circle() -> dict[str, Any]:
    """Inside a guest: what arrives early, and after that."""
    from testbed.net.fabric.network import Fabric  # noqa: PLC0415

    names = [f"b{number}x" for number in range(RING)]
    building = {"hosts": 1, "nic": {"rate": "100 Mbit/s", "pause": {}}}
    wan = {"rate": "100 Mbit/s", "delay": "0.1 ms", "pause": {}}
    document = {
        "name": "ring",
        "buildings": dict.fromkeys(names, building),
        "wan": [{"a": here, "b": names[(n + 1) % RING], **wan} for n, here in enumerate(names)],
    }
    topology = TopologySpec.model_validate(document).resolve()
    flows = [Flow(f"{here}1", f"{names[(n + 2) % RING]}1") for n, here in enumerate(names)]
    with Fabric(topology, link_engine="userspace", datapath="system") as fabric:
        early = blast(fabric, flows, 0.0, RING_S / 6)
        late = blast(fabric, flows, 0.0, RING_S)
        return {"early_bps": sum(early), "late_bps": sum(late), "circle": find_pause_cycle(topology)}


def network(name: str, nics: Mapping[str, Any], wan: Mapping[str, Any]) -> Topology:
    """Of buildings east and west."""
    document = {"name": name, "mtu": 9000, "buildings": nics, "wan": [{"a": "east", "b": "west", **wan}]}
    return TopologySpec.model_validate(document).resolve()


def jam(delay: str, pauses: bool) -> dict[str, Any]:
    """Inside a guest."""
    from testbed.net.fabric.network import Fabric  # noqa: PLC0415 (outside a guest nothing is built)

    more: dict[str, Any] = {"pause": {}} if pauses else {}
    nic = {"rate": "100 Mbit/s", **more}
    buildings = {"east": {"hosts": JAM_SENDERS + 1, "nic": nic}, "west": {"hosts": 2, "nic": nic}}
    topology = network("jam", buildings, {"rate": "1 Gbit/s", "delay": delay, "queue": "10 MB", **more})
    flows = [Flow(f"east{n + 2}", "west2") for n in range(JAM_SENDERS)] + [Flow("east1", "west1")]
    with Fabric(topology, link_engine="userspace", datapath="system") as fabric:
        before = dropped(fabric)
        rates = blast(fabric, flows, 0.5, 1.0)
        books = fabric.engine.stats().directions if fabric.engine else {}
        return {
            "jam_bps": sum(rates[:-1]),
            "victim_bps": rates[-1],
            "dropped": dropped(fabric) - before,
            "pauses": sum(book.pauses for book in books.values()),
            "held_bytes": books["east-west-0", "a_to_b"].buffer_peak_bytes,
        }


def dropped(fabric: Any) -> int:
    """Frames dropped by all queues so far, the kernel's and the link engine's."""
    kernel = sum(port.dropped for node in fabric.counts().values() for port in node.ports.values())
    return int(kernel + sum(book.dropped for book in fabric.engine.stats().directions.values()))


def buffers() -> Iterable[dict[str, Any]]:
    """Inside a guest: a row per threshold, the last without any limit to speak of."""
    from testbed.net.fabric.network import Fabric  # noqa: PLC0415

    buildings = {
        "east": {"hosts": 1, "nic": {"rate": "1 Gbit/s", "pause": {}}},
        "west": {"hosts": 1, "nic": {"rate": "500 Mbit/s", "pause": {}}},
    }
    topology = network("long", buildings, {"rate": "1 Gbit/s", "delay": "10 ms", "pause": {}})
    key = topology.wan[0].name, "a_to_b"
    with Fabric(topology, link_engine="userspace", datapath="system") as fabric:
        assert fabric.engine is not None
        usual = topology.wan[0].a_to_b
        assert usual.pause is not None
        for share in SHARES:
            xon = round(share * OUT_BPS / 8 * 2 * DELAY_S)
            pause = Pause(xon + 2 * FRAME, xon, usual.pause.headroom_bytes)
            fabric.engine.change({key: replace(usual, pause=pause)})
            before = dropped(fabric)
            (rate_bps,) = blast(fabric, [Flow("east1", "west1")], 0.2, 0.4)
            yield {
                "share": share,
                "xon": xon,
                "buffer": pause.buffer_bytes,
                "bps": rate_bps,
                "expected_bps": on_and_off_bps(pause),
                "dropped": dropped(fabric) - before,
                "peak": fabric.engine.stats().directions[key].buffer_peak_bytes,
            }
            time.sleep(1.5)  # until all that waits has gone


def on_and_off_bps(pause: Pause) -> float:
    """What passes, as a fluid, of LINE_BPS to a drain of OUT_BPS."""
    turn_s, rate, out = 2 * DELAY_S, LINE_BPS / 8, OUT_BPS / 8
    lowest = max(0.0, pause.xon_bytes - turn_s * out)
    rising_s = (pause.xoff_bytes - lowest) / (rate - out) + turn_s
    peak = pause.xoff_bytes + turn_s * (rate - out)
    return 8 * rate * rising_s / (rising_s + (peak - pause.xon_bytes) / out + turn_s)


def main() -> None:
    """A guest for each row of the jam, one for all buffers."""
    if clock_here() is not None:
        asked = json.loads(sys.argv[1])
        rows: Iterable[dict[str, Any]] = buffers()
        if asked["what"] != "buffers":
            rows = [circle() if asked["what"] == "circle" else jam(asked["delay"], asked["pauses"])]
        for row in rows:
            print(json.dumps(row), flush=True)
        return
    wanted = sys.argv[1:] or ["jam", "buffers", "circle"]
    if "jam" in wanted:
        print(
            "| delay | pauses | jam | victim | by the formula | dropped | pauses sent | held by the far building |"
        )
        print("|---|---|---|---|---|---|---|---|")
        for delay in ("1 ms", "10 ms"):
            for pauses in (False, True):
                (row,) = in_guest({"what": "jam", "delay": delay, "pauses": pauses})
                formula_bps = JAM_BPS / JAM_SENDERS if pauses else JAM_BPS
                print(
                    f"| {delay} | {'yes' if pauses else 'no'} | {mbps(row['jam_bps'])} | {mbps(row['victim_bps'])} | "
                    f"{mbps(formula_bps)} | {row['dropped']} | {row['pauses']} | {row['held_bytes'] / 1e6:.3f} MB |",
                    flush=True,
                )
    if "buffers" in wanted:
        print(
            "\n| xon | of what a full rate takes | buffer | passes | closed form | off | held at most | dropped |"
        )
        print("|---|---|---|---|---|---|---|---|")
        for row in in_guest({"what": "buffers"}):
            print(
                f"| {row['xon'] / 1e6:.3f} MB | {row['share']:.0%} | {row['buffer'] / 1e6:.2f} MB | "
                f"{mbps(row['bps'])} | {mbps(row['expected_bps'])} | {row['bps'] / row['expected_bps'] - 1:+.1%} | "
                f"{row['peak'] / 1e6:.2f} MB | {row['dropped']} |",
                flush=True,
            )

    if "circle" in wanted:
        (row,) = in_guest({"what": "circle"})
        print(
            f"\nA circle of pauses: {' to '.join(row['circle'])}. All five together: {mbps(row['early_bps'])} in the"
        )
        print(f"first {RING_S / 6 * 1e3:g} ms, then {mbps(row['late_bps'])} in {RING_S * 1e3:g} ms.")


def mbps(rate_bps: float) -> str:
    """For people."""
    return f"{rate_bps / 1e6:.1f} Mbit/s"


def in_guest(asked: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows that this file prints in a guest."""
    said: list[str] = []
    errors: list[str] = []
    command = [sys.executable, str(Path(__file__).resolve()), json.dumps(asked)]
    folder = str(Path(__file__).resolve().parents[1])
    ended = Guest(find_image(), GuestSettings()).run(
        command, Path.cwd(), {"PYTHONPATH": folder}, said.append, errors.append
    )
    if ended.status != 0:
        sys.exit("".join(errors))
    return [json.loads(line) for line in "".join(said).splitlines() if line.startswith("{")]


if __name__ == "__main__":
    main()

"""Single messages on packets, with each transport, under the virtual clock: chosen cells of the grid.

    python benchmarks/losses/packets.py [FOLDER]     # docs/evidence/experiments: losses-packets.json

A guest for each pair of loss and round trip, in which all transports send messages of all sizes, over 400 Gbit/s. What
is there already is kept, so that a run that was ended is taken up again. Losses are those of packets on their way to
the receiver. `--strict` of `testbed launch` measures the network before and checks it after.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import yaml

ROOT = Path(__file__).parents[2]
FOUND = "losses-packets.json"
RATE = "400 Gbit/s"
MTU = 4200  # payload of 4124 bytes in a datagram, 4148 in TCP's segment; RoCE's packets have 4096
KIB, MIB = 1 << 10, 1 << 20
ONE_QUEUE_PAIR = {"connections": 1, "segment": "1 GiB"}
TRANSPORTS: dict[str, dict[str, Any]] = {
    "reno": {"kind": "tcp", "congestion_control": "reno"},
    "cubic": {"kind": "tcp", "congestion_control": "cubic"},
    "bbr": {"kind": "tcp", "congestion_control": "bbr"},
    "roce": {"kind": "rdma", "stripes": {"same_region": ONE_QUEUE_PAIR, "other_region": ONE_QUEUE_PAIR}},
    **{
        recovery: {"kind": "datagram", "datagram": {"recovery": recovery}}
        for recovery in ("go_back_n", "selective_repeat", "nack", "erasure", "xor")
    },
}
UNMEASURED = 10  # of which TCP's windows begin
COUNTS = {128 * KIB: 300, MIB: 100, 8 * MIB: 24}
FEWER = 8  # of the largest, by what sends it many times over


class Point(NamedTuple):
    """loss: share of packets; round_trip_ms: of the empty path."""

    loss: float
    round_trip_ms: float


POINTS = (Point(1e-2, 25), Point(1e-3, 25), Point(1e-4, 5), Point(1e-3, 80), Point(1e-2, 1))


def sent_at(point: Point) -> list[dict[str, Any]]:
    """Of each transport and size, how many messages."""
    found = []
    for name, transport in TRANSPORTS.items():
        for size_bytes, count in COUNTS.items():
            slow = (
                point.loss >= 1e-2
                and size_bytes == max(COUNTS)
                and name in ("go_back_n", "roce", "reno", "cubic")
            )
            own = {"name": name, "transport": transport, "size_bytes": size_bytes}
            found.append({**own, "unmeasured": 2 if slow else UNMEASURED, "count": FEWER if slow else count})
    return found


def measure(point: Point, seed: int = 1) -> dict[str, Any]:
    """All of a point's, in a guest. SystemExit where it fails."""
    topology = {
        "name": "long",
        "mtu": MTU,
        "buildings": {name: {"hosts": 1, "nic": {"rate": RATE}} for name in ("east", "west")},
        "wan": [
            {
                "a": "east",
                "b": "west",
                "rate": RATE,
                "delay": f"{point.round_trip_ms / 2} ms",
                "a_to_b": {"loss": point.loss},
            }
        ],
    }
    with tempfile.TemporaryDirectory() as folder:
        network, asked = Path(folder) / "long.yaml", Path(folder) / "asked.json"
        network.write_text(yaml.safe_dump(topology))
        asked.write_text(json.dumps({"topology": str(network), "seed": seed, "sent": sent_at(point)}))
        options = ["-t", str(network), "--clock", "virtual", "--size-scale", "1", "--strict"]
        program = [sys.executable, str(ROOT / "benchmarks/losses/messages.py"), str(asked)]
        command = [sys.executable, "-m", "testbed", "launch", *options, "--transport", "rdma", "--", *program]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    lines = [line.removeprefix("[0] ") for line in done.stdout.splitlines() if line.startswith("[0] {")]
    if done.returncode not in (0, 3) or not lines:
        raise SystemExit(f"{point}: status {done.returncode}\n{done.stdout[-500:]}{done.stderr[-3000:]}")
    rows = [json.loads(line) for line in lines]
    cells = [
        {key: row[key] for key in ("name", "size_bytes", "unmeasured")}
        | {"took_s": [round(s, 9) for s in row["took_s"]]}
        for row in rows
    ]
    return {**point._asdict(), "seed": seed, "checked": done.returncode == 0, "cells": cells}


def main() -> None:
    """What is not there yet."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, nargs="?", default=ROOT / "docs/evidence/experiments")
    found = parser.parse_args().folder / FOUND
    runs = json.loads(found.read_text()) if found.exists() else []
    there = {(run["loss"], run["round_trip_ms"]) for run in runs}
    for point in POINTS:
        if tuple(point) not in there:
            runs.append(measure(point))
            found.write_text("[\n" + ",\n".join(map(json.dumps, runs)) + "\n]\n")
            print(point, "checked" if runs[-1]["checked"] else "NOT AS ASKED", flush=True)


if __name__ == "__main__":
    main()

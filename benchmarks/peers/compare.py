"""Our all-reduce beside PyTorch's gloo and MPICH: the same sizes, ranks and emulated links, in turns in one run.

    tools/bootstrap peers && sudo .venv/bin/python benchmarks/peers/compare.py [--json FILE]

8 ranks in one building with cards of 100 Mbit/s, then 8 in two, joined by 142.8 Mbit/s with 2.5 ms: 1:2.8. One link:
with several, their balance is what would be measured.
Every library runs in every trial; figures are medians over trials of rank 0's time per call. "allowed" is what the
most loaded link's goodput makes of the bytes that our algorithm sends. Bars: from 1 MiB on at least 97 % of that, and
not behind the better of the others; from 4 to 64 KiB at most half the better one's time.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from pathlib import Path
from typing import Any

from testbed.comm.collectives import ALL_REDUCE, choose_algorithm, traffic
from testbed.measure.execution.collective_benchmark import bottleneck_s
from testbed.measure.execution.network_setup import choose_network_backend
from testbed.measure.ranks.programs import Programs
from testbed.net.errors import FabricError
from testbed.net.fabric.fabric_state import ENVIRONMENT_MARK, clean_abandoned
from testbed.net.fabric.network import Fabric
from testbed.spec.topology import TopologySpec
from testbed.workload.job.endpoint_resolution import endpoints_on

HERE = Path(__file__).parent
PEERS = HERE.parents[1] / ".venv-peers" / "bin" / "python"
KIB, MIB = 1024, 1024**2
SIZES = (4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB)
NIC = {"rate": "100 Mbit/s"}
SETTINGS: dict[str, dict[str, Any]] = {
    "one building": {"name": "one", "buildings": {"east": {"hosts": 8, "nic": NIC}}},
    "two buildings": {
        "name": "two",
        "buildings": {"east": {"hosts": 4, "nic": NIC}, "west": {"hosts": 4, "nic": NIC}},
        "wan": [{"a": "east", "b": "west", "rate": "142.8 Mbit/s", "delay": "2.5 ms"}],
    },
}
Times = dict[int, list[float]]


def run_one(
    endpoints: list[Any], library: str, environment: dict[str, str], options: argparse.Namespace
) -> dict[int, float]:
    """Seconds per call by size, of one library once."""
    printed: list[str] = []
    complaints: list[str] = []

    def hear(rank: int, is_error: bool, line: str) -> None:
        (complaints if is_error else printed).append(f"[{rank}] {line}" if is_error else line)

    python = sys.executable if library.startswith("ours") else str(PEERS)
    sizes = ",".join(map(str, SIZES))
    command = [python, str(HERE / "rank.py"), library, sizes, str(options.iterations), str(options.warmup)]
    status = Programs(command, endpoints, hear, environment).run()
    if status:
        raise SystemExit(f"{library} ended with status {status}:\n" + "\n".join(complaints[-20:]))
    return {int(size): took_s for size, took_s in json.loads(printed[-1]).items()}


def compare(name: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """All libraries in turns on one network; a row per size."""
    topology = TopologySpec.model_validate(SETTINGS[name]).resolve()
    backend = choose_network_backend(None, None)
    libraries = options.libraries.split(",")
    times: dict[str, Times] = {library: {size: [] for size in SIZES} for library in libraries}
    fabric = Fabric(
        topology, policy="ecmp", link_engine=backend.link_engine, datapath=backend.datapath, seed=1
    )
    with fabric:
        endpoints = endpoints_on(topology, topology.hosts, fabric.state.pids)
        buildings = [endpoint.building for endpoint in endpoints]
        environment = {ENVIRONMENT_MARK: fabric.state.id, "PYTHONPATH": str(HERE.parents[1])}
        for trial in range(options.trials):
            for library in libraries if trial % 2 == 0 else libraries[::-1]:
                for size, took_s in run_one(endpoints, library, environment, options).items():
                    times[library][size].append(took_s)
    rows = []
    for size in SIZES:
        algorithm = choose_algorithm("all_reduce", size, buildings)
        allowed_s = bottleneck_s(
            topology, topology.hosts, traffic("all_reduce", algorithm, size // 4, 4, buildings)
        )
        medians = {library: statistics.median(found[size]) for library, found in times.items()}
        spread = {library: (min(found[size]), max(found[size])) for library, found in times.items()}
        rows.append(
            {
                "setting": name,
                "size": size,
                "algorithm": algorithm,
                "allowed_s": allowed_s,
                "median_s": medians,
                "spread_s": spread,
            }
        )
    return rows


def verdict(row: dict[str, Any]) -> str:
    """Whether the bars are met."""
    ours = row["median_s"]["ours"]
    others = [took_s for library, took_s in row["median_s"].items() if not library.startswith("ours")]
    if not others:
        return ""
    if row["size"] >= MIB:
        near = row["allowed_s"] / ours
        return "met" if near >= 0.97 and ours <= min(others) else f"MISSED ({near:.1%} of what is allowed)"
    if row["size"] <= 64 * KIB:
        return "met" if ours <= min(others) / 2 else f"MISSED ({ours / min(others):.2f} of the better)"
    return ""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=30)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--libraries", default="ours,gloo,mpich")
    parser.add_argument("--settings", default=",".join(SETTINGS))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if os.geteuid() != 0:
        raise SystemExit("building networks needs root: run it through sudo")
    clean_abandoned()
    rows = []
    for name in options.settings.split(","):
        print(f"8 ranks, {name}; ms per call, and busbw in Mbit/s")
        for row in compare(name, options):
            rows.append(row)
            cells = [
                f"{library} {took_s * 1e3:9.3f} ({row['size'] / took_s * ALL_REDUCE.bus_factor(8) * 8 / 1e6:6.1f})"
                for library, took_s in row["median_s"].items()
            ]
            share = row["allowed_s"] / row["median_s"]["ours"] if "ours" in row["median_s"] else 0
            print(
                f"{row['size']:9} B  "
                + "  ".join(cells)
                + f"  ours is {share:.1%} of allowed  {verdict(row)}",
                flush=True,
            )
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    try:
        main()
    except FabricError as error:
        sys.exit(f"error: {error}")

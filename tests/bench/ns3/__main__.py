"""The same experiments in ns-3, in the testbed, in theory: `.venv/bin/python -m tests.bench.ns3 [--quick] [--write]`.

ns-3 comes with `tools/bootstrap ns3`, the testbed's figures from a guest of the virtual clock (`make virtual`).
`--quick` tries a few of the experiments, `--tables` makes the tables of what the last call found anew, `--write` puts
them into docs/evidence/fidelity.md in place of those there.
"""

from __future__ import annotations

import sys

from tests.bench.ns3 import cells, emulator, tables
from tests.bench.ns3.simulator import ROOT, Simulator

DOCUMENT = ROOT / "docs/evidence/fidelity.md"
BEGIN, END = "<!-- tables: python -m tests.bench.ns3 --write -->", "<!-- end of ns-3's tables -->"


def say(line: str) -> None:
    """How far it is."""
    print(line, file=sys.stderr, flush=True)


def main() -> None:
    """ns-3 first, then all of the testbed's in one guest."""
    quick = "--quick" in sys.argv
    flows, stars, bursts = cells.dumbbells(quick), cells.many_round_trips(quick), cells.incasts(quick)
    queues = cells.queueing(quick)
    others: list[cells.Experiment] = [cells.ONE, cells.BURST, *queues, *bursts]
    simulator, of_ns3 = Simulator(), {}
    for cell in [*others, *flows, *stars]:
        of_ns3[cell] = simulator.run(cell)
        say(f"ns-3: {cell.name}, seed {cell.seed}: {of_ns3[cell]['cpu_s']:.0f} s of CPU time")
    found = emulator.last() if "--tables" in sys.argv else emulator.run([*others, *flows, *stars], say)

    def ns3(cell: cells.Experiment) -> tables.Found:
        return of_ns3[cell]

    def ours(cell: cells.Experiment) -> tables.Found:
        return found[cell.name, cell.seed]

    clean, lossy = tables.dumbbells(flows, ns3, ours)
    sections = [
        ("One flow without random loss", clean),
        ("One flow with random loss", lossy),
        ("Eight flows with different round trips", tables.round_trips(stars, ns3, ours)),
        ("Incast of sixteen senders", tables.incast(bursts, ns3, ours)),
        ("Poisson arrivals (M/D/1)", tables.frames(queues, ns3, ours)),
        ("Single frames", tables.single_frames(ns3, ours)),
        ("CPU time", tables.speed(flows, ns3, ours)),
    ]
    text = "\n\n".join(f"### {title}\n\n{table}" for title, table in sections) + f"\n\n{tables.GOALS}"
    print(text)
    if "--write" in sys.argv:
        before, rest = DOCUMENT.read_text().split(BEGIN)
        _, after = rest.split(END)
        DOCUMENT.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}")


if __name__ == "__main__":
    main()

"""What starting a job takes from 1,024 to 98,304 ranks by the model, and what each of four remedies does by itself.

    .venv/bin/python benchmarks/start_at_scale.py

Prints the table of docs/evidence/transports.md.
"""

from __future__ import annotations

from testbed.measure.execution.benchmark_options import STARTUP_METHODS
from testbed.prediction.startup_cost import (
    FIGURE_21,
    PUBLISHED,
    estimate_startup,
    growth_exponent,
    usual_groups,
)

SIZES = (1_024, 4_096, 8_192, 32_768, 98_304)
WORDS = {
    "baseline": "baseline: star, topology by pairs, new bootstrap per group, eager connections",
    "ring": "only addresses around a ring",
    "by_ranks": "only topology by ranks",
    "reuse": "only groups from known addresses",
    "lazy": "only connections on first use",
    "scalable": "all four remedies",
}


def main() -> None:
    """Print."""
    print("| | " + " | ".join(f"{size:,}" for size in SIZES) + " | grows as | connections | rank 0 sends |")
    print("|" + "---|" * (len(SIZES) + 4))
    for name, way in STARTUP_METHODS.items():
        found = [estimate_startup(size, usual_groups(size), way, PUBLISHED) for size in SIZES]
        own = growth_exponent(
            [(size, one.seconds) for size, one in zip(SIZES, found, strict=True) if size in FIGURE_21]
        )
        times = " | ".join(f"{one.seconds:.1f} s" for one in found)
        last = found[-1]
        print(
            f"| {WORDS[name]} | {times} | n^{own:.2f} | {last.connections:,} | {last.master_bytes / 1e6:,.1f} MB |"
        )


if __name__ == "__main__":
    main()

"""What starting a job takes from 1,024 to 98,304 ranks by the model, and what each of four remedies does by itself.

    .venv/bin/python benchmarks/start_at_scale.py

Prints the table of docs/transports.md.
"""

from __future__ import annotations

from dataclasses import replace

from testbed.model.starting import (
    BASELINE,
    FIGURE_21,
    PUBLISHED,
    RING,
    SCALABLE,
    growth,
    start_of,
    usual_groups,
)

SIZES = (1_024, 4_096, 8_192, 32_768, 98_304)
WAYS = {
    "star, by pairs, groups anew, eager": BASELINE,
    "addresses round a ring": replace(BASELINE, bootstrap=RING),
    "topology by ranks": replace(BASELINE, by_pairs=False),
    "groups of what is known": replace(BASELINE, reuses=True),
    "connections when used": replace(BASELINE, eager=False),
    "all four": SCALABLE,
}


def main() -> None:
    """Print."""
    print("| | " + " | ".join(f"{size:,}" for size in SIZES) + " | grows as | connections | rank 0 sends |")
    print("|" + "---|" * (len(SIZES) + 4))
    for name, way in WAYS.items():
        found = [start_of(size, usual_groups(size), way, PUBLISHED) for size in SIZES]
        own = growth(
            [(size, one.seconds) for size, one in zip(SIZES, found, strict=True) if size in FIGURE_21]
        )
        times = " | ".join(f"{one.seconds:.1f} s" for one in found)
        last = found[-1]
        print(
            f"| {name} | {times} | n^{own:.2f} | {last.connections:,} | {last.master_bytes / 1e6:,.1f} MB |"
        )


if __name__ == "__main__":
    main()

"""A table of runs of scenarios/transports/incast.yaml and spraying.yaml, for the pages about them.

    python benchmarks/messages_table.py RUN_DIRECTORY

Of each variant: when its messages were whole at their receivers, from the first to the last; all bytes over the last,
as a share of the line; Jain's index (R. Jain et al., DEC-TR-301) of the messages' rates; frames that the WAN's queues
dropped in a step, and the longest queue that a reading found; how often RoCE's cards went back; what the model said.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from testbed.spec.units import size_text, time_text

HEADS = (
    (
        "variant",
        "first",
        "last",
        "of the line",
        "Jain",
        "dropped",
        "longest queue",
        "went back",
        "model",
        "verdict",
    ),
    ("---", "--:", "--:", "--:", "--:", "--:", "--:", "--:", "--:", "---"),
)


def main() -> None:
    """Print it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path)
    parser.add_argument("--line", type=float, default=1e9, help="bit/s that all messages share")
    options = parser.parse_args()
    summary = json.loads((options.run / "summary.json").read_text())
    samples = [json.loads(line) for line in (options.run / "samples.jsonl").read_text().splitlines()]
    for head in HEADS:
        print(f"| {' | '.join(head)} |")
    for variant in summary["variants"]:
        print(f"| {' | '.join(row(variant, received(samples, variant['name']), options.line))} |")


def received(samples: list[dict[str, Any]], variant: str) -> list[tuple[float, int]]:
    """Of the last step: when each message was whole, and its bytes."""
    own = [one for one in samples if one["variant"] == variant and one["operation"] == "recv"]
    last = max(one["step"] for one in own)
    begun_s = min(one["start_s"] for one in own if one["step"] == last)
    return sorted((one["end_s"] - begun_s, one["bytes"]) for one in own if one["step"] == last)


def row(variant: dict[str, Any], ends: list[tuple[float, int]], line_bps: float) -> list[str]:
    """Of one variant."""
    rates = [size_bytes / end_s for end_s, size_bytes in ends]
    jain = sum(rates) ** 2 / len(rates) / sum(rate**2 for rate in rates)
    whole = sum(size_bytes for _, size_bytes in ends) * 8 / ends[-1][0] / line_bps
    links = variant["wan_links"]
    went_back = sum(one.get("went_back") or 0 for one in variant["connections"])
    predicted = variant.get("predicted")
    return [
        variant["name"],
        time_text(ends[0][0]),
        time_text(ends[-1][0]),
        f"{whole:.1%}".replace("%", " %"),
        f"{jain:.3f}",
        str(sum(one["drops"] for one in links)),
        size_text(max(one["queue_peak_bytes"] for one in links)),
        str(went_back or ""),
        time_text(predicted["step_time_s"]) if predicted else "",
        variant["verdict"]["status"],
    ]


if __name__ == "__main__":
    main()

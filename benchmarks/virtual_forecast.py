"""What is said of runs under the virtual clock before they begin, beside what they take: wall time, memory of a guest.

    .venv/bin/python benchmarks/virtual_forecast.py [SCENARIO...]        default: those below

On an otherwise idle machine; prints Markdown.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

TESTBED = Path(sys.executable).with_name("testbed")
SCENARIOS = ("quickstart", "crosspipe", "send-tokens", "placement", "four-buildings-64-ranks")
MIB = 1 << 20


def run(scenario: Path) -> str:
    """A row of the table."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "run")
        command = [str(TESTBED), "run", str(scenario), "--clock", "virtual", "-o", str(output)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode not in (0, 3):
            sys.exit(done.stderr)
        clock = json.loads((output / "manifest.json").read_text())["clock"]
    used = max(part["memory_bytes"] for part in clock["parts"])
    wall_s, expected_s, expected = clock["wall_s"], clock["expected_wall_s"], clock["expected_memory_bytes"]
    time = f"{expected_s:.0f} s | {wall_s:.0f} s | {expected_s / wall_s - 1:+.0%}"
    memory = f"{expected / MIB:.0f} MiB | {used / MIB:.0f} MiB | {expected / used - 1:+.0%}"
    guests = f"{len(clock['parts'])}, {clock['jobs']} at once"
    return f"| {scenario.stem} | {guests} | {time} | {memory} | {clock['memory_bytes'] / MIB:.0f} MiB |"


def main() -> None:
    """One row for each scenario."""
    print("| scenario | guests | time expected | taken | error | memory expected | used | error | allowed |")
    print("|---|---|---|---|---|---|---|---|---|")
    known = Path(__file__).parents[1] / "scenarios"
    for scenario in sys.argv[1:] or [str(known / f"{name}.yaml") for name in SCENARIOS]:
        print(run(Path(scenario)), flush=True)


if __name__ == "__main__":
    main()

"""How many kinds of distortion a verdict names: `python -m tests.bench.distortions [NAME...]`.

Under the virtual clock a small job runs once for each kind: ranks that lie, sockets, switches, in all steps or in one.
A kind is named when its run is not trusted, and harmless when all of its steps take what they take without it. Prints
each kind with what named it, and the share of all that are one or the other.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.virtual.distortions_inside import NOTHING

ROOT = Path(__file__).parents[2]
SAME_S = 20e-6  # of a step of 72 ms


def main() -> None:
    """Run all of them in one guest; its own words go to the terminal as they come."""
    with tempfile.TemporaryDirectory(prefix="distortions-") as home:
        folder = Path(home) / "out"
        folder.mkdir()
        folder.chmod(0o777)
        inside = [
            "env",
            f"PYTHONPATH={ROOT}",
            sys.executable,
            "-m",
            "tests.virtual.distortions_inside",
            str(folder),
        ]
        names = [NOTHING, *sys.argv[1:]] if sys.argv[1:] else []
        guest = [
            sys.executable,
            "-m",
            "testbed",
            "virtual",
            "exec",
            "--writable",
            str(folder),
            "--",
            *inside,
            *names,
        ]
        subprocess.run(guest, check=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
        found: dict[str, dict[str, Any]] = json.loads((folder / "distortions.json").read_text())
    clean = found.pop(NOTHING)
    print(f"{NOTHING}: {clean['status']}, {1e3 * max(clean['steps_s']):.4g} ms at the most")
    missed = 0
    for name, run in found.items():
        same = bool(run["steps_s"]) and all(
            abs(step_s - clean_s) < SAME_S
            for step_s, clean_s in zip(run["steps_s"], clean["steps_s"], strict=True)
        )
        words = ", ".join(run["failed"]) or ("harmless" if same else "MISSED")
        missed += run["status"] == "trusted" and not same
        slowest = f"{1e3 * max(run['steps_s']):.4g} ms" if run["steps_s"] else "no steps"
        print(f"{name}: {run['status']}, {slowest}: {words}")
    print(f"{len(found) - missed} of {len(found)} kinds are named or change nothing; {missed} are missed")


if __name__ == "__main__":
    main()

"""How often a clean run is not trusted: `python -m tests.bench.false_alarms [RUNS] [SCENARIO] [OPTIONS OF run]`.

Runs a scenario again and again with nothing wrong, each time with a seed of its own: by the real clock as root, on an
otherwise idle machine; or with `--clock virtual`. Prints each run's verdict with what did not hold, and the share of
runs that were not trusted.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]


def main() -> None:
    """So many runs, one after the other."""
    given, options = _apart(sys.argv[1:])
    runs = int(given[0]) if given else 20
    scenario = given[1] if len(given) > 1 else str(ROOT / "scenarios/quickstart.yaml")
    verdicts: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        for number in range(runs):
            command = [sys.executable, "-m", "testbed", "run", scenario, "--json"]
            command += ["--output", f"{folder}/{number}", "--set", f"seed={number + 1}"]
            command += options if "--trials" in options else ["--trials", "3", *options]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode not in (0, 3):
                raise SystemExit(done.stderr)
            summary = json.loads(done.stdout)
            failed = {
                entry["name"]: entry["measured"]
                for variant in summary["variants"]
                for entry in variant["verdict"]["invariants"]
                if entry["ok"] is False
            }
            times = [f"{variant['step_time_s']['median']:.3f} s" for variant in summary["variants"]]
            verdicts[summary["status"]] += 1
            reasons.update(failed.keys())
            print(f"{number + 1}: {summary['status']}, {', '.join(times)} {failed or ''}", flush=True)
    alarms = runs - verdicts["trusted"]
    print(f"{alarms} of {runs} clean runs were not trusted: {dict(verdicts)} {dict(reasons) or ''}")


def _apart(arguments: list[str]) -> tuple[list[str], list[str]]:
    """(what comes before the first option, the rest)"""
    options = [index for index, argument in enumerate(arguments) if argument.startswith("-")]
    first = options[0] if options else len(arguments)
    return arguments[:first], arguments[first:]


if __name__ == "__main__":
    main()

"""How many kinds of distortion a verdict names: `python -m tests.bench.distortions [--kept FOLDER] [NAME...]`.

Under the virtual clock a small job runs once for each kind: ranks that lie, sockets, switches, in all steps or in one.
A kind is named when something fails in its run that does not without it, and harmless when all of its steps take what
they take without it. Prints each kind with what named it, and the share of all that are one or the other. What came of
each stays in FOLDER: only kinds that are missing there are run. With --clean jobs of sixty-odd shapes run instead, with
nothing wrong: each of them is to be trusted.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.virtual.distortions_inside import DATAGRAMS, NOTHING, clean_names

ROOT = Path(__file__).parents[2]
SAME_S = 20e-6  # of a step of 72 ms


def main() -> None:
    """Run all of them in one guest; its own words go to the terminal as they come."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kept", type=Path, metavar="FOLDER")
    parser.add_argument("--clean", action="store_true")
    parser.add_argument("names", nargs="*", metavar="NAME")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="distortions-") as home:
        folder = given.kept or Path(home) / "out"
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o777)
        names = [NOTHING, DATAGRAMS + NOTHING, *given.names] if given.names else []
        names = given.names or clean_names() if given.clean else names
        inside = ["env", f"PYTHONPATH={ROOT}", sys.executable, "-m", "tests.virtual.distortions_inside"]
        guest = [sys.executable, "-m", "testbed", "virtual", "exec", "--writable", str(folder), "--"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        subprocess.run([*guest, *inside, str(folder), *names], check=True, env=environment)
        found = json.loads((folder / "distortions.json").read_text())
    (show_clean if given.clean else show)(found)


def show(found: dict[str, dict[str, Any]]) -> None:
    """Print what came of each kind, against what its transport takes undistorted."""
    clean = {name: found.pop(name) for name in (NOTHING, DATAGRAMS + NOTHING) if name in found}
    for name, run in clean.items():
        print(f"{name}: {run['status']}, {1e3 * max(run['steps_s']):.4g} ms at the most")
    missed = 0
    for name, run in found.items():
        usual = clean[DATAGRAMS + NOTHING if name.startswith(DATAGRAMS) else NOTHING]
        pairs = zip(run["steps_s"], usual["steps_s"], strict=bool(run["steps_s"]))
        same = bool(run["steps_s"]) and all(abs(step_s - clean_s) < SAME_S for step_s, clean_s in pairs)
        named = [invariant for invariant in run["failed"] if invariant not in usual["failed"]]
        words = ", ".join(named) or ("harmless" if same else "MISSED")
        missed += not named and not same
        slowest = f"{1e3 * max(run['steps_s']):.4g} ms" if run["steps_s"] else "no steps"
        print(f"{name}: {run['status']}, {slowest}: {words}")
    print(f"{len(found) - missed} of {len(found)} kinds are named or change nothing; {missed} are missed")


def show_clean(found: dict[str, dict[str, Any]]) -> None:
    """Print what did not hold though nothing was wrong."""
    for name, run in found.items():
        print(f"{name}: {run['status']}", *(f"\n    {row}: {words}" for row, words in run["failed"].items()))
    alarms = sum(run["status"] != "trusted" for run in found.values())
    print(f"{alarms} of {len(found)} clean runs were not trusted")


if __name__ == "__main__":
    main()

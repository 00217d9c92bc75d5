"""Where the wall time of a guest's steps goes, by who spends it: its network, its programs, and stopping them.

    .venv/bin/python benchmarks/virtual_profile.py [SCENARIO] [--set PATH=VALUE...]

As root, with perf (Debian's linux-perf), on an otherwise idle machine: looks at all cores for some seconds from a
run's first step on. The guest's kernel is a program of this machine's and so has names; its programs' code has none.
"""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

TESTBED = Path(sys.executable).with_name("testbed")
SCENARIO = "scenarios/four-buildings-64-ranks.yaml"
FROM = re.compile(r"step \d+ of")
SECONDS, HERTZ = 10, 1999
SYMBOLS = 16
KERNEL, PROGRAMS, STOPS = (
    "the guest's kernel: network",
    "the guest's programs",
    "this machine's kernel: stops",
)
OTHERS = "others"


def spent_by(command: str, where: str) -> str:
    """Of a sample in `where`, a file, of a process called `command`."""
    if command not in ("linux", "uml-userspace"):
        return OTHERS
    if where == "[kernel.kallsyms]":
        return STOPS
    return KERNEL if where == "linux" else PROGRAMS if where.startswith("#") else OTHERS


def sampled(folder: Path) -> list[tuple[int, str, str, str]]:
    """Samples, command, file and symbol, of all cores."""
    data = folder / "perf.data"
    record = ["perf", "record", "-a", "-e", "cpu-clock", "-F", str(HERTZ), "-o", str(data)]
    subprocess.run([*record, "--", "sleep", str(SECONDS)], check=True, capture_output=True)
    report = ["perf", "report", "-i", str(data), "--no-children", "-g", "none", "-t", "|"]
    report += ["--sort", "comm,dso,symbol", "-F", "sample,comm,dso,symbol"]
    said = subprocess.run(report, check=True, capture_output=True, text=True).stdout
    rows = [[word.strip() for word in line.split("|")] for line in said.splitlines() if "|" in line]
    return [(int(row[0]), row[1], row[2].split()[0], row[3]) for row in rows if row[0].isdigit()]


def main() -> None:
    """Two tables, in Markdown: by who, and the guest's kernel by function."""
    if shutil.which("perf") is None:
        sys.exit("perf is not installed (Debian's package linux-perf)")
    scenario, *options = sys.argv[1:] or [SCENARIO]
    with tempfile.TemporaryDirectory() as name:
        command = [str(TESTBED), "run", scenario, "--clock", "virtual", "--jobs", "1", *options]
        running = subprocess.Popen(
            [*command, "-o", f"{name}/run"], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
        )
        assert running.stderr is not None
        if not any(FROM.search(line) for line in running.stderr):
            sys.exit("the run ended before its first step")
        found = sampled(Path(name))
        running.send_signal(signal.SIGINT)
        running.communicate()
    total = sum(row[0] for row in found if spent_by(row[1], row[2]) != OTHERS)
    by_who, by_function = Counter[str](), Counter[str]()
    for count, command_name, where, symbol in found:
        who = spent_by(command_name, where)
        by_who[who] += count
        if who == KERNEL:
            by_function[symbol.split()[1]] += count
    print("| of a guest's wall time | |\n|---|---|")
    for who, count in by_who.most_common():
        if who != OTHERS:
            print(f"| {who} | {count / total:.0%} |")
    print("\n| of the guest's kernel | |\n|---|---|")
    for symbol, count in by_function.most_common(SYMBOLS):
        print(f"| `{symbol}` | {count / total:.1%} |")


if __name__ == "__main__":
    main()

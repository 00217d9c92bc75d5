"""What it costs to get a run going under the virtual clock: CPU and wall seconds from boot to its first step.

    .venv/bin/python benchmarks/virtual_start.py [RANKS...]           default: 8 32 128
    .venv/bin/python benchmarks/virtual_start.py --profile RANKS      where the time goes, function by function

So many ranks in two buildings at 400 Gbit/s, one ring step of 4 kB. CPU seconds are those of all the guest's processes;
the exponent is that of the growth from the first number of ranks to the last. The profile is Python's own, of the
program in the guest that builds the network and starts the ranks, by the processor's time stamp counter, which goes on
while the virtual clock stands: what other processes of the guest do meanwhile is in the functions that wait for them.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
TESTBED = Path(sys.executable).with_name("testbed")
RANKS = (8, 32, 128)
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
# what each phase begins with, as the command tells it
PHASES = {
    "boot, imports": "",
    "controller": "starting the controller",
    "network": "building",
    "links, verify": "starting the netem",
    "TCP tried": "trying",
    "links measured": "measuring",
    "ranks": "starting",
}
PROFILE = """
import cProfile, ctypes, mmap, pstats, sys, time
code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
code.write(bytes.fromhex("0f3148c1e2204809d0c3"))  # rdtsc; shl rdx, 32; or rax, rdx; ret
ticks = ctypes.CFUNCTYPE(ctypes.c_uint64)(ctypes.addressof(ctypes.c_char.from_buffer(code)))
began = ticks()
sys.path.insert(0, sys.argv.pop(1))
frequency = float(sys.argv.pop(1))
profile = cProfile.Profile(ticks, 1 / frequency)
profile.enable()
from testbed.measure.execution.guest_entry import main
status = main()
profile.disable()
print(f"{(ticks() - began) / frequency:.2f} s in all", file=sys.stderr)
for key in ("cumulative", "tottime"):
    pstats.Stats(profile, stream=sys.stderr).strip_dirs().sort_stats(key).print_stats(90)
sys.exit(status)
"""


def scenario(ranks: int) -> dict[str, object]:
    """A small ring in two buildings."""
    return {
        "name": f"start-{ranks}",
        "topology": {
            "name": "start",
            "mtu": 9000,
            "buildings": {
                name: {"hosts": ranks // 2, "nic": {"rate": "400 Gbit/s"}} for name in ("east", "west")
            },
            "wan": [{"a": "east", "b": "west", "rate": "800 Gbit/s", "delay": "2.5 ms"}],
        },
        "workload": {
            "model": {
                "dim": 1,
                "n_layers": 1,
                "n_heads": 1,
                "n_kv_heads": 1,
                "ffn_dim": 1,
                "vocab_size": 500,
            },
            "peak_flops": "989 Tflop/s",
        },
        "policy": "shortest",
        "algorithms": ["ring"],
        "trials": 1,
        "warmup": 0,
        "scale": {"size_scale": 1},
    }


def cpu_s(root: int) -> float:
    """CPU seconds of all that runs below a process, in sessions of its own, and of what of it has ended."""
    entries = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                fields = Path("/proc", name, "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            entries[int(name)] = int(fields[1]), sum(map(int, fields[11:15]))
    found = 0
    for pid in entries:
        above = pid
        while above in entries and above != root:
            above = entries[above][0]
        found += entries[pid][1] if above == root and pid != root else 0
    return found / TICKS_PER_S


def run(ranks: int) -> dict[str, tuple[float, float]]:
    """(wall, CPU seconds) of each phase."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "scenario.json")
        file.write_text(json.dumps(scenario(ranks)))
        command = [str(TESTBED), "run", str(file), "--clock", "virtual", "-o", f"{folder}/run"]
        marks, said = [(time.monotonic(), 0.0, "")], []
        with subprocess.Popen(
            command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
        ) as process:
            assert process.stderr is not None
            for line in process.stderr:
                marks.append((time.monotonic(), cpu_s(process.pid), line.strip()))
                said.append(line)
        if process.returncode not in (0, 3):
            sys.exit(f"{ranks} ranks: {''.join(said)}")
    found = {}
    names = list(PHASES)
    left = iter(marks)
    begins = [next(mark for mark in left if mark[2].startswith(words)) for words in PHASES.values()]
    begins.append(next(mark for mark in left if mark[2].startswith(("step ", "judging"))))
    for name, begin, end in zip(names, begins[:-1], begins[1:], strict=True):
        found[name] = end[0] - begin[0], end[1] - begin[1]
    return found


def profile(ranks: int) -> None:
    """Run the part of a run that is inside of the guest, profiled."""
    from dataclasses import asdict  # noqa: PLC0415

    from testbed.measure.execution.network_setup import guest_settings  # noqa: PLC0415, F401
    from testbed.measure.results.shards import split_into_shards  # noqa: PLC0415
    from testbed.net.virtual.guest import Guest, GuestSettings  # noqa: PLC0415
    from testbed.net.virtual.kernel_image import find_image  # noqa: PLC0415
    from testbed.spec.scale import UNSCALED  # noqa: PLC0415
    from testbed.spec.scenario import load_scenario  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "scenario.yaml")
        file.write_text(json.dumps(scenario(ranks)))
        task = {
            "shard": asdict(split_into_shards(load_scenario(file))[0]),
            "scenario": str(file),
            "link_engine": "netem",
            "datapath": "system",
            "scale": asdict(UNSCALED),
            "folder": folder,
        }
        Path(folder, "task.json").write_text(json.dumps(task))
        settings = GuestSettings(memory_bytes=(1024 + 24 * ranks) << 20, writable=(Path(folder),))
        frequency = _ticks_per_s()
        command = [sys.executable, "-c", PROFILE, str(REPOSITORY), str(frequency), f"{folder}/task.json"]
        ended = Guest(find_image(), settings).run(
            command, REPOSITORY, {}, lambda text: None, lambda text: print(text, end="")
        )
        print(f"{ended.wall_s:.1f} s of wall time")


def _ticks_per_s() -> float:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("cpu MHz"):
            return float(line.split(":")[1]) * 1e6
    return math.nan


def main() -> None:
    """One row for each phase, one column for each number of ranks."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("ranks", type=int, nargs="*", default=RANKS)
    parser.add_argument("--profile", type=int, metavar="RANKS")
    chosen = parser.parse_args()
    if chosen.profile:
        profile(chosen.profile)
        return
    counts = list(chosen.ranks)
    found = [run(ranks) for ranks in counts]
    print("CPU s (wall s)     " + "".join(f"{ranks:>8} ranks " for ranks in counts))
    rows = {name: [run[name] for run in found] for name in PHASES}
    rows["all"] = [(sum(w for w, _ in run.values()), sum(c for _, c in run.values())) for run in found]
    for name, row in rows.items():
        print(f"{name:18}" + "".join(f"{cpu:7.2f} ({wall:5.2f})" for wall, cpu in row))
    if len(counts) > 1:
        cpu = [rows["all"][at][1] for at in (0, -1)]
        print(
            f"grows with ranks to the power of {math.log(cpu[1] / cpu[0]) / math.log(counts[-1] / counts[0]):.2f}"
        )


if __name__ == "__main__":
    main()

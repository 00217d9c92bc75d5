"""What a run under the virtual clock costs in wall time: per rank, per gigabyte, and what it is spent on.

    .venv/bin/python benchmarks/virtual_cost.py [RANKS...]        default: 4 8 16 32 64 128

For each number of ranks one ring over four buildings at 400 Gbit/s, unscaled, with 8 and with 32 MB of gradients. The
difference between both is the price of the bytes, what is left is the price of being there. Prints Markdown.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TESTBED = Path(sys.executable).with_name("testbed")
RANKS = (4, 8, 16, 32, 64, 128)
PARAMETERS = (2_000_000, 8_000_000)
PHASES = {
    "boot and import": "starting the controller",
    "build": "building",
    "measure": "trying",
    "ranks": "starting",
}


def scenario(ranks: int, parameters: int) -> dict[str, object]:
    """One ring all-reduce per step over four buildings, or as many as there are ranks for."""
    names = ("north", "east", "south", "west")
    pairs = [(a, b) for index, a in enumerate(names) for b in names[index + 1 :]]
    return {
        "name": f"cost-{ranks}",
        "topology": {
            "name": "cost",
            "mtu": 9000,
            "buildings": {name: {"hosts": ranks // 4, "nic": {"rate": "400 Gbit/s"}} for name in names},
            "wan": [{"a": a, "b": b, "rate": "800 Gbit/s", "delay": "2.5 ms"} for a, b in pairs],
        },
        "workload": {
            # embeddings and output alone: 2 x vocabulary x 256 parameters
            "model": {"dim": 256, "n_layers": 1, "n_heads": 4, "n_kv_heads": 4, "ffn_dim": 256}
            | {"vocab_size": parameters // 512},
            "bucket_cap": "1 GiB",
            "peak_flops": "989 Tflop/s",
        },
        "policy": "shortest",
        "trials": 1,
        "warmup": 1,
        "scale": {"size_scale": 1},
    }


def run(ranks: int, parameters: int) -> tuple[dict[str, float], float]:
    """(wall seconds of each phase, gigabytes that all ranks sent per step)."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "scenario.json")
        file.write_text(json.dumps(scenario(ranks, parameters)))
        output = Path(folder, "run")
        command = [str(TESTBED), "run", str(file), "--clock", "virtual", "-o", str(output)]
        marks: list[tuple[float, str]] = []
        began_s = time.monotonic()
        with subprocess.Popen(
            command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
        ) as process:
            assert process.stderr is not None
            said = []
            for line in process.stderr:
                marks.append((time.monotonic() - began_s, line.strip()))
                said.append(line)
        if process.returncode not in (0, 3):
            sys.exit(f"{ranks} ranks: {''.join(said)}")
        samples = [json.loads(line) for line in (output / "samples.jsonl").read_text().splitlines()]
    at = {
        name: next(when for when, line in marks if line.startswith(words)) for name, words in PHASES.items()
    }
    steps = [when for when, line in marks if line.startswith("step ")]
    judged = next(when for when, line in marks if line.startswith("judging"))
    spent = {
        "boot and import": at["boot and import"],
        "build": at["measure"] - at["boot and import"],
        "ranks": steps[0] - at["ranks"],
        "step": (judged - steps[0]) / 2,
    }
    sent = sum(sample["bytes"] for sample in samples if sample["operation"] == "step")
    return spent, sent / 1e9


def main() -> None:
    """One row for each number of ranks."""
    print("| ranks | boot, imports | network | ranks start | a step of 8 MB | of 32 MB | per GB moved |")
    print("|---|---|---|---|---|---|---|")
    for ranks in map(int, sys.argv[1:] or RANKS):
        (small, few), (large, many) = (run(ranks, parameters) for parameters in PARAMETERS)
        per_gb = (large["step"] - small["step"]) / (many - few)
        print(
            f"| {ranks} | {large['boot and import']:.1f} s | {large['build']:.1f} s | {large['ranks']:.1f} s | "
            f"{small['step']:.1f} s ({few:.2f} GB) | {large['step']:.1f} s ({many:.2f} GB) | {per_gb:.1f} s |",
            flush=True,
        )


if __name__ == "__main__":
    main()

"""One scenario under the virtual clock on every guest kernel that is built here: what steps take, what a run costs.

    .venv/bin/python benchmarks/virtual_kernels.py [SCENARIO [OPTION OF `testbed run`...]]      default: quickstart

Kernels: those of today's recipe in the kernels' folders (`testbed virtual build --source PATH` makes more of them). One
whose programs can stop by a filter is tried with it and without. A row has the variants' step times, and wall and
processor time of the whole run; the last column says by letters whose samples are the same to the nanosecond. Prints
Markdown.
"""

from __future__ import annotations

import hashlib
import json
import os
import resource
import string
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from testbed.net.virtual.guest import SECCOMP_VARIABLE
from testbed.net.virtual.kernel_image import (
    CACHE_VARIABLE,
    SECCOMP_SINCE,
    KernelImage,
    kernel_folders,
    parse_version,
    recipe,
)

TESTBED = Path(sys.executable).with_name("testbed")


def images() -> Iterator[tuple[KernelImage, str]]:
    """Every kernel, oldest first, with how its programs stop."""
    found = {}
    for folder in kernel_folders():
        for entry in folder.iterdir() if folder.is_dir() else ():
            image = KernelImage.read(entry)
            if image is not None and image.recipe == recipe():
                found[image.version] = image
    for image in sorted(found.values(), key=lambda image: parse_version(image.version)):
        yield image, "off"
        if parse_version(image.version) >= SECCOMP_SINCE:
            yield image, "on"


def run(image: KernelImage, seccomp: str, arguments: list[str]) -> tuple[dict[str, float], float, float, str]:
    """(step time by variant, wall seconds, processor seconds, hash of the samples)."""
    with tempfile.TemporaryDirectory() as folder:
        kernels, output = Path(folder, "kernels"), Path(folder, "run")
        kernels.mkdir()
        (kernels / image.folder.name).symlink_to(image.folder)
        environment = {**os.environ, CACHE_VARIABLE: str(kernels), SECCOMP_VARIABLE: seccomp}
        command = [str(TESTBED), "run", *arguments, "--clock", "virtual", "--output", str(output)]
        before, began_s = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        wall_s, after = time.monotonic() - began_s, resource.getrusage(resource.RUSAGE_CHILDREN)
        if done.returncode not in (0, 3):
            sys.exit(done.stderr)
        summary = json.loads((output / "summary.json").read_text())
        steps = {variant["name"]: variant["step_time_s"]["median"] for variant in summary["variants"]}
        used_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return steps, wall_s, used_s, hashlib.sha256((output / "samples.jsonl").read_bytes()).hexdigest()


def main() -> None:
    """A row for each kernel."""
    arguments = sys.argv[1:] or ["quickstart"]
    letters: dict[str, str] = {}
    for number, (image, seccomp) in enumerate(images()):
        steps, wall_s, used_s, samples = run(image, seccomp, arguments)
        if not number:
            print(f"| Linux | programs stop by | {' | '.join(steps)} | wall | processor | samples |")
            print("|---|---|" + "---|" * (len(steps) + 3))
        letter = letters.setdefault(samples, string.ascii_uppercase[len(letters)])
        how = "a filter" if seccomp == "on" else "tracing"
        times = " | ".join(f"{step_s:.9f} s" for step_s in steps.values())
        print(
            f"| {image.version} | {how} | {times} | {wall_s:.1f} s | {used_s:.1f} s | {letter} |", flush=True
        )


if __name__ == "__main__":
    main()

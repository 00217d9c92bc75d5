"""What a link under the virtual clock is worth: the benchmark's own measurement, with the bounds that it publishes."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.virtual.conftest import REPOSITORY, WALL_S

pytestmark = pytest.mark.virtual


@pytest.mark.parametrize("rate", ["1 Mbit/s", "1 Gbit/s", "400 Gbit/s"])
@pytest.mark.timeout(WALL_S)
def test_round_trip_within_a_tenth_of_a_microsecond_and_goodput_to_a_hundred_thousandth(rate: str) -> None:
    done = subprocess.run(
        [sys.executable, str(REPOSITORY / "benchmarks/virtual_links.py"), rate],
        capture_output=True,
        text=True,
        check=False,
        timeout=WALL_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = [line for line in done.stdout.splitlines() if line.startswith(f"| {rate} ")]
    cells = [cell.strip() for cell in row.split("|")]
    small, full, goodput = cells[3], cells[5], cells[8]
    assert abs(float(small.removesuffix(" us"))) < 0.1
    assert abs(float(full.removesuffix(" us"))) < 0.1
    # a frame of 180.28 ns gives its rest to the next one
    assert abs(float(goodput.removesuffix("%"))) < 0.002

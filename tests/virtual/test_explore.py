"""A search that is confirmed under the virtual clock goes on where it was stopped; packets choose among its best."""

from __future__ import annotations

import json
import re
import signal
import time

import pytest

from tests.unit.prediction.test_explorer import SCENARIO
from tests.virtual.conftest import SOON_S, WALL_S, Person

pytestmark = [pytest.mark.virtual, pytest.mark.timeout(300)]


def test_packets_choose_and_finished_parts_are_taken_up_by_the_same_command(person: Person) -> None:
    file, folder = person.home / "search.json", person.home / "found"
    space = {**SCENARIO["explore"]["space"], "topology.wan.0.delay": ["1 ms", "1.2 ms"]}
    explore = {"space": space, "baselines": ["production"], "confirm": 1}
    file.write_text(json.dumps({**SCENARIO, "trials": 1, "warmup": 1, "explore": explore}))
    command = ("explore", str(file), "-o", str(folder), "--confirm")
    running = person.start(*command, "--jobs", "1")
    deadline = time.monotonic() + WALL_S
    while not list(folder.glob("rungs/.parts/*/0/finished.json")):
        assert running.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)
    running.send_signal(signal.SIGINT)
    _, said = running.communicate(timeout=SOON_S)
    assert running.returncode == 130
    assert (parts := re.search(r"1 of (\d+) parts\s+kept\s+in", said)), said
    (finished,) = folder.glob("rungs/.parts/*/0/finished.json")
    took_s = json.loads(finished.read_text())["wall_s"]
    done = person.call(*command)
    assert done.returncode == 0, done.stderr
    assert f"1 of {parts[1]} parts were already done" in done.stderr
    assert not list(folder.glob("**/.parts"))
    manifest = json.loads((folder / "rungs/1/manifest.json").read_text())
    assert manifest["clock"]["parts"][0]["wall_s"] == took_s  # and was not measured again
    document = json.loads((folder / "exploration.json").read_text())
    (rung,) = document["rungs"]
    # of what fits, all others take a fifth longer by the model
    assert [one["goes_on"] for one in rung["candidates"]] == [True, False]
    first, second = (one["step_time_s"] for one in rung["candidates"])
    assert first < second
    (best,) = (entry for entry in document["compared"] if entry["kind"] == "best")
    assert best["changes"] == rung["candidates"][0]["changes"]
    assert "Of the 2 quickest by the model packets chose its first." in done.stdout
    assert "Chosen by packets" in (folder / "exploration.html").read_text()

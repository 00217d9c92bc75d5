"""`TESTBED_MACHINES=2 vagrant up`: two machines that know each other, and a building of a scenario on each."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.vagrant.conftest import UP_S, Machine, brought_up
from tests.vagrant.test_machine import SIZED

pytestmark = [pytest.mark.vagrant, pytest.mark.timeout(UP_S)]


@pytest.fixture(scope="module")
def pair(box: Path) -> Iterator[Machine]:
    with brought_up(box, machines=2) as made:
        yield made


def test_up_ends_with_the_command_for_both(pair: Machine) -> None:
    for number in (1, 2):
        assert f"testbed{number}: ==> ready; next:" in pair.said
    assert "scenarios/quickstart.yaml --machines testbed1,testbed2'" in pair.said


def test_a_building_of_the_quickstart_is_on_each(pair: Machine) -> None:
    done = pair.ssh(
        f"testbed run scenarios/quickstart.yaml {SIZED} --machines testbed1,testbed2 -o runs/both"
    )
    assert done.returncode in (0, 3)  # two emulated machines on a few cores are slow, lose frames, and say so
    manifest = json.loads((pair.checkout / "runs/both/manifest.json").read_text())
    (tunnel,) = manifest["tunnels"]
    assert (tunnel["machine"], tunnel["building"]) == ("testbed2", "west")
    summary = json.loads((pair.checkout / "runs/both/summary.json").read_text())
    for variant in summary["variants"]:
        checks = {check["name"]: check for check in variant["verdict"]["invariants"]}
        for name in ("payload_correct", "wan_bytes_as_computed", "rules_in_force"):
            assert checks[name]["ok"], checks[name]
        assert checks["tunnel_loss"]["ok"] or variant["verdict"]["status"] == "untrusted"

"""Whatever is changed in a network under the virtual clock is named, also what lasts for 20 ms; nothing else is.

There is no noise: a run that nobody disturbs must not alarm.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from tests.virtual.changes_inside import BLINK_S
from tests.virtual.conftest import REPOSITORY, Person

pytestmark = [pytest.mark.virtual, pytest.mark.timeout(300)]

PARTS = 2  # guests that share the lies
LEAST_KINDS = 25  # in each


def told(person: Person, *names: str) -> Any:
    """What a run with these lies in it has said of them."""
    folder = person.home / "told"
    folder.mkdir()
    if person.prefix:
        folder.chmod(0o777)
    python = ("env", f"PYTHONPATH={REPOSITORY}", f"HOME={person.home}", sys.executable)
    inside = (*python, "-m", "tests.virtual.changes_inside", str(folder), *names)
    done = person.call("virtual", "exec", "--writable", str(folder), "--", *inside, timeout_s=280)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return json.loads((folder / "changes.json").read_text())


def row(verdict: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = (entry for entry in verdict["invariants"] if entry["name"] == name)
    return dict(found)


@pytest.mark.parametrize("part", range(1, PARTS + 1))
def test_every_lie_is_named_however_short(part: int, person: Person) -> None:
    found = told(person, f"{part}/{PARTS}")
    assert not found["refused"], found["refused"]  # all were planted, and undone
    assert not found["missing"]
    silent = [(result["lie"], result["for_s"]) for result in found["results"] if not result["named"]]
    assert not silent, silent
    brief = {result["lie"] for result in found["results"] if result["for_s"] == BLINK_S}
    assert len(brief) >= LEAST_KINDS
    assert found["verdict"]["status"] == "untrusted"
    broken = row(found["verdict"], "nothing_changed")
    assert broken["ok"] is False
    first = found["results"][0]["said"][0]
    assert f"{first}, seen at " in broken["sentence"]


def test_a_run_that_nobody_disturbs_is_trusted_and_repeats_itself(person: Person) -> None:
    found = told(person, "none")
    assert found["results"] == []
    assert row(found["verdict"], "nothing_changed")["ok"] is True
    assert found["verdict"]["status"] == "trusted", found["verdict"]
    assert max(found["steps"]) - min(found["steps"]) < 20e-6

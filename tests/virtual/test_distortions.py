"""Ranks that lie, in a step among honest ones: the verdict names each lie and its step."""

from __future__ import annotations

import json
import sys

import pytest

from tests.virtual.conftest import REPOSITORY, Person
from tests.virtual.distortions_inside import DATAGRAMS

pytestmark = [pytest.mark.virtual, pytest.mark.timeout(300)]

LIES = {
    "fake all-reduce@0": ("bytes_witnessed", "In trial 0 rank ", "whose kernel received 0 from it."),
    "compute half, one rank@1": (
        "compute_as_asked",
        "In trial 1 rank 2 on west1 took 20 ms for ",
        "asks for 40 ms.",
    ),
    "wait 2 ms@2": (
        "begun_at_once",
        "In trial 2 rank ",
        " 2 ms later than it could. The same is true of 3 more of ",
    ),
    "end 3 % early@3": ("step_ends_witnessed", "In trial 3 rank ", " before its last operation ended."),
    "start 8 ms late@4": ("common_start", "In trial 4 rank ", " reports a start that is 8 ms from the one "),
    "cork@5": (
        "steps_alike",
        "The step of trial 5 took ",
        ": nothing in the scenario explains the difference.",
    ),
    "sockets left marked@6": (
        "nothing_changed",
        ": the connection with rank ",
        ": IP_TOS 0 -> 184, seen at ",
    ),
}
OF_DATAGRAMS = {
    "a tenth more bytes said, one rank@1": (
        "bytes_witnessed",
        "In trial 1 rank 1 on east2 reports ",
        ", which received ",
    ),
    "sockets left marked@3": LIES["sockets left marked@6"],
}


def test_each_lie_is_named_with_its_step(person: Person) -> None:
    folder = person.home / "lies"
    folder.mkdir()
    if person.prefix:
        folder.chmod(0o777)
    python = ("env", f"PYTHONPATH={REPOSITORY}", f"HOME={person.home}", sys.executable)
    told = {";".join(LIES): LIES, DATAGRAMS + ";".join(OF_DATAGRAMS): OF_DATAGRAMS}
    inside = (*python, "-m", "tests.virtual.distortions_inside", str(folder), *told)
    done = person.call("virtual", "exec", "--writable", str(folder), "--", *inside, timeout_s=280)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    found = json.loads((folder / "distortions.json").read_text())
    for names, lies in told.items():
        assert found[names]["status"] == "untrusted"
        for lie, (name, *words) in lies.items():
            assert name in found[names]["failed"], lie
            for part in words:
                assert part in found[names]["failed"][name], lie

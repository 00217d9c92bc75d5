"""Whose a process is: by the fabric's mark, or by its network namespace, and never by a number that was given anew."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator

import psutil
import pytest

from testbed.net.fabric.fabric_state import FabricState, clean, namespace_cookies, register
from tests.net.namespaces import Namespace, namespaces

pytestmark = pytest.mark.net

TRIES = 20  # another test beside this one may be faster to take a number over
APART_S = 0.1  # the kernel takes a namespace apart a little after its last process


def inode(place: Namespace) -> int:
    return os.stat(f"/proc/{place.pid}/ns/net").st_ino


def sleeper(place: Namespace) -> subprocess.Popen[bytes]:
    """A process without any mark that sleeps in a namespace."""
    command = ["mnexec", "-a", str(place.pid), "sh", "-c", "echo there; exec sleep 60"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"there\n"
    return process


@contextlib.contextmanager
def entry(*places: Namespace) -> Iterator[FabricState]:
    """A fabric's entry with these namespaces, as `Fabric` writes it down."""
    state = register("by hand")
    try:
        state.namespaces = namespace_cookies(place.pid for place in places)
        state.save()
        yield state
    finally:
        clean(state)


def test_cleaning_ends_what_runs_in_a_fabrics_namespaces_whoever_started_it() -> None:
    with namespaces(2) as (ours, theirs), entry(ours) as state:
        inside, beside = sleeper(ours), sleeper(theirs)
        try:
            said = clean(state)
            assert not psutil.pid_exists(inside.pid)
            assert f"process {inside.pid} (" in " ".join(said)
            assert beside.poll() is None
        finally:
            for process in (inside, beside):
                process.kill()
                process.communicate()


def test_a_namespace_that_took_over_the_number_of_one_that_ended_is_left_alone() -> None:
    for _ in range(TRIES):
        with namespaces(1) as (gone,), entry(gone) as state:
            number = inode(gone)
            os.kill(gone.pid, signal.SIGKILL)
            time.sleep(APART_S)
            with namespaces(1) as (heir,):
                if inode(heir) == number:
                    assert clean(state) == []
                    assert inode(heir) == number  # its keeper lives
                    return
        time.sleep(APART_S)
    pytest.fail(f"in {TRIES} tries no new namespace got the number of one that had ended")

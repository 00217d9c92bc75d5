"""The virtual lane: whoever runs it, guests are started by an ordinary user where this machine lets one."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from testbed.clock import clock_here
from testbed.net.errors import NoKernelError
from testbed.net.virtual.kernel_image import find_image
from tests.figures import hold_figures

REPOSITORY = Path(__file__).parents[2]
TESTBED = Path(sys.executable).with_name("testbed")
NOBODY = 65_534
AS_NOBODY = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
# A guest may have to wait for cores behind all other lanes; it is as exact then, and several times as slow.
BEHIND_OTHERS = 4
WALL_S = 300 * BEHIND_OTHERS
# For what takes a moment on an idle machine.
SOON_S = 60
# The longest first: what starts last does not keep the others' cores idle for long. Others follow.
LONGEST_FIRST = (
    "test_training",
    "test_run",
    "test_run_sizes",
    "test_net_lane",
    "test_variants",
    "test_changes",
)


@dataclass(frozen=True)
class Person:
    """Somebody who calls `testbed`: through `prefix`, from a folder of their own."""

    prefix: tuple[str, ...]
    home: Path
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def call(self, *arguments: str, timeout_s: float = WALL_S) -> subprocess.CompletedProcess[str]:
        """Run `testbed ARGUMENTS` to its end."""
        running = self.start(*arguments)
        try:
            said, complaints = running.communicate(timeout=timeout_s)
        except BaseException:
            running.terminate()
            running.communicate(timeout=SOON_S)
            raise
        hold_figures(arguments, running.returncode, said)
        return subprocess.CompletedProcess(running.args, running.returncode, said, complaints)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start `testbed ARGUMENTS`."""
        pipe = subprocess.PIPE
        running = subprocess.Popen(
            self.command(*arguments), cwd=self.home, stdout=pipe, stderr=pipe, text=True, bufsize=1
        )
        self.started.append(running)
        return running

    def command(self, *arguments: str) -> list[str]:
        """The whole command line."""
        return [*self.prefix, str(TESTBED), *arguments]

    def inside(self, *command: str, options: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
        """Run a command in a guest without Open vSwitch."""
        return self.call("virtual", "exec", "--no-open-vswitch", *options, "--", *command)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip this lane, with the reason, where there is no kernel for it; give it patience, and an order."""
    lane = [item for item in items if item.get_closest_marker("virtual")]
    for item in lane:
        limit = item.get_closest_marker("timeout")
        limit_s = limit.args[0] if limit else float(item.config.getini("timeout"))
        item.add_marker(pytest.mark.timeout(limit_s * BEHIND_OTHERS), append=False)
    ranks = {name: rank for rank, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: ranks.get(item.path.stem, len(ranks)))
    reason = "a guest cannot run guests" if clock_here() else ""
    try:
        find_image()
    except NoKernelError as error:
        reason = str(error).splitlines()[0]
    for item in lane if reason else []:
        item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture
def person() -> Iterator[Person]:
    """An ordinary user, for one test; what a failed one still has running ends with it."""
    with ordinary_user() as user:
        yield user
        for running in user.started:
            if running.poll() is None:
                running.terminate()
                running.communicate(timeout=SOON_S)


@contextlib.contextmanager
def ordinary_user() -> Iterator[Person]:
    """Whoever runs the tests, or nobody in place of root where nobody can read the checkout.

    pytest's own temporary folders are root's alone.
    """
    with tempfile.TemporaryDirectory(prefix="testbed-person-", ignore_cleanup_errors=True) as home:
        yield _person(Path(home))


@contextlib.contextmanager
def finished_run(scenario: str) -> Iterator[Path]:
    """The run directory of a scenario, given as text, that an ordinary user has run under the virtual clock."""
    with ordinary_user() as person:
        file = person.home / "small.yaml"
        file.write_text(scenario)
        folder = person.home / "run"
        done = person.call("run", str(file), "-o", str(folder), "--clock", "virtual", timeout_s=2 * WALL_S)
        assert done.returncode == 0, done.stdout + done.stderr
        yield folder


def variants_of(folder: Path) -> dict[str, dict[str, Any]]:
    """The variants of a run's summary by name."""
    summary = json.loads((folder / "summary.json").read_text())
    return {variant["name"]: variant for variant in summary["variants"]}


def _person(home: Path) -> Person:
    if os.geteuid() != 0 or not _nobody_can():
        return Person((), home)
    os.chown(home, NOBODY, NOBODY)
    return Person((*AS_NOBODY, "env", f"HOME={home}", "TMPDIR=/tmp", "PATH=/usr/bin:/bin"), home)


@functools.cache
def _nobody_can() -> bool:
    """Not from a checkout in root's own home, say."""
    return (
        subprocess.run([*AS_NOBODY, str(TESTBED), "--help"], capture_output=True, check=False).returncode == 0
    )


@pytest.fixture(autouse=True)
def leftovers(person: Person) -> Iterator[None]:
    """Fail a test whose guests leave a process or a folder behind."""
    yield
    guests = tuple(f"/tmp/testbed-guest-{running.pid}-" for running in person.started)
    left = [
        f"{path}" for path in Path("/tmp").glob("testbed-guest-*") if str(path).startswith(guests or ("-",))
    ]
    for process in psutil.process_iter(["cmdline"]):
        with contextlib.suppress(psutil.Error):
            if "linux" in process.name() and process.cwd().startswith(guests or ("-",)):
                left.append(f"process {process.pid}")
    assert not left, f"left behind: {left}"

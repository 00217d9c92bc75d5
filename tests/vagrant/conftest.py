"""A box made here, and `vagrant up` with it on libvirt, QEMU emulating the processors."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.vagrant.keeper import environment

REPOSITORY = Path(__file__).parents[2]
BOX = "scale-across-testbed-lane"
MEMORY_MIB = 4096
UP_S, COMMAND_S = 2400, 900


@dataclass(frozen=True)
class Machine:
    """A checkout of its own under `folder`, with the machines that Vagrant made from it; what `vagrant up` said."""

    folder: Path
    machines: int = 1
    said: str = ""

    @property
    def checkout(self) -> Path:
        """Where the Vagrantfile is, and /vagrant of the machine."""
        return self.folder / "checkout"

    def vagrant(self, *arguments: str, timeout_s: float = COMMAND_S) -> subprocess.CompletedProcess[str]:
        """Run `vagrant ARGUMENTS` to its end, and print what it said."""
        settings = {
            "TESTBED_BOX": BOX,
            "TESTBED_KVM": os.environ.get("TESTBED_KVM", "0"),  # that it is there does not mean that it works
            "TESTBED_MEMORY": str(MEMORY_MIB),
            "TESTBED_MACHINES": str(self.machines),
        }
        done = subprocess.run(
            ["vagrant", *arguments],
            cwd=self.checkout,
            env={**environment(self.folder), **settings},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        print(f"$ vagrant {' '.join(arguments)}\n{done.stdout[-8000:]}{done.stderr[-4000:]}")
        return done

    def ssh(self, command: str, timeout_s: float = COMMAND_S) -> subprocess.CompletedProcess[str]:
        """Run a command in the machine as its user, as `vagrant ssh -c` does."""
        return self.vagrant("ssh", "-c", command, timeout_s=timeout_s)


def copy_checkout(target: Path) -> None:
    """All files that git knows or would know, as they are now."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=REPOSITORY, capture_output=True, check=True).stdout
    for name in filter(None, os.fsdecode(listed).split("\0")):
        if (REPOSITORY / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(REPOSITORY / name, target / name)


@pytest.fixture(scope="session")
def box(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A box, built here."""
    file = tmp_path_factory.mktemp("box") / "debian.box"
    subprocess.run([REPOSITORY / "tools/vagrant-box", file], check=True, timeout=600)
    return file


@contextlib.contextmanager
def brought_up(box: Path, machines: int = 1) -> Iterator[Machine]:
    """Up and provisioned; destroyed after the block, also when the tests are killed."""
    folder = Path(tempfile.mkdtemp(prefix="testbed-vagrant-"))
    keeper = subprocess.Popen(
        [sys.executable, "-m", "tests.vagrant.keeper", str(folder)],
        cwd=REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert keeper.stdin is not None
    assert keeper.stdout is not None
    try:
        assert keeper.stdout.readline() == "ready\n", "libvirt does not start: its words are above"
        made = Machine(folder, machines)
        copy_checkout(made.checkout)
        assert made.vagrant("box", "add", "--name", BOX, str(box)).returncode == 0
        up = made.vagrant("up", "--provider", "libvirt", timeout_s=UP_S)
        assert up.returncode == 0
        yield Machine(folder, machines, up.stdout)
    finally:
        keeper.stdin.close()
        keeper.wait(300)
        keeper.stdout.close()


@pytest.fixture(scope="module")
def machine(box: Path) -> Iterator[Machine]:
    """One machine."""
    with brought_up(box) as made:
        yield made

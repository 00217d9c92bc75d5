"""One machine for the whole lane: a box made here, `vagrant up` on libvirt, QEMU emulating the processors."""

from __future__ import annotations

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
    """A checkout of its own under `folder`, with the machine that Vagrant made from it; what `vagrant up` said."""

    folder: Path
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
def machine() -> Iterator[Machine]:
    """Up and provisioned; destroyed after the tests, also when they are killed."""
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
        made = Machine(folder)
        copy_checkout(made.checkout)
        box = folder / "debian.box"
        subprocess.run([REPOSITORY / "tools/vagrant-box", box], check=True, timeout=600)
        assert made.vagrant("box", "add", "--name", BOX, str(box)).returncode == 0
        box.unlink()
        up = made.vagrant("up", "--provider", "libvirt", timeout_s=UP_S)
        assert up.returncode == 0
        yield Machine(folder, up.stdout)
    finally:
        keeper.stdin.close()
        keeper.wait(300)
        keeper.stdout.close()

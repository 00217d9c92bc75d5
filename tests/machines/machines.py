"""Two machines that are none: namespaces of this one, each with an SSH server and an Open vSwitch of its own."""

from __future__ import annotations

import contextlib
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
ADDRESSES = {"machine1": "172.31.98.1", "machine2": "172.31.98.2"}
CLOCKS_S = {"machine1": 0, "machine2": 1234}  # ahead of the real machine's
PATIENCE_S = 20.0
# What each machine has for itself; the rest of the file system is shared.
PRIVATE = ("/run", "/etc/openvswitch", "/var/lib/openvswitch", "/var/log/openvswitch", "/root/.ssh")


@dataclass(frozen=True)
class FakeMachine:
    """Namespaces for network, mounts, processes, clocks and the host's name; `pid` is the first process in them."""

    name: str
    pid: int

    def command(self, *arguments: str) -> list[str]:
        """The command line that runs something there."""
        inside = ["nsenter", "--target", str(self.pid), "--net", "--mount", "--uts", "--pid", "--time"]
        return [*inside, f"--wd={REPOSITORY}", "--", *arguments]

    def run(
        self, *arguments: str, timeout_s: float = 120, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run it to its end."""
        done = subprocess.run(
            self.command(*arguments), capture_output=True, text=True, timeout=timeout_s, check=False
        )
        assert done.returncode == 0 or not check, f"{shlex.join(arguments)}:\n{done.stdout}{done.stderr}"
        return done

    def testbed(self, *arguments: str, timeout_s: float = 300) -> subprocess.CompletedProcess[str]:
        """Run `testbed ARGUMENTS` there."""
        return self.run(sys.executable, "-m", "testbed", *arguments, timeout_s=timeout_s, check=False)


@contextlib.contextmanager
def two_machines() -> Iterator[dict[str, FakeMachine]]:
    """Both, joined by a cable; gone with the block, or with this process."""
    folder = Path(tempfile.mkdtemp(prefix="testbed-machines-"))
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder)
        keygen = ["ssh-keygen", "-q", "-t", "ed25519", "-N", ""]
        for key in ("host", "user"):
            subprocess.run([*keygen, "-f", str(folder / key)], check=True)
        (folder / "hosts").write_text(
            "127.0.0.1 localhost\n" + "".join(f"{address} {name}\n" for name, address in ADDRESSES.items())
        )
        machines = {name: stack.enter_context(_machine(name)) for name in ADDRESSES}
        first, second = (str(machine.pid) for machine in machines.values())
        veth = [
            "ip",
            "link",
            "add",
            "cable",
            "netns",
            first,
            "type",
            "veth",
            "peer",
            "cable",
            "netns",
            second,
        ]
        subprocess.run(veth, check=True)
        for machine in machines.values():
            _set_up(machine, folder)
        yield machines


@contextlib.contextmanager
def _machine(name: str) -> Iterator[FakeMachine]:
    apart = ["unshare", "--net", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"]
    apart += ["--time", f"--monotonic={CLOCKS_S[name]}"]
    holder = subprocess.Popen([*apart, "sleep", "infinity"], stdin=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + PATIENCE_S
        children = Path(f"/proc/{holder.pid}/task/{holder.pid}/children")
        while not (found := children.read_text().split()):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        yield FakeMachine(name, int(found[0]))
    finally:
        holder.kill()  # and with it, by --kill-child, the first process and so all in its process namespace
        holder.wait()


def _set_up(machine: FakeMachine, folder: Path) -> None:
    lines = [
        *(f"mkdir -p {path}; mount -t tmpfs none {path}" for path in PRIVATE),
        "mkdir -p /run/sshd /run/openvswitch",
        f"mount --bind {folder}/hosts /etc/hosts",
        f"hostname {machine.name}",
        "ip link set lo up",
        "ip link set cable mtu 1500 up",
        f"ip address add {ADDRESSES[machine.name]}/24 dev cable",
        f"install -m 600 {folder}/user /root/.ssh/id_ed25519",
        f"install -m 600 {folder}/user.pub /root/.ssh/authorized_keys",
        "printf 'StrictHostKeyChecking no\\nUserKnownHostsFile /dev/null\\n' >/root/.ssh/config",
        f"/usr/sbin/sshd -h {folder}/host -o PermitRootLogin=yes -o UsePAM=no -o StrictModes=no",
        "tools/bootstrap switch",
    ]
    machine.run("sh", "-ec", "\n".join(lines))

"""Has libvirt run for the length of a test run, then puts the machine back: `python -m tests.vagrant.keeper FOLDER`.

Says `ready` once libvirt answers, then waits for its standard input to end: with the tests, or with who killed them.
Then what Vagrant made from FOLDER/checkout is destroyed, whatever libvirt started is ended, FOLDER is removed, and
packet filter, forwarding and networks are as they were.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

SOCKET = Path("/run/libvirt/libvirt-sock")
FORWARDING = (Path("/proc/sys/net/ipv4/ip_forward"), Path("/proc/sys/net/ipv6/conf/all/forwarding"))
CHAIN = "LIBVIRT_"
START_S = 30.0


def environment(folder: Path) -> dict[str, str]:
    """Vagrant's, of its own, so that the user's boxes and machines are left alone."""
    return {**os.environ, "VAGRANT_HOME": str(folder / "home"), "VAGRANT_DEFAULT_PROVIDER": "libvirt"}


def said(*command: str) -> str:
    """What a command printed; nothing when it failed."""
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def filters() -> set[str]:
    """Rules and chains of the packet filter that are libvirt's."""
    rules = set()
    for program in ("iptables", "ip6tables"):
        for table in ("filter", "nat", "mangle"):
            lines = said(program, "-w", "-t", table, "-S").splitlines()
            rules |= {f"{program} -w -t {table} {line}" for line in lines if CHAIN in line}
    return rules


def remove_filters(kept: set[str]) -> None:
    """Take away what was not there before: jumps, then what is in the chains, then the chains."""
    added = sorted(filters() - kept)
    for kind in ("-A", "-N"):
        for rule in (rule for rule in added if f" {kind} " in rule):
            subprocess.run(
                rule.replace(f" {kind} ", f" {'-D' if kind == '-A' else '-X'} ", 1).split(), check=False
            )


def objects() -> set[str]:
    """Networks and volumes that libvirt knows of, by the command that removes each."""
    found = set()
    for network in said("virsh", "-q", "net-list", "--all", "--name").split():
        found |= {f"net-undefine {network}"}
    for pool in said("virsh", "-q", "pool-list", "--all", "--name").split():
        volumes = said("virsh", "-q", "vol-list", pool).splitlines()
        found |= {f"vol-delete --pool {pool} {line.split()[0]}" for line in volumes if line.strip()}
    return found


def answers() -> bool:
    """Whether libvirt is there to be used."""
    return SOCKET.exists() and "QEMU" in said("virsh", "-c", "qemu:///system", "version")


def start() -> list[subprocess.Popen[bytes]]:
    """Start what libvirt needs, where it does not run; its logs go nowhere."""
    if answers():
        return []
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    daemons = [subprocess.Popen([name], **quiet, start_new_session=True) for name in ("virtlogd", "libvirtd")]  # type: ignore[call-overload]
    deadline = time.monotonic() + START_S
    while not answers():
        if time.monotonic() > deadline or any(daemon.poll() is not None for daemon in daemons):
            end(daemons)
            raise SystemExit("libvirtd does not start: run `virtlogd -d; libvirtd` to see why")
        time.sleep(0.1)
    return daemons


def end(daemons: list[subprocess.Popen[bytes]]) -> None:
    """End them, the last one first."""
    for daemon in reversed(daemons):
        with contextlib.suppress(ProcessLookupError):
            daemon.terminate()
        try:
            daemon.wait(20)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()


def main() -> None:
    """Start, wait, put back."""
    folder = Path(sys.argv[1])
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the end of standard input is the sign
    forwarding = {path: path.read_text() for path in FORWARDING if path.exists()}
    kept = filters()
    daemons = start()
    existing = objects()
    try:
        print("ready", flush=True)
        while os.read(0, 4096):
            pass
    finally:
        checkout = folder / "checkout"
        if (checkout / ".vagrant").exists():
            # as many machines as there are: Vagrant sees those alone that its file names
            machines = len(list(checkout.glob(".vagrant/machines/*")))
            settings = {**environment(folder), "TESTBED_MACHINES": str(max(1, machines))}
            destroy = ["vagrant", "destroy", "--force"]
            subprocess.run(destroy, cwd=checkout, env=settings, stdout=2, check=False)
        for command in sorted(objects() - existing):
            if command.startswith("net-"):
                said("virsh", "net-destroy", command.split()[-1])
            said("virsh", *command.split())
        end(daemons)
        if daemons:
            remove_filters(kept)
            for path, value in forwarding.items():
                path.write_text(value)
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()

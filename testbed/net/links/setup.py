"""All that is to be set in one network namespace, and the quick way to set it: few messages, and fewer programs.

A network of 64 hosts is some six thousand settings. As one program each they take seconds under the real clock, and
minutes under the virtual one, where a program costs 45 ms. So what hosts have many of goes to the kernel in batches,
and what is left to few programs, each with many commands.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from testbed.net.links import offload
from testbed.net.links.errors import LinkError
from testbed.net.links.namespace_commands import TIMEOUT_S
from testbed.net.links.netlink import Netlink, Request
from testbed.net.links.netlink_requests import Indexes, translate
from testbed.net.links.netns import network_namespace
from testbed.net.links.soft_roce import add_soft_roce

SEGMENTS = 1  # that TCP may put into one packet, for the kernel to cut
_SYSCTLS = Path("/proc/sys")


@dataclass
class Setup:
    """Kernel parameters, commands without their program's name, interfaces whose offloads go off.

    soft_roce: names of cards with verbs, and the interface that each is on.
    """

    sysctls: dict[str, str] = field(default_factory=dict)
    plain: list[str] = field(default_factory=list)
    ip: list[str] = field(default_factory=list)
    bridge: list[str] = field(default_factory=list)
    tc: list[str] = field(default_factory=list)
    soft_roce: list[tuple[str, str]] = field(default_factory=list)

    def add_interface(self, interface: str, mtu: int) -> None:
        """MTU, no offloads (userspace paths carry frames as they are), up.

        TCP makes packets of many segments all the same, for the kernel to cut at the interface: unless it may have only
        one in each. Else senders' trains leave 5 % of their window unused on a short queue.
        """
        self.plain.append(interface)
        self.ip.append(f"link set dev {interface} mtu {mtu} gso_max_segs {SEGMENTS} up")

    def apply(self, pid: int | None) -> None:
        """Set it all in the network namespace of process `pid` (None: here). LinkError names what failed."""
        with network_namespace(pid), Netlink() as netlink:
            for key, value in known_sysctls(self.sysctls).items():
                write_sysctl(key, value)
            carry_out(netlink, [("ip", line) for line in self.ip])
            batch("bridge", self.bridge)
            offload.switch_off(self.plain)
            carry_out(netlink, [("tc", line) for line in self.tc])
            for name, interface in self.soft_roce:
                add_soft_roce(name, interface)


def carry_out(netlink: Netlink, commands: Iterable[tuple[str, str]]) -> None:
    """(program, command) after command here, over netlink where we know how to say it; LinkError names what failed."""
    requests: list[Request] = []
    lines: list[str] = []
    last = ""

    def flush() -> None:  # one of both is empty
        netlink.carry_out(requests)
        batch(last, lines)
        requests.clear()
        lines.clear()

    index = Indexes(netlink, flush)
    for program, line in commands:
        request = translate(program, line, index)
        if (lines and (request or program != last)) or (requests and not request):
            flush()
        if request:
            requests.append(request)
        else:
            lines.append(line)
            last = program
    flush()


def batch(program: str, commands: Iterable[str]) -> None:
    """Run many commands of `ip`, `bridge` or `tc` here; LinkError with its own words at the first that fails."""
    lines = list(commands)
    if not lines:
        return
    try:
        done = subprocess.run(
            [program, "-batch", "-"],
            input="\n".join(lines) + "\n",
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except FileNotFoundError as error:
        raise LinkError(f"cannot run {error.filename}: not installed") from error
    except subprocess.TimeoutExpired as error:
        raise LinkError(f"no end after {TIMEOUT_S} s: {program} {'; '.join(lines)}") from error
    complaint = done.stderr.strip()
    if done.returncode != 0 or complaint:
        numbered = "\n".join(f"{program} {line}" for line in lines)
        raise LinkError(
            f"failed ({done.returncode}): {complaint or 'no message'}\n  while running:\n{numbered}"
        )


def known_sysctls(settings: Mapping[str, str]) -> dict[str, str]:
    """Those kernel parameters that this kernel was built with."""
    return {key: value for key, value in settings.items() if _path(key).exists()}


def write_sysctl(key: str, value: str) -> None:
    """Set a kernel parameter, in the present network namespace if it is one of a network. LinkError."""
    try:
        _path(key).write_text(value)
    except OSError as error:
        raise LinkError(f"{key}: cannot be set to {value}: {os.strerror(error.errno or 0)}") from error


def read_sysctl(key: str) -> str:
    """A kernel parameter as it is now, its fields separated by single spaces. LinkError."""
    try:
        return " ".join(_path(key).read_text().split())
    except OSError as error:
        raise LinkError(f"{key}: cannot be read: {os.strerror(error.errno or 0)}") from error


def _path(key: str) -> Path:
    return _SYSCTLS / key.replace(".", "/")

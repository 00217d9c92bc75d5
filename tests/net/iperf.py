"""iperf3 for tests and benchmarks."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator

from testbed.net.links.netns import command_in_namespace


@contextlib.contextmanager
def iperf_server(pid: int) -> Iterator[None]:
    """iperf3 listens for one client in the namespaces of process `pid` during the block."""
    command = command_in_namespace(pid, ["iperf3", "-s", "-1", "--forceflush"])
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        while "listening" not in server.stdout.readline():
            pass
        yield
    finally:
        server.kill()
        server.communicate()

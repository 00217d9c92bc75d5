"""What a liar does inside a guest: `traffic_lies_inside.py SCENARIO OUTPUT` starts a run and meddles with its hosts."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time

import psutil

from testbed.net.fabric.fabric_state import FabricState, load_all
from testbed.net.links.interfaces import read_node_counts
from testbed.net.links.netns import network_namespace, run_script

DATAGRAMS, DATAGRAM_BYTES = 400, 1400
STILL_S = 0.08
ALONE = ("--ranks-per-process", "1")


def send_datagrams(state: FabricState, here: str, there: str) -> None:
    """Somebody else's traffic from one host to another."""
    address = next(host["ip"] for host in state.details["hosts"] if host["name"] == there)
    with network_namespace(state.pids[here]), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for number in range(DATAGRAMS):
            sender.sendto(bytes(DATAGRAM_BYTES), (address, 9))
            if number % 20 == 0:
                time.sleep(0.0005)


def stop_a_rank(state: FabricState, host: str) -> None:
    """One rank stands still for a while."""
    place = os.stat(f"/proc/{state.pids[host]}/ns/net").st_ino
    (pid,) = (
        process.pid
        for process in psutil.process_iter()
        if "testbed.measure.ranks.launcher" in " ".join(process.cmdline())
        and os.stat(f"/proc/{process.pid}/ns/net").st_ino == place
    )
    os.kill(pid, signal.SIGSTOP)
    time.sleep(STILL_S)
    os.kill(pid, signal.SIGCONT)


def drop_a_few(state: FabricState, switch: str, port: str) -> None:
    """A switch loses what comes in at a port, until it has hit some frames."""
    pid = state.pids[switch]
    run_script(
        pid, [f"tc qdisc add dev {port} clsact", f"tc filter add dev {port} ingress matchall action drop"]
    )
    while not read_node_counts(pid).ports[port].dropped_otherwise:
        time.sleep(0.001)
    run_script(pid, [f"tc filter del dev {port} ingress"])


def main() -> None:
    scenario, output = sys.argv[1:]
    run = subprocess.Popen(
        # in processes of their own: one of them is going to stand still
        [*(sys.executable, "-m", "testbed", "run", scenario, "-o", output, "--json"), *ALONE],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert run.stderr is not None
    for line in run.stderr:
        print(line, end="", file=sys.stderr)
        if "step 2 of" in line:
            time.sleep(0.06)  # it is announced a moment before it starts; then ranks compute, then they send
            (state,) = load_all()
            send_datagrams(state, "east1", "west1")  # both have a rank
            send_datagrams(state, "east3", "west1")  # the first has none
            stop_a_rank(state, "west2")
            drop_a_few(state, "west-leaf", "uplink")
            run_script(state.pids["east-leaf"], ["tc qdisc add dev uplink root netem delay 3ms"])
    sys.exit(run.wait())


if __name__ == "__main__":
    main()

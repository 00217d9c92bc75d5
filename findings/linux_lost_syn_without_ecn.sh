#!/usr/bin/env bash
# Linux (seen on 6.18.44; set up with pyroute2 0.9.7): a TCP connection whose first SYN is lost has no ECN for the rest of
# its life, although both ends ask for it (tcp_ecn=1): the SYN is sent again without its ECN bits (tcp_ecn_fallback, on as
# it comes). The kernel's DCTCP answers that by Reno, under the name dctcp-reno. So on an emulated link that loses packets
# some connections of a DCTCP experiment are Reno ones, by chance, and a scenario that goes through once fails another time.
# Expected: one lost packet costs a second, and nothing else.
# As root: makes two network namespaces, and removes them.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check pyroute2==0.9.7
cat > "$folder/syn.py" <<'PYTHON'
import os
import platform
import socket
import threading
import time

from pyroute2 import NetNS, netns

NAMES = [f"syn{os.getpid()}{end}" for end in "ab"]
TCPI_OPT_ECN = 8


def within(name, work):
    """Run `work` in a namespace, in a thread of its own."""
    found = []

    def go():
        netns.setns(name)
        found.append(work())

    thread = threading.Thread(target=go)
    thread.start()
    thread.join()
    return found[0]


def setting(name, key, value):
    def write():
        with open(f"/proc/sys/net/ipv4/{key}", "w") as file:
            file.write(value)

    within(name, write)


def has_ecn(lose_first, port):
    """Connect once; whether the connection has ECN, and how long it took to make."""

    def listening():
        listener = socket.create_server(("10.9.0.2", port))
        listener.settimeout(10)
        return listener

    listener = within(NAMES[1], listening)
    far.link("set", index=far.link_lookup(ifname="far")[0], state="down" if lose_first else "up")
    sender = within(NAMES[0], lambda: socket.socket())
    sender.setblocking(False)
    begin = time.monotonic()
    sender.connect_ex(("10.9.0.2", port))
    if lose_first:
        time.sleep(0.3)
        far.link("set", index=far.link_lookup(ifname="far")[0], state="up")
    accepted, _ = listener.accept()
    took_s = time.monotonic() - begin
    options = sender.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)[5]
    for one in (sender, accepted, listener):
        one.close()
    return bool(options & TCPI_OPT_ECN), took_s


near, far = (NetNS(name) for name in NAMES)
try:
    near.link("add", ifname="near", kind="veth", peer={"ifname": "far", "net_ns_fd": NAMES[1]})
    for space, name, address in ((near, "near", "10.9.0.1"), (far, "far", "10.9.0.2")):
        index = space.link_lookup(ifname=name)[0]
        space.addr("add", index=index, address=address, prefixlen=24)
        space.link("set", index=index, state="up")
    # a neighbour that needs no question, so that the SYN itself is what is lost
    mac = dict(far.get_links(far.link_lookup(ifname="far")[0])[0]["attrs"])["IFLA_ADDRESS"]
    near.neigh("add", dst="10.9.0.2", lladdr=mac, ifindex=near.link_lookup(ifname="near")[0], state="permanent")
    for name in NAMES:
        setting(name, "tcp_ecn", "1")
    seen = {}
    for port, (lose, fallback) in enumerate([(False, "1"), (True, "1"), (True, "0")], start=7001):
        setting(NAMES[0], "tcp_ecn_fallback", fallback)
        seen[lose, fallback], took_s = has_ecn(lose, port)
        print(f"first SYN {'lost' if lose else 'arrives'}, tcp_ecn_fallback {fallback}:", end=" ")
        print(f"{'ECN' if seen[lose, fallback] else 'no ECN'}, connected after {took_s:.2f} s")
    print("Linux", platform.release())
    assert seen == {(False, "1"): True, (True, "1"): False, (True, "0"): True}
finally:
    for space in (near, far):
        space.close()
        space.remove()
PYTHON
"$folder/venv/bin/python" "$folder/syn.py"
echo "a lost SYN takes a connection's ECN: as described"

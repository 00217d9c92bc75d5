"""Lies planted into one run inside a guest, one after the other: `python -m tests.virtual.lies_inside OUT [NAME...]`.

Runs a small job of many steps on two buildings. Each lie is planted in a step, undone after a while, and what the
fingerprint has said of it until then is written to OUT/lies.json, beside the run's own directory OUT/run. Without names:
all lies, for 20 ms and for longer; `none` plants nothing.
"""

from __future__ import annotations

import json
import re
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testbed.config import load_scenario
from testbed.fabric.network import Fabric
from testbed.fidelity.capacity import Stack
from testbed.harness.events import EventPlayer
from testbed.harness.job import Job
from testbed.harness.run import Progress, Run
from testbed.links import LinkError
from testbed.links.command import run_script
from testbed.scale import Scale

SCENARIO = """
name: lies
topology:
  name: lies
  mtu: 9000
  buildings:
    east: {{hosts: 2, nic: {{rate: 100 Mbit/s}}}}
    west: {{hosts: 2, nic: {{rate: 100 Mbit/s}}}}
  wan:
    - {{a: east, b: west, rate: 50 Mbit/s, delay: 2 ms, planes: 2}}
ranks: 4
workload:
  model: {{dim: 64, n_layers: 1, n_heads: 2, n_kv_heads: 2, ffn_dim: 128, vocab_size: 256}}
  bucket_cap: 1 MiB
  sequence_length: 64
  peak_flops: 20 Gflop/s
algorithms: [ring]
trials: {trials}
warmup: 1
"""
BLINK_S, LONG_S = 0.02, 0.15
QUIET_STEPS = 4  # at the beginning, to know how long a step takes
AFTER_S = 0.005


@dataclass(frozen=True)
class Lie:
    """What is done where (a node's name, or none for the root namespace), how it is undone, what its name must contain.

    unheard: the kernel tells nobody of it, so that it is seen while it lasts, not afterwards.
    """

    name: str
    where: str
    plant: str
    undo: str
    named: str
    unheard: bool = False


def lies(fabric: Fabric) -> list[Lie]:
    """All kinds, on every kind of object; settings as they are before are read where they are."""
    prefix = fabric.state.prefix
    edge, port = f"{prefix}e0", f"{prefix}e0p3"
    hosts = {host.name: host for host in fabric.topology.hosts}
    far, mate = hosts["west1"], hosts["east2"]

    def tc(what: str) -> str:
        return f"tc {what}"

    def held(node: str, device: str, minor: str) -> dict[str, int]:
        """A class of HTB as it is set, from the commands that set it."""
        from testbed.links.shaping import Shape, shape_commands

        shape = fabric.plan.shapes[node, device] if node else Shape.of(fabric.topology.wan[0].a_to_b)
        (line,) = [
            line
            for line in shape_commands(device, shape, fabric.topology.mtu)
            if f"classid {minor} " in line
        ]
        words = line.split()
        return {
            key: int(words[words.index(key) + 1].removesuffix("bps"))
            for key in ("rate", "ceil", "burst", "cburst", "quantum")
        }

    def htb(name: str, node: str, device: str, minor: str, named: str, **changed: Any) -> Lie:
        before = held(node, device, minor)
        commands = []
        for values in ({**before, **{key: int(before[key] * by) for key, by in changed.items()}}, before):
            given = " ".join(
                f"{key} {value}bps" if key in ("rate", "ceil") else f"{key} {value}"
                for key, value in values.items()
            )
            parent = "1:" if minor == "1:1" else "1:1"
            commands.append(tc(f"class change dev {device} parent {parent} classid {minor} htb {given}"))
        return Lie(name, node, *commands, named)

    def parameter(name: str, value: str, where: str = "east1") -> Lie:
        path = f"/proc/sys/{name.replace('.', '/')}"
        keep = f"/tmp/{name}"
        plant = f"cat {path} > {keep}; echo '{value}' > {path}"
        return Lie(f"sysctl {name}", where, plant, f"cat {keep} > {path}", name)

    def link(name: str, where: str, plant: str, undo: str, named: str, unheard: bool = False) -> Lie:
        return Lie(name, where, f"ip link set dev {plant}", f"ip link set dev {undo}", named, unheard)

    def replaced(name: str, where: str, program: str, plant: str, undo: str, named: str) -> Lie:
        return Lie(name, where, f"{program} {plant}", f"{program} {undo}", named)

    netem = next(
        line
        for line in run_script(fabric.state.pids["wan"], ["tc qdisc show dev w0b"]).splitlines()
        if "netem" in line
    )
    limit = re.search(r"limit (\d+)", netem)
    assert limit is not None
    fibre = f"qdisc change dev w0b root netem limit {limit[1]} delay"
    rate = round(hosts["east1"].nic.rate_bps / 8)
    hold = "qdisc change dev in-eth0 root netem limit 1000000 rate"
    rule = f"priority=60000,ip,nw_dst={far.ip}"
    return [
        htb("leaf class halved", "east-leaf", "p0", "1:10", "class 1:10 of p0: rate", rate=0.5),
        htb("leaf ceil halved", "east-leaf", "p1", "1:10", "class 1:10 of p1: rate", ceil=0.5, rate=0.5),
        htb("root class halved", "east-leaf", "p0", "1:1", "class 1:1 of p0: rate", rate=0.5, ceil=0.5),
        htb("host burst of megabytes", "east1", "eth0", "1:10", "class 1:10 of eth0: burst", burst=2000, cburst=2000),
        htb("edge class slowed", "", port, "1:10", f"class 1:10 of {port}: rate", rate=0.7, ceil=0.7),
        htb("quantum", "east1", "eth0", "1:10", "quantum", quantum=2),
        replaced("leaf queue shortened", "east-leaf", "tc", "qdisc change dev p0 parent 1:10 handle 110: bfifo limit 20000",
                 f"qdisc change dev p0 parent 1:10 handle 110: bfifo limit {fabric.plan.shapes['east-leaf', 'p0'].queue_bytes}", "bfifo 110: of p0: limit"),
        replaced("tbf on an uplink", "east-leaf", "tc", "qdisc add dev uplink root tbf rate 20mbit burst 20000 limit 200000",
                 "qdisc del dev uplink root", "tbf"),
        replaced("tbf on the WAN's bridge", "wan", "tc", "qdisc add dev br0 root tbf rate 20mbit burst 20000 limit 200000",
                 "qdisc del dev br0 root", "tbf"),
        replaced("WAN delay longer", "wan", "tc", f"{fibre} 5ms", f"{fibre} 2000us", "netem 8"),
        replaced("WAN loss", "wan", "tc", f"{fibre} 2000us loss 1%", f"{fibre} 2000us", "netem"),
        replaced("WAN limit", "wan", "tc", f"qdisc change dev w0b root netem limit 9 delay 2000us", f"{fibre} 2000us", "limit"),
        replaced("held at half the rate", "east1", "tc", f"{hold} {rate // 2}bps", f"{hold} {rate}bps", "of in-eth0"),
        replaced("ingress gone", "east1", "tc", "qdisc del dev eth0 ingress",
                 "qdisc add dev eth0 handle ffff: ingress; tc filter add dev eth0 parent ffff: protocol all pref 20 matchall action mirred egress redirect dev in-eth0", "ingress"),
        replaced("filter added before", "east1", "tc", "filter add dev eth0 parent ffff: protocol ip pref 5 u32 match u32 0 0 action pass",
                 "filter del dev eth0 parent ffff: pref 5", "filter of preference 5"),
        replaced("filter that drops on the way out", "east-leaf", "tc", "qdisc add dev uplink clsact; tc filter add dev uplink egress protocol ip pref 7 matchall action drop",
                 "qdisc del dev uplink clsact", "of uplink: added"),
        replaced("filter gone", "east-leaf", "tc", "filter del dev p1 parent ffff: pref 20",
                 "filter add dev p1 parent ffff: protocol all pref 20 matchall action mirred egress redirect dev in-p1", "filter of preference 20"),
        replaced("class added", "east1", "tc", "class add dev eth0 parent 1:1 classid 1:77 htb rate 1mbit burst 9000 cburst 9000 quantum 9000",
                 "class del dev eth0 classid 1:77", "class 1:77 of eth0"),
        replaced("route's MTU", "east1", "ip", f"route add {far.ip}/32 dev eth0 src {hosts['east1'].ip} mtu 1500", f"route del {far.ip}/32", f"route to {far.ip}/32"),
        replaced("main route's MTU", "east2", "ip", f"route change 10.0.0.0/8 dev eth0 proto kernel scope link src {mate.ip} mtu 4000",
                 f"route change 10.0.0.0/8 dev eth0 proto kernel scope link src {mate.ip}", "route to 10.0.0.0/8 of eth0: mtu"),
        replaced("route's window", "east2", "ip", f"route change 10.0.0.0/8 dev eth0 proto kernel scope link src {mate.ip} initcwnd 2 window 20000",
                 f"route change 10.0.0.0/8 dev eth0 proto kernel scope link src {mate.ip}", "route to 10.0.0.0/8 of eth0:"),
        replaced("rule that prohibits", "east1", "ip", f"rule add to {far.ip} prohibit", f"rule del to {far.ip} prohibit", "rule 32765: added"),
        replaced("address added", "east1", "ip", "address add 10.99.0.1/32 dev eth0", "address del 10.99.0.1/32 dev eth0", "address 10.99.0.1/32"),
        replaced("neighbour elsewhere", "east1", "ip", f"neigh replace {far.ip} lladdr {mate.mac} dev eth0 nud permanent",
                 f"neigh replace {far.ip} lladdr {far.mac} dev eth0 nud permanent", f"neighbour {far.ip}"),
        replaced("neighbour gone", "west1", "ip", f"neigh del {mate.ip} dev eth0",
                 f"neigh replace {mate.ip} lladdr {mate.mac} dev eth0 nud permanent", f"neighbour {mate.ip}"),
        replaced("forwarding entry gone", "east-leaf", "bridge", f"fdb del {mate.mac} dev p1 master",
                 f"fdb replace {mate.mac} dev p1 master static", f"forwarding entry {mate.mac}"),
        replaced("forwarding entry elsewhere", "east-leaf", "bridge", f"fdb replace {far.mac} dev p0 master static",
                 f"fdb replace {far.mac} dev uplink master static", f"forwarding entry {far.mac}"),
        link("host's MTU", "east1", "eth0 mtu 8000", "eth0 mtu 9000", "eth0: mtu"),
        link("leaf port's MTU", "east-leaf", "p0 mtu 5000", "p0 mtu 9000", "p0: mtu"),
        link("WAN end's MTU", "wan", "w0a mtu 3000", "w0a mtu 9000", "w0a: mtu"),
        link("edge port's MTU", "", f"{port} mtu 3000", f"{port} mtu 9000", f"{port}: mtu"),
        link("card's queue length", "east1", "eth0 txqueuelen 5", "eth0 txqueuelen 1000", "eth0: "),
        link("leaf port's queue length", "west-leaf", "uplink txqueuelen 5", "uplink txqueuelen 1000", "uplink: "),
        link("port learns", "east-leaf", "p0 type bridge_slave learning on", "p0 type bridge_slave learning off", "learning"),
        link("port floods", "east-leaf", "p1 type bridge_slave flood on", "p1 type bridge_slave flood off", "flood"),
        link("bridge ages", "east-leaf", "br0 type bridge ageing_time 100", "br0 type bridge ageing_time 30000", "ageing"),
        link("WAN plane down", "wan", "w1a down", "w1a up", "w1a"),
        link("card promiscuous", "east1", "eth0 promisc on", "eth0 promisc off", "eth0: flags"),
        link("largest segment", "east1", "eth0 gso_max_size 20000", "eth0 gso_max_size 65536", "gso_max_size", unheard=True),
        Lie("interface added", "east1", "ip link add dum type ifb", "ip link del dum", "dum: added"),
        replaced("segmentation offload", "east1", "ethtool", "-K eth0 sg on tso on gso on", "-K eth0 tso off gso off sg off", "offloads"),
        replaced("receive offload", "west1", "ethtool", "-K eth0 gro on", "-K eth0 gro off", "offloads"),
        parameter("net.ipv4.tcp_limit_output_bytes", "3000"),
        parameter("net.ipv4.tcp_sack", "0"),
        parameter("net.ipv4.tcp_rmem", "4096 8192 16384"),
        parameter("net.ipv4.tcp_congestion_control", "reno"),
        parameter("net.ipv4.tcp_slow_start_after_idle", "1"),
        parameter("net.ipv4.ip_forward", "1", "west-probe"),
        parameter("net.ipv4.conf.eth0.rp_filter", "1"),
        parameter("net.ipv6.conf.all.disable_ipv6", "0", "west-leaf"),
        parameter("net.core.netdev_max_backlog", "20", ""),
        parameter("net.core.dev_weight", "4", ""),
        parameter("net.ipv4.tcp_mem", "100 200 300", ""),
        Lie("rule added", "", f"ovs-ofctl -O OpenFlow13 add-flow {edge} {rule},actions=drop", f"ovs-ofctl -O OpenFlow13 --strict del-flows {edge} {rule}", "rule"),
        Lie("rules gone", "", f"ovs-ofctl -O OpenFlow13 dump-flows --no-stats {edge} > /tmp/flows; ovs-ofctl -O OpenFlow13 del-flows {edge} ip,nw_dst={far.ip}",
            f"ovs-ofctl -O OpenFlow13 add-flows {edge} /tmp/flows", "rule"),
        Lie("group added", "", f"ovs-ofctl -O OpenFlow13 add-group {edge} group_id=99,type=all,bucket=actions=output:3", f"ovs-ofctl -O OpenFlow13 del-groups {edge} group_id=99", "group 99", unheard=True),
        Lie("edge port does not forward", "", f"ovs-ofctl -O OpenFlow13 mod-port {edge} 3 no-forward", f"ovs-ofctl -O OpenFlow13 mod-port {edge} 3 forward", "port"),
        Lie("edge port policed", "", f"ovs-vsctl set interface {port} ingress_policing_rate=5000 ingress_policing_burst=500",
            f"ovs-vsctl set interface {port} ingress_policing_rate=0 ingress_policing_burst=0", port),
    ]  # fmt: skip


class Planter(EventPlayer):
    """Plants lies in the place of a scenario's events."""

    def __init__(self, fabric: Fabric, job: Job, planned: list[tuple[Lie, float]]) -> None:
        self.fabric, self.job = fabric, job
        self.planned = planned
        self.results: list[dict[str, Any]] = []
        self.log: list[dict[str, Any]] = []
        self.refused: list[str] = []
        self.killed_s = None
        self._due_s: float | None = None
        self._stage = 0
        self._steps = 0

    @property
    def due_s(self) -> float | None:
        return self._due_s

    def step(self, variant: str, trial: int, start_s: float) -> None:
        self._steps += 1
        if self._due_s is None and self.planned and self._steps > QUIET_STEPS:
            self._due_s = start_s + AFTER_S

    def play(self) -> None:
        if self._due_s is None or time.monotonic() < self._due_s:
            return
        assert self.job.watch is not None
        lie, for_s = self.planned[0]
        if self._stage == 0:
            self._before = len(self.job.watch.changes)
            self._do(lie, lie.plant)
            self._due_s = time.monotonic() + for_s
        elif self._stage == 1:
            if for_s > BLINK_S:
                self.job.watch.look(thorough=True)
            self._do(lie, lie.undo)
            self._due_s = time.monotonic() + AFTER_S
        else:
            self.job.watch.look(thorough=True)
            said = [change.words for change in self.job.watch.changes[self._before :]]
            named = any(lie.named in words for words in said)
            self.results.append({"lie": lie.name, "for_s": for_s, "named": named, "said": said})
            self.planned.pop(0)
            self._due_s = None
        self._stage = (self._stage + 1) % 3

    def _do(self, lie: Lie, command: str) -> None:
        pid = self.fabric.pids[lie.where] if lie.where else None
        try:
            run_script(pid, [command])
        except LinkError as error:
            self.refused.append(f"{lie.name}: {error}")

    def finish(self) -> None:
        """Nothing is left to undo."""


class Saboteur(Run):
    """A run with lies in it."""

    names: tuple[str, ...] = ()
    planter: Planter

    def _player(self, fabric: Fabric, job: Job) -> EventPlayer | None:
        chosen = [lie for lie in lies(fabric) if not self.names or lie.name in self.names]
        planned = [
            (lie, for_s) for lie in chosen for for_s in (BLINK_S, LONG_S) if for_s > BLINK_S or not lie.unheard
        ]
        self.planter = Planter(fabric, job, planned)
        return self.planter


def main() -> None:
    """Run, and write down what was said."""
    folder, names = Path(sys.argv[1]), tuple(sys.argv[2:])
    file = folder / "lies.yaml"
    file.write_text(SCENARIO.format(trials=10 * max(1, len(names)) if names else 260))
    progress = Progress(phase=lambda line: print(line, flush=True), step=lambda done, total: None)
    run = Saboteur(load_scenario(file), Stack("netem", "system"), Scale(), folder / "run", progress)
    run.names = names
    summary = run.execute()
    told = {"results": run.planter.results, "missing": [lie.name for lie, _ in run.planter.planned]}
    told |= {"refused": run.planter.refused}
    told |= {"verdict": summary["variants"][0]["verdict"], "steps": summary["variants"][0]["step_time_s"]["samples"]}
    (folder / "lies.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main()

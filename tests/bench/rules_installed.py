"""How long 10,000 rules take: from telling the controller to the last switch's rules read back. Needs root.

    .venv/bin/python -m tests.bench.rules_installed [--trials 9] [--hosts 100]

Two Open vSwitch bridges, a rule for each of hosts x hosts / 2 declared connections and direction. Each trial goes from
`shortest`, which has a few hundred rules, to `qp_aware` and back. Columns: rules, seconds until all are confirmed
(median, least, most), seconds of the whole request, with the computing of paths and their check in memory (median).
"""

from __future__ import annotations

import argparse
import statistics
import sys
from dataclasses import asdict

from testbed.net.controller import ControllerProcess, Flow, compute_rules
from testbed.net.controller.process import snapshot_of
from testbed.spec.topology import TopologySpec
from tests.net.controller_bridges import site


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=9)
    parser.add_argument("--hosts", type=int, default=100, help="per building")
    options = parser.parse_args()
    document = {
        "name": "many",
        "mtu": 1500,
        "buildings": {
            name: {"hosts": options.hosts, "nic": {"rate": "1 Gbit/s"}} for name in ("east", "west")
        },
        "wan": [{"a": "east", "b": "west", "planes": 2, "rate": "1 Gbit/s", "delay": "1 ms"}],
    }
    topology = TopologySpec.model_validate(document).resolve()
    flows = [
        Flow(f"east{here + 1}", f"west{there + 1}", 0, 1.0, 33000 + here, 29500)
        for here in range(options.hosts)
        for there in range(options.hosts // 2)
    ]
    with site(topology) as built:
        rules = compute_rules("shortest", topology, built.edges)
        snapshot = snapshot_of(topology, built.edges, {"name": "shortest"}, flows)
        controller = ControllerProcess(rules, snapshot=snapshot, log=built.events.append)
        controller.start()
        try:
            built.set_controller(controller.port)
            controller.wait_ready(20.0)
            requests = []
            for _ in range(options.trials):
                answer = controller.api.set({"name": "qp_aware", "flows": [asdict(flow) for flow in flows]})
                held = sum(len(built.flows(name)) for name in ("east", "west"))
                if held != answer["rules"]:
                    sys.exit(f"the bridges hold {held} rules, asked for {answer['rules']}")
                requests.append(answer)
                controller.api.set({"name": "shortest"})
        finally:
            controller.stop()
    changes = [event for event in built.events if event["event"] == "changed"][::2]
    seconds = [change["seconds"] for change in changes]
    print(f"{'rules':>8} {'confirmed':>10} {'least':>8} {'most':>8} {'request':>8}")
    print(
        f"{requests[0]['changed']:8d} {statistics.median(seconds):10.3f} {min(seconds):8.3f} {max(seconds):8.3f} "
        f"{statistics.median(answer['seconds'] for answer in requests):8.3f}"
    )


if __name__ == "__main__":
    main()

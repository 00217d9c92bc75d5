"""`vagrant up`, then a scenario, a controller experiment and the net lane's own tests in the machine.

The tests follow on one another, as a user's commands do; each but the last works by itself, too.
"""

from __future__ import annotations

import json
import os
import re
import shlex

import pytest

from tests.vagrant.conftest import UP_S, Machine

pytestmark = pytest.mark.vagrant

# For an emulated processor: a tenth of the packets, and time enough for them.
SIZED = "--set scale.size_scale=40000 --set scale.time_dilation=4 --set trials=2"
# Large packets for their time; and a machine whose host is busy wakes late.
EXCUSED = ("cannot be pipelined", "wake-ups came")
# What links do to packets, and where they go. The others try what processes and terminals of a machine do.
CONFORMANCE = (
    "test_links_engines.py test_fidelity_probe.py test_fabric.py test_topologies_mininet.py "
    "test_controller_switches.py test_clos.py test_links_cut.py"
)
# Ping through all switches of a fabric: an emulated processor takes 0.7 ms for that, by itself.
LEFT_OUT = "not ryu and not ping_sees_the_configured"


@pytest.mark.timeout(UP_S)
def test_up_ends_with_what_the_machine_can_do_and_the_next_command(machine: Machine) -> None:
    assert "A run here uses the netem link engine and the system datapath." in machine.said
    assert "ready; next: vagrant ssh -c 'testbed run scenarios/quickstart.yaml'" in machine.said


@pytest.mark.timeout(1200)
def test_provisioning_again_installs_nothing(machine: Machine) -> None:
    done = machine.vagrant("provision", timeout_s=1200)
    assert done.returncode == 0
    assert "installing" not in done.stdout
    assert "making" not in done.stdout
    assert "ready; next:" in done.stdout


@pytest.mark.timeout(1200)
def test_a_scenario_runs_and_its_report_is_on_the_host(machine: Machine) -> None:
    done = machine.ssh(f"testbed run /vagrant/scenarios/quickstart.yaml {SIZED}", timeout_s=1200)
    assert done.returncode == 0  # an emulated processor is slow, and the machine's clock waits for it
    (run,) = (machine.checkout / "runs").iterdir()
    assert f"Report: runs/{run.name}/report.html" in done.stdout
    summary = json.loads((run / "summary.json").read_text())
    steps = {variant["name"]: variant["step_time_s"]["median"] for variant in summary["variants"]}
    # as under the virtual clock, where they are 1.974 s and 1.522 s; fewer packets change a little
    assert steps["ring"] == pytest.approx(1.97, rel=0.1)
    assert steps["hierarchical"] == pytest.approx(1.52, rel=0.1)
    for variant in summary["variants"]:
        broken = [check["sentence"] for check in variant["verdict"]["invariants"] if check["ok"] is False]
        assert all(any(words in sentence for words in EXCUSED) for sentence in broken), broken
    manifest = json.loads((run / "manifest.json").read_text())
    assert (manifest["link_engine"], manifest["datapath"]) == ("netem", "system")
    assert "<svg" in (run / "report.html").read_text()


@pytest.mark.timeout(1200)
def test_a_controller_experiment_runs(machine: Machine) -> None:
    scenario = "scenarios/controller/hash-collisions.yaml"
    variants = '{"ecmp": {"policy": "ecmp"}, "te": {"policy": "te"}}'
    done = machine.ssh(
        f"testbed run {scenario} {SIZED} --set {shlex.quote(f'variants={variants}')} -o runs/experiment",
        timeout_s=1200,
    )
    assert done.returncode == 0
    summary = json.loads((machine.checkout / "runs/experiment/summary.json").read_text())
    assert [variant["name"] for variant in summary["variants"]] == ["ecmp", "te"]


@pytest.mark.timeout(900)
def test_a_network_stays_up_and_its_policy_is_changed(machine: Machine) -> None:
    steps = (
        "testbed up topologies/two-buildings.yaml --policy ecmp",
        "testbed exec east1 -- ping -q -c 3 west1",
        "testbed policy set failover",
        "testbed policy show",
        "testbed exec east1 -- ping -q -c 3 west1",
        "testbed down",
    )
    done = machine.ssh(" && ".join(steps))
    assert done.returncode == 0
    assert len(re.findall(r"3 packets transmitted, 3 received", done.stdout)) == 2
    assert "failover" in done.stdout


@pytest.mark.timeout(3600)
def test_the_net_lane_passes_on_netem_and_the_kernels_datapath(machine: Machine) -> None:
    files = " ".join(f"tests/net/{name}" for name in CONFORMANCE.split())
    python = "sudo .venv/bin/python -m pytest -p no:cacheprovider -q --timeout 600"
    done = machine.ssh(f"{python} -k {shlex.quote(LEFT_OUT)} {files}", timeout_s=3500)
    assert done.returncode == 0
    assert re.search(r"\d+ passed", done.stdout)


@pytest.mark.timeout(900)
def test_halt_and_up_again_brings_the_testbed_back(machine: Machine) -> None:
    assert machine.vagrant("halt").returncode == 0
    assert machine.vagrant("up", timeout_s=900).returncode == 0
    done = machine.ssh("testbed check scenarios/quickstart.yaml >/dev/null && lsmod")
    assert done.returncode == 0
    assert "openvswitch" in done.stdout


@pytest.mark.timeout(300)
def test_destroy_leaves_the_checkout_and_what_was_run_in_it(machine: Machine) -> None:
    assert machine.vagrant("destroy", "--force").returncode == 0
    assert sorted(os.listdir(machine.checkout / "runs"))[0] == "experiment"
    assert not any((machine.checkout / ".venv").iterdir())  # the machine's own was never in the host's folder

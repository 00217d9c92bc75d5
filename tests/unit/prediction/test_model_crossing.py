"""What connections cross by name, against the paths that the model gives them."""

from __future__ import annotations

from pathlib import Path

from testbed.comm.flight_recorder import NetworkPaths
from testbed.prediction.calibration import VIRTUAL, find_calibration
from testbed.prediction.network_paths import network_paths
from testbed.prediction.routes import route_network
from testbed.spec.scale import Scale
from testbed.spec.scenario import load_scenario
from testbed.workload.job.job import Job, job_of

SCENARIOS = Path(__file__).parents[3] / "scenarios"


def job(name: str, *overrides: str) -> Job:
    return job_of(load_scenario(SCENARIOS / f"{name}.yaml", list(overrides)), Scale())


def test_connections_cross_the_links_that_the_policy_gives_them() -> None:
    asked = job("quickstart", "policy=ecmp")
    paths = network_paths(asked, find_calibration(VIRTUAL))
    assert len({(own.source, own.target) for own in paths.pairs}) == 8 * 7
    network = route_network(asked, "ring", find_calibration(VIRTUAL))
    by_pair = {(own.source, own.target): own for own in paths.pairs}
    compared = 0
    for (ends, _), (path, *_) in network.parallel.items():
        (link,) = (name for name in by_pair[ends].components if name.startswith("link "))
        here = paths.hosts[ends[0]].rstrip("0123456789")
        assert f"{link.removeprefix('link ')} from {here}" in path.parts
        compared += 1
    assert compared >= 2


def test_a_path_has_its_cards_at_its_ends_and_each_switch_once() -> None:
    asked = job("quickstart")
    paths = network_paths(asked, find_calibration(VIRTUAL))
    for own in paths.pairs:
        assert own.components[0] == f"nic {paths.hosts[own.source]}"
        assert own.components[-1] == f"nic {paths.hosts[own.target]}"
        assert len(set(own.components)) == len(own.components)
    inside = next(own for own in paths.pairs if (own.source, own.target) == (0, 1))
    assert inside.components == ("nic east1", "switch east-leaf", "nic east2")
    across = next(own for own in paths.pairs if (own.source, own.target) == (0, 7))
    kinds = [name.split()[0] for name in across.components]
    assert kinds == ["nic", "switch", "switch", "link", "plane", "switch", "switch", "nic"]
    assert across.delay_s is not None
    assert across.delay_s > 2.4e-3
    assert NetworkPaths.from_document(paths.to_document()) == paths


def test_tiers_of_a_building_are_crossed_by_name() -> None:
    paths = network_paths(job("training-region"), find_calibration(VIRTUAL))
    names = {name for own in paths.pairs for name in own.components}
    assert any(name.startswith("switch ") and "spine" in name for name in names)
    assert any(name.startswith("switch ") and name.endswith("-core") for name in names)

"""Cards with verbs: which is a rank's, what a kernel lacks, where pyverbs is, which times a card knows."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from testbed.comm.transport import TransportError
from testbed.comm.transport.rdma import devices
from testbed.comm.transport.rdma.card import timeout_exponent
from testbed.measure.execution.run import check_here
from testbed.net.fabric.namespace_setup import host_setup
from testbed.net.fabric.plan import Plan
from testbed.net.links import setup
from testbed.spec.errors import ConfigError
from testbed.spec.scenario import Scenario
from testbed.spec.topology import load_topology
from testbed.spec.transport import TransportSpec
from testbed.workload.job.endpoint_resolution import wants_rdma

REPOSITORY = Path(__file__).parents[3]


def card(folder: Path, name: str, *addresses: tuple[str, str]) -> None:
    port = folder / name / "ports/1"
    for index, (gid, kind) in enumerate(addresses):
        for file, text in ((f"gids/{index}", gid), (f"gid_attrs/types/{index}", kind)):
            (port / file).parent.mkdir(parents=True, exist_ok=True)
            (port / file).write_text(text + "\n")


def test_a_ranks_card_is_the_one_that_has_its_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "_known", {})
    local = ("fe80:0000:0000:0000:0000:0aff:fe00:0001", "RoCE v2")
    card(tmp_path, "rxe_east1", local, ("0000:0000:0000:0000:0000:ffff:0a00:0001", "RoCE v2"))
    card(tmp_path, "rxe_west1", ("0000:0000:0000:0000:0000:ffff:0a01:0001", "RoCE v2"))
    card(tmp_path, "other0", ("0000:0000:0000:0000:0000:ffff:0a02:0001", "IB/RoCE v1"))
    assert devices.find_card("10.0.0.1", tmp_path) == ("rxe_east1", 1)
    assert devices.find_card("10.1.0.1", tmp_path) == ("rxe_west1", 0)
    with pytest.raises(TransportError, match=r"no card with verbs has the address 10\.2\.0\.1"):
        devices.find_card("10.2.0.1", tmp_path, patience_s=0.01)
    with pytest.raises(TransportError, match="under the virtual clock"):
        devices.find_card("10.2.0.1", tmp_path / "none", patience_s=0.0)


@pytest.mark.parametrize("rdma", [True, False])
def test_hosts_have_cards_where_the_transport_wants_them(rdma: bool) -> None:
    topology = load_topology(REPOSITORY / "topologies/two-buildings.yaml").resolve()
    spec = TransportSpec(kind="rdma" if rdma else "striped")
    assert wants_rdma(spec) is rdma
    plan = Plan(topology, "tb0000", rdma=wants_rdma(spec))
    found = [host_setup(plan, host).soft_roce for host in topology.hosts[:2]]
    assert found == ([[("rxe_east1", "eth0")], [("rxe_east2", "eth0")]] if rdma else [[], []])


def test_cards_wait_at_least_as_long_as_they_are_told_by_powers_of_two() -> None:
    assert timeout_exponent(4.096e-6 * 2**14) == 14
    assert timeout_exponent(0.067) == 14
    assert timeout_exponent(0.0672) == 15
    assert timeout_exponent(1e-9) == 1
    assert timeout_exponent(1e9) == 31


def test_a_kernel_without_soft_roce_says_so_and_one_as_it_comes_why_it_does_not_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "rdma_rxe"
    monkeypatch.setattr(setup, "_MODULE", module)
    monkeypatch.setattr(setup, "MAX_UNACKED_PSNS", module / "parameters/max_unacked_psns")
    assert setup.soft_roce_obstacle() == "this kernel has no soft-RoCE (rdma_rxe)"
    module.mkdir()
    assert "a window of 128 packets" in str(setup.soft_roce_obstacle())
    (module / "parameters").mkdir()
    (module / "parameters/max_unacked_psns").write_text("128\n")
    assert setup.soft_roce_obstacle() is None


def test_a_scenario_by_the_real_clock_is_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup, "_MODULE", Path("/nowhere"))
    scenario = Scenario.model_validate(
        {
            "name": "small",
            "topology": {
                "name": "pair",
                "buildings": {name: {"hosts": 1, "nic": {"rate": "1 Gbit/s"}} for name in ("east", "west")},
                "wan": [{"a": "east", "b": "west", "rate": "1 Gbit/s", "delay": "1 ms"}],
            },
            "ranks": 2,
            "workload": {"model": "llama3-8b", "accelerator": "h100"},
            "transport": {"kind": "rdma"},
        }
    )
    with pytest.raises(
        ConfigError, match=r"transport\.kind.*no soft-RoCE.*--clock virtual: docs/reference/rdma\.md"
    ):
        check_here(scenario, "small.yaml", "real")


def test_pyverbs_of_the_distribution_is_taken_alone_or_its_absence_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "pyverbs"]:
        monkeypatch.delitem(sys.modules, name)
    package = tmp_path / "pyverbs/__init__.py"
    monkeypatch.setattr(devices, "PACKAGED", package)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if "dist-packages" not in entry])
    with pytest.raises(ImportError, match=r"RDMA needs pyverbs.*python3-pyverbs"):
        devices.import_pyverbs("device")
    package.parent.mkdir()
    package.write_text("")
    (tmp_path / "pyverbs/device.py").write_text("NAME = 'packaged'\n")
    (tmp_path / "beside.py").write_text("")
    assert devices.import_pyverbs("device").NAME == "packaged"
    assert str(tmp_path) not in sys.path
    for name in ("pyverbs", "pyverbs.device"):
        monkeypatch.delitem(sys.modules, name)

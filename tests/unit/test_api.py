"""The Python API, as somebody's script uses it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import testbed

SCENARIOS = Path(__file__).parents[2] / "scenarios"
PAIR: dict[str, Any] = {
    "name": "pair",
    "topology": {
        "name": "pair",
        "buildings": {name: {"hosts": 2, "nic": {"rate": "100 Gbit/s"}} for name in ("east", "west")},
        "wan": [{"a": "east", "b": "west", "rate": "100 Gbit/s", "delay": "1 ms"}],
    },
    "workload": {"collectives": [{"collective": "all_reduce", "size": "1 GB"}]},
    "variants": {name: {"workload.collectives.0.algorithm": name} for name in ("ring", "hierarchical")},
}


def test_a_scenario_is_loaded_from_a_file_or_a_mapping_and_changed() -> None:
    scenario = testbed.load(SCENARIOS / "quickstart.yaml", set={"topology.wan.0.delay": "10 ms", "trials": 3})
    assert scenario.trials == 3
    assert scenario.topology.resolve().wan[0].a_to_b.delay_s == pytest.approx(0.01)
    pair = testbed.load(PAIR, set={"topology.mtu": 1500})
    assert pair.topology.mtu == 1500
    assert "mtu" not in PAIR["topology"]  # it is a copy that was changed


def test_every_name_that_is_promised_is_there() -> None:
    assert {name for name in testbed.__all__ if not callable(getattr(testbed, name))} == set()


def test_what_is_wrong_in_a_mapping_is_named() -> None:
    with pytest.raises(testbed.ConfigError, match=r"the mapping given: workload\.collectives\.0\.colective"):
        testbed.load({**PAIR, "workload": {"collectives": [{"colective": "all_reduce", "size": "1 GB"}]}})
    with pytest.raises(testbed.ConfigError, match=r"there is no nowhere\.yaml"):
        testbed.load({**PAIR, "topology": "nowhere.yaml"})


def test_a_step_is_predicted_by_variant() -> None:
    found = testbed.predict(PAIR)
    assert set(found) == {"ring", "hierarchical"}
    # 4 ranks, 2 in each building: a ring takes 3/4 of twice the array across each way, hierarchical half of that twice
    assert found["ring"].wan_bytes == pytest.approx(2 * 1.5e9, rel=1e-3)
    assert found["hierarchical"].wan_bytes == pytest.approx(2e9, rel=1e-3)
    assert 1.5 * 8 / 100 < found["ring"].step_time_s < 1.1 * 1.5 * 8 / 100


def test_a_run_that_cannot_be_is_refused_before_anything_is_built(tmp_path: Path) -> None:
    with pytest.raises(testbed.ConfigError, match="--clock: got wall"):
        testbed.run(PAIR, clock="wall", output=tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_importing_the_package_imports_nothing_else() -> None:
    code = "import sys, testbed; print(*sorted(n for n in sys.modules if n.startswith(('testbed.', 'pydantic'))))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "testbed.errors testbed.version"


def test_a_search_gives_the_quickest_first() -> None:
    names = ("data_parallel_replicate", "pipeline_parallel")
    degrees = {f"workload.parallelism.{name}_degree": [1, 2, 4] for name in names}
    model = {"dim": 1024, "n_layers": 8, "n_heads": 8, "n_kv_heads": 8, "ffn_dim": 4096, "vocab_size": 1024}
    own = {
        **{key: PAIR[key] for key in ("name", "topology")},
        "workload": {
            "model": model,
            "accelerator": "h100",
            "parallelism": {"data_parallel_replicate_degree": 4},
        },
        "explore": {"space": degrees},
    }
    found = testbed.explore(own)
    assert len(found.fitting) == 3
    assert found.fitting[0].tried.step_time_s == min(other.tried.step_time_s for other in found.fitting)
    with pytest.raises(testbed.ConfigError, match="expected a scenario that says what to search"):
        testbed.explore(PAIR)

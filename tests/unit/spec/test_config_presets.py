"""Presets: what counts for what is not said, in a file, a variant and on a command line; every figure has a source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from testbed.cli.main import app
from testbed.spec.catalogue import presets
from testbed.spec.errors import ConfigError
from testbed.spec.overrides import preset_transport
from testbed.spec.scale import Scale
from testbed.spec.scenario import Scenario, load_scenario
from testbed.workload.job.endpoint_resolution import modelled_software

SCENARIOS = Path(__file__).parents[3] / "scenarios"
QUICKSTART = SCENARIOS / "quickstart.yaml"


def scenario(**more: Any) -> Scenario:
    topology = {
        "name": "pair",
        "buildings": {"east": {"hosts": 2, "nic": {"rate": "400 Gbit/s"}}},
    }
    workload = {"model": "llama3-8b", "accelerator": "h100", **more.pop("workload", {})}
    return load_scenario({"name": "small", "topology": topology, "workload": workload, **more})


def test_every_figure_of_a_preset_has_a_source() -> None:
    for entry in presets().values():
        assert entry["source"]
        for change in entry["changes"].values():
            assert change.keys() <= {"value", "source", "needs"}
            assert len(change["source"]) > 3


def test_a_preset_counts_for_what_is_not_said() -> None:
    found = scenario(preset="nccl", transport={"protocol": "eager", "staging": {"slots": 4}})
    assert (found.transport.protocol, found.transport.staging.slots) == ("eager", 4)
    assert found.transport.staging.chunk_bytes == 512 * 1024
    assert found.transport.bootstrap == "star"
    assert found.transport.software_cost.launch_s == pytest.approx(8.4e-6)
    assert found.algorithms == ("ring",)


def test_what_a_preset_comes_to_is_the_same_written_out() -> None:
    for name in presets():
        found = scenario(preset=name)
        assert load_scenario(found.to_data()) == found


def test_a_variant_s_preset_is_over_the_scenario_s_values_and_under_its_own() -> None:
    found = scenario(
        transport={"protocol": "eager"},
        variants={
            "nccl": {"preset": "nccl"},
            "ncclx": {"preset": "ncclx", "transport.stripes.same_rack.connections": 3},
        },
    )
    copied, direct = found.variant("nccl").transport, found.variant("ncclx").transport
    assert (copied.kind, copied.protocol) == ("tcp", "staged")
    assert (direct.kind, direct.protocol, direct.bootstrap) == ("striped", "rendezvous", "ring_hybrid")
    assert direct.stripes.same_rack.connections == 3
    assert direct.stripes.other_region.segment_bytes == 2**20


def test_a_preset_on_the_command_line_is_over_the_file_and_under_what_else_is_said_there() -> None:
    said = ["transport.protocol=eager", "preset=nccl"]
    for overrides in (said, said[::-1]):
        found = load_scenario(QUICKSTART, overrides)
        assert (found.transport.protocol, found.transport.bootstrap) == ("eager", "star")
    assert found.algorithms == ("ring",)


def test_algorithms_of_parallelism_are_for_steps_that_have_some() -> None:
    assert scenario(preset="ncclx").workload.parallelism is None
    parallel = {"parallelism": {"data_parallel_shard_degree": 2}}
    found = scenario(preset="ncclx", workload=parallel).workload.parallelism
    assert found is not None
    assert found.collectives == {"data_parallel_shard": "far_first"}


def test_other_presets_are_refused() -> None:
    with pytest.raises(
        ConfigError, match="preset: got 'ncc', expected a preset: nccl, ncclx; did you mean nccl"
    ):
        scenario(preset="ncc")


def test_what_only_copies_cost_is_not_paid_without_them() -> None:
    copied = modelled_software(preset_transport("nccl"), Scale(4))
    assert copied.byte_s == pytest.approx(4 * 6.94e-12)
    assert copied.computing_share == pytest.approx(0.0095)
    assert (copied.slots.chunk_bytes, copied.slots.count) == (128 * 1024, 8)
    direct = modelled_software(preset_transport("ncclx"), Scale(4))
    assert (direct.byte_s, direct.computing_share, direct.registration) == (0.0, 0.0, None)
    eager = preset_transport("nccl").model_copy(update={"protocol": "eager"})
    assert modelled_software(eager, Scale()).byte_s == 0.0


def test_slots_that_would_be_smaller_than_a_packet_are_fewer() -> None:
    slots = modelled_software(preset_transport("nccl"), Scale(256)).slots
    assert (slots.chunk_bytes, slots.count) == (8192, 2)


def test_plan_says_what_a_preset_comes_to() -> None:
    model = "workload.model={dim: 64, n_layers: 1, n_heads: 4, n_kv_heads: 2, ffn_dim: 128, vocab_size: 256}"
    ran = CliRunner().invoke(app, ["plan", str(QUICKSTART), "--set", "preset=nccl", "--set", model])
    assert ran.exit_code == 0, ran.output
    assert (
        "quickstart: preset nccl: algorithms ring; transport.kind tcp; transport.protocol staged"
        in ran.output
    )
    assert "transport.software_cost.launch 8.4 us" in ran.output


def test_a_benchmark_takes_a_preset_or_words() -> None:
    asked = ["bench", "sendrecv", "--preset", "nccl", "--transport", "striped"]
    refused = CliRunner().invoke(app, asked)
    assert isinstance(refused.exception, ConfigError)
    assert "--preset: got nccl and --transport striped --protocol eager" in str(refused.exception)

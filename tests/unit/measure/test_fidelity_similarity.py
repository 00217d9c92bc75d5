"""The numbers that a scale model keeps and changes, and when a change matters."""

from __future__ import annotations

from typing import Any

import pytest

from testbed.measure.fidelity.similarity import DimensionlessNumber, Traffic, dimensionless, scale_similarity
from testbed.spec.scale import Scale
from testbed.spec.topology import TopologySpec

TRAFFIC = Traffic(
    message_bytes=100e6, gradient_bytes=10e9, compute_s=1.0, overhead_s=5e-6, emulated_overhead_s=2e-4
)


def numbers(scale: Scale, traffic: Traffic = TRAFFIC, **link: Any) -> dict[str, DimensionlessNumber]:
    buildings = {name: {"hosts": 2, "nic": {"rate": "400 Gbit/s"}} for name in ("east", "west")}
    wan = [{"a": "east", "b": "west", "rate": "200 Gbit/s", "delay": "2.5 ms", **link}]
    spec = TopologySpec.model_validate({"name": "t", "buildings": buildings, "wan": wan})
    found = dimensionless(spec.resolve(), spec.resolve(scale), scale, traffic)
    return {number.name: number for number in found}


@pytest.mark.parametrize("scale", [Scale(100), Scale(1, 100), Scale(20, 5)], ids=str)
def test_what_every_scale_keeps(scale: Scale) -> None:
    found = numbers(scale)
    for name in (
        "communication over computing",
        "bandwidth-delay product over message",
        "shortest timeout over round trip",
    ):
        assert found[name].preserved, found[name]
    assert found["communication over computing"].real == pytest.approx(0.2)
    assert found["shortest timeout over round trip"].real == pytest.approx(40)


def test_sizes_change_the_number_of_packets_and_dilation_does_not() -> None:
    product = "packets per bandwidth-delay product"
    assert numbers(Scale(100))[product].emulated == pytest.approx(numbers(Scale())[product].real / 100)
    assert numbers(Scale(1, 100))[product].preserved
    assert numbers(Scale(1, 100))["packets per message"].preserved


def test_software_weighs_less_where_time_is_stretched() -> None:
    share = "software share of a message"
    assert numbers(Scale(100))[share].emulated == pytest.approx(2e-4 / 2e-3)
    assert numbers(Scale(100, 10))[share].emulated == pytest.approx(2e-5 / 2e-3)


def verdict(scale: Scale, traffic: Traffic = TRAFFIC, **link: Any) -> Any:
    return scale_similarity(list(numbers(scale, traffic, **link).values()), scale)


def test_only_what_does_harm_turns_the_verdict() -> None:
    assert verdict(Scale()).ok is None
    assert verdict(Scale(100)).ok is True
    assert "preserves communication over computing" in verdict(Scale(100)).sentence
    few = verdict(Scale(10_000))
    assert (few.ok, few.severity) == (False, "caution")
    assert "The largest message is 1.1 packets here" in few.sentence
    slow = Traffic(100e6, 10e9, 1.0, overhead_s=5e-6, emulated_overhead_s=1e-3)
    assert "Software takes 50% of a message's time" in verdict(Scale(100), slow).sentence


def test_loss_that_rules_the_real_network_must_rule_the_emulated_one() -> None:
    lossy = verdict(Scale(10_000 / 4), loss="0.01 %")
    assert lossy.ok is False
    assert "Loss limits a connection of the modelled network to 1/" in lossy.sentence
    assert verdict(Scale(1, 2500), loss="0.01 %").ok is True


def test_a_queue_of_a_few_packets_is_not_the_queue_it_stands_for() -> None:
    large = Traffic(1e12, 10e9, 1.0, overhead_s=5e-6, emulated_overhead_s=5e-6)
    short = verdict(Scale(10_000), large, queue="1 GB")
    assert (short.ok, short.severity) == (False, "caution")
    assert (
        "The queue of east-west-0 holds 11 packets here and 1.11e+05 in the modelled network"
        in short.sentence
    )
    assert verdict(Scale(1000), large, queue="1 GB").ok is True
    assert verdict(Scale(1, 10_000), large, queue="1 GB").ok is True

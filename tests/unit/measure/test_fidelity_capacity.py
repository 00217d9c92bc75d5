"""What a host carries, and the scale that fits it."""

from __future__ import annotations

from pathlib import Path

from testbed.measure.fidelity.capacity import (
    GUEST_STEP_BYTES,
    VIRTUAL_BYTES,
    HostCapacity,
    NetworkBackend,
    guest_memory,
    memory_shortage,
    overload,
    smallest_scale,
    virtual_scale,
)
from testbed.spec.scale import Scale
from testbed.spec.topology import load_topology

TWO_BUILDINGS = load_topology(Path(__file__).parents[3] / "topologies" / "two-buildings.yaml")
LAPTOP = HostCapacity(cores=2, memory_bytes=8 * 1024**3)
USERSPACE = NetworkBackend("userspace", "netdev")
KERNEL = NetworkBackend("netem", "system")


def test_real_rates_are_too_much_and_the_sentence_says_what_of() -> None:
    sentences = overload(TWO_BUILDINGS.resolve(), LAPTOP, USERSPACE)
    assert len(sentences) == 2
    assert sentences[0].startswith(
        "its NICs add up to 3200 Gbit/s, but this host with 2 cores can carry about 2 Gbit/s"
    )
    assert "netdev datapath" in sentences[1]


def test_auto_leaves_half_of_the_host_free() -> None:
    assert smallest_scale(TWO_BUILDINGS.resolve, LAPTOP, USERSPACE, None, 1.0) == Scale(5000)
    assert overload(TWO_BUILDINGS.resolve(Scale(5000)), LAPTOP, USERSPACE) == []
    assert overload(TWO_BUILDINGS.resolve(Scale(1000)), LAPTOP, USERSPACE) != []


def test_auto_dilates_where_the_size_is_given_and_shrinks_where_nothing_is() -> None:
    def scale(size: float | None, dilation: float | None) -> Scale | None:
        return smallest_scale(TWO_BUILDINGS.resolve, LAPTOP, USERSPACE, size, dilation)

    assert scale(1000, None) == Scale(1000, 5)
    assert scale(None, 10) == Scale(500, 10)
    assert scale(None, None) == Scale(5000, 1)
    assert scale(5000, None) == Scale(5000, 1)
    assert scale(100, 1) is None


def test_a_larger_host_and_the_kernels_datapath_carry_more() -> None:
    large = HostCapacity(cores=32, memory_bytes=128 * 1024**3)
    scale = smallest_scale(TWO_BUILDINGS.resolve, large, KERNEL, None, 1.0)
    assert scale is not None
    assert scale.size_scale < 500


def test_memory_is_not_mended_by_scale() -> None:
    assert memory_shortage(TWO_BUILDINGS.resolve(Scale(4000)), 8, LAPTOP) is None
    small = HostCapacity(cores=2, memory_bytes=256 * 1024**2)
    sentence = memory_shortage(TWO_BUILDINGS.resolve(Scale(4000)), 8, small)
    assert sentence is not None
    assert sentence.startswith("8 hosts and 8 ranks need about 0.6 GiB")
    # in a guest they are smaller
    assert memory_shortage(TWO_BUILDINGS.resolve(Scale(4000)), 8, small, in_guest=True) is None


def test_the_virtual_clocks_scale_follows_from_the_wait_alone() -> None:
    assert virtual_scale(1e9) == 1
    assert virtual_scale(VIRTUAL_BYTES * 1.5) == 2
    assert virtual_scale(VIRTUAL_BYTES * 4000) == 5000


def test_a_guests_memory_grows_with_ranks_and_gradients_but_not_with_empty_pipes() -> None:
    slow, fast = (TWO_BUILDINGS.resolve(Scale(scale)) for scale in (4000, 1))
    few = guest_memory(slow, 2, 1e6)
    assert few % GUEST_STEP_BYTES == 0
    assert guest_memory(fast, 2, 1e6) - few <= GUEST_STEP_BYTES
    assert guest_memory(fast, 2, 1e9) > guest_memory(fast, 2, 1e6) + 4e9

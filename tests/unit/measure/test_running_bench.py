"""What a benchmark is asked to do, from words to figures; nothing is run."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.comm.collectives import AUTO
from testbed.measure.execution import benchmark_options
from testbed.measure.execution.benchmark_options import (
    benchmark_guest,
    check_bench_options,
    congestion_control_for,
    guest_bytes,
    parse_algorithms,
    sizes_between,
    wants_guest,
)
from testbed.net.virtual.guest import DEFAULT_MEMORY_BYTES
from testbed.spec.errors import ConfigError


def test_sizes_go_up_to_the_largest_that_fits() -> None:
    assert sizes_between("1K", "9K", 2) == (1024, 2048, 4096, 8192)
    assert sizes_between("4K", "4K", 2) == (4096,)
    with pytest.raises(ConfigError, match="--maxbytes: got 1K, expected at least 2K, as --minbytes"):
        sizes_between("2K", "1K", 2)


@pytest.mark.parametrize(
    ("word", "value", "said"),
    [
        ("dtype", "flaot32", r"--datatype: got flaot32, expected .*did you mean float32\?"),
        ("op", "sun", r"--op: got sun, expected .*did you mean sum\?"),
        ("transport", "tpc", "--transport: got tpc"),
        ("clock", "wall", "--clock: got wall, expected real, virtual"),
    ],
)
def test_a_word_that_is_none_is_refused_by_its_option(word: str, value: str, said: str) -> None:
    words = {"dtype": "float32", "op": "sum", "transport": "tcp", "protocol": "eager", "clock": "real"}
    check_bench_options(**words)
    with pytest.raises(ConfigError, match=said):
        check_bench_options(**{**words, word: value})


def test_algorithms_are_named_one_by_one_or_all() -> None:
    assert parse_algorithms("all_reduce", AUTO) == (AUTO,)
    assert parse_algorithms("all_reduce", "ring,hierarchical") == ("ring", "hierarchical")
    every = parse_algorithms("all_reduce", "all")
    assert {"ring", "hierarchical"} < set(every)
    assert parse_algorithms("all_reduce", AUTO, tune=True) == every
    with pytest.raises(ConfigError, match="--tune: got sendrecv, expected a collective with several"):
        parse_algorithms("sendrecv", AUTO, tune=True)


def test_a_benchmark_goes_on_in_a_guest_unless_it_is_in_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmark_options, "clock_here", lambda: None)
    assert wants_guest("virtual")
    assert not wants_guest("real")
    monkeypatch.setattr(benchmark_options, "clock_here", lambda: "free")
    assert not wants_guest("virtual")


def test_a_guest_has_memory_for_what_is_under_way_and_writes_where_it_was_asked_to(tmp_path: Path) -> None:
    needed = guest_bytes(1 << 20, 8, None, "auto")
    assert needed == DEFAULT_MEMORY_BYTES + 4 * 8 * (1 << 20) + (8 << 24)
    assert guest_bytes(1 << 20, None, Path("two-buildings"), "1") == needed  # it has eight hosts
    assert guest_bytes(1 << 20, 8, None, "4") == needed - 3 * 8 * (1 << 20)
    settings = benchmark_guest(
        needed, None, 3, "10 s", [tmp_path / "rows.json", None, tmp_path / "table.yaml"]
    )
    assert (settings.memory_bytes, settings.seed, settings.stall_timeout_s) == (needed, 3, 10.0)
    assert settings.writable == (tmp_path,)
    assert benchmark_guest(needed, "4 GiB", 3, "10 s", []).memory_bytes == 4 << 30
    with pytest.raises(ConfigError, match="--memory"):
        benchmark_guest(needed, "much", 3, "10 s", [])


def test_congestion_control_is_cubic_on_a_network_unless_told() -> None:
    assert congestion_control_for(None, Path("two-buildings")) == "cubic"
    assert congestion_control_for(None, None) is None
    assert congestion_control_for("bbr", None) == "bbr"

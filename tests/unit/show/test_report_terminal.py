from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from testbed.measure.results.result import Bytes, Result, Variant
from testbed.show.report import print_summary
from testbed.show.report.terminal import describe_prediction
from testbed.show.report.variant_text import comparisons, deviation, speedup_interval
from tests.unit.show.report_run import SyntheticRun, measured_variant


def printed(run: SyntheticRun, run_dir: Path, width: int = 80, encoding: str = "utf-8") -> str:
    run.write(run_dir)
    raw = io.BytesIO()
    console = Console(file=io.TextIOWrapper(raw, encoding=encoding, write_through=True), width=width)
    print_summary(Result.open(run_dir), console)
    return raw.getvalue().decode(encoding)


@pytest.mark.parametrize("width", [80, 160])
def test_figures_fit_the_width(width: int, tmp_path: Path) -> None:
    run_dir = (
        tmp_path / "a directory with a name so long that the path of the report exceeds one line" / "run"
    )
    output = printed(SyntheticRun(), run_dir, width)
    report_line = f"Report: {run_dir / 'report.html'}"
    assert report_line in output, "the path stays in one piece"
    for line in output.replace(report_line, "").splitlines():
        assert len(line) <= width
    for figure in (
        "1.436 s",
        "1.153 s",
        "1.017 s",
        "419.1 ms",
        "112 GB ✓",
        "64.2 GB ✓",
        "trusted",
        "8 ranks",
    ):
        assert figure in output, figure
    assert "…" not in output, "nothing is cut"
    assert "hierarchical is 1.25x faster than ring (19.7 % less time; trial by trial" in output
    assert "busy while" in output
    assert (
        "ring: of 4,000 packets on WAN links 68 dropped by queues, 92 lost at random in all steps; most, 40, from east "
        "to west, plane 0." in " ".join(output.split())
    )
    assert "The model predicts ring 1.422 s (-1.0 %), hierarchical 1.142 s (-1.0 %)." in " ".join(
        output.split()
    )


def test_predictions_of_many_variants_are_one_range() -> None:
    def variants(status: str) -> list[Variant]:
        return [
            measured_variant(str(number), 1.0, status=status, predicted_s=1 + number / 100)
            for number in range(-2, 5)
        ]

    words = "The model's step times are -2.0 to +4.0 % off, +1.0 % in the median."
    assert describe_prediction(variants("trusted")) == words
    assert describe_prediction(variants("untrusted")) == ""


def test_ascii_terminal_gets_ascii(tmp_path: Path) -> None:
    output = printed(SyntheticRun(), tmp_path, encoding="ascii")
    assert "112 GB ok" in output


def test_failing_invariants_are_told(tmp_path: Path) -> None:
    output = " ".join(printed(SyntheticRun(statuses={"ring": "untrusted"}), tmp_path).split())
    assert "UNTRUSTED: ring, cpu_headroom: The machine was busy with something else" in output
    assert "Do not use the figures of an untrusted variant." in output
    assert "--clock virtual gives exact ones" in " ".join(output.split())
    assert "faster" not in output
    assert "hierarchical, cpu_headroom" not in output


def test_caution_is_told_without_forbidding(tmp_path: Path) -> None:
    output = " ".join(printed(SyntheticRun(statuses={"ring": "caution"}), tmp_path).split())
    assert "caution: ring, cpu_headroom" in output
    assert "Do not use" not in output


def test_deviating_bytes_are_marked(tmp_path: Path) -> None:
    output = printed(SyntheticRun(overhead_bytes=900_000_000), tmp_path)
    assert "+0.8 %" in output
    assert "✓" not in output


def test_names_are_not_markup(tmp_path: Path) -> None:
    run = SyntheticRun(name="[red]odd[/red]", exposed_s={"[bold]x": 0.1}, wan_share={"[bold]x": 1.0})
    output = printed(run, tmp_path, 160)
    assert "[red]odd[/red]: trusted" in output
    assert "[bold]x" in output


def test_comparison_gives_ratio_and_time_saved() -> None:
    assert comparisons([measured_variant("a", 0.99, 1.01), measured_variant("b", 1.9, 2.1)]) == [
        "a is 2.00x faster than b (50 % less time)."
    ]


def test_each_slower_variant_is_compared_with_the_fastest() -> None:
    variants = [measured_variant("c", 4), measured_variant("a", 1), measured_variant("b", 2)]
    assert comparisons(variants) == [
        "a is 2.00x faster than b (50 % less time).",
        "a is 4.00x faster than c (75 % less time).",
    ]


def test_overlapping_step_times_are_not_sold_as_a_win() -> None:
    (sentence,) = comparisons([measured_variant("a", 0.8, 1.3), measured_variant("b", 1.2, 1.4)])
    assert "1.24x" in sentence
    assert "overlap: more trials are needed" in sentence


def test_equal_times_are_equal() -> None:
    assert comparisons([measured_variant("a", 1.0), measured_variant("b", 1.004)]) == [
        "a and b take the same time, within 0.5 %."
    ]


def test_a_single_variant_has_nothing_to_compare_with() -> None:
    assert comparisons([measured_variant("a", 1)]) == []


def test_two_untrusted_variants_are_both_named() -> None:
    variants = [measured_variant(name, 1, status="untrusted") for name in "ab"]
    assert comparisons(variants) == ["a and b cannot be compared: a and b are untrusted."]


@pytest.mark.parametrize(
    ("expected", "observed", "result"),
    [(100, 100, None), (10**9, 10**9 + 1, None), (1000, 990, -0.01), (0, 0, None), (0, 5, 5.0)],
)
def test_deviation_of_bytes(expected: int, observed: int, result: float | None) -> None:
    assert deviation(Bytes(expected=expected, observed=observed)) == result


def test_enough_trials_give_an_interval_that_may_settle_it() -> None:
    fast = measured_variant("a", 0.9, 1.0, 1.3, 1.0)
    slow = measured_variant("b", 1.2, 1.3, 1.7, 1.3)
    assert comparisons([fast, slow]) == [
        "a is 1.31x faster than b (23.6 % less time; trial by trial 1.29x to 1.34x at 95 % confidence)."
    ]
    slow = measured_variant("b", 1.7, 1.2, 1.3, 1.3)
    assert "overlap: more trials are needed" in comparisons([fast, slow])[0]
    assert speedup_interval([1.0, 1.0], [2.0, 2.0]) is None

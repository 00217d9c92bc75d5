"""Two runs held against each other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from testbed.cli.main import app
from testbed.measure.results.manifest import file_hash
from testbed.measure.results.result import StepTimes
from testbed.measure.results.run_directory import BadResult
from testbed.show.report.run_comparison import Difference, compare_runs, ratio_interval
from testbed.show.report.variant_text import student_975
from tests.unit.show.report_run import SyntheticRun


def times(*samples: float) -> StepTimes:
    ordered = sorted(samples)
    middle = ordered[len(ordered) // 2]
    return StepTimes(
        median=middle, p95=ordered[-1], min=ordered[0], max=ordered[-1], n=len(samples), samples=samples
    )


def test_a_run_is_identical_to_itself(tmp_path: Path) -> None:
    run = SyntheticRun().write(tmp_path / "run")
    found = compare_runs(run, run)
    assert found.agrees
    assert all(held.exact and held.ratio == 1 for held in found.variants)
    assert found.differences == ()
    told = CliRunner().invoke(app, ["compare", str(run), str(run)])
    assert told.exit_code == 0
    assert "identical to the last byte" in told.stdout


def with_fingerprint(run: Path, **inputs: str) -> Path:
    """Store in its manifest the hash of its samples and these inputs."""
    manifest = json.loads((run / "manifest.json").read_text())
    samples = file_hash(run / "samples.jsonl")
    manifest["fingerprint"] = {"samples": samples, "inputs_hash": "00", "inputs": inputs}
    (run / "manifest.json").write_text(json.dumps(manifest))
    return run


def test_samples_that_differ_are_told_with_what_may_be_why(tmp_path: Path) -> None:
    one = with_fingerprint(SyntheticRun().write(tmp_path / "one"), python="3.11.2", numpy="2.4.6", seed="1")
    other = with_fingerprint(
        SyntheticRun(trials=4).write(tmp_path / "other"),
        python="3.12.1",
        numpy="2.4.6",
        seed="1",
        iproute2="6",
    )
    found = compare_runs(one, other)
    assert not found.identical
    assert found.suspects == ("python", "iproute2")
    told = CliRunner().invoke(app, ["compare", str(one), str(other)])
    assert "The samples differ. Inputs that may have changed them: python, iproute2." in told.stdout
    document = json.loads(CliRunner().invoke(app, ["compare", str(one), str(other), "--json"]).stdout)
    assert (document["identical"], document["suspects"]) == (False, ["python", "iproute2"])
    without = SyntheticRun(trials=5).write(tmp_path / "without")
    assert compare_runs(one, without).suspects is None
    with (other / "samples.jsonl").open("a") as file:
        file.write("\n")
    with pytest.raises(BadResult, match=r"other/samples\.jsonl: got SHA-256 .*: changed since the run"):
        compare_runs(one, other)


def test_a_slower_run_does_not_agree_and_what_was_different_is_listed(tmp_path: Path) -> None:
    one = SyntheticRun().write(tmp_path / "one")
    other = SyntheticRun(exposed_s={"ring": 0.9, "tree": 0.131}, wan_share={"ring": 3.5, "tree": 2.0}).write(
        tmp_path / "other"
    )
    manifest = json.loads((other / "manifest.json").read_text())
    manifest["host"]["kernel"] = "9.9.9"
    manifest["host"]["memory_bytes"] = 1
    (other / "manifest.json").write_text(json.dumps(manifest))
    found = compare_runs(one, other)
    (ring,) = found.variants
    assert ring.ratio == pytest.approx((1.017 + 0.9) / (1.017 + 0.412), rel=0.01)
    assert ring.interval is not None
    assert ring.interval[0] < ring.ratio < ring.interval[1]
    assert not ring.agrees
    assert not found.agrees
    assert found.alone == ("hierarchical", "tree")
    assert Difference("scenario: algorithms.1", "hierarchical", "tree") in found.differences
    assert [entry.other for entry in found.differences if entry.what == "host.kernel"] == ["9.9.9"]
    assert not any("memory" in entry.what for entry in found.differences)
    document = json.loads(CliRunner().invoke(app, ["compare", str(one), str(other), "--json"]).stdout)
    assert document["agrees"] is False


def test_equal_step_times_do_not_agree_where_less_was_done_in_them(tmp_path: Path) -> None:
    def changed(name: str, **work: object) -> Path:
        folder = SyntheticRun().write(tmp_path / name)
        summary = json.loads((folder / "summary.json").read_text())
        summary["variants"][0]["work"] |= work
        (folder / "summary.json").write_text(json.dumps(summary))
        return folder

    whole = changed("whole", elapsed_s=10.0)
    lossy = changed("lossy", elapsed_s=10.0, steps=4, tokens=4 * 65536, partial_steps=3, with_stalls=True)
    ring, hierarchical = compare_runs(whole, lossy).variants
    assert ring.ratio == 1
    assert not ring.exact
    assert not ring.agrees
    assert hierarchical.exact
    # five steps of 65,536 tokens in 10 s, and four
    told = CliRunner().invoke(app, ["compare", str(whole), str(lossy)]).stdout
    assert "ring: 32,770 and 26,210 tokens/s, 0.8000x the work in the same time." in told
    other = changed("other", workload="gpt2, sequences of 1024 tokens")
    assert compare_runs(whole, other).variants[0].speedup is None
    told = CliRunner().invoke(app, ["compare", str(whole), str(other)]).stdout
    assert "ring: the steps are different work: llama3-8b, sequences of 8192 tokens; gpt2, sequences" in told
    document = json.loads(CliRunner().invoke(app, ["compare", str(whole), str(lossy), "--json"]).stdout)
    assert [entry["speedup"] for entry in document["variants"]] == [pytest.approx(0.8), 1]


def test_untrusted_figures_never_agree(tmp_path: Path) -> None:
    run = SyntheticRun(statuses={"ring": "untrusted"}).write(tmp_path / "run")
    assert not compare_runs(run, run).agrees


@pytest.mark.parametrize(
    ("one", "other", "scipy"),
    [
        ((1.0, 1.1, 1.05), (1.2, 1.3, 1.22, 1.28), (1.08289372, 1.30930263)),
        ((1.0, 1.1, 1.05, 1.02, 1.07, 1.04), (1.2, 1.3, 1.22, 1.28, 1.25, 1.21), (1.13839035, 1.23966869)),
    ],
)
def test_the_interval_is_welchs(
    one: tuple[float, ...], other: tuple[float, ...], scipy: tuple[float, float]
) -> None:
    """Of SciPy 1.17.1: exp(ttest_ind(log(other), log(one), equal_var=False).confidence_interval())."""
    assert ratio_interval(times(*one), times(*other)) == pytest.approx(scipy, rel=5e-4)


@pytest.mark.parametrize(
    ("freedom", "scipy", "within"),
    [
        (1, 12.7062, 1e-3),
        (5, 2.5706, 1e-3),
        (17, 2.1098, 1e-3),
        (30, 2.0423, 1e-3),
        (4.5, 2.65891, 3e-3),
        (12.3, 2.17293, 3e-3),
    ],
)
def test_students_t_is_scipys(freedom: float, scipy: float, within: float) -> None:
    """Of SciPy 1.17.1: t.ppf(0.975, freedom)."""
    assert student_975(freedom) == pytest.approx(scipy, rel=within)


def test_of_too_few_trials_there_is_no_interval() -> None:
    assert ratio_interval(times(1.0), times(1.0)) is None
    assert ratio_interval(times(2.0, 2.0), times(1.0, 1.0)) == pytest.approx((0.5, 0.5))


def test_a_folder_that_is_no_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadResult, match="a folder that `testbed run` made"):
        compare_runs(tmp_path, tmp_path)


def test_a_report_is_rendered_once_more(tmp_path: Path) -> None:
    run = SyntheticRun().write(tmp_path / "run")
    told = CliRunner().invoke(app, ["report", str(run)])
    assert told.exit_code == 0, told.output
    assert (run / "report.html").exists()

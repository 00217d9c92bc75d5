from __future__ import annotations

from pathlib import Path

import pytest

from testbed.measure.results.committed_work import compute_rates
from testbed.prediction.step_flops import StepWork, step_work
from testbed.show.report.pages import add_data_labels
from testbed.show.report.variant_text import describe_rates, predicted_rates_text, rates_text
from testbed.spec.scenario import load_scenario
from tests.unit.show.report_run import SyntheticRun, measured_variant

QUICKSTART = Path(__file__).parents[3] / "scenarios/quickstart.yaml"


def test_a_data_parallel_step_trains_on_each_ranks_sequences() -> None:
    work = step_work(load_scenario(QUICKSTART))
    assert work is not None
    assert work.sequences == 8
    assert work.tokens == 8 * 8192
    # as long as every rank computes
    assert work.computing_s == pytest.approx(0.9977, rel=1e-3)
    rates = compute_rates(work, 2.0)
    assert rates is not None
    assert rates.tokens_per_s == 32768
    assert rates.sequences_per_s == 4
    # 6 operations of each token for each of 8.03 billion parameters but those of the embedding and of norms
    arithmetic = 6 * (8.030e9 - 128_256 * 4096 - 65 * 4096) * 8192
    assert rates.mfu == pytest.approx(arithmetic / 989e12 / 2, rel=1e-3)
    assert rates_text(rates) == "32,770 tokens/s, 4 sequences/s, MFU 18.6 %"
    # the same model has the same MFU for the same rate, however it is spread
    parallel = "workload.parallelism={data_parallel_replicate_degree: 8}"
    spread = step_work(load_scenario(QUICKSTART, [parallel, "workload.schedule={microbatches: 1}"]))
    assert spread is not None
    assert spread.tokens == work.tokens
    assert spread.model_flops_utilisation(2.0) == pytest.approx(rates.mfu, rel=1e-12)
    twice = load_scenario(QUICKSTART, ["workload.local_batch_size=2"])
    assert step_work(twice) == StepWork(2 * work.tokens, 2 * work.computing_s, work.utilisation, 16)


def test_steps_in_a_row_count_all_of_them() -> None:
    file = QUICKSTART.parent / "outer.yaml"
    scenario = load_scenario(file)
    own = scenario.variant(scenario.variant_names[0])
    many = own.workload.training_steps_per_step
    assert many > 1
    once = step_work(own.changed({"workload.training_steps": many * 2}, "twice as many"))
    work = step_work(own)
    assert work is not None
    assert once is not None
    assert once.sequences == 2 * work.sequences
    assert once.computing_s == pytest.approx(2 * work.computing_s)


def test_what_trains_no_model_has_no_rates() -> None:
    scenario = load_scenario(QUICKSTART.parent / "decode.yaml")
    work = step_work(scenario.variant(scenario.variant_names[0]))
    assert work is None
    assert compute_rates(work, 1.0) is None
    assert predicted_rates_text("decode", work, 1.0) == ""
    assert describe_rates(measured_variant("ring", 1.0)) == ""


def test_rates_of_an_untrusted_variant_are_not_told(tmp_path: Path) -> None:
    from testbed.measure.results.result import Result  # noqa: PLC0415

    run = Result.open(SyntheticRun(statuses={"ring": "untrusted"}).write(tmp_path / "run"))
    ring, hierarchical = run.variants
    assert describe_rates(ring) == ""
    assert "tokens/s" in describe_rates(hierarchical)


def test_cells_have_the_headings_of_their_columns() -> None:
    table = "<table><thead><tr><th>Variant</th><th>Step<br>time &amp; more</th></tr></thead><tbody>"
    table += "<tr><th>ring</th>\n<td class='x'>1 s</td></tr><tr><td colspan='2'>why</td></tr></tbody></table>"
    table += "<td>no</td>"
    found = add_data_labels(table)
    assert '<th data-label="Variant">ring</th>\n<td data-label="Step time &amp; more" class=' in found
    assert "<td colspan='2'>why" in found
    assert found.endswith("<td>no</td>")
    # it adds, whatever is there
    assert add_data_labels(found.replace(' data-label="Variant"', "")).count("data-label") == 3


@pytest.mark.parametrize("odd", ["\u2028", "\x85", "\x0c", "\r", "\n"])
def test_labels_are_in_their_cells_whatever_ends_a_line_elsewhere(odd: str) -> None:
    page = (
        f"<p>one{odd}two</p>\n<table><thead><tr><th>A</th></tr></thead>\n<tbody><tr><td>x{odd}y</td></tr>\n"
    )
    page += (
        "<tr><td>z</td></tr></tbody></table>\n<table><tbody><tr><td>of no column</td></tr></tbody></table>"
    )
    assert add_data_labels(page) == page.replace("<td>x", '<td data-label="A">x').replace(
        "<td>z", '<td data-label="A">z'
    )

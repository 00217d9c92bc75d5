"""How sure a search is before anything is measured: the model's errors at such points, what they do not tell apart."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from testbed.cli.experiments.confirmation import model_errors_of
from testbed.cli.main import app
from testbed.prediction.model_accuracy import parse_errors
from testbed.prediction.search import Search
from testbed.spec.catalogue import model_errors
from testbed.spec.scenario import load_scenario
from tests.unit.prediction.test_explorer import SCENARIO, written

ROOT = Path(__file__).parents[3]


def test_of_what_kind_a_search_is_says_how_far_off_the_model_was(tmp_path: Path) -> None:
    plain = load_scenario(written(tmp_path))

    def what(**changes: Any) -> str:
        errors = model_errors_of(
            plain.changed({path.replace("__", "."): one for path, one in changes.items()}, "")
        )
        assert errors is not None
        return errors.what

    degrees = {"data_parallel_shard_degree": 4}
    context = {"data_parallel_shard_degree": 2, "context_parallel_degree": 2}
    assert what() == "clean networks, training"
    assert what(topology__wan__0__loss="0.1 %") == "networks that lose packets, training"
    assert what(workload__parallelism=context) == "clean networks, long context"
    assert what(workload__model="mixtral-8x7b", workload__parallelism=degrees) == "clean networks, experts"


def test_every_kind_of_error_has_figures_with_their_page() -> None:
    """Each point's page is there, and has its figures."""
    for entry in model_errors().values():
        assert entry.keys() == {"what", "points"}
        for point in entry["points"]:
            assert {"of", "worst", "measured", "source"} <= point.keys() <= {*point, "median"}
            page = (ROOT / point["source"].partition(",")[0]).read_text()
            assert f"{100 * point['worst']:.1f} %" in page
            assert 0 < point.get("median", 0.001) <= point["worst"] < 1
            assert f"{100 * point.get('median', point['worst']):.1f} %" in page
        errors = parse_errors(entry)
        assert errors.points >= 1
        assert errors.median < errors.worst
        assert errors.of <= errors.measured


def test_what_the_model_does_not_tell_from_the_best_is_to_be_confirmed(tmp_path: Path) -> None:
    space = {**SCENARIO["explore"]["space"], "topology.wan.0.delay": ["1 ms", "1.02 ms", "1.04 ms", "9 ms"]}
    folder = tmp_path / "explored"
    file = written(tmp_path, space=space, candidates=2)
    ran = CliRunner().invoke(app, ["explore", str(file), "-o", str(folder)])
    document = json.loads((folder / "exploration.json").read_text())
    found = Search(load_scenario(file)).run()
    errors = parse_errors(model_errors()["training"])
    assert document["model_errors"] == asdict(errors)
    most_s = (1 + errors.median) * found.best.tried.step_time_s
    alike = [one for one in found.distinct if one.tried.step_time_s <= most_s]
    assert 2 < document["near"]["count"] == len(alike) < len(found.distinct)
    assert [one["changes"] for one in document["near"]["first"]] == [
        one.configuration.changes for one in alike[:2]
    ]
    command = f"testbed explore {folder}/scenario.yaml -o {folder} --confirm"
    assert document["confirm"] == command
    assert f"`{command}`" in ran.stdout
    assert "At points like this one (clean networks, training) the model was 0.6 % off" in ran.stdout
    again = CliRunner().invoke(app, [*command.split()[1:-1]])  # goes on in that folder
    assert again.exit_code == 0, again.output
    page = (folder / "exploration.html").read_text()
    assert "To confirm next: the best and" in page

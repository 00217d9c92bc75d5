"""Generator of docs/reference/results.md: `python -m testbed.measure.reference_docs > ...`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, get_args, get_origin

from pydantic import BaseModel

from testbed.measure.execution.collective_benchmark import COLUMNS
from testbed.measure.fidelity import (
    building_invariants,
    cross_check_invariants,
    host_invariants,
    invariants,
    link_invariants,
    similarity,
    timing_invariants,
)
from testbed.measure.fidelity.verdict import checks_of
from testbed.measure.results.manifest import Entry, Manifest
from testbed.measure.results.notebook_views import OPERATIONS, READINGS, STEPS
from testbed.measure.results.result import Result

HEAD = """# Results

The files of a run directory and their fields. `summary.json` has the figures and the verdicts. From Python:

    from pathlib import Path
    from testbed.measure.results.result import Result

    result = Result.open(Path("runs/quickstart-20261123-120000"))
    for variant in result.variants:
        print(variant.name, variant.step_time_s.median, variant.verdict.status)

`testbed schema result` prints its JSON Schema. All figures are in real units (seconds, bytes, bits per second),
whatever the scale. A file that does not match is refused; the error names the file, the field and the value.

The other files:

| file | content |
|---|---|
| `scenario.yaml` | the scenario, fully expanded |
| [`manifest.json`](#manifest) | where and with what the run was made |
| `samples.jsonl` | every operation of every rank |
| `links.jsonl` | link counters over time and [at the edges of steps](../explanation/fidelity.md#what-links-carried) |
| `sockets.jsonl`, `controller.jsonl`, `rules.jsonl` | readings of connections, controller and flow rules over time |
| `trace.json` | a trace for Perfetto |

`testbed.measure.results.manifest.Manifest.open(folder)` reads the manifest.

`result.steps()`, `result.operations()` and `result.links()` return pandas frames; their columns are at the end of this
page. pandas writes frames as CSV, and as Parquet if pyarrow is installed (the extra `parquet`):
`result.operations().to_parquet("operations.parquet")`.

    testbed compare RUN RUN     # step times, verdicts, and differences in scenario, versions, kernel, calibration
    testbed reproduce RUN       # run it again with its clock and scale; exit status 4 if the results disagree
    testbed report RUN          # render its report again

`compare` and `reproduce` also say whether the samples are identical to the last byte. If not, they name the inputs that
differ. They compare the manifest's `fingerprint`: a hash of `samples.jsonl`, and hashes or versions of everything that
may change it. Under the virtual clock, equal inputs give equal samples
([repeatability](../explanation/virtual-clock.md#repeatability)). `run` prints the beginnings of both hashes, so two
people can compare runs over the phone.
"""

FRAMES = {
    "steps": ("One row per measured step.", STEPS),
    "operations": ("One row per operation of a rank in a measured step.", OPERATIONS),
    "links": ("One row per reading of one direction of a WAN link.", READINGS),
}
CHECKS_TEXT = """The checks of a verdict. Under the virtual clock, those of the host cannot fail.
[Fidelity](../explanation/fidelity.md#the-invariants) explains each bound."""
COLUMNS_TEXT = (
    "What `testbed bench` prints for each size and algorithm; `--json-file` has more figures of each row."
)
CHECK_MODULES = (
    invariants,
    link_invariants,
    building_invariants,
    host_invariants,
    cross_check_invariants,
    timing_invariants,
    similarity,
)


def render_page() -> str:
    """Return the whole page in Markdown."""
    sections = [HEAD]
    for model in dict.fromkeys((*collect_models(Result), *collect_models(Manifest))):
        fields = [
            (f"`{field.alias or name}`", _type(field.annotation), field.description or "")
            for name, field in model.model_fields.items()
            if not field.exclude
        ]
        sections.append(
            _section(model.__name__, _one_line(model.__doc__), "| field | type | |\n|---|---|---|", fields)
        )
    checks = [
        (f"`{own.name}`", own.bound_text, own.failure_text, own.summary) for own in checks_of(*CHECK_MODULES)
    ]
    heading = "| check | allowed | status if it fails | |\n|---|---|---|---|"
    sections.append(_section("Checks", CHECKS_TEXT, heading, checks))
    columns = [(f"`{own.heading}`", own.unit.strip("()"), own.meaning) for own in COLUMNS if own.meaning]
    heading = "| column | unit | |\n|---|---|---|"
    sections.append(_section("Columns of `testbed bench`", COLUMNS_TEXT, heading, columns))
    for method, (text, own_columns) in FRAMES.items():
        named = [(f"`{name}`", meaning) for name, meaning in own_columns.items()]
        sections.append(_section(f"Result.{method}()", text, "| column | |\n|---|---|", named))
    return "\n".join(sections)


def _one_line(docstring: str | None) -> str:
    return " ".join((docstring or "").split())


def _section(title: str, text: str, heading: str, rows: Iterable[Sequence[str]]) -> str:
    table = "\n".join((heading, *(f"| {' | '.join(row)} |" for row in rows)))
    return f"## {title}\n\n{text}\n\n{table}\n"


def collect_models(root: type[BaseModel]) -> list[type[BaseModel]]:
    """Return a model and all models nested in it, with outer models first."""
    found = [root]
    for model in found:
        for field in model.model_fields.values():
            found += [part for part in _models_in(field.annotation) if part not in found]
    return found


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in _models_in(part)]


_TYPE_NAMES: dict[Any, str] = {
    int: "whole number",
    float: "number",
    str: "text",
    bool: "true or false",
    Entry: "record",
}


def _type(annotation: Any) -> str:
    """Describe a field's type in words."""
    if annotation in _TYPE_NAMES:
        return _TYPE_NAMES[annotation]
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return f"[{annotation.__name__}](#{annotation.__name__.lower()})"
    parts = get_args(annotation)
    if get_origin(annotation) is tuple:
        return f"list of {_type(parts[0])}"
    if get_origin(annotation) is dict:
        values = _type(parts[1])
        return f"{values}, by name" if "," in values else f"{values} by name"
    if type(None) in parts:
        return f"{_type(next(part for part in parts if part is not type(None)))}, or null"
    return ", ".join(f"`{part}`" for part in parts) if parts else str(annotation)


if __name__ == "__main__":
    print(render_page(), end="")

"""Generator of docs/reference/results.md: `python -m testbed.measure.results.reference_docs > ...`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

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

FRAMES = (
    ("steps", "One row per measured step.", STEPS),
    ("operations", "One row per operation of a rank in a measured step.", OPERATIONS),
    ("links", "One row per reading of one direction of a WAN link.", READINGS),
)


def render_page() -> str:
    """Return the whole page in Markdown."""
    sections = [HEAD]
    for model in dict.fromkeys((*collect_models(Result), *collect_models(Manifest))):
        rows = [_row(name, field) for name, field in model.model_fields.items()]
        text = re.sub(r"\s*\n\s*", " ", model.__doc__ or "").strip()
        table = "\n".join(("| field | type | |", "|---|---|---|", *rows))
        sections.append(f"## {model.__name__}\n\n{text}\n\n{table}\n")
    sections += [_columns(*frame) for frame in FRAMES]
    return "\n".join(sections)


def _columns(method: str, text: str, columns: Mapping[str, str]) -> str:
    rows = (f"| `{name}` | {meaning} |" for name, meaning in columns.items())
    table = "\n".join(("| column | |", "|---|---|", *rows))
    return f"## Result.{method}()\n\n{text}\n\n{table}\n"


def collect_models(root: type[BaseModel]) -> list[type[BaseModel]]:
    """Return a model and all models nested in it, outer models first."""
    found = [root]
    for model in found:
        for field in model.model_fields.values():
            found += [part for part in _models_in(field.annotation) if part not in found]
    return found


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in _models_in(part)]


def _row(name: str, field: FieldInfo) -> str:
    return f"| `{field.alias or name}` | {_type(field.annotation)} | {field.description or ''} |"


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

"""Write docs/reference/results.md: `python -m testbed.measure.results.reference_docs > docs/reference/results.md`."""

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

A run's folder holds `summary.json`: the figures and the verdicts. From Python:

    from pathlib import Path
    from testbed.measure.results.result import Result

    result = Result.open(Path("runs/quickstart-20261123-120000"))
    for variant in result.variants:
        print(variant.name, variant.step_time_s.median, variant.verdict.status)

`testbed schema result` prints its JSON Schema. Times are real seconds, sizes real bytes, rates real bits per second,
whatever the scale. A file that holds something else is refused, with file, field and value.

Beside it: `scenario.yaml`, fully expanded; [`manifest.json`](#manifest), where and with what it was made, which
`testbed.measure.results.manifest.Manifest.open(folder)` reads; `samples.jsonl`, each rank's every operation;
`links.jsonl`, `sockets.jsonl`, `controller.jsonl`, `rules.jsonl`, readings along the run (of links also at the edges of
steps: [what links carried](../explanation/fidelity.md#what-links-carried)); `trace.json` for Perfetto.

As pandas frames: `result.steps()`, `result.operations()`, `result.links()`; their columns are at the end of this page.
Of a frame pandas makes CSV, and Parquet where pyarrow is installed (the extra `parquet`):
`result.operations().to_parquet("operations.parquet")`.

    testbed compare RUN RUN     # step times, verdicts, and what was different: scenario, versions, kernel, calibration
    testbed reproduce RUN       # once more, by its clock and scale; exit status 4 where that does not agree
    testbed report RUN          # its page, rendered once more

`compare` and `reproduce` also say whether the samples are identical to the last byte. If not, they name the inputs that
differ, by the manifest's `fingerprint`: a hash of `samples.jsonl`, and hashes or versions of all that may change it. By
the virtual clock equal inputs give equal samples ([repeatability](../explanation/virtual-clock.md#repeatability)).
`run` prints the beginnings of both hashes, so two people can compare runs over the phone.
"""

FRAMES = (
    ("steps", "A row per measured step.", STEPS),
    ("operations", "A row per operation of a rank in a measured step.", OPERATIONS),
    ("links", "A row per reading of one direction of a WAN link, along the run.", READINGS),
)


def page() -> str:
    """In Markdown."""
    sections = [HEAD]
    for model in dict.fromkeys((*models(Result), *models(Manifest))):
        rows = [_row(name, field) for name, field in model.model_fields.items()]
        words = re.sub(r"\s*\n\s*", " ", model.__doc__ or "").strip()
        table = "\n".join(("| field | type | |", "|---|---|---|", *rows))
        sections.append(f"## {model.__name__}\n\n{words}\n\n{table}\n")
    sections += [_columns(*frame) for frame in FRAMES]
    return "\n".join(sections)


def _columns(method: str, words: str, columns: Mapping[str, str]) -> str:
    rows = (f"| `{name}` | {meaning} |" for name, meaning in columns.items())
    table = "\n".join(("| column | |", "|---|---|", *rows))
    return f"## Result.{method}()\n\n{words}\n\n{table}\n"


def models(root: type[BaseModel]) -> list[type[BaseModel]]:
    """A model and all that it is made of, each before what it holds."""
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


_WORDS: dict[Any, str] = {
    int: "whole number",
    float: "number",
    str: "text",
    bool: "true or false",
    Entry: "record",
}


def _type(annotation: Any) -> str:
    """A field's type, in words."""
    if annotation in _WORDS:
        return _WORDS[annotation]
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
    print(page(), end="")

"""How far off are computing times of captured jobs? Held against what others have published of real accelerators.

    .venv/bin/python benchmarks/roofline_error.py                        # prints the tables, as Markdown
    .venv/bin/python benchmarks/roofline_error.py --capture PYTHON [--only 8b-fsdp]    # records the jobs anew

`roofline_error/published.yaml` has both sides: published steps with their addresses, and what captures of the same jobs
said. PYTHON has torchtitan 0.2.2, its needs, and Triton, which it imports. Errors are of step times, ours over theirs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from testbed.contrib.capture.session import Request, capture
from testbed.contrib.capture.trace_assembly import ROOFLINE, UTILISATION
from testbed.spec.catalogue import accelerators
from testbed.workload.traces.trace import Compute

PUBLISHED = Path(__file__).with_name("roofline_error") / "published.yaml"
WAYS = (UTILISATION, ROOFLINE)
WORDS, TEXTS, WORDS_OF_TEXT = 2000, 40, 3000


@dataclass(frozen=True)
class Row:
    """published_s: what a step took. computing_s: ours by way of reckoning, without communication."""

    name: str
    published_s: float
    computing_s: Mapping[str, float]

    def error(self, way: str) -> float:
        """Of ours, as a part of what was published."""
        return self.computing_s[way] / self.published_s - 1


@dataclass(frozen=True)
class Share:
    """Part of the peak that a step reached, and the one that is reckoned with."""

    name: str
    accelerator: str
    type: str
    published: float
    ours: float

    @property
    def error(self) -> float:
        """Of a step's time: who reckons with a larger part takes it for shorter."""
        return self.published / self.ours - 1


def read_published(path: Path = PUBLISHED) -> tuple[list[Row], list[Share]]:
    """Both tables."""
    document = yaml.safe_load(path.read_text())
    captures = document["captures"]
    rows = []
    for own in document["steps"]:
        computing_s = captures[own["capture"]]["computing_s"]
        rows.append(Row(own["name"], own["tokens"] / own["tokens_per_s"], computing_s))
    shares = []
    for own in document["shares"]:
        accelerator = accelerators()[own["accelerator"]]
        flops_per_s = own.get("flops_per_s") or own.get("tokens_per_s", 0) * own.get("flops_per_token", 0)
        published = own.get("share") or flops_per_s / accelerator["peak"][own["type"]]
        shares.append(
            Share(own["name"], own["accelerator"], own["type"], published, accelerator["utilisation"])
        )
    return rows, shares


def tables(rows: Sequence[Row], shares: Sequence[Share]) -> str:
    """As Markdown, with median and worst."""
    lines = ["| job | step, published | utilisation | roofline |", "|---|--:|--:|--:|"]
    for row in rows:
        cells = (f"{row.computing_s[way]:.3g} s ({row.error(way):+.0%})" for way in WAYS)
        lines.append(f"| {row.name} | {row.published_s:.3g} s | {' | '.join(cells)} |")
    errors = [[row.error(way) for row in rows] for way in WAYS]
    lines.append(f"| median error, worst | | {' | '.join(map(_ends, errors))} |")
    lines += ["", "| step | of the peak of | published | error of 40 % |", "|---|---|--:|--:|"]
    lines += [
        f"| {own.name} | {own.accelerator}, {own.type} | {own.published:.1%} | {own.error:+.0%} |"
        for own in shares
    ]
    lines.append(f"| median error, worst | | | {_ends([own.error for own in shares])} |")
    return "\n".join(lines)


def _ends(errors: Sequence[float]) -> str:
    return f"{statistics.median(errors):+.0%}, {max(errors, key=abs):+.0%}"


def request_of(python: str, entry: Mapping[str, Any], folder: Path) -> Request:
    """One of the captures, with what `write_assets` has put into the folder."""
    words = ["--model.name", "llama3", "--model.hf_assets_path", str(folder)]
    words += ["--training.dataset", "c4_test", "--training.dataset_path", str(folder / "texts")]
    words += ["--training.steps", "10", *entry["arguments"].split()]
    find = "import importlib.util as u; print(u.find_spec('torchtitan').submodule_search_locations[0])"
    place = subprocess.run([python, "-c", find], check=True, capture_output=True, text=True).stdout.strip()
    ranks = entry["ranks"]
    request = Request(f"{place}/train.py", tuple(words), ranks, min(8, ranks), python=python)
    # the second step has a barrier of torchtitan's own
    return replace(request, steps=3, compute=ROOFLINE)


def captured(request: Request) -> dict[str, float]:
    """What computing takes in a rank's step, by way of reckoning."""
    own = [node for node in capture(request).trace.ranks[0] if isinstance(node, Compute)]
    accelerator = accelerators()[request.accelerator]
    # all that is multiplied here is bfloat16
    reached = sum(node.flops for node in own) / (accelerator["peak"]["bf16"] * accelerator["utilisation"])
    return {UTILISATION: reached, ROOFLINE: sum(node.duration_s for node in own)}


def write_assets(folder: Path) -> None:
    """A tokenizer that knows numbered words, and texts of them: torchtitan wants both, and nobody reads them."""
    vocabulary = {f"w{number}": number for number in range(WORDS)}
    ends = ["<|begin_of_text|>", "<|end_of_text|>", "[UNK]"]
    vocabulary |= {word: WORDS + at for at, word in enumerate(ends)}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "Whitespace"},
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"},
    }
    empty = dict.fromkeys(("truncation", "padding", "normalizer", "post_processor", "decoder"))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer | empty))
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": ends[0], "eos_token": ends[1]}))
    (folder / "texts").mkdir()
    texts = (" ".join(f"w{i * j % WORDS}" for j in range(WORDS_OF_TEXT)) for i in range(TEXTS))
    (folder / "texts" / "data.json").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))


def main() -> None:
    """Print the tables, or record the jobs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--capture", metavar="PYTHON", help="with torchtitan")
    parser.add_argument("--only", help="of the captures")
    asked = parser.parse_args()
    if asked.capture is None:
        print(tables(*read_published()))
        return
    entries = yaml.safe_load(PUBLISHED.read_text())["captures"]
    with tempfile.TemporaryDirectory() as folder:
        write_assets(Path(folder))
        for name, entry in entries.items():
            if asked.only in (None, name):
                found = captured(request_of(asked.capture, entry, Path(folder)))
                print(name, ", ".join(f"{way} {seconds:.3f} s" for way, seconds in found.items()), flush=True)


if __name__ == "__main__":
    main()

"""The quickstart with a small model, under the virtual clock: what tests of runs start."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from tests.virtual.conftest import REPOSITORY, Person

SCENARIO = REPOSITORY / "scenarios/quickstart.yaml"
MODEL = "{dim: 256, n_layers: 2, n_heads: 4, n_kv_heads: 2, ffn_dim: 512, vocab_size: 2048}"
OPTIONS = (
    *("--clock", "virtual", "--trials", "2", "--set", f"workload.model={MODEL}"),
    *("--set", "scale.size_scale=1", "--set", "workload.bucket_cap=1 MiB"),
)


def run(person: Person, name: str, *options: str) -> subprocess.CompletedProcess[str]:
    return person.call("run", str(SCENARIO), "-o", str(person.home / name), *OPTIONS, *options)


def load(folder: Path, name: str) -> Any:
    return json.loads((folder / name).read_text())

"""The program that measures one shard inside a guest of the virtual clock; its argument is a task file.

Progress goes to standard output as JSON lines: {"phase": text} or {"step": done, "of": all}.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from testbed.errors import TestbedError
from testbed.measure.execution.progress import Progress
from testbed.measure.execution.shard_run import ShardRun
from testbed.measure.fidelity.capacity import NetworkBackend
from testbed.measure.results.shards import Shard
from testbed.spec.scale import Scale
from testbed.spec.scenario import load_scenario


def main() -> int:
    """Measure the shard and return the exit status, which is 0 if its record was written."""
    task = json.loads(Path(sys.argv[1]).read_text())
    progress = Progress(
        phase=lambda line: _emit({"phase": line}), step=lambda done, total: _emit({"step": done, "of": total})
    )
    try:
        scenario = load_scenario(task["scenario"])
        backend = NetworkBackend(task["link_engine"], task["datapath"])
        shard, scale, folder = Shard(**task["shard"]), Scale(**task["scale"]), Path(task["folder"])
        together = task["ranks_per_process"]
        ShardRun(shard, scenario, backend, scale, folder, progress, ranks_per_process=together).measure()
    except TestbedError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _emit(event: dict[str, object]) -> None:
    print(json.dumps(event), flush=True)


if __name__ == "__main__":
    sys.exit(main())

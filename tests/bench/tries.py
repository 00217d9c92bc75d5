"""How many configurations a second a search tries by the model of a step, on one core; nothing is built or sent.

    .venv/bin/python -m tests.bench.tries [SCENARIO ...]

Each scenario is searched as `explore` does it, all in this process, whose own time counts. Counted are configurations
that the model looked at: those that differ from all before, which are planned and played, and those that come to the
same step as one before. What degrees alone rule out is left out.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from testbed.prediction import simulation
from testbed.prediction.search import evaluate
from testbed.prediction.search.evaluation import MEMORY, Evaluation
from testbed.prediction.search.search import Search
from testbed.spec.scenario import load_scenario


class _Here:
    """An engine that tries in this process, and says what that takes."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = {"played": [], "known": []}

    def workers(self, function: object, scenario: Any) -> Any:
        """As engines give them."""
        self.scenario = scenario
        return nullcontext(self)

    def map(self, some: Any) -> Iterator[Any]:
        """One after the other."""
        for one in some:
            known, began_s = len(simulation._known), time.process_time()
            found = evaluate(self.scenario, one)
            took_s = time.process_time() - began_s
            if len(simulation._known) > known:
                self.seconds["played"].append(took_s)
            elif isinstance(found, Evaluation) or found.constraint == MEMORY:
                self.seconds["known"].append(took_s)
            yield found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    usual = [Path("scenarios/explore/dense-70b-region.yaml")]
    parser.add_argument("scenarios", nargs="*", type=Path, default=usual)
    options = parser.parse_args()
    for file in options.scenarios:
        here: Any = _Here()
        Search(load_scenario(file), engine=here).run()
        counts = {kind: (len(own), 1e3 * sum(own) / max(1, len(own))) for kind, own in here.seconds.items()}
        every = [took_s for own in here.seconds.values() for took_s in own]
        words = ", ".join(
            f"{many} {kind} in {each_ms:.2f} ms each" for kind, (many, each_ms) in counts.items()
        )
        print(f"{file.stem}: {words}: {len(every) / sum(every):.0f} a second", flush=True)


if __name__ == "__main__":
    main()

"""An oracle for runs: every figure that a run shows, worked out again from what was recorded while it ran.

The oracle reads `samples.jsonl`, `links.jsonl`, `sockets.jsonl`, `events.jsonl`, the expanded scenario and the facts in
the manifest. It imports nothing of `testbed`, so a mistake in how the testbed counts is not made twice. What it finds
is held against `summary.json`, the printed table, the HTML page and tables as CSV, each at the precision shown there.
"""

from tests.oracle.checks import Checks
from tests.oracle.run import Oracle, check_run

__all__ = ["Checks", "Oracle", "check_run"]

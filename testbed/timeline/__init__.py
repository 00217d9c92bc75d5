"""What a step's time went to, from when each operation began and ended; measured or predicted alike."""

from testbed.timeline.critical import Link, critical_path
from testbed.timeline.memory import peak_alive
from testbed.timeline.split import Split, split_step

__all__ = ["Link", "Split", "critical_path", "peak_alive", "split_step"]

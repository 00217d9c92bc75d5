"""A model of ranks and network: what a job's plan takes, whether it comes to its end, and where its time goes.

Nothing is built for it: `simulation` plays the plan, `predicting` does so for any scenario. What was predicted and what
was measured are divided alike by `critical`, `memory`, `split`.
"""

from testbed.model.critical import Link, critical_path
from testbed.model.memory import peak_alive
from testbed.model.simulation import simulate
from testbed.model.split import Split, split_step
from testbed.model.timeline import Stuck, Timeline

__all__ = [
    "Link",
    "Split",
    "Stuck",
    "Timeline",
    "critical_path",
    "peak_alive",
    "simulate",
    "split_step",
]

"""Packet-level network emulation testbed for training jobs that span several data-center buildings.

import testbed

scenario = testbed.load("scenarios/quickstart.yaml", set={"trials": 3})
testbed.predict(scenario)
result = testbed.run(scenario)
"""

from typing import TYPE_CHECKING, Any

from testbed.errors import TestbedError
from testbed.version import VERSION

if TYPE_CHECKING:
    from testbed.api import RunningNetwork, explore, load, predict, run, sweep, up
    from testbed.measure.results.result import Result
    from testbed.measure.results.sweep_result import Sweep
    from testbed.prediction.search import Exploration
    from testbed.prediction.step_prediction import Prediction
    from testbed.spec.errors import ConfigError
    from testbed.spec.scenario import Scenario

__version__ = VERSION
__all__ = [
    "ConfigError",
    "Exploration",
    "Prediction",
    "Result",
    "RunningNetwork",
    "Scenario",
    "Sweep",
    "TestbedError",
    "explore",
    "load",
    "predict",
    "run",
    "sweep",
    "up",
]


def __getattr__(name: str) -> Any:
    """Import the API on first use, since ranks and guests do not need it and start faster without it."""
    if name not in __all__:
        raise AttributeError(f"module 'testbed' has no attribute {name!r}")
    from testbed import api  # noqa: PLC0415

    return getattr(api, name)

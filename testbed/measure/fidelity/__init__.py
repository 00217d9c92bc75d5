"""Fidelity of a run: link probes, host monitor, invariants, verdict, and the host's capacity."""

from testbed.measure.fidelity.cpu_monitor import MonitorProcess, MonitorWindow, read_windows
from testbed.measure.fidelity.probe import LinkMeasurement, measure_links
from testbed.measure.fidelity.verdict import Invariant, Verdict, judge, worst

__all__ = [
    "Invariant",
    "LinkMeasurement",
    "MonitorProcess",
    "MonitorWindow",
    "Verdict",
    "judge",
    "measure_links",
    "read_windows",
    "worst",
]

"""The report's own drawings, as panels."""

from __future__ import annotations

from collections.abc import Callable

from markupsafe import Markup

from testbed.measure.results.records import JsonObject
from testbed.show.report.charts import step_time_chart, time_split_chart, timeline_chart
from testbed.show.report.panels.base import PANELS, Panel
from testbed.show.report.run_data import RunData
from testbed.show.report.topology import topology_drawing
from testbed.show.report.utilisation import utilisation_over_time_chart, utilisation_per_step_chart

Draw = Callable[[RunData, JsonObject], Markup | None]


def _register(name: str, kind: str, draw: Draw, *, of_variant: bool = False) -> None:
    """Register a drawing as a panel; `kind` is the name of the class and the heading of the panel."""
    PANELS.register(name)(type(kind, (Panel,), {"draw": staticmethod(draw), "of_variant": of_variant}))


_register("step_times", "StepTimes", lambda run, _: step_time_chart(run.variants))
_register("time_split", "TimeSplit", lambda run, _: time_split_chart(run.variants))
_register("utilisation", "Utilisation", lambda run, _: utilisation_per_step_chart(run.variants))
_register("utilisation_over_time", "UtilisationOverTime", lambda run, _: utilisation_over_time_chart(run))
_register("network", "NetworkDrawing", topology_drawing, of_variant=True)
_register("timeline", "Timeline", lambda run, one: timeline_chart(run, one["name"]), of_variant=True)

"""The report's own drawings, as panels."""

from __future__ import annotations

from markupsafe import Markup

from testbed.measure.results.records import JsonObject
from testbed.show.report.charts import step_time_chart, time_split_chart, timeline_chart
from testbed.show.report.panels.base import PANELS, Panel
from testbed.show.report.run_data import RunData
from testbed.show.report.topology import topology_drawing
from testbed.show.report.utilisation import utilisation_over_time_chart, utilisation_per_step_chart


@PANELS.register("step_times")
class StepTimes(Panel):
    """Every measured step of each variant."""

    @staticmethod
    def draw(run: RunData, variant: JsonObject) -> Markup | None:
        """See Panel."""
        return step_time_chart(run.variants)


@PANELS.register("time_split")
class TimeSplit(Panel):
    """Compute, and communication that it does not hide."""

    @staticmethod
    def draw(run: RunData, variant: JsonObject) -> Markup | None:
        """See Panel."""
        return time_split_chart(run.variants)


@PANELS.register("utilisation")
class Utilisation(Panel):
    """Utilisation of each WAN direction per step."""

    @staticmethod
    def draw(run: RunData, variant: JsonObject) -> Markup | None:
        """See Panel."""
        return utilisation_per_step_chart(run.variants)


@PANELS.register("utilisation_over_time")
class UtilisationOverTime(Panel):
    """Utilisation of each WAN direction over the run."""

    @staticmethod
    def draw(run: RunData, variant: JsonObject) -> Markup | None:
        """See Panel."""
        return utilisation_over_time_chart(run)


@PANELS.register("network")
class NetworkDrawing(Panel):
    """The network, coloured by what a step used of it."""

    of_variant = True

    @staticmethod
    def draw(run: RunData, variant: JsonObject) -> Markup | None:
        """See Panel."""
        return topology_drawing(run, variant)


@PANELS.register("timeline")
class Timeline(Panel):
    """The step with the median duration, rank by rank."""

    of_variant = True

    @staticmethod
    def draw(run: RunData, variant: JsonObject) -> Markup | None:
        """See Panel."""
        return timeline_chart(run, variant["name"])

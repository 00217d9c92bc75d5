"""Drawings of a run by name, each a class that registers where it stands, or in a file of one's own."""

from testbed.show.report.panels.base import PANELS, Panel

__all__ = ["PANELS", "Panel"]

"""Drawings of a run by name; each is a class that registers itself, or a class in a user's own file."""

from testbed.show.report.panels.base import PANELS, Panel

__all__ = ["PANELS", "Panel"]

"""Reports of a run: the HTML page, the terminal summary, the timeline trace."""

from testbed.show.report.html import write_report
from testbed.show.report.terminal import print_refusal, print_summary

__all__ = ["print_refusal", "print_summary", "write_report"]

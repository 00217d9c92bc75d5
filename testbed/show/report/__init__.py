"""What a run tells a person: the HTML report, the terminal's summary, the timeline trace."""

from testbed.show.report.html import write_report
from testbed.show.report.terminal import print_refusal, print_summary

__all__ = ["print_refusal", "print_summary", "write_report"]

"""Chakra execution traces (MLCommons): read and written, as what ASTRA-sim and programs around it exchange."""

from testbed.workload.traces.chakra.reader import read_job
from testbed.workload.traces.chakra.writer import write_job

__all__ = ["read_job", "write_job"]

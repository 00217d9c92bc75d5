"""Chakra execution traces (MLCommons): read and written, as what ASTRA-sim and programs around it exchange."""

from testbed.traces.chakra.reading import read_job
from testbed.traces.chakra.writing import write_job

__all__ = ["read_job", "write_job"]

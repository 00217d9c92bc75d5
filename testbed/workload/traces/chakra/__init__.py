"""Chakra execution traces (MLCommons), read and written: the exchange format of ASTRA-sim and related programs."""

from testbed.workload.traces.chakra.folder import read_job, write_job

__all__ = ["read_job", "write_job"]

"""Reader and writer of Chakra execution traces (MLCommons), the exchange format of ASTRA-sim and related programs."""

from testbed.workload.traces.chakra.folder import read_job, write_job

__all__ = ["read_job", "write_job"]

"""The flight recorder: what each rank's operations did last, in memory that outlives the rank, and dumps of it."""

from testbed.flight.records import (
    COMPLETED,
    FAILED,
    SCHEDULED,
    STARTED,
    STATES,
    DumpError,
    Entry,
    GroupRecord,
    PeerTraffic,
    RankDump,
)
from testbed.flight.ring import Record, Recorder, read_ring

__all__ = [
    "COMPLETED",
    "FAILED",
    "SCHEDULED",
    "STARTED",
    "STATES",
    "DumpError",
    "Entry",
    "GroupRecord",
    "PeerTraffic",
    "RankDump",
    "Record",
    "Recorder",
    "read_ring",
]

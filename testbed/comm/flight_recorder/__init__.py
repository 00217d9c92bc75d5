"""The flight recorder: what each rank's operations did last, in memory that outlives the rank, and dumps of it."""

from testbed.comm.flight_recorder.network_paths import PATHS_FILE, NetworkPaths, PairPath
from testbed.comm.flight_recorder.records import (
    COMPLETED,
    DUMPED,
    DUMPS,
    FAILED,
    FLIGHT,
    LAUNCHER_PID,
    SCHEDULED,
    STALLED,
    STARTED,
    STATES,
    DumpError,
    Entry,
    GroupRecord,
    PeerTraffic,
    RankDump,
    dump_name,
)
from testbed.comm.flight_recorder.ring_buffer import Record, Recorder, read_ring

__all__ = [
    "COMPLETED",
    "DUMPED",
    "DUMPS",
    "FAILED",
    "FLIGHT",
    "LAUNCHER_PID",
    "PATHS_FILE",
    "SCHEDULED",
    "STALLED",
    "STARTED",
    "STATES",
    "DumpError",
    "Entry",
    "GroupRecord",
    "NetworkPaths",
    "PairPath",
    "PeerTraffic",
    "RankDump",
    "Record",
    "Recorder",
    "dump_name",
    "read_ring",
]

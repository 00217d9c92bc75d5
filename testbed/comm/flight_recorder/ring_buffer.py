"""The recorder: a ring of records in shared memory, written as operations proceed, readable by anybody at any time.

The memory belongs to the caller: a file, or pages that a parent shares with the ranks that it forks. A killed rank
leaves it intact. There are no locks: a reader may find one record half updated.
"""

from __future__ import annotations

import json
import math
import struct
from collections import deque
from typing import Any

from testbed.comm.flight_recorder.dumps import (
    FAILED,
    STARTED,
    STATES,
    DumpError,
    Entry,
    GroupRecord,
    PeerTraffic,
    RankDump,
)

_MAGIC = b"TBFLIGHT"
# magic, version, rank, slots, peers per slot, size of the group table, bytes in use of it
_HEAD = struct.Struct("<8sIIIIII")
_USED_AT = _HEAD.size - 4
# number (0: empty slot), group, sequence, state, size in bytes, peer or -1, tag, scheduled, started, ended, number of
# peers, round, rounds, name, algorithm, dtype, op, phase, error
_SLOT = struct.Struct("<QQQIQqQdddIII24s24s12s8s32s160s")
_STATE_AT, _STARTED_AT, _ENDED_AT, _PEERS_AT, _ROUND_AT, _PHASE_AT, _ERROR_AT = map(
    struct.calcsize,
    (
        "<QQQ",
        "<QQQIQqQd",
        "<QQQIQqQdd",
        "<QQQIQqQddd",
        "<QQQIQqQdddI",
        *(f"<QQQIQqQdddIII24s24s12s8s{more}" for more in ("", "32s")),
    ),
)
# peer; messages sent, expected, received; bytes of each; first and last sent, first expected, last received
_PEER = struct.Struct("<iiiiqqqdddd")
SLOTS, PEERS, GROUPS_BYTES = 128, 32, 32 * 1024
_NEVER = float("nan")
_ROUNDS = struct.Struct("<II")


def ring_bytes(slots: int = SLOTS, peers: int = PEERS) -> int:
    """Return the size of a ring in bytes."""
    return _HEAD.size + GROUPS_BYTES + slots * (_SLOT.size + peers * _PEER.size)


class Record:
    """One operation, as recorded by its rank. Times are those of the rank's clock."""

    __slots__ = ("_at", "_max_peers", "_memory", "_peers", "_phase", "over", "scheduled_s")

    def __init__(self, memory: Any, at: int, max_peers: int, scheduled_s: float) -> None:
        self._memory = memory
        self._at = at
        self._max_peers = max_peers
        self._peers: dict[int, list[Any]] = {}
        self._phase = ""
        self.scheduled_s = scheduled_s
        self.over = False

    def started(self, now_s: float) -> None:
        """Record that the control part is over, and data is sent."""
        struct.pack_into("<I", self._memory, self._at + _STATE_AT, STATES.index(STARTED))
        struct.pack_into("<d", self._memory, self._at + _STARTED_AT, now_s)

    def position(self, phase: str, number: int, count: int) -> None:
        """Record the progress: round `number` of `count` of a phase."""
        _ROUNDS.pack_into(self._memory, self._at + _ROUND_AT, number, count)
        if phase is not self._phase:
            self._phase = phase
            struct.pack_into("<32s", self._memory, self._at + _PHASE_AT, phase.encode())

    def sent(self, peer: int, size_bytes: int, now_s: float) -> None:
        """Record that a message was passed to the transport."""
        counts = self._find_peer(peer)
        if counts is not None:
            counts[1] += 1
            counts[4] += size_bytes
            if math.isnan(counts[7]):
                counts[7] = now_s
            counts[8] = now_s
            self._write_counts(counts)

    def expected(self, peer: int, size_bytes: int, now_s: float) -> None:
        """Record that a receive was posted."""
        counts = self._find_peer(peer)
        if counts is not None:
            counts[2] += 1
            counts[5] += size_bytes
            if math.isnan(counts[9]):
                counts[9] = now_s
            self._write_counts(counts)

    def received(self, peer: int, size_bytes: int, now_s: float) -> None:
        """Record that a message has arrived."""
        counts = self._find_peer(peer)
        if counts is not None:
            counts[3] += 1
            counts[6] += size_bytes
            counts[10] = now_s
            self._write_counts(counts)

    def ended(self, state: str, now_s: float, error: str = "") -> None:
        """Record the end: COMPLETED or FAILED."""
        self.over = True
        if state == FAILED:
            struct.pack_into("<160s", self._memory, self._at + _ERROR_AT, _encode(error, 160))
        struct.pack_into("<d", self._memory, self._at + _ENDED_AT, now_s)
        struct.pack_into("<I", self._memory, self._at + _STATE_AT, STATES.index(state))

    def _find_peer(self, peer: int) -> list[Any] | None:
        counts = self._peers.get(peer)
        if counts is None:
            if len(self._peers) >= self._max_peers:
                return None
            index = len(self._peers)
            counts = self._peers[peer] = [index, 0, 0, 0, 0, 0, 0, _NEVER, _NEVER, _NEVER, _NEVER, peer]
            struct.pack_into("<I", self._memory, self._at + _PEERS_AT, index + 1)
        return counts

    def _write_counts(self, counts: list[Any]) -> None:
        at = self._at + _SLOT.size + counts[0] * _PEER.size
        _PEER.pack_into(self._memory, at, counts[11], *counts[1:11])


class Recorder:
    """One rank's recorder.

    If all slots are in use, the oldest finished operation is dropped, of the communicator with the most records. If
    none is finished, new operations are not recorded. If an operation has more peers than a slot has room for, only
    the first ones are recorded.

    Args:
        memory: Writable, `ring_bytes(slots, peers)` bytes.
        rank: The rank.
        slots: The number of operations.
        peers: The number of peers per operation.
    """

    def __init__(self, memory: Any, rank: int, slots: int = SLOTS, peers: int = PEERS) -> None:
        if len(memory) < ring_bytes(slots, peers):
            raise DumpError(f"memory: got {len(memory)} bytes, expected {ring_bytes(slots, peers)}")
        self._memory = memory
        self._max_peers = peers
        self._free = deque(range(slots))
        self._records: dict[int, deque[tuple[int, Record]]] = {}
        self._number = 0
        self._used = 0
        _HEAD.pack_into(memory, 0, _MAGIC, 1, rank, slots, peers, GROUPS_BYTES, 0)

    def group(self, number: int, name: str, ranks: tuple[int, ...]) -> None:
        """Record a new communicator, unless the table is full."""
        line = json.dumps([number, name, ranks]).encode() + b"\n"
        if self._used + len(line) <= GROUPS_BYTES:
            at = _HEAD.size + self._used
            self._memory[at : at + len(line)] = line
            self._used += len(line)
            struct.pack_into("<I", self._memory, _USED_AT, self._used)

    def begin(
        self,
        group: int,
        sequence: int,
        name: str,
        now_s: float,
        *,
        size_bytes: int = 0,
        algorithm: str = "",
        dtype: str = "",
        op: str = "",
        peer: int = -1,
        tag: int = 0,
    ) -> Record | None:
        """Record that the rank requests an operation; None if there is no room. See Entry for the arguments."""
        slot = self._slot()
        if slot is None:
            return None
        self._number += 1
        at = _HEAD.size + GROUPS_BYTES + slot * (_SLOT.size + self._max_peers * _PEER.size)
        texts = [_encode(*pair) for pair in ((name, 24), (algorithm, 24), (dtype, 12), (op, 8))]
        times = (now_s, _NEVER, _NEVER)
        head = (self._number, group, sequence, 0, size_bytes, peer, tag)
        _SLOT.pack_into(self._memory, at, *head, *times, 0, 0, 0, *texts, b"", b"")
        record = Record(self._memory, at, self._max_peers, now_s)
        self._records.setdefault(group, deque()).append((slot, record))
        return record

    def _slot(self) -> int | None:
        if self._free:
            return self._free.popleft()
        for records in sorted(self._records.values(), key=len, reverse=True):
            for index, (slot, record) in enumerate(records):
                if record.over:
                    del records[index]
                    return slot
        return None


def read_ring(memory: Any, host: str, time_s: float, ended: str = "") -> RankDump:
    """Return the content of a ring. Raises DumpError if the memory is not one."""
    if len(memory) < _HEAD.size:
        raise DumpError(f"got {len(memory)} bytes, expected a flight recorder's ring")
    magic, version, rank, slots, peers, groups_bytes, used = _HEAD.unpack_from(memory, 0)
    if magic != _MAGIC or version != 1:
        raise DumpError(f"magic, version: got {magic!r}, {version}, expected {_MAGIC!r}, 1")
    if len(memory) < (expected := ring_bytes(slots, peers)):
        raise DumpError(f"got {len(memory)} bytes of a ring, expected {expected}")
    lines = bytes(memory[_HEAD.size : _HEAD.size + used]).splitlines()
    groups = [GroupRecord(number, name, tuple(ranks)) for number, name, ranks in map(json.loads, lines)]
    start, stride = _HEAD.size + groups_bytes, _SLOT.size + peers * _PEER.size
    records = [_read_entry(memory, start + slot * stride) for slot in range(slots)]
    entries = [entry for number, entry in sorted(records, key=lambda item: item[0]) if number]
    return RankDump(rank, host, time_s, ended, tuple(groups), tuple(entries))


def _read_entry(memory: Any, at: int) -> tuple[int, Entry]:
    number, group, sequence, state, size_bytes, peer, tag, *rest = _SLOT.unpack_from(memory, at)
    scheduled_s, started_s, ended_s, count, done, rounds, *texts = rest
    name, algorithm, dtype, op, phase, error = (_decode(text) for text in texts)
    peers = {}
    for index in range(count):
        counts = _PEER.unpack_from(memory, at + _SLOT.size + index * _PEER.size)
        peers[counts[0]] = PeerTraffic(
            sent=counts[1],
            sent_bytes=counts[4],
            sent_first_s=_time(counts[7]),
            sent_last_s=_time(counts[8]),
            expected=counts[2],
            expected_bytes=counts[5],
            expected_first_s=_time(counts[9]),
            received=counts[3],
            received_bytes=counts[6],
            received_last_s=_time(counts[10]),
        )
    entry = Entry(
        group,
        sequence,
        name,
        STATES[state],
        scheduled_s,
        algorithm,
        dtype,
        op,
        size_bytes,
        _time(started_s),
        _time(ended_s),
        None if peer < 0 else peer,
        None if peer < 0 else tag,
        phase,
        done,
        rounds,
        error,
        peers,
    )
    return number, entry


def _encode(text: str, size: int) -> bytes:
    return text.encode()[:size]


def _decode(data: bytes) -> str:
    return data.rstrip(b"\0").decode(errors="replace")


def _time(value: float) -> float | None:
    return None if math.isnan(value) else value

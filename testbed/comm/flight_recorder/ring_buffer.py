"""The recorder: a ring of records in shared memory, written as operations proceed and readable at any time.

The memory belongs to the caller: a file, or pages that a parent shares with the ranks that it forks. A killed rank
leaves it intact. There are no locks: a reader may find one record half updated.
"""

from __future__ import annotations

import ctypes
import json
import math
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
_VERSION = 1
SLOTS, PEERS, GROUPS_BYTES = 128, 32, 32 * 1024
_NEVER = float("nan")


_TEXT_BYTES = {"name": 24, "algorithm": 24, "dtype": 12, "op": 8, "phase": 32, "error": 160}


class _Head(ctypes.LittleEndianStructure):
    """The header of a ring. The table of groups, as lines of JSON, and slots with `peers` peers each follow."""

    _pack_ = 1
    _fields_ = (
        ("magic", ctypes.c_char * 8),
        *(
            (name, ctypes.c_uint32)
            for name in ("version", "rank", "slots", "peers", "groups_bytes", "groups_used")
        ),
    )


class _Slot(ctypes.LittleEndianStructure):
    """An operation; its peers follow. The fields are those of Entry, besides `number`, which is 0 in an empty slot."""

    _pack_ = 1
    _fields_ = (
        *((name, ctypes.c_uint64) for name in ("number", "group", "sequence")),
        ("state", ctypes.c_uint32),  # the index in STATES
        ("size_bytes", ctypes.c_uint64),
        ("peer", ctypes.c_int64),  # or -1
        ("tag", ctypes.c_uint64),
        *((name, ctypes.c_double) for name in ("scheduled_s", "started_s", "ended_s")),
        *((name, ctypes.c_uint32) for name in ("peers", "round", "rounds")),
        *((name, ctypes.c_char * size_bytes) for name, size_bytes in _TEXT_BYTES.items()),
    )


class _Peer(ctypes.LittleEndianStructure):
    """Messages with one peer, with the fields of PeerTraffic."""

    _pack_ = 1
    _fields_ = (
        *((name, ctypes.c_int32) for name in ("peer", "sent", "expected", "received")),
        *((name, ctypes.c_int64) for name in ("sent_bytes", "expected_bytes", "received_bytes")),
        *(
            (name, ctypes.c_double)
            for name in ("sent_first_s", "sent_last_s", "expected_first_s", "received_last_s")
        ),
    )


_HEAD_BYTES, _SLOT_BYTES, _PEER_BYTES = map(ctypes.sizeof, (_Head, _Slot, _Peer))


def ring_bytes(slots: int = SLOTS, peers: int = PEERS) -> int:
    """Return the size of a ring in bytes."""
    return _HEAD_BYTES + GROUPS_BYTES + slots * (_SLOT_BYTES + peers * _PEER_BYTES)


class Record:
    """One operation, as recorded by its rank. Times are those of the rank's clock."""

    __slots__ = ("_at", "_max_peers", "_memory", "_peers", "_phase", "_slot", "over", "scheduled_s")

    def __init__(self, memory: Any, at: int, max_peers: int, slot: _Slot) -> None:
        self._memory = memory
        self._at = at
        self._max_peers = max_peers
        self._slot = slot
        self._peers: dict[int, _Peer] = {}
        self._phase = ""
        self.scheduled_s = slot.scheduled_s
        self.over = False

    def started(self, now_s: float) -> None:
        """Record that the control part is over and sending starts."""
        self._slot.state = STATES.index(STARTED)
        self._slot.started_s = now_s

    def position(self, phase: str, number: int, count: int) -> None:
        """Record the progress: round `number` of `count` of a phase."""
        self._slot.round = number
        self._slot.rounds = count
        if phase is not self._phase:
            self._phase = phase
            self._slot.phase = _encode(phase, "phase")

    def sent(self, peer: int, size_bytes: int, now_s: float) -> None:
        """Record that a message was passed to the transport."""
        traffic = self._peers.get(peer) or self._add_peer(peer)
        if traffic is not None:
            if not traffic.sent:
                traffic.sent_first_s = now_s
            traffic.sent += 1
            traffic.sent_bytes += size_bytes
            traffic.sent_last_s = now_s

    def expected(self, peer: int, size_bytes: int, now_s: float) -> None:
        """Record that a receive was posted."""
        traffic = self._peers.get(peer) or self._add_peer(peer)
        if traffic is not None:
            if not traffic.expected:
                traffic.expected_first_s = now_s
            traffic.expected += 1
            traffic.expected_bytes += size_bytes

    def received(self, peer: int, size_bytes: int, now_s: float) -> None:
        """Record that a message has arrived."""
        traffic = self._peers.get(peer) or self._add_peer(peer)
        if traffic is not None:
            traffic.received += 1
            traffic.received_bytes += size_bytes
            traffic.received_last_s = now_s

    def ended(self, state: str, now_s: float, error: str = "") -> None:
        """Record the end: COMPLETED or FAILED."""
        self.over = True
        if state == FAILED:
            self._slot.error = _encode(error, "error")
        self._slot.ended_s = now_s
        self._slot.state = STATES.index(state)

    def _add_peer(self, peer: int) -> _Peer | None:
        number = len(self._peers)
        if number >= self._max_peers:
            return None
        traffic = _Peer.from_buffer(self._memory, self._at + _SLOT_BYTES + number * _PEER_BYTES)
        traffic.__init__(peer, 0, 0, 0, 0, 0, 0, _NEVER, _NEVER, _NEVER, _NEVER)  # type: ignore[misc]
        self._peers[peer] = traffic
        self._slot.peers = number + 1
        return traffic


class Recorder:
    """One rank's recorder.

    If all slots are in use, the oldest finished operation of the communicator with the most records is dropped. If none
    is finished, new operations are not recorded. If an operation has more peers than a slot has room for, only the
    first ones are recorded.

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
        self._head = _Head.from_buffer(memory)
        self._head.__init__(_MAGIC, _VERSION, rank, slots, peers, GROUPS_BYTES, 0)  # type: ignore[misc]

    def group(self, number: int, name: str, ranks: tuple[int, ...]) -> None:
        """Record a new communicator, unless the table is full."""
        line = json.dumps([number, name, ranks]).encode() + b"\n"
        used = self._head.groups_used
        if used + len(line) <= GROUPS_BYTES:
            at = _HEAD_BYTES + used
            self._memory[at : at + len(line)] = line
            self._head.groups_used = used + len(line)

    def begin(
        self,
        group: int,
        sequence: int,
        name: str,
        now_s: float,
        size_bytes: int = 0,
        algorithm: str = "",
        dtype: str = "",
        op: str = "",
        peer: int = -1,
        tag: int = 0,
    ) -> Record | None:
        """Record that the rank requests an operation; None if there is no room. See Entry for the arguments."""
        place = self._free_slot()
        if place is None:
            return None
        self._number += 1
        at = _HEAD_BYTES + GROUPS_BYTES + place * (_SLOT_BYTES + self._max_peers * _PEER_BYTES)
        texts = map(_encode, (name, algorithm, dtype, op, "", ""), _TEXT_BYTES)
        times = (now_s, _NEVER, _NEVER)
        head = (self._number, group, sequence, 0, size_bytes, peer, tag)
        slot = _Slot.from_buffer(self._memory, at)
        slot.__init__(*head, *times, 0, 0, 0, *texts)  # type: ignore[misc]
        record = Record(self._memory, at, self._max_peers, slot)
        self._records.setdefault(group, deque()).append((place, record))
        return record

    def _free_slot(self) -> int | None:
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
    if len(memory) < _HEAD_BYTES:
        raise DumpError(f"got {len(memory)} bytes, expected a flight recorder's ring")
    head = _Head.from_buffer_copy(memory)
    if head.magic != _MAGIC or head.version != _VERSION:
        raise DumpError(
            f"magic, version: got {head.magic!r}, {head.version}, expected {_MAGIC!r}, {_VERSION}"
        )
    if len(memory) < (expected := ring_bytes(head.slots, head.peers)):
        raise DumpError(f"got {len(memory)} bytes of a ring, expected {expected}")
    lines = bytes(memory[_HEAD_BYTES : _HEAD_BYTES + head.groups_used]).splitlines()
    groups = [GroupRecord(number, name, tuple(ranks)) for number, name, ranks in map(json.loads, lines)]
    start, stride = _HEAD_BYTES + head.groups_bytes, _SLOT_BYTES + head.peers * _PEER_BYTES
    records = [_read_entry(memory, start + slot * stride) for slot in range(head.slots)]
    entries = [entry for number, entry in sorted(records, key=lambda item: item[0]) if number]
    return RankDump(head.rank, host, time_s, ended, tuple(groups), tuple(entries))


def _read_entry(memory: Any, at: int) -> tuple[int, Entry]:
    values = _read_fields(_Slot.from_buffer_copy(memory, at))
    traffic = {}
    for index in range(values["peers"]):
        own = _read_fields(_Peer.from_buffer_copy(memory, at + _SLOT_BYTES + index * _PEER_BYTES))
        peer = own.pop("peer")
        traffic[peer] = PeerTraffic(**own)
    values |= {"state": STATES[values["state"]], "peers": traffic}
    if values["peer"] < 0:
        values |= {"peer": None, "tag": None}
    return values.pop("number"), Entry(**values)


def _read_fields(record: _Slot | _Peer) -> dict[str, Any]:
    """Return the fields of a record by name, with text decoded and unknown times as None."""
    values = {}
    for name, *_ in record._fields_:
        value = getattr(record, name)
        if isinstance(value, bytes):
            value = value.decode(errors="replace")
        values[name] = None if isinstance(value, float) and math.isnan(value) else value
    return values


def _encode(text: str, field: str) -> bytes:
    return text.encode()[: _TEXT_BYTES[field]]

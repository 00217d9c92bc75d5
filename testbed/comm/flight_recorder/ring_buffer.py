"""The recorder itself: a ring of records in shared memory, written as operations go on, read by anybody at any time.

The memory belongs to whoever gives it: a file, or pages that a parent shares with the ranks that it forks. A rank that
is killed leaves it as it was. Nothing is locked: who reads while a rank writes may find one record half new.
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
# magic, version, rank, slots, peers of a slot, bytes of the table of groups, bytes of it in use
_HEAD = struct.Struct("<8sIIIIII")
_USED_AT = _HEAD.size - 4
# number among all (0: empty), group, sequence, state, size in bytes, peer or -1, tag, scheduled, started, ended, how
# many peers, round, rounds, name, algorithm, dtype, op, phase, error
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
    """How much memory a ring takes."""
    return _HEAD.size + GROUPS_BYTES + slots * (_SLOT.size + peers * _PEER.size)


class Record:
    """One operation, as its rank writes it down. Times are the rank's clock's."""

    __slots__ = ("_at", "_memory", "_most", "_peers", "_phase", "over", "scheduled_s")

    def __init__(self, memory: Any, at: int, most: int, scheduled_s: float) -> None:
        self._memory = memory
        self._at = at
        self._most = most
        self._peers: dict[int, list[Any]] = {}
        self._phase = ""
        self.scheduled_s = scheduled_s
        self.over = False

    def started(self, now_s: float) -> None:
        """Its control part is over, its data go."""
        struct.pack_into("<I", self._memory, self._at + _STATE_AT, STATES.index(STARTED))
        struct.pack_into("<d", self._memory, self._at + _STARTED_AT, now_s)

    def position(self, phase: str, number: int, count: int) -> None:
        """How far it is: round `number` of `count` of a phase."""
        _ROUNDS.pack_into(self._memory, self._at + _ROUND_AT, number, count)
        if phase is not self._phase:
            self._phase = phase
            struct.pack_into("<32s", self._memory, self._at + _PHASE_AT, phase.encode())

    def sent(self, peer: int, size_bytes: int, now_s: float) -> None:
        """A message was given to the transport."""
        own = self._of(peer)
        if own is not None:
            own[1] += 1
            own[4] += size_bytes
            if math.isnan(own[7]):
                own[7] = now_s
            own[8] = now_s
            self._write(own)

    def expected(self, peer: int, size_bytes: int, now_s: float) -> None:
        """A receive was posted."""
        own = self._of(peer)
        if own is not None:
            own[2] += 1
            own[5] += size_bytes
            if math.isnan(own[9]):
                own[9] = now_s
            self._write(own)

    def received(self, peer: int, size_bytes: int, now_s: float) -> None:
        """A message has come."""
        own = self._of(peer)
        if own is not None:
            own[3] += 1
            own[6] += size_bytes
            own[10] = now_s
            self._write(own)

    def ended(self, state: str, now_s: float, error: str = "") -> None:
        """It is over: COMPLETED or FAILED."""
        self.over = True
        if state == FAILED:
            struct.pack_into("<160s", self._memory, self._at + _ERROR_AT, _encode(error, 160))
        struct.pack_into("<d", self._memory, self._at + _ENDED_AT, now_s)
        struct.pack_into("<I", self._memory, self._at + _STATE_AT, STATES.index(state))

    def _of(self, peer: int) -> list[Any] | None:
        own = self._peers.get(peer)
        if own is None:
            if len(self._peers) >= self._most:
                return None
            index = len(self._peers)
            own = self._peers[peer] = [index, 0, 0, 0, 0, 0, 0, _NEVER, _NEVER, _NEVER, _NEVER, peer]
            struct.pack_into("<I", self._memory, self._at + _PEERS_AT, index + 1)
        return own

    def _write(self, own: list[Any]) -> None:
        at = self._at + _SLOT.size + own[0] * _PEER.size
        _PEER.pack_into(self._memory, at, own[11], *own[1:11])


class Recorder:
    """One rank's recorder. memory: writable, `ring_bytes` of it for as many slots and peers.

    Where all slots are in use the oldest operation that is over goes, of the communicator that has most of these; where
    none is over the newest operations are not recorded. Of an operation with more peers than a slot has room for the
    first ones are.
    """

    def __init__(self, memory: Any, rank: int, slots: int = SLOTS, peers: int = PEERS) -> None:
        if len(memory) < ring_bytes(slots, peers):
            raise DumpError(f"memory: got {len(memory)} bytes, expected {ring_bytes(slots, peers)}")
        self._memory = memory
        self._most = peers
        self._free = deque(range(slots))
        self._kept: dict[int, deque[tuple[int, Record]]] = {}
        self._number = 0
        self._used = 0
        _HEAD.pack_into(memory, 0, _MAGIC, 1, rank, slots, peers, GROUPS_BYTES, 0)

    def group(self, number: int, name: str, ranks: tuple[int, ...]) -> None:
        """A communicator has come to be; left out where the table of them is full."""
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
        """A rank asks for an operation; see Entry for what is what. None where there is no room."""
        slot = self._slot()
        if slot is None:
            return None
        self._number += 1
        at = _HEAD.size + GROUPS_BYTES + slot * (_SLOT.size + self._most * _PEER.size)
        words = [_encode(*pair) for pair in ((name, 24), (algorithm, 24), (dtype, 12), (op, 8))]
        times = (now_s, _NEVER, _NEVER)
        head = (self._number, group, sequence, 0, size_bytes, peer, tag)
        _SLOT.pack_into(self._memory, at, *head, *times, 0, 0, 0, *words, b"", b"")
        record = Record(self._memory, at, self._most, now_s)
        self._kept.setdefault(group, deque()).append((slot, record))
        return record

    def _slot(self) -> int | None:
        if self._free:
            return self._free.popleft()
        for kept in sorted(self._kept.values(), key=len, reverse=True):
            for index, (slot, record) in enumerate(kept):
                if record.over:
                    del kept[index]
                    return slot
        return None


def read_ring(memory: Any, host: str, time_s: float, ended: str = "") -> RankDump:
    """What a ring holds. DumpError where the memory is none's."""
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
    found = [_read_entry(memory, start + slot * stride) for slot in range(slots)]
    entries = [entry for number, entry in sorted(found, key=lambda item: item[0]) if number]
    return RankDump(rank, host, time_s, ended, tuple(groups), tuple(entries))


def _read_entry(memory: Any, at: int) -> tuple[int, Entry]:
    number, group, sequence, state, size_bytes, peer, tag, *rest = _SLOT.unpack_from(memory, at)
    scheduled_s, started_s, ended_s, count, done, rounds, *texts = rest
    name, algorithm, dtype, op, phase, error = (_decode(text) for text in texts)
    peers = {}
    for index in range(count):
        own = _PEER.unpack_from(memory, at + _SLOT.size + index * _PEER.size)
        peers[own[0]] = PeerTraffic(
            sent=own[1],
            sent_bytes=own[4],
            sent_first_s=_time(own[7]),
            sent_last_s=_time(own[8]),
            expected=own[2],
            expected_bytes=own[5],
            expected_first_s=_time(own[9]),
            received=own[3],
            received_bytes=own[6],
            received_last_s=_time(own[10]),
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

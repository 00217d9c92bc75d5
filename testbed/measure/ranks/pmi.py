"""What MPI programs ask whoever started them: PMI-1, as MPICH and its relatives speak it over one socket per rank.

Ranks put keys and values into one common space, wait for each other, get what the others have put: with that they find
each other's addresses. Lines of `cmd=word key=value ...`. Pure: no sockets here.
"""

from __future__ import annotations

from collections.abc import Mapping

from testbed.errors import TestbedError

VALUE_MAX, KEY_MAX, NAME_MAX = 4096, 256, 256
SPACE = "testbed"
_MOST_KEYS = 1_000_000


class PmiError(TestbedError):
    """A rank said what makes no sense, or gave up."""


class PmiSpace:
    """The common space of one job. `nodes` and `per_node`: how many machines there are, with how many ranks each."""

    def __init__(self, size: int, nodes: int, per_node: int) -> None:
        self.size = size
        # ranks of one node may share memory: those in network namespaces of their own must not be told that they are
        self._values = {"PMI_process_mapping": f"(vector,(0,{nodes},{per_node}))"}
        self._waiting: set[int] = set()

    def handle(self, rank: int, line: str) -> dict[int, str]:
        """What to answer to whom when a rank has said this line. PmiError."""
        words = dict(word.partition("=")[::2] for word in line.split())
        command = words.get("cmd", "")
        if command == "barrier_in":
            self._waiting.add(rank)
            if len(self._waiting) < self.size:
                return {}
            self._waiting.clear()
            return dict.fromkeys(range(self.size), "cmd=barrier_out rc=0")
        if command == "abort":
            raise PmiError(f"rank {rank} aborted with exit code {words.get('exitcode', 'unknown')}")
        return {rank: self._answer(rank, command, words)}

    def _answer(self, rank: int, command: str, words: Mapping[str, str]) -> str:
        fixed = {
            "init": "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0",
            "get_maxes": f"cmd=maxes kvsname_max={NAME_MAX} keylen_max={KEY_MAX} vallen_max={VALUE_MAX} rc=0",
            "get_appnum": "cmd=appnum appnum=0 rc=0",
            "get_universe_size": f"cmd=universe_size size={self.size} rc=0",
            "get_my_kvsname": f"cmd=my_kvsname kvsname={SPACE} rc=0",
            "finalize": "cmd=finalize_ack rc=0",
        }
        if command in fixed:
            return fixed[command]
        key = words.get("key", "")
        if command == "put":
            if len(self._values) >= _MOST_KEYS or len(key) > KEY_MAX:
                return "cmd=put_result rc=-1 msg=too_much"
            self._values[key] = words.get("value", "")
            return "cmd=put_result rc=0 msg=success"
        if command == "get":
            if key not in self._values:
                return "cmd=get_result rc=-1 msg=key_not_found value=unknown"
            return f"cmd=get_result rc=0 msg=success value={self._values[key]}"
        raise PmiError(f"rank {rank} said {command or 'nothing that PMI-1 knows'!r} to its launcher")

"""The runner of arbitrary programs as the ranks of a job: one process per rank, with PMI-1 for MPI programs."""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence

from testbed.errors import TestbedError
from testbed.net.links.netns import set_network_namespace
from testbed.processes import set_parent_death_signal
from testbed.workload.job.endpoints import THIS_NAMESPACE, RankEndpoint

MASTER_PORT = 29_400
GRACE_S = 2.0  # time for the other ranks to end on their own after one has failed
KILL_S = 2.0  # from SIGTERM to SIGKILL
HOST_INTERFACE = "eth0"

# the last line of a Python traceback, which PyTorch prefixes with the rank
_ERROR = re.compile(r"(?:\[rank\d+\]: )?(?P<error>[A-Za-z_][\w.]*(?:: .*)?)$")

# rank, whether it is standard error, the line without its end
OnLine = Callable[[int, bool, str], None]
# how ranks ended: "finished", or a description
OnFailing = Callable[[Mapping[int, str]], None]


class Programs:
    """One process per rank, all with the same command and the environment of torchrun and of MPICH's mpiexec.

    Args:
        command: The program and its arguments.
        endpoints: The endpoint of each rank.
        on_line: Called with every line of output.
        environment: Further environment variables.
        check: Called regularly; if it returns text, the run fails with it.
        failing: Called once if a process fails, before the others are stopped.
    """

    def __init__(
        self,
        command: Sequence[str],
        endpoints: Sequence[RankEndpoint],
        on_line: OnLine,
        environment: Mapping[str, str] | None = None,
        check: Callable[[], str | None] = lambda: None,
        failing: OnFailing = lambda ended: None,
    ) -> None:
        self.command = list(command)
        self.endpoints = endpoints
        self.on_line = on_line
        self.environment = dict(environment or {})
        self.check = check
        self.failing = failing
        self._ended: dict[int, int] = {}
        self._errors: dict[int, str] = {}  # the last line of each rank that looks like an error
        self._reported = False
        self._selector = selectors.DefaultSelector()
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._partial: dict[int, bytes] = {}
        one_node = all(endpoint.namespace_pid == THIS_NAMESPACE for endpoint in endpoints)
        size = len(endpoints)
        self._pmi = PmiSpace(size, *((1, size) if one_node else (size, 1)))
        self._pmi_ends: dict[int, socket.socket] = {}

    def run(self) -> int:
        """Start all processes, pass on their output until they end, and return the worst exit status.

        That is 0, or the status of the first process to fail (128 + n if signal n ended it).

        Raises:
            OSError: If the command cannot be started.
        """
        status = 1
        try:
            for endpoint in self.endpoints:
                self._start(endpoint)
            status = self._watch()
            return status
        finally:
            try:
                if status:
                    self._report_failure()
            finally:
                self._stop()

    def environment_of(self, endpoint: RankEndpoint) -> dict[str, str]:
        """Return the environment variables that describe the job to a rank's process."""
        here = endpoint.namespace_pid == THIS_NAMESPACE
        interface = "lo" if here else HOST_INTERFACE
        size = len(self.endpoints)
        return {
            "RANK": str(endpoint.rank),
            "WORLD_SIZE": str(size),
            "LOCAL_RANK": str(endpoint.rank if here else 0),
            "LOCAL_WORLD_SIZE": str(size if here else 1),
            "GROUP_RANK": str(0 if here else endpoint.rank),
            "MASTER_ADDR": self.endpoints[0].ip,
            "MASTER_PORT": str(MASTER_PORT if not here else self.endpoints[0].port),
            "GLOO_SOCKET_IFNAME": interface,
            "NCCL_SOCKET_IFNAME": interface,
            "TP_SOCKET_IFNAME": interface,
            "FI_PROVIDER": os.environ.get("FI_PROVIDER", "tcp"),
            "FI_TCP_IFACE": interface,
            # all hosts share this machine's memory, but MPI must use the network instead of it
            **(
                {}
                if here
                else {"MPIR_CVAR_NOLOCAL": "1", "UCX_TLS": "tcp,self", "UCX_NET_DEVICES": interface}
            ),
            "PMI_RANK": str(endpoint.rank),
            "PMI_SIZE": str(size),
            "PMI_SPAWNED": "0",
            "TESTBED_HOST": endpoint.host,
            "TESTBED_BUILDINGS": ",".join(str(other.building) for other in self.endpoints),
        }

    # ---- starting

    def _start(self, endpoint: RankEndpoint) -> None:
        ours, theirs = socket.socketpair()
        environment = {
            **os.environ,
            **self.environment,
            **self.environment_of(endpoint),
            "PMI_FD": str(theirs.fileno()),
        }
        descriptor = None
        if endpoint.namespace_pid != THIS_NAMESPACE:
            descriptor = os.open(f"/proc/{endpoint.namespace_pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)

        def enter() -> None:
            set_parent_death_signal(signal.SIGKILL)
            if descriptor is not None:
                set_network_namespace(descriptor)

        try:
            process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environment,
                pass_fds=(theirs.fileno(),),
                preexec_fn=enter,  # noqa: PLW1509 (no other thread of this process is running)
                start_new_session=True,  # a process group that can be killed as one
            )
        finally:
            theirs.close()
            if descriptor is not None:
                os.close(descriptor)
        self._processes[endpoint.rank] = process
        self._pmi_ends[endpoint.rank] = ours
        assert process.stdout is not None
        assert process.stderr is not None
        for stream, is_error in ((process.stdout, False), (process.stderr, True)):
            self._register(stream.fileno(), self._on_output, endpoint.rank, is_error)
        self._register(ours.fileno(), self._on_pmi, endpoint.rank, False)

    def _register(self, descriptor: int, handler: Callable[..., None], rank: int, is_error: bool) -> None:
        os.set_blocking(descriptor, False)
        self._partial[descriptor] = b""
        self._selector.register(descriptor, selectors.EVENT_READ, (handler, rank, is_error))

    # ---- while they run

    def _watch(self) -> int:
        status, deadline_s = 0, float("inf")
        terminated = False
        living = set(self._processes)
        while living or self._selector.get_map():
            now_s = time.monotonic()
            if living and now_s >= deadline_s:
                self._report_failure()
                self._signal(living, signal.SIGKILL if terminated else signal.SIGTERM)
                terminated, deadline_s = True, now_s + KILL_S
            for key, _ in self._selector.select(0.1):
                handler, rank, is_error = key.data
                try:
                    handler(key.fd, rank, is_error)
                except PmiError as error:
                    self.on_line(rank, True, str(error))
                    status, deadline_s = status or 1, min(deadline_s, now_s)
            for rank in sorted(living):
                ended = self._processes[rank].poll()
                if ended is None:
                    continue
                living.discard(rank)
                if not terminated:
                    self._ended[rank] = ended
                if ended and not terminated:
                    status = status or (ended if ended > 0 else 128 - ended)
                    deadline_s = min(deadline_s, now_s + GRACE_S)
            if not living:
                self._finish()
            if failure := self.check():
                self.on_line(0, True, failure)
                return 1
        return status

    def _report_failure(self) -> None:
        """Report, once, how the processes that ended on their own did so."""
        if not self._reported:
            self._reported = True
            self.failing({rank: self._describe_end(rank, status) for rank, status in self._ended.items()})

    def _describe_end(self, rank: int, status: int) -> str:
        if status <= 0:
            return f"killed by signal {-status}" if status else "finished"
        error = self._errors.get(rank)
        return f"ended with status {status}: {error}" if error else f"ended with status {status}"

    def _on_output(self, descriptor: int, rank: int, is_error: bool) -> None:
        for line in self._lines(descriptor):
            if is_error and (match := _ERROR.match(line)):
                self._errors[rank] = match["error"]
            self.on_line(rank, is_error, line)

    def _on_pmi(self, descriptor: int, rank: int, is_error: bool) -> None:
        for line in self._lines(descriptor):
            for member, answer in self._pmi.handle(rank, line).items():
                with contextlib.suppress(OSError):
                    self._pmi_ends[member].send(answer.encode() + b"\n")

    def _lines(self, descriptor: int) -> list[str]:
        """Return the new complete lines; at the end of the stream, also return a partial line and stop watching it."""
        try:
            data = os.read(descriptor, 1 << 16)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        *lines, rest = (self._partial[descriptor] + data).split(b"\n")
        self._partial[descriptor] = rest
        if not data:
            self._selector.unregister(descriptor)
            lines += [rest] if rest else []
        return [line.decode(errors="replace") for line in lines]

    def _finish(self) -> None:
        """Pass on the remaining output, without waiting for descendants that keep the streams open."""
        while ready := self._selector.select(0):
            for key, _ in ready:
                handler, rank, is_error = key.data
                handler(key.fd, rank, is_error)
        for key in list(self._selector.get_map().values()):
            self._selector.unregister(key.fd)

    # ---- the end

    def _signal(self, ranks: set[int], number: signal.Signals) -> None:
        """Send a signal to the process groups of ranks, which include their descendants."""
        for rank in ranks:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._processes[rank].pid, number)

    def _stop(self) -> None:
        self._signal(set(self._processes), signal.SIGKILL)
        for process in self._processes.values():
            process.wait()
            for stream in (process.stdout, process.stderr):
                if stream is not None:
                    stream.close()
        for end in self._pmi_ends.values():
            end.close()
        self._selector.close()


VALUE_MAX, KEY_MAX, NAME_MAX = 4096, 256, 256
SPACE = "testbed"
_MOST_KEYS = 1_000_000


class PmiError(TestbedError):
    """The error of a rank that sent an invalid PMI request or aborted."""


class PmiSpace:
    """The PMI-1 key-value space of one job, with `nodes` machines of `per_node` ranks each."""

    def __init__(self, size: int, nodes: int, per_node: int) -> None:
        self.size = size
        # ranks of one node may share memory, so ranks in separate namespaces must appear as separate nodes
        self._values = {"PMI_process_mapping": f"(vector,(0,{nodes},{per_node}))"}
        self._waiting: set[int] = set()

    def handle(self, rank: int, line: str) -> dict[int, str]:
        """Handle a rank's request and return the answers by rank; raise PmiError if it is invalid or aborts the job."""
        fields = dict(word.partition("=")[::2] for word in line.split())
        command = fields.get("cmd", "")
        if command == "barrier_in":
            self._waiting.add(rank)
            if len(self._waiting) < self.size:
                return {}
            self._waiting.clear()
            return dict.fromkeys(range(self.size), "cmd=barrier_out rc=0")
        if command == "abort":
            raise PmiError(f"rank {rank} aborted with exit code {fields.get('exitcode', 'unknown')}")
        return {rank: self._answer(rank, command, fields)}

    def _answer(self, rank: int, command: str, fields: Mapping[str, str]) -> str:
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
        key = fields.get("key", "")
        if command == "put":
            if len(self._values) >= _MOST_KEYS or len(key) > KEY_MAX:
                return "cmd=put_result rc=-1 msg=too_much"
            self._values[key] = fields.get("value", "")
            return "cmd=put_result rc=0 msg=success"
        if command == "get":
            if key not in self._values:
                return "cmd=get_result rc=-1 msg=key_not_found value=unknown"
            return f"cmd=get_result rc=0 msg=success value={self._values[key]}"
        raise PmiError(f"rank {rank}: PMI request: got {command or 'no command'!r}, expected one of PMI-1")

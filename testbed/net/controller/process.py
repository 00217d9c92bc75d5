"""The parent's side of the controller process: start, restart, stop, the HTTP client and the network snapshot."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import secrets
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from testbed.net.controller.rules import Rule, dumps
from testbed.net.errors import ControllerError, PolicyError
from testbed.processes import close_pipes, wait_or_kill
from testbed.spec.control_delays import INSTANT, Control

if TYPE_CHECKING:
    from testbed.net.controller.edges import EdgePorts
    from testbed.net.controller.policy_view import Flow
    from testbed.spec.topology import Topology


LISTEN_TIMEOUT_S = 20.0
STOP_TIMEOUT_S = 5.0
KEPT_STDERR_LINES = 20
MAX_RESTARTS = 3


@dataclass(eq=False, repr=False)
class ControllerProcess:
    """A controller process that installs rules in the switches that connect to `port` on 127.0.0.1.

    Call `start`, set the bridges' controller to `tcp:127.0.0.1:<port>`, call `wait_ready`, and `stop` at the end. The
    process dies with the thread that called `start`.

    Args:
        rules: The rules of every switch, by datapath id.
        library: "os-ken" or "ryu".
        env: Additional environment variables.
        python: The Python interpreter; the current one by default.
        snapshot: The network's description; it enables `api`, which changes the policy.
        log: Called with each event, as a mapping.
    """

    rules: Mapping[int, Sequence[Rule]]
    library: str = "os-ken"
    env: Mapping[str, str] | None = None
    python: str = sys.executable
    snapshot: Snapshot | None = None
    log: Callable[[Mapping[str, Any]], None] = lambda event: None

    def __post_init__(self) -> None:
        self._token = secrets.token_hex(16)
        self._environment = {**os.environ, **(self.env or {}), "TESTBED_CONTROLLER_LIBRARY": self.library}
        if self.snapshot is not None:
            self._environment["TESTBED_CONTROLLER_TOKEN"] = self._token
        self._command = [self.python, "-m", "testbed.net.controller", "--rules", "-"]
        self._process: subprocess.Popen[str] | None = None
        self._threads: list[threading.Thread] = []
        self._stderr_lines: deque[str] = deque(maxlen=KEPT_STDERR_LINES)
        self._changed = threading.Condition()
        self._port: int | None = None
        self._api_port: int | None = None
        self.restarts = 0
        self._reset()

    def _reset(self) -> None:
        self._ended = False
        self._listening = False
        self._installed: set[int] = set()
        self._ready = False
        self._error: str | None = None

    def start(self) -> None:
        """Start the process without waiting for it; raises ControllerError if it cannot be started."""
        ports = []
        if self._port is not None:
            # A restart: switches and API clients already know these ports.
            ports = ["--port", str(self._port), "--api-port", str(self._api_port or 0)]
        try:
            process = subprocess.Popen(
                [*self._command, *ports],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=self._environment,
                start_new_session=True,  # Ctrl-C goes to our parent and must not end the controller first
            )
        except OSError as error:
            raise ControllerError(f"{self._command[0]}: {error.strerror}") from error
        self._process = process
        # In a guest, random numbers depend on the tree of processes and threads: one thread fewer would change later
        # ones.
        messages = threading.Thread(target=self._read_messages, args=(process,), daemon=True)
        events = threading.Thread(target=self._read_events, args=(process, messages), daemon=True)
        self._threads = [messages, events]
        for thread in self._threads:
            thread.start()
        assert process.stdin is not None
        # A process that exits before it reads its input explains why on standard error.
        with contextlib.suppress(BrokenPipeError), process.stdin as pipe:
            pipe.write(dumps(self.rules, asdict(self.snapshot) if self.snapshot else None))

    def restart(self) -> bool:
        """Restart a process that has ended, at most MAX_RESTARTS times, with the same ports and policy.

        Meanwhile the switches forward by their current rules. They reconnect automatically, and the controller verifies
        their rules.

        Returns:
            Whether the process was restarted.
        """
        process = self._process
        if process is None or process.poll() is None or self.restarts >= MAX_RESTARTS or not self._ready:
            return False
        for thread in self._threads:
            thread.join()
        close_pipes(process)
        self.restarts += 1
        self.log({"event": "restarted", "time_s": time.monotonic(), "status": process.returncode})
        self._reset()
        self._ready = True  # the switches still have their rules
        if self.snapshot is not None:
            self.rules = {}  # the process computes them from the snapshot's policy
        self.start()
        return True

    @property
    def api(self) -> ControllerApi:
        """The HTTP client of the process; raises ControllerError if it was started without a snapshot."""
        self._wait(lambda: self._listening, LISTEN_TIMEOUT_S, "it does not listen")
        if self._api_port is None:
            raise ControllerError("the controller has no API: it was started without a network snapshot")
        return ControllerApi(self._api_port, self._token)

    @property
    def port(self) -> int:
        """The port for the switches; waits until the process listens, with ControllerError if it does not."""
        self._wait(lambda: self._listening, LISTEN_TIMEOUT_S, "it does not listen")
        assert self._port is not None
        return self._port

    @property
    def pid(self) -> int:
        """The process id; raises ControllerError if the process was not started."""
        if self._process is None:
            raise ControllerError("the controller was not started")
        return self._process.pid

    def wait_ready(self, timeout_s: float) -> None:
        """Wait until every switch has exactly its rules, as read back; raises ControllerError with the reason."""
        self._wait(lambda: self._ready, timeout_s, "")

    def alive(self) -> bool:
        """Return whether the process is running."""
        return self._process is not None and self._process.poll() is None

    def failure(self) -> str | None:
        """Return the first reported error, or a message if the process has ended; None if there is no failure."""
        with self._changed:
            if self._error is not None:
                return self._error
        if self._process is not None and not self.alive():
            return f"the process ended with status {self._process.returncode}{self._stderr_tail()}"
        return None

    def stop(self) -> None:
        """Stop the process if it is running; the switches keep their rules."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        wait_or_kill(process, STOP_TIMEOUT_S)
        for thread in self._threads:
            thread.join()
        close_pipes(process)

    def _wait(self, condition: Callable[[], bool], timeout_s: float, what: str) -> None:
        if self._process is None:
            raise ControllerError("the controller was not started")
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while not condition() and self._error is None and not self._ended:
                remaining_s = deadline - time.monotonic()
                if remaining_s <= 0:
                    missing = ", ".join(f"{dpid:016x}" for dpid in self.rules if dpid not in self._installed)
                    what = what or f"no rules yet in the bridges with datapath ids {missing}"
                    raise ControllerError(f"{what} after {timeout_s:g} s{self._stderr_tail()}")
                self._changed.wait(remaining_s)
            if self._error is not None:
                raise ControllerError(self._error)
            if condition():
                return
        self._process.wait()
        raise ControllerError(str(self.failure()))

    def _read_events(self, process: subprocess.Popen[str], messages: threading.Thread) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            with self._changed:
                try:
                    self._handle_event(json.loads(line))
                except (ValueError, KeyError, TypeError):
                    self._error = self._error or f"not an event: {line.strip()}"
                self._changed.notify_all()
        messages.join()  # so that all of standard error has been read
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _handle_event(self, event: Mapping[str, Any]) -> None:
        kind = event["event"]
        self.log(event)
        if kind == "policy" and self.snapshot is not None:
            # also when `testbed policy set` has changed it, which talks to the process directly
            self.snapshot = replace(self.snapshot, policy=event["policy"])
        elif kind == "replanned" and self.snapshot is not None:
            self.snapshot = replace(self.snapshot, down=event["down"])
        elif kind == "listening":
            self._port, self._api_port = event["port"], event.get("api_port")
            self._listening = True
        elif kind == "installed":
            self._installed.add(event["dpid"])
        elif kind == "ready":
            self._ready = True
        elif kind == "error" and self._error is None:
            self._error = event["message"]

    def _read_messages(self, process: subprocess.Popen[str]) -> None:
        assert process.stderr is not None
        for line in process.stderr:
            self._stderr_lines.append(line.rstrip())

    def _stderr_tail(self) -> str:
        return "; its standard error:\n" + "\n".join(self._stderr_lines) if self._stderr_lines else ""


TIMEOUT_S = 60.0


@dataclass(frozen=True)
class ControllerApi:
    """An HTTP client of a running controller on 127.0.0.1.

    Methods raise PolicyError for an invalid request and ControllerError for other failures. In both cases the policy in
    force stays.
    """

    port: int
    token: str

    def show(self) -> dict[str, Any]:
        """Return the policy in force, with notes and queues, and the number of rules of each bridge."""
        return self._request("GET", "/policy")

    def rules(self) -> dict[str, Any]:
        """Return all rules with packet and byte counts, by bridge."""
        return self._request("GET", "/rules")

    def set(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Install another policy; return once all switches have its rules."""
        return self._request("PUT", "/policy", request)

    def diff(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return what `set` would change."""
        return self._request("POST", "/diff", request)

    def _request(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT_S)
        try:
            data = None if body is None else json.dumps(body)
            connection.request(method, path, data, {"Authorization": f"Bearer {self.token}"})
            response = connection.getresponse()
            answer: dict[str, Any] = json.loads(response.read())
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise ControllerError(
                f"the controller does not answer: {error or type(error).__name__}"
            ) from error
        finally:
            connection.close()
        if response.status == 200:
            return answer
        kind = PolicyError if response.status == 400 else ControllerError
        raise kind(answer["error"])


@dataclass(frozen=True)
class Snapshot:
    """A JSON-compatible description of a network, its policy and traffic, for the controller process.

    `reaction_s` and `rule_s` are those of `control_delays.Control`.
    """

    topology: Mapping[str, Any]
    edges: Sequence[Mapping[str, Any]]
    policy: Mapping[str, Any]
    flows: Sequence[Mapping[str, Any]] = ()
    seed: int = 0
    down: Sequence[str] = ()
    reaction_s: float = 0.0
    rule_s: float = 0.0


def snapshot_of(
    topology: Topology,
    edges: Sequence[EdgePorts],
    policy: Mapping[str, Any],
    flows: Iterable[Flow] = (),
    seed: int = 0,
    control: Control = INSTANT,
) -> Snapshot:
    """Build a `Snapshot` from typed objects; for `policy` a `PolicyChoice` as a mapping."""
    from testbed.net.controller.edges import edges_to_data  # noqa: PLC0415 (for a faster start of the process)

    return Snapshot(
        asdict(topology),
        edges_to_data(edges),
        dict(policy),
        [asdict(flow) for flow in flows],
        seed,
        reaction_s=control.reaction_s,
        rule_s=control.rule_s,
    )

"""The policy service of the controller process: current policy, declared traffic, failed links and the HTTP API.

It computes rules and passes them to the `RuleInstaller`. On any error here, the last good rules stay in force.
"""

from __future__ import annotations

import json
import secrets
import socket
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, replace
from functools import partial
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from testbed.net.controller.compat import Event, Lock, hub
from testbed.net.controller.process import Snapshot
from testbed.net.controller.rules import rule_to_data
from testbed.net.controller.switch_sessions import PortReport, PortReports
from testbed.net.errors import ControllerError, PolicyError

if TYPE_CHECKING:
    from testbed.net.controller.app import RuleInstaller
    from testbed.net.controller.rule_compiler import CompiledPolicy, PolicyChoice
    from testbed.net.controller.switch_sessions import Rules


Answer = TypeVar("Answer")

INSTALL_TIMEOUT_S = 20.0
READ_TIMEOUT_S = 10.0


class PolicyService:
    """The service that sets policies and recomputes them when links go down or come up; thread-safe."""

    def __init__(
        self, app: RuleInstaller, snapshot: Snapshot, report: Callable[[Mapping[str, Any]], None]
    ) -> None:
        self._app = app
        self._report = report
        self._snapshot = snapshot
        self._lock = Lock()
        self._state: _PolicyState | None = None
        self._reports = PortReports(snapshot.reaction_s)
        self._stale = Event()
        app.ports_changed = self._note_port_change
        hub.spawn(self._follow_ports)

    # ---- operations of the API

    def show(self) -> dict[str, Any]:
        """Return the policy in force, with notes and queues, and the number of rules of each bridge."""
        with self._lock:
            state = self._load()
            return {
                "policy": asdict(state.choice),
                "replan": state.policy_replans,
                "reaction_s": self._snapshot.reaction_s,
                "rule_s": self._snapshot.rule_s,
                "seed": self._snapshot.seed,
                "flows": len(state.view.flows),
                "down": sorted(state.view.down),
                "rules": {self._bridge(dpid): len(own) for dpid, own in self._app.rules.items()},
                "classes": [asdict(entry) for entry in state.compiled.classes],
                "notes": dict(state.compiled.notes),
            }

    def rules(self) -> dict[str, Any]:
        """Read all rules with packet and byte counts from the switches, by bridge.

        Raises:
            ControllerError: A switch did not answer in time.
        """
        counts = self._ask(self._app.read_counters, READ_TIMEOUT_S, "answered")
        comments = {(dpid, rule): rule.comment for dpid, own in self._app.rules.items() for rule in own}
        return {
            self._bridge(dpid): [
                {
                    **rule_to_data(rule),
                    "comment": comments.get((dpid, rule), ""),
                    "packets": packets,
                    "bytes": size,
                }
                for rule, packets, size in found
            ]
            for dpid, found in counts.items()
        }

    def diff(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return what `set` would change: rules added and removed by bridge, and the resulting queues.

        Raises:
            PolicyError: The policy cannot be computed.
        """
        with self._lock:
            compiled = self._changed(request).compiled
            bridges = {}
            for dpid, own in compiled.rules.items():
                now = self._app.rules[dpid]
                before, after = set(now), set(own)
                bridges[self._bridge(dpid)] = {
                    "added": [str(rule) for rule in own if rule not in before],
                    "removed": [str(rule) for rule in now if rule not in after],
                }
            return {"bridges": bridges, "classes": [asdict(entry) for entry in compiled.classes]}

    def set(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Apply another policy or other declared traffic; return when every switch has its rules.

        Args:
            request: Keys name, options, replan and flows; without flows, the declared traffic stays.

        Raises:
            PolicyError: The policy cannot be computed. Nothing has changed.
            ControllerError: A switch did not take the rules. The previous rules are restored.
        """
        begun_s = time.monotonic()
        with self._lock:
            state = self._changed(request)
            compiled = state.compiled
            changed = self._install(compiled)
            self._state = state
            self._report(
                {
                    "event": "policy",
                    "policy": asdict(state.choice),
                    "rules": sum(map(len, compiled.rules.values())),
                    "time_s": time.monotonic(),
                }
            )
        return {
            "rules": sum(map(len, compiled.rules.values())),
            "changed": changed,
            "seconds": time.monotonic() - begun_s,
            "classes": [asdict(entry) for entry in compiled.classes],
            "notes": dict(compiled.notes),
        }

    # ---- internals

    def _load(self) -> _PolicyState:
        if self._state is None:
            self._state = _PolicyState.of(self._snapshot)
        return self._state

    def _changed(self, request: Mapping[str, Any]) -> _PolicyState:
        return self._load().changed(request, self._links_down())

    def _links_down(self, ports: Set[tuple[int, int]] | None = None) -> frozenset[str]:
        ports = self._app.ports_down() if ports is None else ports
        return frozenset(name for name, ends in self._load().ends.items() if ends & ports)

    def _install(self, compiled: CompiledPolicy) -> int:
        before = {dpid: set(own) for dpid, own in self._app.rules.items()}
        # worst case: every rule and group is deleted and added individually
        most = max((2 * len(before[dpid]) + 2 * len(own) for dpid, own in compiled.rules.items()), default=0)
        timeout_s = INSTALL_TIMEOUT_S + most * self._snapshot.rule_s
        error = self._ask(partial(self._app.replace, compiled.rules), timeout_s, "took the new rules")
        if error is not None:
            raise ControllerError(error)
        return sum(len(set(own) ^ before[dpid]) for dpid, own in compiled.rules.items())

    def _ask(
        self, operation: Callable[[Callable[[Answer], None]], None], timeout_s: float, what: str
    ) -> Answer:
        """Run an operation in the application's thread, and wait for the answer that it passes on."""
        answers: list[Answer] = []
        done = Event()

        def take(answer: Answer) -> None:
            answers.append(answer)
            done.set()

        self._app.call(lambda: operation(take))
        if not done.wait(timeout_s):
            raise ControllerError(f"not all switches {what} within {timeout_s:g} s")
        return answers[0]

    def _bridge(self, dpid: int) -> str:
        """Return a switch's name, or its datapath id while it is not connected."""
        return self._app.bridge_names().get(dpid, f"{dpid:016x}")

    def _follow_ports(self) -> None:
        if self._snapshot.policy:
            with self._lock:
                self._load()  # in advance, so that the first failed link does not have to wait for it
        while True:
            self._stale.wait()
            self._stale.clear()
            while (wait_s := self._reports.wait_s(time.monotonic())) is not None:
                hub.sleep(wait_s)
                if report := self._reports.take(time.monotonic()):
                    self._react(report)

    def _note_port_change(self) -> None:
        """Queue a port report; runs in the application's thread, which must not block."""
        self._reports.add(PortReport(time.monotonic(), frozenset(self._app.ports_down())))
        self._stale.set()

    def _react(self, report: PortReport) -> None:
        try:
            self._replan(report)
        except ControllerError as error:
            self._report({"event": "policy_error", "message": str(error), "time_s": time.monotonic()})

    def _replan(self, report: PortReport) -> None:
        with self._lock:
            state, down = self._load(), self._links_down(report.ports_down)
            if not state.policy_replans or down == state.view.down:
                return
            replanned = state.changed({}, down)
            changed = self._install(replanned.compiled)
            self._state = replanned
            now_s = time.monotonic()
            self._report(
                {
                    "event": "replanned",
                    "down": sorted(down),
                    "changed": changed,
                    "seconds": now_s - report.time_s,
                    "time_s": now_s,
                }
            )


def rules_for(snapshot: Snapshot) -> Rules:
    """Compute the rules for a snapshot's network and policy; raises ControllerError if they cannot be computed."""
    return _PolicyState.of(snapshot).compiled.rules


@dataclass(frozen=True)
class _PolicyState:
    """The snapshot in the form that policies use, and the compiled policy. Methods import late: imports are slow."""

    choice: PolicyChoice
    view: Any
    edges: Sequence[Any]
    compiled: CompiledPolicy
    policy_replans: bool
    ends: Mapping[str, Set[tuple[int, int]]]

    @classmethod
    def of(cls, snapshot: Snapshot) -> _PolicyState:
        from pydantic import TypeAdapter  # noqa: PLC0415

        from testbed.net.controller.edges import edges_from_data, link_ports  # noqa: PLC0415
        from testbed.net.controller.policy_view import Flow, View  # noqa: PLC0415
        from testbed.net.controller.rule_compiler import PolicyChoice, compute  # noqa: PLC0415
        from testbed.spec.topology import Topology  # noqa: PLC0415

        topology = TypeAdapter(Topology).validate_python(snapshot.topology)
        edges = edges_from_data(snapshot.edges)
        flows = [Flow(**flow) for flow in snapshot.flows]
        view = View(topology, flows, snapshot.down, snapshot.seed)
        ends: dict[str, set[tuple[int, int]]] = defaultdict(set)
        for edge in edges:
            for name, port in link_ports(topology, edge).items():
                ends[name].add((edge.dpid, port))
        choice = PolicyChoice(**snapshot.policy)
        return cls(choice, view, edges, compute(choice, view, edges), choice.make().replan, ends)

    def changed(self, request: Mapping[str, Any], down: frozenset[str]) -> _PolicyState:
        from testbed.net.controller.policy_view import Flow  # noqa: PLC0415
        from testbed.net.controller.rule_compiler import PolicyChoice, compute  # noqa: PLC0415

        if unknown := sorted(set(request) - {"name", "options", "replan", "flows"}):
            raise PolicyError(f"{unknown[0]}: unknown key; expected name, options, replan, flows")
        choice = self.choice
        if "name" in request:
            choice = PolicyChoice(request["name"], request.get("options") or {}, request.get("replan"))
        view = self.view
        if request.get("flows") is not None:
            view = replace(view, flows=[Flow(**flow) for flow in request["flows"]])
        replans = choice.make().replan
        view = replace(view, down=down if replans else ())
        compiled = compute(choice, view, self.edges)
        return replace(self, choice=choice, view=view, compiled=compiled, policy_replans=replans)


MAX_BODY_BYTES = 64 * 1024**2
TIMEOUT_S = 30.0


def make_handler(service: PolicyService, token: str) -> Callable[[socket.socket, Any], None]:
    """Return the function that serves one HTTP connection to a service's API."""

    class Handler(_Handler):
        routes: ClassVar[Mapping[tuple[str, str], Callable[[Any], Any]]] = {
            ("GET", "/policy"): lambda body: service.show(),
            ("GET", "/rules"): lambda body: service.rules(),
            ("PUT", "/policy"): service.set,
            ("POST", "/diff"): service.diff,
        }
        expected = f"Bearer {token}"

    def answer(connection: socket.socket, address: Any) -> None:
        with connection:
            connection.settimeout(TIMEOUT_S)
            Handler(connection, address, None)  # type: ignore[arg-type]

    return answer


class _Handler(BaseHTTPRequestHandler):
    routes: ClassVar[Mapping[tuple[str, str], Callable[[Any], Any]]] = {}
    expected = ""

    def _serve(self) -> None:
        given = self.headers.get("Authorization", "")
        if not secrets.compare_digest(given.encode(), self.expected.encode()):
            return self._reply(401, {"error": "the token is missing or wrong"})
        route = self.routes.get((self.command, self.path))
        if route is None:
            return self._reply(404, {"error": f"there is no {self.command} {self.path}"})
        try:
            size = int(self.headers.get("Content-Length") or 0)
            if size > MAX_BODY_BYTES:
                raise ValueError(f"body: got {size} bytes, expected at most {MAX_BODY_BYTES}")
            body = json.loads(self.rfile.read(size)) if size else {}
            if not isinstance(body, dict):
                raise ValueError(f"body: got a {type(body).__name__}, expected an object")
            return self._reply(200, route(body))
        except (PolicyError, ValueError, TypeError, KeyError) as error:
            return self._reply(400, {"error": str(error)})
        except ControllerError as error:
            return self._reply(502, {"error": str(error)})

    do_GET = do_PUT = do_POST = _serve

    def _reply(self, status: int, answer: Any) -> None:
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Log nothing: standard error is for failures only."""

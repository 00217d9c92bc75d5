"""The service in the controller's process: policy, declared traffic, failed links, HTTP interface.

It computes; what puts rules into switches is told to. The last good rules stay in force whatever goes wrong here.
"""

from __future__ import annotations

import json
import secrets
import socket
import time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any, ClassVar

from testbed.net.controller.compat import Event, Lock, hub
from testbed.net.controller.process import Snapshot
from testbed.net.controller.rules import Rule, rule_to_data
from testbed.net.controller.switch_sessions import PortReport, PortReports
from testbed.net.errors import ControllerError, PolicyError

if TYPE_CHECKING:
    from testbed.net.controller.app import RuleInstaller
    from testbed.net.controller.rule_compiler import CompiledPolicy, PolicyChoice
    from testbed.net.controller.switch_sessions import Rules


INSTALL_TIMEOUT_S = 20.0
READ_TIMEOUT_S = 10.0


class PolicyService:
    """Sets policies, and computes anew when links go down or come back. Methods may be called from any thread."""

    def __init__(
        self, app: RuleInstaller, snapshot: Snapshot, report: Callable[[Mapping[str, Any]], None]
    ) -> None:
        self._app = app
        self._report = report
        self._snapshot = snapshot
        self._lock = Lock()
        self._loaded: _Loaded | None = None
        self._reports = PortReports(snapshot.reaction_s)
        self._stale = Event()
        app.ports_changed = self._note
        hub.spawn(self._follow_ports)

    # ---- operations: what the API offers

    def show(self) -> dict[str, Any]:
        """The policy in force, with its notes and queues, and how many rules each bridge should hold."""
        with self._lock:
            loaded = self._load()
            bridges = self._app.bridges()
            return {
                "policy": loaded.choice.to_data(),
                "replan": loaded.policy_replans,
                "reaction_s": self._snapshot.reaction_s,
                "rule_s": self._snapshot.rule_s,
                "seed": self._snapshot.seed,
                "flows": len(loaded.view.flows),
                "down": sorted(loaded.view.down),
                "rules": {
                    bridges.get(dpid, f"{dpid:016x}"): len(own) for dpid, own in self._app.rules.items()
                },
                "classes": [asdict(entry) for entry in loaded.computed.classes],
                "notes": dict(loaded.computed.notes),
            }

    def rules(self) -> dict[str, Any]:
        """All rules with their packet and byte counts, by bridge; read from the switches now."""
        counts: dict[int, list[tuple[Rule, int, int]]] = {}
        done = Event()

        def take(found: dict[int, list[tuple[Rule, int, int]]]) -> None:
            counts.update(found)
            done.set()

        self._app.call(lambda: self._app.read(take))
        if not done.wait(READ_TIMEOUT_S):
            raise ControllerError(f"not all switches answered within {READ_TIMEOUT_S:g} s")
        names = self._app.bridges()
        comments = {(dpid, rule): rule.comment for dpid, own in self._app.rules.items() for rule in own}
        return {
            names[dpid]: [
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

    def diff(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """What `set` would change: rules by bridge, and the queues as they would be. PolicyError."""
        with self._lock:
            _, computed = self._computed(asked)
            names = self._app.bridges()
            bridges = {}
            for dpid, own in computed.rules.items():
                now = self._app.rules[dpid]
                bridges[names.get(dpid, f"{dpid:016x}")] = {
                    "added": [str(rule) for rule in own if rule not in set(now)],
                    "removed": [str(rule) for rule in now if rule not in set(own)],
                }
            return {"bridges": bridges, "classes": [asdict(entry) for entry in computed.classes]}

    def set(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Put another policy, or other declared traffic, in force; returns when every switch holds its rules.

        asked: {name, options, replan, flows}; flows: as they are unless given. PolicyError, ControllerError: all is as
        it was.
        """
        begun_s = time.monotonic()
        with self._lock:
            loaded, computed = self._computed(asked)
            changed = self._install(computed)
            self._loaded = loaded
            self._report(
                {
                    "event": "policy",
                    "policy": loaded.choice.to_data(),
                    "rules": sum(map(len, computed.rules.values())),
                    "time_s": time.monotonic(),
                }
            )
        return {
            "rules": sum(map(len, computed.rules.values())),
            "changed": changed,
            "seconds": time.monotonic() - begun_s,
            "classes": [asdict(entry) for entry in computed.classes],
            "notes": dict(computed.notes),
        }

    # ---- within

    def _load(self) -> _Loaded:
        if self._loaded is None:
            self._loaded = _Loaded.of(self._snapshot)
        return self._loaded

    def _computed(self, asked: Mapping[str, Any]) -> tuple[_Loaded, CompiledPolicy]:
        loaded = self._load().changed(asked, self._links_down())
        return loaded, loaded.computed

    def _links_down(self, ports: Set[tuple[int, int]] | None = None) -> frozenset[str]:
        ports = self._app.down() if ports is None else ports
        return frozenset(name for name, ends in self._load().ends.items() if ends & ports)

    def _install(self, computed: CompiledPolicy) -> int:
        answer: list[str | None] = []
        done = Event()
        before = {dpid: set(own) for dpid, own in self._app.rules.items()}

        def take(error: str | None) -> None:
            answer.append(error)
            done.set()

        self._app.call(lambda: self._app.replace(computed.rules, take))
        # as if all rules and groups were taken out and put in, one by one
        most = max((2 * len(before[dpid]) + 2 * len(own) for dpid, own in computed.rules.items()), default=0)
        timeout_s = INSTALL_TIMEOUT_S + most * self._snapshot.rule_s
        if not done.wait(timeout_s):
            raise ControllerError(f"not all switches took the new rules within {timeout_s:g} s")
        if answer[0] is not None:
            raise ControllerError(answer[0])
        return sum(len(set(own) ^ before[dpid]) for dpid, own in computed.rules.items())

    def _follow_ports(self) -> None:
        if self._snapshot.policy:
            with self._lock:
                self._load()  # so that the first link that dies need not wait for it
        while True:
            self._stale.wait()
            self._stale.clear()
            while (wait_s := self._reports.wait_s(time.monotonic())) is not None:
                hub.sleep(wait_s)
                if report := self._reports.take(time.monotonic()):
                    self._react(report)

    def _note(self) -> None:
        """A port went down, or up: in the application's thread, which must not wait."""
        self._reports.add(PortReport(time.monotonic(), frozenset(self._app.down())))
        self._stale.set()

    def _react(self, report: PortReport) -> None:
        try:
            self._replan(report)
        except ControllerError as error:
            self._report({"event": "policy_error", "message": str(error), "time_s": time.monotonic()})

    def _replan(self, report: PortReport) -> None:
        with self._lock:
            loaded, down = self._load(), self._links_down(report.ports_down)
            if not loaded.policy_replans or down == loaded.view.down:
                return
            fresh = loaded.changed({}, down)
            changed = self._install(fresh.computed)
            self._loaded = fresh
            now_s = time.monotonic()
            said = {
                "down": sorted(down),
                "changed": changed,
                "seconds": now_s - report.time_s,
                "time_s": now_s,
            }
            self._report({"event": "replanned", **said})


def rules_for(snapshot: Snapshot) -> Rules:
    """The rules that a snapshot asks for. ControllerError."""
    return _Loaded.of(snapshot).computed.rules


@dataclass(frozen=True)
class _Loaded:
    """The snapshot in the forms that policies take; importing these takes a moment."""

    choice: PolicyChoice
    view: Any
    edges: Sequence[Any]
    computed: CompiledPolicy
    policy_replans: bool
    ends: Mapping[str, frozenset[tuple[int, int]]] = field(default_factory=dict)

    @classmethod
    def of(cls, snapshot: Snapshot) -> _Loaded:
        from pydantic import TypeAdapter  # noqa: PLC0415

        from testbed.net.controller.edges import edges_from_data, link_ports  # noqa: PLC0415
        from testbed.net.controller.policy_view import View, flows_from_data  # noqa: PLC0415
        from testbed.net.controller.rule_compiler import PolicyChoice, compute  # noqa: PLC0415
        from testbed.spec.topology import Topology  # noqa: PLC0415

        topology = TypeAdapter(Topology).validate_python(snapshot.topology)
        edges = edges_from_data(snapshot.edges)
        view = View(topology, flows_from_data(snapshot.flows), snapshot.down, snapshot.seed)
        ends: dict[str, set[tuple[int, int]]] = {}
        for edge in edges:
            for name, port in link_ports(topology, edge).items():
                ends.setdefault(name, set()).add((edge.dpid, port))
        choice = PolicyChoice(**snapshot.policy)
        frozen = {name: frozenset(found) for name, found in ends.items()}
        return cls(choice, view, edges, compute(choice, view, edges), choice.make().replan, frozen)

    def changed(self, asked: Mapping[str, Any], down: frozenset[str]) -> _Loaded:
        from testbed.net.controller.policy_view import flows_from_data  # noqa: PLC0415
        from testbed.net.controller.rule_compiler import PolicyChoice, compute  # noqa: PLC0415

        if unknown := sorted(set(asked) - {"name", "options", "replan", "flows"}):
            raise PolicyError(f"{unknown[0]}: is unknown; expected name, options, replan, flows")
        choice = self.choice
        if "name" in asked:
            choice = PolicyChoice(asked["name"], asked.get("options") or {}, asked.get("replan"))
        view = self.view
        if asked.get("flows") is not None:
            view = view.declaring(flows_from_data(asked["flows"]))
        policy_replans = choice.make().replan
        view = view.without(down if policy_replans else ())
        computed = compute(choice, view, self.edges)
        return _Loaded(choice, view, self.edges, computed, policy_replans, self.ends)


MAX_BODY_BYTES = 64 * 1024**2
TIMEOUT_S = 30.0


def handler(service: PolicyService, token: str) -> Callable[[socket.socket, Any], None]:
    """What answers one connection."""

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
            return self._say(401, {"error": "the token is missing or wrong"})
        route = self.routes.get((self.command, self.path))
        if route is None:
            return self._say(404, {"error": f"there is no {self.command} {self.path}"})
        try:
            size = int(self.headers.get("Content-Length") or 0)
            if size > MAX_BODY_BYTES:
                raise ValueError(f"a body of {size} bytes")
            body = json.loads(self.rfile.read(size)) if size else {}
            if not isinstance(body, dict):
                raise ValueError("the body is not an object")
            return self._say(200, route(body))
        except (PolicyError, ValueError, TypeError, KeyError) as error:
            return self._say(400, {"error": str(error)})
        except ControllerError as error:
            return self._say(502, {"error": str(error)})

    do_GET = do_PUT = do_POST = _serve

    def _say(self, status: int, answer: Any) -> None:
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Nothing: standard error is for what goes wrong."""

"""The controller application: puts given rules into switches, reads them back, says so. It decides nothing.

For each switch in turn: ask for its ports, clear flows and groups, send the rules, a barrier, then ask for all flows
and compare them with what was sent. A switch that comes back after it was done (a lost connection) is only read back,
so that a hiccup of the control channel does not disturb the packets.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from testbed.controller.compat import OPENFLOW_13, Application, ofp_event, on
from testbed.controller.openflow import clearing, flow_mod, rule_of
from testbed.controller.rules import Rule, ports_of

MAX_DIFFERENCES = 5

Report = Callable[[Mapping[str, Any]], None]


@dataclass
class _Session:
    """One connection of one switch."""

    datapath: Any
    bridge: str = ""
    sent: dict[int, Rule | None] = field(default_factory=dict)  # by transaction id; None: not a rule
    ports: set[int] = field(default_factory=set)
    flows: list[Any] = field(default_factory=list)
    refused: bool = False

    def __str__(self) -> str:
        return f"bridge {self.bridge} (datapath id {self.datapath.id:016x})"


def _guarded(handler: Callable[[RuleInstaller, Any], None]) -> Callable[[RuleInstaller, Any], None]:
    """The libraries log what a handler raises and go on; here it becomes an error event."""

    @functools.wraps(handler)
    def guarded(self: RuleInstaller, event: Any) -> None:
        try:
            handler(self, event)
        except Exception as error:
            self.fail(f"{handler.__name__}: {type(error).__name__}: {error}")
            raise

    return guarded


class RuleInstaller(Application):  # type: ignore[misc]  # the libraries have no types
    """Installs `rules` (by datapath id). `report` gets each event of the process as a mapping."""

    OFP_VERSIONS = (OPENFLOW_13,)

    def __init__(self, rules: Mapping[int, Sequence[Rule]], report: Report) -> None:
        super().__init__()
        self._rules = rules
        self._report = report
        self._sessions: dict[int, _Session] = {}
        self._installed: set[int] = set()

    def fail(self, message: str) -> None:
        """Report an error; the process goes on."""
        self._report({"event": "error", "message": message})

    @on(ofp_event.EventOFPStateChange)
    @_guarded
    def connected(self, event: Any) -> None:
        """A switch has said who it is: ask for its ports, among them the one that bears the bridge's name."""
        datapath = event.datapath
        if datapath.id not in self._rules:
            self.fail(f"a bridge with datapath id {datapath.id:016x} connected, for which there are no rules")
            return
        known = self._sessions.get(datapath.id)
        session = _Session(datapath, bridge=known.bridge if known else "")
        self._sessions[datapath.id] = session
        self._send(session, datapath.ofproto_parser.OFPPortDescStatsRequest(datapath, 0))

    @on(ofp_event.EventOFPPortDescStatsReply)
    @_guarded
    def ports_arrived(self, event: Any) -> None:
        """Check that every port the rules name is there, since switches accept rules for ports that are not."""
        session = self._session(event.msg)
        if session is None:
            return
        protocol = session.datapath.ofproto
        for port in event.msg.body:
            if port.port_no == protocol.OFPP_LOCAL:
                name = port.name.decode()
                if session.bridge not in ("", name):
                    self.fail(f"bridges {session.bridge} and {name} have the same datapath id")
                session.bridge = name
            session.ports.add(port.port_no)
        if event.msg.flags & protocol.OFPMPF_REPLY_MORE:
            return
        rules = self._rules[session.datapath.id]
        if missing := sorted(ports_of(rules) - session.ports):
            self.fail(
                f"{session}: no port {missing[0]}, which the rules name; it has {sorted(session.ports)}"
            )
        elif session.datapath.id in self._installed:
            self._ask_for_flows(session)
        else:
            self._install(session)

    def _install(self, session: _Session) -> None:
        for message in clearing(session.datapath):
            self._send(session, message)
        for cookie, rule in enumerate(self._rules[session.datapath.id], start=1):
            self._send(session, flow_mod(session.datapath, rule, cookie), rule)
        self._send(session, session.datapath.ofproto_parser.OFPBarrierRequest(session.datapath))

    @on(ofp_event.EventOFPErrorMsg)
    @_guarded
    def refused(self, event: Any) -> None:
        """A switch refuses a message: say which bridge, which rule, and why."""
        message = event.msg
        session = self._session(message)
        if session is None:
            return
        session.refused = True
        protocol = session.datapath.ofproto
        if message.type == protocol.OFPET_EXPERIMENTER:
            why = f"experimenter {message.experimenter:#x}, type {message.exp_type}"
        else:
            kind = protocol.ofp_error_type_to_str(message.type)
            why = f"{kind}, {protocol.ofp_error_code_to_str(message.type, message.code)}"
        rule = session.sent[message.xid]
        what = "a request" if rule is None else f"rule: {rule}"
        self.fail(f"{session} refused {what}: {why}")

    @on(ofp_event.EventOFPBarrierReply)
    @_guarded
    def processed(self, event: Any) -> None:
        """A switch has taken in all rules: read them back."""
        session = self._session(event.msg)
        if session is not None and not session.refused:
            self._ask_for_flows(session)

    def _ask_for_flows(self, session: _Session) -> None:
        session.flows.clear()
        self._send(session, session.datapath.ofproto_parser.OFPFlowStatsRequest(session.datapath))

    @on(ofp_event.EventOFPFlowStatsReply)
    @_guarded
    def flows_arrived(self, event: Any) -> None:
        """Compare what a switch holds with what it was sent."""
        session = self._session(event.msg)
        if session is None:
            return
        session.flows += event.msg.body
        if event.msg.flags & session.datapath.ofproto.OFPMPF_REPLY_MORE:
            return
        dpid = session.datapath.id
        wrong = differences(self._rules[dpid], session.datapath, session.flows)
        if dpid in self._installed:
            if wrong:
                self.fail(f"{session} had lost its rules, they are installed again: {wrong}")
                self._installed.remove(dpid)
                self._install(session)
            return
        if wrong:
            self.fail(f"{session} does not hold the rules it was sent: {wrong}")
            return
        self._installed.add(dpid)
        self._report(
            {"event": "installed", "dpid": dpid, "bridge": session.bridge, "rules": len(session.flows)}
        )
        if self._installed == set(self._rules):
            self._report({"event": "ready", "dpids": sorted(self._rules)})

    def _session(self, message: Any) -> _Session | None:
        """The session that a message answers; None for a connection since replaced, and for what we did not ask."""
        session = self._sessions.get(message.datapath.id)
        if session is None or session.datapath is not message.datapath or message.xid not in session.sent:
            return None
        return session

    def _send(self, session: _Session, message: Any, rule: Rule | None = None) -> None:
        session.datapath.set_xid(message)
        session.sent[message.xid] = rule
        session.datapath.send_msg(message)


def differences(rules: Sequence[Rule], datapath: Any, flows: Sequence[Any]) -> str:
    """How the flows of a switch differ from `rules`, in words; empty when they do not."""
    expected = Counter(rules)
    foreign: list[str] = []
    for flow in flows:
        try:
            rule = rule_of(datapath, flow)
        except ValueError as error:
            foreign.append(f"unknown: {error}")
            continue
        if expected[rule]:
            expected[rule] -= 1
        else:
            foreign.append(f"not sent: {rule}")
    words = [f"missing: {rule}" for rule in expected.elements()] + foreign
    more = [f"and {len(words) - MAX_DIFFERENCES} more"] if len(words) > MAX_DIFFERENCES else []
    return "; ".join(words[:MAX_DIFFERENCES] + more)

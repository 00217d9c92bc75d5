"""The controller application: puts given rules into switches, reads them back, says so. It decides nothing.

For each switch: ask for its ports and its flows; add the rules that are missing, delete the flows that are not ours and
all groups; a barrier; ask for the flows again and compare. Rules that are there already are left alone, so that neither
a lost connection nor a new controller disturbs packets (to clear a switch first would drop some: Open vSwitch goes on
using the decisions it has cached for a moment after a rule is added).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from testbed.controller.compat import OPENFLOW_13, Application, ofp_event, on
from testbed.controller.openflow import Difference, compare, flow_mod, flow_removal, group_removal
from testbed.controller.rules import Rule, ports_of

Report = Callable[[Mapping[str, Any]], None]


@dataclass
class _Session:
    """One connection of one switch."""

    datapath: Any
    bridge: str = ""
    sent: dict[int, Rule | None] = field(default_factory=dict)  # by transaction id; None: not a rule
    ports: set[int] = field(default_factory=set)
    flows: list[Any] = field(default_factory=list)
    written: bool = False
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
        if missing := sorted(ports_of(self._rules[session.datapath.id]) - session.ports):
            self.fail(
                f"{session}: no port {missing[0]}, which the rules name; it has {sorted(session.ports)}"
            )
        else:
            self._ask_for_flows(session)

    def _ask_for_flows(self, session: _Session) -> None:
        session.flows.clear()
        self._send(session, session.datapath.ofproto_parser.OFPFlowStatsRequest(session.datapath))

    @on(ofp_event.EventOFPFlowStatsReply)
    @_guarded
    def flows_arrived(self, event: Any) -> None:
        """Compare what a switch holds with what it should hold: before anything is sent, and again after."""
        session = self._session(event.msg)
        if session is None:
            return
        datapath = session.datapath
        session.flows += event.msg.body
        if event.msg.flags & datapath.ofproto.OFPMPF_REPLY_MORE:
            return
        difference = compare(self._rules[datapath.id], datapath, session.flows)
        if not difference:
            self._done(session)
        elif session.written:
            self.fail(f"{session} does not hold the rules it was sent: {difference.words(datapath)}")
        else:
            if datapath.id in self._installed:
                self.fail(
                    f"{session} had lost its rules, they are put in again: {difference.words(datapath)}"
                )
            self._write(session, difference)

    def _write(self, session: _Session, difference: Difference) -> None:
        session.written = True
        for rule in difference.missing:
            self._send(session, flow_mod(session.datapath, rule), rule)
        for flow in difference.foreign:
            if not difference.replaced(flow):
                self._send(session, flow_removal(session.datapath, flow))
        self._send(session, group_removal(session.datapath))
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

    def _done(self, session: _Session) -> None:
        dpid = session.datapath.id
        if dpid in self._installed:
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

"""The controller application: installs exactly the given rules in each switch, verifies them and repairs them.

For each switch it requests ports, groups and flows. One atomic bundle adds the missing rules and deletes foreign ones.
After a barrier it requests everything again and compares. Rules that are already there are not touched, so a lost
connection, a new controller or a new policy does not disturb unrelated traffic. A periodic check repairs rules that
someone else has changed.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from testbed.net.controller.compat import OPENFLOW_13, Application, Call, hub, ofp_event, on, on_call
from testbed.net.controller.openflow import BundleWriter, FlowEntry, parse_group
from testbed.net.controller.rules import Rule
from testbed.net.controller.switch_sessions import Change, DesiredState, Difference, Rules, Session

Report = Callable[[Mapping[str, Any]], None]

CHECK_INTERVAL_S = 2.0
MAX_ATTEMPTS = 2  # number of writes of the same rules after which a mismatch is an error


Handler = Callable[["RuleInstaller", Any], None]


def _handles(message: Any) -> Callable[[Handler], Handler]:
    """Decorate the handler of a message. Its exception becomes an error event; the libraries would only log it."""

    def decorate(handler: Handler) -> Handler:
        @functools.wraps(handler)
        def guarded(self: RuleInstaller, event: Any) -> None:
            try:
                handler(self, event)
            except Exception as error:
                self.fail(f"{handler.__name__}: {type(error).__name__}: {error}")
                raise

        return on(message)(guarded)

    return decorate


class RuleInstaller(Application):  # type: ignore[misc]  # the libraries have no types
    """The OpenFlow application that installs `rules` in the switches and keeps them there.

    All handlers run sequentially in the application's own thread; other threads schedule work there with `call`.

    Args:
        rules: The rules of every switch, by datapath id.
        report: Called with each event, as a mapping.
        rule_s: Modelled switch latency per rule change, in seconds. A switch applies a change as a whole, after the
            time for all its rules; the initial rules take no time.
    """

    OFP_VERSIONS = (OPENFLOW_13,)

    def __init__(self, rules: Rules, report: Report, rule_s: float = 0.0) -> None:
        super().__init__()
        self._rule_s = rule_s
        self._rules = dict(rules)
        self._report = report
        self._sessions: dict[int, Session] = {}
        self._installed: set[int] = set()
        self._change: Change | None = None
        self._reads: list[tuple[set[int], Callable[[], None]]] = []
        self.ports_changed: Callable[[], None] = lambda: None

    def fail(self, message: str) -> None:
        """Report an error event; the process keeps running."""
        self._report({"event": "error", "message": message})

    def call(self, function: Callable[[], None]) -> None:
        """Run a function in the application's thread."""
        self._send_event(Call(function), None)

    def call_later(self, delay_s: float, function: Callable[[], None]) -> None:
        """Run a function in the application's thread after a delay in seconds, if the process still runs then."""
        hub.spawn_after(delay_s, self.call, function)

    @on_call
    def run_call(self, event: Any) -> None:
        """Run the function of a `call`."""
        event.function()

    def start(self) -> Any:
        """Start the application and its periodic check of all switches."""
        thread = super().start()
        hub.spawn(self._check_periodically)
        return thread

    def _check_periodically(self) -> None:
        while True:
            hub.sleep(CHECK_INTERVAL_S)
            self.call(self.check)

    def check(self) -> None:
        """Request the rules of all idle switches, to compare them with the desired ones."""
        for session in self._sessions.values():
            if not session.busy and session.ports:
                self._request_state(session)

    # ---- operations for other modules; they run in the application's thread

    @property
    def rules(self) -> Rules:
        """The rules that the switches should hold, by datapath id."""
        return self._rules

    def ports_down(self) -> set[tuple[int, int]]:
        """Return (datapath id, port) of all ports that are down."""
        return {
            (dpid, port)
            for dpid, session in self._sessions.items()
            for port, up in session.ports.items()
            if not up
        }

    def bridge_names(self) -> dict[int, str]:
        """Return the names of the connected switches, by datapath id."""
        return {dpid: session.bridge for dpid, session in self._sessions.items()}

    def replace(self, rules: Rules, done: Callable[[str | None], None]) -> None:
        """Install other rules in all switches, or in none; call `done(error)` at the end, with None for success."""
        if obstacle := self._obstacle(rules):
            done(obstacle)
            return
        self._change = Change(self._rules, set(rules), done)
        self._rules = dict(rules)
        for session in self._sessions.values():
            self._resync(session)

    def _obstacle(self, rules: Rules) -> str | None:
        """Return why other rules cannot be installed now; None if they can."""
        if self._change is not None:
            return "another change is under way"
        if set(rules) != set(self._rules):
            return f"rules for datapaths {sorted(rules)}, expected {sorted(self._rules)}"
        absent = [f"{dpid:016x}" for dpid in self._rules if dpid not in self._sessions]
        if absent:
            return f"bridges with datapath ids {', '.join(absent)} are not connected"
        obstacles = (session.missing_port(rules[dpid]) for dpid, session in self._sessions.items())
        return next(filter(None, obstacles), None)

    def read_counters(self, done: Callable[[dict[int, list[tuple[Rule, int, int]]]], None]) -> None:
        """Read the counters of all switches; call `done` with (rule, packets, bytes) by datapath id."""

        def finish() -> None:
            done({dpid: self._counts(session) for dpid, session in self._sessions.items()})

        self._reads.append((set(self._sessions), finish))
        for session in self._sessions.values():
            if not session.busy:
                self._request_state(session)

    def _counts(self, session: Session) -> list[tuple[Rule, int, int]]:
        desired = session.desired or DesiredState(session.datapath, self._rules[session.datapath.id])
        return desired.counts(session.flows)

    # ---- handlers of OpenFlow messages

    @_handles(ofp_event.EventOFPStateChange)
    def connected(self, event: Any) -> None:
        """Open a session for a switch that has identified itself, and request its ports."""
        datapath = event.datapath
        if datapath.id not in self._rules:
            self.fail(f"a bridge with datapath id {datapath.id:016x} connected, for which there are no rules")
            return
        FlowEntry.install_parser(datapath.ofproto_parser)
        known = self._sessions.get(datapath.id)
        session = Session(datapath, bridge=known.bridge if known else "")
        self._sessions[datapath.id] = session
        self._send(session, datapath.ofproto_parser.OFPPortDescStatsRequest(datapath, 0))

    @_handles(ofp_event.EventOFPPortDescStatsReply)
    def ports_arrived(self, event: Any) -> None:
        """Check that every port in the rules exists, since switches accept rules for missing ports."""
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
            session.ports[port.port_no] = self._up(session, port)
        if event.msg.flags & protocol.OFPMPF_REPLY_MORE:
            return
        if message := session.missing_port(self._rules[session.datapath.id]):
            self.fail(message)
        else:
            self._request_state(session)
            if not all(session.ports.values()):
                self.ports_changed()

    @staticmethod
    def _up(session: Session, port: Any) -> bool:
        protocol = session.datapath.ofproto
        if port.port_no == protocol.OFPP_LOCAL:
            return True  # a bridge's local port is never brought up
        return not (port.state & protocol.OFPPS_LINK_DOWN or port.config & protocol.OFPPC_PORT_DOWN)

    @_handles(ofp_event.EventOFPPortStatus)
    def port_changed(self, event: Any) -> None:
        """Report a port that went down or came up."""
        session = self._sessions.get(event.msg.datapath.id)
        port = event.msg.desc
        if session is None or session.datapath is not event.msg.datapath or port.port_no not in session.ports:
            return
        up = event.msg.reason != session.datapath.ofproto.OFPPR_DELETE and self._up(session, port)
        if session.ports[port.port_no] != up:
            session.ports[port.port_no] = up
            port_event = {"event": "port", "dpid": session.datapath.id, "port": port.port_no, "up": up}
            self._report({**port_event, "time_s": time.monotonic()})
            self.ports_changed()

    def _resync(self, session: Session) -> None:
        """Start over with new rules; replies to earlier requests are ignored."""
        session.sent.clear()
        session.desired, session.writes, session.refused = None, 0, False
        self._request_state(session)

    def _request_state(self, session: Session) -> None:
        """Request all groups, then all flows."""
        session.busy = True
        session.groups.clear()
        session.flows.clear()
        parser = session.datapath.ofproto_parser
        self._send(session, parser.OFPGroupDescStatsRequest(session.datapath, 0))
        self._send(session, parser.OFPFlowStatsRequest(session.datapath))

    @_handles(ofp_event.EventOFPGroupDescStatsReply)
    def groups_arrived(self, event: Any) -> None:
        """Record the groups of a switch; replies come in request order, so flows are next."""
        session = self._session(event.msg)
        if session is not None:
            for entry in event.msg.body:
                session.groups[entry.group_id] = parse_group(session.datapath, entry)

    @_handles(ofp_event.EventOFPFlowStatsReply)
    def flows_arrived(self, event: Any) -> None:
        """Compare the rules of a switch with the desired ones, both before a write and after it."""
        session = self._session(event.msg)
        if session is None:
            return
        datapath = session.datapath
        session.flows += event.msg.body
        if event.msg.flags & datapath.ofproto.OFPMPF_REPLY_MORE:
            return
        if session.desired is None:
            session.desired = DesiredState(datapath, self._rules[datapath.id])
        known = {number: group for number, group in session.groups.items() if group is not None}
        difference = session.desired.compare(datapath, session.flows, known)
        if not difference and session.groups == session.desired.groups:
            self._finish(session)
        elif session.writes >= MAX_ATTEMPTS:
            self._roll_back(
                session, f"{session} does not hold the rules it was sent: {difference.describe(datapath)}"
            )
        else:
            if datapath.id in self._installed and not session.writes and self._change is None:
                words = difference.describe(datapath) or "groups"
                what = {"dpid": datapath.id, "bridge": session.bridge, "words": words}
                self._report({"event": "repaired", **what, "time_s": time.monotonic()})
            self._schedule_write(session, session.desired, difference)

    def _schedule_write(self, session: Session, desired: DesiredState, difference: Difference) -> None:
        """Write the changes after the modelled switch latency; the initial rules have none."""
        session.writes += 1
        changes = list(desired.changes(session.datapath, difference, session.groups))
        if self._change is not None:
            self._change.changed += len(difference.missing) + len(difference.foreign)
        delay_s = self._rule_s * len(changes) if session.datapath.id in self._installed else 0.0
        if not delay_s:
            self._write(session, changes)
            return

        def write() -> None:
            # The switch may have reconnected, or other rules may be desired by now.
            if self._sessions.get(session.datapath.id) is session and session.desired is desired:
                self._write(session, changes)

        self.call_later(delay_s, write)

    def _write(self, session: Session, changes: Sequence[tuple[Any, Rule | None]]) -> None:
        session.bundles += 1
        datapath = session.datapath
        bundle = BundleWriter(datapath, session.bundles, lambda message: self._send(session, message))
        for message, rule in changes:
            bundle.add(message)
            session.sent[message.xid] = rule
        bundle.commit()
        self._send(session, datapath.ofproto_parser.OFPBarrierRequest(datapath))

    @_handles(ofp_event.EventOFPErrorMsg)
    def refused(self, event: Any) -> None:
        """Report a refused message with bridge, rule and reason, and roll back."""
        message = event.msg
        session = self._session(message)
        if session is None or session.refused:
            return  # later refusals follow from the first one
        session.refused = True
        protocol = session.datapath.ofproto
        if message.type == protocol.OFPET_EXPERIMENTER:
            why = f"experimenter {message.experimenter:#x}, type {message.exp_type}"
        else:
            kind = protocol.ofp_error_type_to_str(message.type)
            why = f"{kind}, {protocol.ofp_error_code_to_str(message.type, message.code)}"
        rule = session.sent[message.xid]
        what = "a request" if rule is None else f"rule: {rule}"
        self._roll_back(session, f"{session} refused {what}: {why}")

    @_handles(ofp_event.EventOFPBarrierReply)
    def processed(self, event: Any) -> None:
        """Read the rules back once a switch has processed all of them."""
        session = self._session(event.msg)
        if session is not None and not session.refused:
            self._request_state(session)

    def _roll_back(self, session: Session, message: str) -> None:
        """Restore the previous rules in all switches; report an error if no change was under way."""
        session.busy = False
        change, self._change = self._change, None
        if change is None:
            self.fail(message)
            return
        self._rules = dict(change.former)
        for other in self._sessions.values():
            self._resync(other)
        change.done(message)

    def _finish(self, session: Session) -> None:
        dpid = session.datapath.id
        session.busy, session.writes = False, 0
        session.sent.clear()
        self._answer_reads(dpid)
        if self._change is not None:
            self._change.pending.discard(dpid)
            if not self._change.pending:
                change, self._change = self._change, None
                now_s = time.monotonic()
                changed = {"rules": change.changed, "seconds": now_s - change.begun_s, "time_s": now_s}
                self._report({"event": "changed", **changed})
                change.done(None)
        if dpid in self._installed:
            return
        self._installed.add(dpid)
        self._report(
            {"event": "installed", "dpid": dpid, "bridge": session.bridge, "rules": len(session.flows)}
        )
        if self._installed == set(self._rules):
            self._report({"event": "ready", "dpids": sorted(self._rules)})

    def _answer_reads(self, dpid: int) -> None:
        for pending, done in list(self._reads):
            pending.discard(dpid)
            if not pending:
                self._reads.remove((pending, done))
                done()

    def _session(self, message: Any) -> Session | None:
        """Return the session that a reply belongs to; None for a stale connection or an unsolicited message."""
        session = self._sessions.get(message.datapath.id)
        if session is None or session.datapath is not message.datapath or message.xid not in session.sent:
            return None
        return session

    def _send(self, session: Session, message: Any) -> int:
        session.datapath.set_xid(message)
        session.sent[message.xid] = None
        session.datapath.send_msg(message)
        return int(message.xid)

"""The controller application: brings switches to hold exactly given rules, reads them back, says so, keeps them so.

For each switch: ask for its ports, groups and flows; put what is missing and take what is not ours in one bundle, which
the switch carries out as a whole; a barrier; ask for all of it again and compare. What is there already is left alone,
so that neither a lost connection, nor a new controller, nor a new policy disturbs packets that it does not concern.
Every now and then it looks again, and repairs what somebody else has changed.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from testbed.net.controller.compat import OPENFLOW_13, Application, Call, hub, ofp_event, on, on_call
from testbed.net.controller.openflow import BundleWriter, FlowEntry, group_of
from testbed.net.controller.rules import Rule, ports_of
from testbed.net.controller.switch_sessions import Change, DesiredState, Difference, Rules, Session

Report = Callable[[Mapping[str, Any]], None]

LOOK_INTERVAL_S = 2.0
ATTEMPTS = 2  # to write the same rules, before it is an error that a switch does not hold them


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
    """Keeps `rules` (by datapath id) in the switches. `report` gets each event of the process as a mapping.

    A switch that holds its rules is taken to need `rule_s` for each change to them, and holds none of a change before
    it is through with all.

    All handlers run one after the other in the application's own thread; others get there through `call`.
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
        """Report an error; the process goes on."""
        self._report({"event": "error", "message": message})

    def call(self, work: Callable[[], None]) -> None:
        """Have something done in the application's thread."""
        self._send_event(Call(work), None)

    def later(self, delay_s: float, work: Callable[[], None]) -> None:
        """Have something done in the application's thread, so many seconds from now; a process that ends forgets it."""
        hub.spawn_after(delay_s, self.call, work)

    @on_call
    def called(self, event: Any) -> None:
        """See `call`."""
        event.work()

    def start(self) -> Any:
        """Begin, and look at the switches every now and then."""
        thread = super().start()
        hub.spawn(self._look_again)
        return thread

    def _look_again(self) -> None:
        while True:
            hub.sleep(LOOK_INTERVAL_S)
            self.call(self.look)

    def look(self) -> None:
        """Compare what all switches hold with what they should."""
        for session in self._sessions.values():
            if not session.busy and session.ports:
                self._ask(session)

    # ---- what others may ask for, in the application's thread

    @property
    def rules(self) -> Rules:
        """What the switches should hold."""
        return self._rules

    def down(self) -> set[tuple[int, int]]:
        """(datapath id, port) of all ports that are down."""
        return {
            (dpid, port)
            for dpid, session in self._sessions.items()
            for port, up in session.ports.items()
            if not up
        }

    def bridges(self) -> dict[int, str]:
        """The names of the switches that are connected."""
        return {dpid: session.bridge for dpid, session in self._sessions.items()}

    def replace(self, rules: Rules, done: Callable[[str | None], None]) -> None:
        """Bring all switches to other rules; `done(error)` when all hold them, or none does."""
        if self._change is not None:
            done("another change is under way")
            return
        if set(rules) != set(self._rules):
            done(f"rules for datapaths {sorted(rules)}, expected {sorted(self._rules)}")
            return
        gone = [f"{dpid:016x}" for dpid in self._rules if dpid not in self._sessions]
        if gone:
            done(f"bridges with datapath ids {', '.join(gone)} are not connected")
            return
        for dpid, session in self._sessions.items():
            if missing := sorted(ports_of(rules[dpid]) - set(session.ports)):
                done(f"{session}: no port {missing[0]}, which the rules name; it has {sorted(session.ports)}")
                return
        self._change = Change(self._rules, set(rules), done)
        self._rules = dict(rules)
        for session in self._sessions.values():
            self._renew(session)

    def read(self, done: Callable[[dict[int, list[tuple[Rule, int, int]]]], None]) -> None:
        """`done` gets (rule, packets, bytes) of all switches, as they count them."""

        def counted() -> None:
            done({dpid: self._counts(session) for dpid, session in self._sessions.items()})

        self._reads.append((set(self._sessions), counted))
        for session in self._sessions.values():
            if not session.busy:
                self._ask(session)

    def _counts(self, session: Session) -> list[tuple[Rule, int, int]]:
        wanted = session.wanted or DesiredState(session.datapath, self._rules[session.datapath.id])
        return wanted.counts(session.flows)

    # ---- what switches say

    @on(ofp_event.EventOFPStateChange)
    @_guarded
    def connected(self, event: Any) -> None:
        """A switch has said who it is: ask for its ports, among them the one that bears the bridge's name."""
        datapath = event.datapath
        if datapath.id not in self._rules:
            self.fail(f"a bridge with datapath id {datapath.id:016x} connected, for which there are no rules")
            return
        FlowEntry.use(datapath.ofproto_parser)
        known = self._sessions.get(datapath.id)
        session = Session(datapath, bridge=known.bridge if known else "")
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
            session.ports[port.port_no] = self._up(session, port)
        if event.msg.flags & protocol.OFPMPF_REPLY_MORE:
            return
        if missing := sorted(ports_of(self._rules[session.datapath.id]) - set(session.ports)):
            self.fail(
                f"{session}: no port {missing[0]}, which the rules name; it has {sorted(session.ports)}"
            )
        else:
            self._ask(session)
            if not all(session.ports.values()):
                self.ports_changed()

    @staticmethod
    def _up(session: Session, port: Any) -> bool:
        protocol = session.datapath.ofproto
        if port.port_no == protocol.OFPP_LOCAL:
            return True  # a bridge's own port is never brought up
        return not (port.state & protocol.OFPPS_LINK_DOWN or port.config & protocol.OFPPC_PORT_DOWN)

    @on(ofp_event.EventOFPPortStatus)
    @_guarded
    def port_changed(self, event: Any) -> None:
        """A port went down, or up."""
        session = self._sessions.get(event.msg.datapath.id)
        port = event.msg.desc
        if session is None or session.datapath is not event.msg.datapath or port.port_no not in session.ports:
            return
        up = event.msg.reason != session.datapath.ofproto.OFPPR_DELETE and self._up(session, port)
        if session.ports[port.port_no] != up:
            session.ports[port.port_no] = up
            self._report(
                {"event": "port", "dpid": session.datapath.id, "port": port.port_no, "up": up, **_now()}
            )
            self.ports_changed()

    def _renew(self, session: Session) -> None:
        """Rules are new: whatever was under way is not waited for."""
        session.sent.clear()
        session.wanted, session.written, session.refused = None, 0, False
        self._ask(session)

    def _ask(self, session: Session) -> None:
        """For all groups, then for all flows."""
        session.busy = True
        session.groups.clear()
        session.flows.clear()
        parser = session.datapath.ofproto_parser
        self._send(session, parser.OFPGroupDescStatsRequest(session.datapath, 0))
        self._send(session, parser.OFPFlowStatsRequest(session.datapath))

    @on(ofp_event.EventOFPGroupDescStatsReply)
    @_guarded
    def groups_arrived(self, event: Any) -> None:
        """Note which groups a switch has; it answers in the order in which it was asked, so flows come next."""
        session = self._session(event.msg)
        if session is not None:
            for entry in event.msg.body:
                session.groups[entry.group_id] = group_of(session.datapath, entry)

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
        if session.wanted is None:
            session.wanted = DesiredState(datapath, self._rules[datapath.id])
        known = {number: group for number, group in session.groups.items() if group is not None}
        difference = session.wanted.compare(datapath, session.flows, known)
        if not difference and session.groups == session.wanted.groups:
            self._done(session)
        elif session.written >= ATTEMPTS:
            self._trouble(
                session, f"{session} does not hold the rules it was sent: {difference.words(datapath)}"
            )
        else:
            if datapath.id in self._installed and not session.written and self._change is None:
                words = difference.words(datapath) or "groups"
                what = {"dpid": datapath.id, "bridge": session.bridge, "words": words}
                self._report({"event": "repaired", **what, **_now()})
            self._prepare(session, session.wanted, difference)

    def _prepare(self, session: Session, wanted: DesiredState, difference: Difference) -> None:
        """Have a switch changed after the time that it needs for it; the first rules of all take none."""
        session.written += 1
        changes = list(wanted.changes(session.datapath, difference, session.groups))
        if self._change is not None:
            self._change.changed += len(difference.missing) + len(difference.foreign)
        delay_s = self._rule_s * len(changes) if session.datapath.id in self._installed else 0.0
        if not delay_s:
            self._write(session, changes)
            return

        def write() -> None:
            # unless it has connected anew meanwhile, or is to hold other rules
            if self._sessions.get(session.datapath.id) is session and session.wanted is wanted:
                self._write(session, changes)

        self.later(delay_s, write)

    def _write(self, session: Session, changes: Sequence[tuple[Any, Rule | None]]) -> None:
        session.bundles += 1
        datapath = session.datapath
        bundle = BundleWriter(datapath, session.bundles, lambda message: self._send(session, message))
        for message, rule in changes:
            bundle.add(message)
            session.sent[message.xid] = rule
        bundle.commit()
        self._send(session, datapath.ofproto_parser.OFPBarrierRequest(datapath))

    @on(ofp_event.EventOFPErrorMsg)
    @_guarded
    def refused(self, event: Any) -> None:
        """A switch refuses a message: say which bridge, which rule, and why."""
        message = event.msg
        session = self._session(message)
        if session is None or session.refused:
            return  # the first refusal says it; others follow from it
        session.refused = True
        protocol = session.datapath.ofproto
        if message.type == protocol.OFPET_EXPERIMENTER:
            why = f"experimenter {message.experimenter:#x}, type {message.exp_type}"
        else:
            kind = protocol.ofp_error_type_to_str(message.type)
            why = f"{kind}, {protocol.ofp_error_code_to_str(message.type, message.code)}"
        rule = session.sent[message.xid]
        what = "a request" if rule is None else f"rule: {rule}"
        self._trouble(session, f"{session} refused {what}: {why}")

    @on(ofp_event.EventOFPBarrierReply)
    @_guarded
    def processed(self, event: Any) -> None:
        """A switch has taken in all rules: read them back."""
        session = self._session(event.msg)
        if session is not None and not session.refused:
            self._ask(session)

    def _trouble(self, session: Session, message: str) -> None:
        """A switch does not take its rules: all go back to those before, or, where there are none, it is an error."""
        session.busy = False
        change, self._change = self._change, None
        if change is None:
            self.fail(message)
            return
        self._rules = dict(change.former)
        for other in self._sessions.values():
            self._renew(other)
        change.done(message)

    def _done(self, session: Session) -> None:
        dpid = session.datapath.id
        session.busy, session.written = False, 0
        session.sent.clear()
        self._answer_reads(dpid)
        if self._change is not None:
            self._change.waiting.discard(dpid)
            if not self._change.waiting:
                change, self._change = self._change, None
                took_s = time.monotonic() - change.begun_s
                self._report({"event": "changed", "rules": change.changed, "seconds": took_s, **_now()})
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
        for waiting, done in list(self._reads):
            waiting.discard(dpid)
            if not waiting:
                self._reads.remove((waiting, done))
                done()

    def _session(self, message: Any) -> Session | None:
        """The session that a message answers; None for a connection since replaced, and for what we did not ask."""
        session = self._sessions.get(message.datapath.id)
        if session is None or session.datapath is not message.datapath or message.xid not in session.sent:
            return None
        return session

    def _send(self, session: Session, message: Any) -> int:
        session.datapath.set_xid(message)
        session.sent[message.xid] = None
        session.datapath.send_msg(message)
        return int(message.xid)


def _now() -> dict[str, float]:
    return {"time_s": time.monotonic()}

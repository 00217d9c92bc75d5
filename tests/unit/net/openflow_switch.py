"""A switch that speaks OpenFlow's bytes, in memory: it takes what the controller's application sends, and answers."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from os_ken.ofproto import ofproto_v1_3 as protocol
from os_ken.ofproto import ofproto_v1_3_parser as parser
from os_ken.ofproto.ofproto_protocol import ProtocolDesc

from testbed.net.controller.app import RuleInstaller
from testbed.net.controller.openflow import FlowEntry, FlowMod
from testbed.net.controller.rules import Rule

DATAPATH = ProtocolDesc(version=protocol.OFP_VERSION)
HEADER = struct.Struct("!BBHI")
BUNDLE_HEADER_BYTES = 24
FLOW_STATS = struct.Struct("!HBxIIHHHH4xQQQ")
FlowEntry.install_parser(parser)


def entry(message: Any, packets: int = 0, size: int = 0, **changes: int) -> FlowEntry:
    """A flow mod as an entry of a flow statistics reply."""
    if message.xid is None:
        message.set_xid(1)
    if message.buf is None:
        message.serialize()
    values = {
        name: getattr(message, name) for name in ("table_id", "priority", "idle_timeout", "hard_timeout")
    }
    values |= changes
    rest = bytes(message.buf[48:])
    head = FLOW_STATS.pack(
        FLOW_STATS.size + len(rest),
        values["table_id"],
        *(0, 0),
        values["priority"],
        values["idle_timeout"],
        values["hard_timeout"],
        *(0, 0),
        packets,
        size,
    )
    return FlowEntry(head + rest, 0)


def entries(rules: Sequence[Rule]) -> list[FlowEntry]:
    """Rules as a switch shows them."""
    return [entry(FlowMod(DATAPATH, rule)) for rule in rules]


class Switch(ProtocolDesc):  # type: ignore[misc]  # os-ken has no types
    """One connection of a switch with these ports, as the library shows it to an application.

    What it is sent waits until `run`. `refuse(rule)` says which rules it refuses; `forgets` that it acknowledges and
    does nothing; `sent` names all messages that came, bundles in brackets.
    """

    def __init__(self, dpid: int, name: str = "edge", ports: Sequence[int] = (1, 3, 4)) -> None:
        super().__init__(version=protocol.OFP_VERSION)
        self.id = dpid
        self.name = name
        self.ports = dict.fromkeys(ports, True)
        self.flows: dict[tuple[int, int, bytes], FlowEntry] = {}
        self.groups: dict[int, Any] = {}
        self.sent: list[str] = []
        self.refuse: Callable[[Any], bool] = lambda message: False
        self.forgets = False
        self.parts = 1
        self._next = 1000
        self._bundle: list[Any] = []
        self._waiting: deque[tuple[str, Any]] = deque()

    def hold(self, rules: Sequence[Rule]) -> None:
        """Have these flows in place of all others."""
        self.flows = {self._place(found): found for found in entries(rules)}

    def set_xid(self, message: Any) -> None:
        self._next += 1
        message.set_xid(self._next)

    def send_msg(self, message: Any) -> None:
        if message.xid is None:
            self.set_xid(message)
        message.serialize()
        self.send(bytes(message.buf))

    def send(self, buffer: bytes) -> bool:
        _, kind, length, xid = HEADER.unpack_from(buffer)
        if length < len(buffer):
            self.send(buffer[:length])
            return self.send(buffer[length:])
        assert length == len(buffer)
        if kind == protocol.OFPT_EXPERIMENTER:
            _, subtype = struct.unpack_from("!II", buffer, 8)
            if subtype == protocol.ONF_ET_BUNDLE_ADD_MESSAGE:
                self._add(buffer[BUNDLE_HEADER_BYTES:], xid)
            else:
                self._control(struct.unpack_from("!IHH", buffer, 16)[1])
            return True
        if kind == protocol.OFPT_BARRIER_REQUEST:
            self._answer("processed", xid)
        elif kind == protocol.OFPT_MULTIPART_REQUEST:
            (asked,) = struct.unpack_from("!H", buffer, 8)
            {
                protocol.OFPMP_PORT_DESC: self._ports,
                protocol.OFPMP_GROUP_DESC: self._group_descriptions,
                protocol.OFPMP_FLOW: self._flow_statistics,
            }[asked](xid)
        else:
            raise AssertionError(f"a message of type {kind} outside of a bundle")
        return True

    def _add(self, inner: bytes, xid: int) -> None:
        _, kind, length, inner_xid = HEADER.unpack_from(inner)
        assert (length, inner_xid) == (len(inner), xid)
        made = {protocol.OFPT_FLOW_MOD: parser.OFPFlowMod, protocol.OFPT_GROUP_MOD: parser.OFPGroupMod}[kind]
        if made is parser.OFPFlowMod:
            message = made.parser(self, protocol.OFP_VERSION, kind, length, xid, bytearray(inner))
            message.instructions = message.instructions or []
        else:
            command, group_type, number = struct.unpack_from("!HBxI", inner, 8)
            message = SimpleNamespace(command=command, type=group_type, group_id=number, buckets=[])
            offset = 16
            while offset < len(inner):
                message.buckets.append(parser.OFPBucket.parser(inner, offset))
                offset += message.buckets[-1].len
        message.buf, message.xid = inner, xid
        self._bundle.append(message)

    def _control(self, what: int) -> None:
        if what == protocol.ONF_BCT_OPEN_REQUEST:
            self._bundle = []
        elif what == protocol.ONF_BCT_COMMIT_REQUEST:
            self.sent.append(f"[{', '.join(map(self._word, self._bundle))}]")
            refused = [message for message in self._bundle if self.refuse(message)]
            if refused:
                self._answer("refused", refused[0].xid, type=protocol.OFPET_BAD_ACTION, code=4)
            elif not self.forgets:
                for message in self._bundle:
                    self._carry_out(message)

    @staticmethod
    def _word(message: Any) -> str:
        commands = {protocol.OFPFC_ADD: "+", protocol.OFPFC_DELETE_STRICT: "-"}
        if hasattr(message, "priority"):
            return f"{commands[message.command]}{message.priority}"
        return f"{'+' if message.command == protocol.OFPGC_ADD else '-'}group"

    def _carry_out(self, message: Any) -> None:
        if not hasattr(message, "priority"):
            if message.command == protocol.OFPGC_ADD:
                assert message.group_id not in self.groups
                self.groups[message.group_id] = message
            else:
                del self.groups[message.group_id]
        elif message.command == protocol.OFPFC_ADD:
            found = entry(message)
            self.flows[self._place(found)] = found
        else:
            del self.flows[self._place(entry(message))]

    @staticmethod
    def _place(found: FlowEntry) -> tuple[int, int, bytes]:
        (length,) = struct.unpack_from("!H", found.raw, FLOW_STATS.size + 2)
        return found.table_id, found.priority, found.raw[FLOW_STATS.size :][: (length + 7) // 8 * 8]

    def _answer(self, handler: str, xid: int, **fields: Any) -> None:
        self._waiting.append((handler, SimpleNamespace(datapath=self, xid=xid, **{"flags": 0, **fields})))

    def port(self, number: int) -> Any:
        """A port's description."""
        local = number == protocol.OFPP_LOCAL
        state = 0 if local or self.ports[number] else protocol.OFPPS_LINK_DOWN
        return SimpleNamespace(port_no=number, name=self.name.encode(), state=state, config=0)

    def _ports(self, xid: int) -> None:
        self.sent.append("ports")
        self._answer("ports_arrived", xid, body=[self.port(n) for n in (protocol.OFPP_LOCAL, *self.ports)])

    def _group_descriptions(self, xid: int) -> None:
        self._answer("groups_arrived", xid, body=list(self.groups.values()))

    def _flow_statistics(self, xid: int) -> None:
        self.sent.append("flows")
        found = list(self.flows.values())
        size = -(-len(found) // self.parts) or 1
        pieces = [found[start : start + size] for start in range(0, len(found), size)] or [[]]
        for piece in pieces:
            last = piece is pieces[-1]
            self._answer("flows_arrived", xid, body=piece, flags=0 if last else protocol.OFPMPF_REPLY_MORE)


class Dialogue:
    """An application for these switches, and the events it reported."""

    def __init__(self, rules: Mapping[int, Sequence[Rule]], rule_s: float = 0.0) -> None:
        self.events: list[Mapping[str, Any]] = []
        made: Any = RuleInstaller
        self.app: Any = made(rules=rules, report=self.events.append, rule_s=rule_s)
        self.later: list[
            tuple[float, Callable[[], None]]
        ] = []  # what the application wants done, and in what time
        self.app.call_later = lambda delay_s, work: self.later.append((delay_s, work))
        self.switches: dict[int, Switch] = {}

    def connect(self, switch: Switch) -> None:
        """The switch connects; nothing it has to say is heard yet."""
        self.switches[switch.id] = switch
        self.app.connected(SimpleNamespace(datapath=switch))

    def run(self, most: int = 1000) -> None:
        """Let all switches answer, in turn, until nobody has anything to say."""
        for _ in range(most):
            said = [s._waiting.popleft() for s in self.switches.values() if s._waiting]
            if not said:
                return
            for handler, message in said:
                getattr(self.app, handler)(SimpleNamespace(msg=message))

    def install(self, *switches: Switch) -> None:
        """They connect, and all is said."""
        for switch in switches:
            self.connect(switch)
        self.run()

    def wait(self) -> list[float]:
        """All that the application waits for has come, and is answered; returns how long that was each time."""
        waited, self.later = self.later, []
        for _, work in waited:
            work()
        self.run()
        return [delay_s for delay_s, _ in waited]

    def set_port(self, switch: Switch, port: int, up: bool) -> None:
        """A port goes down or up."""
        switch.ports[port] = up
        message = SimpleNamespace(datapath=switch, desc=switch.port(port), reason=protocol.OFPPR_MODIFY)
        self.app.port_changed(SimpleNamespace(msg=message))

    @property
    def errors(self) -> list[str]:
        return [event["message"] for event in self.events if event["event"] == "error"]

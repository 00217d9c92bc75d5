"""Everything that the kernel holds of a fabric's namespaces, compared with what it was: what was changed, by whom ever.

Every queue, class, filter, route, rule, address, neighbour, forwarding entry, interface, offload and kernel parameter,
and what hosts' TCP connections go by. What is changed and changed back between two looks is told by the kernel's own
events, but for connections.
"""

from __future__ import annotations

import select
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from testbed.net.links import state_diff
from testbed.net.links.namespace_state import OFFLOADS, Event, Key, NamespaceState, State, is_permanent
from testbed.net.links.socket_table import SocketTable
from testbed.net.links.sysctl import SysctlWatcher

EVERYTHING = "*"  # of a namespace
HOSTS_IN_TURN = 8  # whose connections are looked at each time
TURNS = 10  # looks until all namespaces were compared: all at once would take a twentieth of a short step


@dataclass(frozen=True)
class WatchedNamespace:
    """A namespace to be looked at: that of process `pid` (None: the machine's own, of which only `interfaces` count).

    sends: connections go by its kernel parameters, which are read before and after, and not only listened to.
    """

    name: str
    pid: int | None
    interfaces: tuple[str, ...]
    sends: bool = False

    def counts(self, interface: str) -> bool:
        """Whether an interface does."""
        return interface in self.interfaces


class Fingerprint:
    """Of these namespaces, on the machine where they are. `take` it, then `look`; `close` it. OSError.

    left_out: (namespace, interface) whose objects may change, since scenario events do that; all for EVERYTHING.
    """

    def __init__(self, watched: Iterable[WatchedNamespace], left_out: Iterable[tuple[str, str]] = ()) -> None:
        self._left_out = frozenset(left_out)
        self._namespaces: dict[str, NamespaceState] = {}
        self._known: dict[str, State] = {}
        self._parameters = SysctlWatcher()
        self._values: dict[str, dict[str, str]] = {}
        self._sockets: dict[str, SocketTable] = {}
        self._told: set[tuple[str, Key]] = set()
        self._turn = 0
        self._poll = select.epoll()
        try:
            for namespace in watched:
                own = namespace.pid is None
                self._namespaces[namespace.name] = NamespaceState(
                    namespace.pid, namespace.counts if own else None
                )
                self._parameters.add(namespace.name, namespace.pid, None if own else namespace.interfaces)
                self._values[namespace.name] = (
                    self._parameters.read(namespace.name) if namespace.sends else {}
                )
                if namespace.sends and namespace.pid is not None:
                    self._sockets[namespace.name] = SocketTable(namespace.pid)
                self._poll.register(self._namespaces[namespace.name].events, select.EPOLLIN)
            self._poll.register(self._parameters, select.EPOLLIN)
            self._parameters.read_writes()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close what is open."""
        for namespace in self._namespaces.values():
            namespace.close()
        for table in self._sockets.values():
            table.close()
        self._parameters.close()
        self._poll.close()
        self._namespaces, self._sockets = {}, {}

    def take(self) -> None:
        """What is now is what should be from now on."""
        for name, namespace in self._namespaces.items():
            namespace.discard_events()
            self._known[name] = namespace.read_state()
        for _ in self._written():
            pass

    def look(self, thorough: bool = False) -> list[str]:
        """What was changed since the last look, in words.

        What the kernel has told, and what a tenth of all namespaces hold, in turns; thorough: all, and parameters too.
        """
        found: list[str] = []
        if self._poll.poll(0):
            for name, namespace in self._namespaces.items():
                found += self._events(name, namespace)
            found += self._written()
        names = list(self._namespaces)
        for _ in range(len(names) if thorough else -(-len(names) // TURNS)):
            self._turn = (self._turn + 1) % len(names)
            found += self._compare(names[self._turn], self._namespaces[names[self._turn]])
        found += self._sockets_changed()
        if thorough:
            for name, known in self._values.items():
                found += self._read(name) if known else ()
        return found

    def _events(self, name: str, namespace: NamespaceState) -> Iterator[str]:
        try:
            events = namespace.read_events()
        except OSError:
            yield f"{name}: more was changed at once than the kernel could tell"
            return
        for event in events:
            if words := self._event(name, namespace, event):
                yield words

    def _event(self, name: str, namespace: NamespaceState, event: Event) -> str | None:
        known, key = self._known[name], event.key
        old, new = known.get(key), None if event.deleted else event.data
        words = None
        if event.offloads and old is not None:
            before = known.get((OFFLOADS, key[1]), b"")
            now = namespace.read_offloads(key[1])
            if before == now:
                words = self._words(name, namespace, (OFFLOADS, key[1]), "changed for a moment")
        if new is not None and not is_permanent(key[0], new) and old is None:
            return words
        if new is None and old is None:
            return words
        if old is not None and new is not None and not state_diff.differs(key, old, new):
            return words
        words = self._words(
            name, namespace, key, state_diff.describe_difference(key, old, new), new or old or b""
        )
        self._told.add((name, key))
        if new is None:
            del known[key]
        else:
            known[key] = new
        return words

    def _compare(self, name: str, namespace: NamespaceState) -> Iterator[str]:
        known, found = self._known[name], namespace.read_state()
        if known == found:
            return
        self._known[name] = found
        for key in {**known, **found}:
            old, new = known.get(key), found.get(key)
            if old == new:
                continue
            what = state_diff.describe_difference(key, old, new)
            if what == state_diff.UNDESCRIBED and (name, key) in self._told:
                continue  # answers tell in another form what an event has told
            if words := self._words(name, namespace, key, what, new or old or b""):
                yield words
        self._told = {entry for entry in self._told if entry[0] != name}

    def _sockets_changed(self) -> Iterator[str]:
        """What was changed of connections, of a few hosts in turns."""
        for _ in range(min(HOSTS_IN_TURN, len(self._sockets))):
            name = next(iter(self._sockets))
            self._sockets[name] = table = self._sockets.pop(name)  # to the end
            if (name, EVERYTHING) not in self._left_out:
                yield from (f"{name}: {words}" for words in table.changes())

    def _words(
        self, name: str, namespace: NamespaceState, key: Key, what: str, left: bytes = b""
    ) -> str | None:
        """None for what is left out."""
        if {(name, namespace.names.get(key[1], "")), (name, EVERYTHING)} & self._left_out:
            return None
        return f"{name}: {state_diff.object_name(key, left, namespace.names)}: {what}"

    def _written(self) -> Iterator[str]:
        for name, parameter, value in self._parameters.read_writes():
            known = self._values[name]
            before = known.get(parameter)
            now = f"written to, and {value} now"
            if before is not None:
                now = f"{before} -> {value}" if before != value else f"written to, and {value} as before"
                known[parameter] = value
            yield f"{name}: {parameter}: {now}"

    def _read(self, name: str) -> Iterator[str]:
        known, found = self._values[name], self._parameters.read(name)
        self._values[name] = found
        for parameter in {**known, **found}:
            old, new = known.get(parameter, "none"), found.get(parameter, "none")
            if old != new:
                yield f"{name}: {parameter}: {old} -> {new}"

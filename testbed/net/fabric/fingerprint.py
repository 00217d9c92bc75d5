"""A fingerprint of all kernel state of a fabric's namespaces, to detect changes by anyone.

It covers every queue, class, filter, route, rule, address, neighbour, forwarding entry, interface, offload and kernel
parameter, and the settings of hosts' TCP connections. The kernel's events reveal changes that are undone between two
looks, except for connections.
"""

from __future__ import annotations

import select
from collections.abc import Iterable, Iterator

from testbed.net.fabric.namespace_setup import NamespaceSettings
from testbed.net.links import state_diff
from testbed.net.links.namespace_state import OFFLOADS, Event, Key, NamespaceState, State, is_permanent
from testbed.net.links.socket_table import SocketTable
from testbed.net.links.sysctl import SysctlWatcher

EVERYTHING = "*"  # all interfaces of a namespace
HOSTS_PER_LOOK = 8  # hosts whose connections are compared on each look
LOOKS_PER_ROUND = 10  # looks to compare all namespaces; all at once would take 5 % of a short step


class Fingerprint:
    """The fingerprint of namespaces on this machine: call `take`, then `look` repeatedly, then `close`.

    Args:
        watched: The namespaces; in the root namespace only the given interfaces are watched.
        excluded: (namespace, interface) pairs that scenario events may change; EVERYTHING for a whole namespace.

    Raises:
        OSError: The kernel's state cannot be read.
    """

    def __init__(
        self, watched: Iterable[NamespaceSettings], excluded: Iterable[tuple[str, str]] = ()
    ) -> None:
        self._excluded = frozenset(excluded)
        self._namespaces: dict[str, NamespaceState] = {}
        self._known: dict[str, State] = {}
        self._parameters = SysctlWatcher()
        self._values: dict[str, dict[str, str]] = {}
        self._sockets: dict[str, SocketTable] = {}
        self._reported: set[tuple[str, Key]] = set()
        self._turn = 0
        self._poll = select.epoll()
        try:
            for namespace in watched:
                is_root = namespace.pid is None
                only = namespace.interfaces.__contains__ if is_root else None
                self._namespaces[namespace.name] = NamespaceState(namespace.pid, only)
                self._parameters.add(namespace.name, namespace.pid, None if is_root else namespace.interfaces)
                self._values[namespace.name] = (
                    self._parameters.read(namespace.name) if namespace.has_sockets else {}
                )
                if namespace.has_sockets and namespace.pid is not None:
                    self._sockets[namespace.name] = SocketTable(namespace.pid)
                self._poll.register(self._namespaces[namespace.name].events, select.EPOLLIN)
            self._poll.register(self._parameters, select.EPOLLIN)
            self._parameters.read_writes()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close all sockets and files."""
        for namespace in self._namespaces.values():
            namespace.close()
        for table in self._sockets.values():
            table.close()
        self._parameters.close()
        self._poll.close()
        self._namespaces, self._sockets = {}, {}

    def take(self) -> None:
        """Take the current state as the reference."""
        for name, namespace in self._namespaces.items():
            namespace.discard_events()
            self._known[name] = namespace.read_state()
        for _ in self._written():
            pass

    def look(self, thorough: bool = False) -> list[str]:
        """Return descriptions of the changes since the last look.

        Each look reads the kernel's events and compares the next tenth of the namespaces. A thorough look compares all
        namespaces and all parameters.
        """
        found: list[str] = []
        if self._poll.poll(0):
            for name, namespace in self._namespaces.items():
                found += self._events(name, namespace)
            found += self._written()
        names = list(self._namespaces)
        for _ in range(len(names) if thorough else -(-len(names) // LOOKS_PER_ROUND)):
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
            yield f"{name}: the kernel dropped change events because there were too many"
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
        if old is None and (new is None or not is_permanent(key[0], new)):
            return words
        if old is not None and new is not None and not state_diff.differs(key, old, new):
            return words
        words = self._words(
            name, namespace, key, state_diff.describe_difference(key, old, new), new or old or b""
        )
        self._reported.add((name, key))
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
            if what == state_diff.UNDESCRIBED and (name, key) in self._reported:
                continue  # a dump encodes differently what an event has already reported
            if words := self._words(name, namespace, key, what, new or old or b""):
                yield words
        self._reported = {entry for entry in self._reported if entry[0] != name}

    def _sockets_changed(self) -> Iterator[str]:
        """Yield changes of connections, for the next few hosts."""
        for _ in range(min(HOSTS_PER_LOOK, len(self._sockets))):
            name = next(iter(self._sockets))
            self._sockets[name] = table = self._sockets.pop(name)  # read to the end
            if (name, EVERYTHING) not in self._excluded:
                yield from (f"{name}: {words}" for words in table.changes())

    def _words(
        self, name: str, namespace: NamespaceState, key: Key, what: str, left: bytes = b""
    ) -> str | None:
        """Describe a change; return None for an excluded interface."""
        if {(name, namespace.names.get(key[1], "")), (name, EVERYTHING)} & self._excluded:
            return None
        return f"{name}: {state_diff.object_name(key, left, namespace.names)}: {what}"

    def _written(self) -> Iterator[str]:
        for name, parameter, value in self._parameters.read_writes():
            known = self._values[name]
            before = known.get(parameter)
            now = f"written, now {value}"
            if before is not None:
                now = f"{before} -> {value}" if before != value else f"written, still {value}"
                known[parameter] = value
            yield f"{name}: {parameter}: {now}"

    def _read(self, name: str) -> Iterator[str]:
        known, found = self._values[name], self._parameters.read(name)
        self._values[name] = found
        for parameter in {**known, **found}:
            old, new = known.get(parameter, "none"), found.get(parameter, "none")
            if old != new:
                yield f"{name}: {parameter}: {old} -> {new}"

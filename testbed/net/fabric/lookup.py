"""Which of the networks that are up is meant: by id, by its topology's name, or by what only one of them has."""

from __future__ import annotations

from collections.abc import Sequence

from testbed.errors import did_you_mean
from testbed.net.fabric.errors import FabricError, UnknownHost
from testbed.net.fabric.ownership import FabricState, load_all

UP = ("up", "failed")


def find(asked: str | None, hosts: Sequence[str] = (), link: str | None = None) -> FabricState:
    """Of the networks that are up on this machine: see `chosen`."""
    return chosen(
        [state for state in load_all() if state.owner_alive() and state.phase in UP], asked, hosts, link
    )


def chosen(
    states: Sequence[FabricState], asked: str | None, hosts: Sequence[str] = (), link: str | None = None
) -> FabricState:
    """The one that is meant.

    Args:
        states: All that are up.
        asked: Its id, or the name of its topology where no other has that; None: the only one.
        hosts: Hosts that are going to be used: of several networks it is the one that has all of them.
        link: Likewise a WAN link.

    Raises:
        FabricError: Where none or several are meant; says which there are.
        UnknownHost: Where several are up and none of them has such hosts.
    """
    if asked is not None:
        found = [state for state in states if asked in (state.id, state.topology)]
        if len(found) == 1:
            return found[0]
        if found:
            raise FabricError(f"several fabrics are called {asked}, say which by its id: {_names(found)}")
        known = ", ".join(state.id for state in states) or "none"
        raise FabricError(f"no fabric {asked!r} is up; up: {known}")
    if not states:
        raise FabricError("no fabric is up; start one with: testbed up topologies/two-buildings.yaml")
    if len(states) == 1:
        return states[0]
    found = [state for state in states if _has(state, hosts, link)]
    if not found and hosts:
        every = sorted({name for state in states for name in host_names(state)})
        wanted = next((name for name in hosts if name not in every), " and ".join(hosts))
        raise UnknownHost(where="HOST", got=wanted, expected=f"one of {did_you_mean(wanted, every)}")
    if len(found) != 1:
        raise FabricError(f"several fabrics are up, say which with --fabric: {_names(found or states)}")
    return found[0]


def host_names(state: FabricState) -> list[str]:
    """Of a network that is up."""
    return [entry["name"] for entry in state.details.get("hosts", ())]


def link_names(state: FabricState) -> list[str]:
    """Of its WAN links: "east-west-0"."""
    return [entry["name"] for entry in state.details.get("wan", ())]


def _has(state: FabricState, hosts: Sequence[str], link: str | None) -> bool:
    return set(hosts) <= set(host_names(state)) and (link is None or link in link_names(state))


def _names(states: Sequence[FabricState]) -> str:
    return ", ".join(f"{state.id} ({state.topology})" for state in states)

"""Ranks on a running network: every run, benchmark and program uses this to bring it up, check it and monitor ranks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from testbed.measure.execution.launchers import Launchers
from testbed.measure.execution.network_setup import Network
from testbed.measure.fidelity import invariants, link_invariants
from testbed.measure.fidelity.probe import measure_links
from testbed.measure.fidelity.verdict import Invariant
from testbed.measure.ranks.process import RankSpec
from testbed.net.fabric.fabric_state import ENVIRONMENT_MARK, clean_abandoned
from testbed.net.fabric.network import Fabric
from testbed.spec.buildings import Host
from testbed.spec.transport import TransportSpec
from testbed.workload.job.endpoint_resolution import endpoints_on, loopback_endpoints
from testbed.workload.job.endpoints import RankEndpoint
from testbed.workload.job.errors import RunError

Event = dict[str, Any]
QUIET_S = 0.2


@dataclass(frozen=True)
class RankNetwork:
    """A running network with an endpoint for each rank; without a fabric, it is this machine's loopback."""

    endpoints: Sequence[RankEndpoint]
    fabric: Fabric | None = None

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables that mark the ranks' processes as the fabric's."""
        return {} if self.fabric is None else {ENVIRONMENT_MARK: self.fabric.state.id}

    def failure(self) -> str | None:
        """Return a message if a part of the network has failed; None otherwise."""
        return None if self.fabric is None else self.fabric.failure()


@contextlib.contextmanager
def bring_up(
    network: Network | None,
    ranks: int | Sequence[Host] | None,
    seed: int,
    progress: Callable[[str], None],
    transport: TransportSpec | None = None,
    **options: Any,
) -> Iterator[RankNetwork]:
    """Bring up a network for ranks, and remove it when the block ends.

    Args:
        network: The network to build; None for this machine's loopback.
        ranks: The host of each rank, or the number of ranks, which then use the first hosts; None means one rank on
            each host.
        seed: Seed of the network's random choices.
        progress: Called with a line for each phase.
        transport: The ranks' transport; it may need MPTCP ports or RDMA NICs.
        options: Further arguments of `Fabric`.

    Raises:
        FabricError: If the network cannot be built.
    """
    if network is None:
        assert isinstance(ranks, int)
        with loopback_endpoints(ranks) as endpoints:
            yield RankNetwork(endpoints)
        return
    clean_abandoned()
    topology = network.topology.resolve(network.scale)
    hosts = topology.hosts[:ranks] if ranks is None or isinstance(ranks, int) else ranks
    with network.fabric(seed, progress, topology, transport, hosts, **options) as fabric:
        yield RankNetwork(endpoints_on(topology, hosts, fabric.pids), fabric)


class NetworkCheck:
    """A check of a running network: its links, measured before the ranks start, and its settings after they end.

    `links`, `switches` and `cards` name what may change in the meantime.

    Raises:
        FabricError, LinkError: If the network cannot be measured or read back.
    """

    def __init__(
        self,
        fabric: Fabric,
        progress: Callable[[str], None],
        links: Collection[str] = (),
        switches: Collection[str] = (),
        cards: Collection[str] = (),
    ) -> None:
        self._fabric = fabric
        self.watch = fabric.watch(links, switches, cards)
        progress("measuring rate and delay of every WAN link")
        self.measurements = measure_links(fabric.topology, fabric.probe_pids())
        self._settings: str | None = None
        self._offloads: str | None = None

    def end(self) -> None:
        """Read all settings back."""
        self.watch.look(thorough=True)
        self._settings, self._offloads = self._fabric.changed_settings(), self._fabric.changed_offloads()

    def before(self) -> list[Invariant]:
        """Return the invariants of the measured links."""
        return [
            invariants.rate_accuracy(self.measurements),
            invariants.delay_accuracy(self.measurements),
            link_invariants.jitter_accuracy(self.measurements),
        ]

    def after(self, changes: Sequence[tuple[float, str]], expected: Sequence[str] = ()) -> list[Invariant]:
        """Return the invariants of the settings; `changes` are those seen during the run, with times in seconds."""
        return [
            link_invariants.settings_in_force(self._settings),
            link_invariants.offload_state(self._offloads),
            link_invariants.nothing_changed(changes, expected),
        ]


class RankRun:
    """The ranks of one specification on a running network, from their start until the last one has ended.

    This is a context manager that stops the ranks, and an iterable of their launchers' events. Iteration raises
    RunError at the end if a rank or a launcher has failed, and at once if the network has failed.

    Attributes:
        end_timeout_s: Time for the launchers to end after their ranks.
        most_failures: Limit on the number of failed ranks that an error names; None for all.
        failures: A sentence for each failed rank so far.
    """

    end_timeout_s = 10.0
    most_failures: int | None = None

    def __init__(self, network: RankNetwork, spec: RankSpec) -> None:
        self.network = network
        self.spec = spec
        self.failures: list[str] = []
        self.launchers: Launchers | None = None

    def __enter__(self) -> RankRun:
        self.launchers = Launchers(self.network.fabric, self.spec, self.network.environment)
        return self

    def __exit__(self, *reason: object) -> None:
        assert self.launchers is not None
        self.launchers.stop()

    def __iter__(self) -> Iterator[Event]:
        assert self.launchers is not None
        while (events := self.launchers.events(self.wait_s())) is not None:
            for event in events:
                if failure := self.failure_in(event):
                    self.failures.append(failure)
                yield event
            self.look()
        self.finish()
        ended = self.launchers.ended(self.end_timeout_s)
        if self.failures:
            raise RunError("\n".join([*self.headline(), *self.failures[: self.most_failures]]))
        if ended:
            raise RunError(ended)

    def wait_s(self) -> float:
        """Return how long to wait for events before the next check."""
        return QUIET_S

    def failure_in(self, event: Event) -> str | None:
        """Return a sentence if an event is the failure of a rank; None otherwise."""
        if event["event"] not in ("failed", "killed"):
            return None
        return f"{event['who']} on {event['host']}: {event['message']}"

    def look(self) -> None:
        """Check the network after each batch of events; raise RunError if it has failed."""
        if failure := self.network.failure():
            raise RunError(failure)

    def finish(self) -> None:
        """Do the remaining work after all ranks have ended, with or without success."""

    def headline(self) -> list[str]:
        """Return lines that explain the failures."""
        return []

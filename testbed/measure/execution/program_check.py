"""Whether programs ran on the network that was asked for: measured before, compared with what was set after."""

from __future__ import annotations

import time

from testbed.measure.fidelity import invariants, link_invariants
from testbed.measure.fidelity.probe import measure_links
from testbed.measure.fidelity.verdict import Verdict, judge
from testbed.net.fabric.network import Fabric

LOOK_INTERVAL_S = 5.0  # switches close connections of those who say nothing for a minute


class ProgramCheck:
    """Of a network that is up. `look` from time to time; `verdict` when programs have ended. FabricError, LinkError."""

    def __init__(self, fabric: Fabric) -> None:
        self._fabric = fabric
        self._watch = fabric.watch()
        self._measurements = measure_links(fabric.topology, fabric.probe_pids())
        self._began_s = self._looked_s = time.monotonic()

    def look(self) -> None:
        """Note what was changed since, if it is time to."""
        now_s = time.monotonic()
        if now_s - self._looked_s >= LOOK_INTERVAL_S:
            self._looked_s = now_s
            self._watch.look()

    def verdict(self) -> Verdict:
        """Links as they were measured, settings as they are now, and whatever has changed meanwhile.

        What a run's verdict says of ranks there is nobody to say of programs: whether they are right, or were late.
        """
        self._watch.look(thorough=True)
        changes = [(change.time_s - self._began_s, change.words) for change in self._watch.changes]
        settings, offloads = self._fabric.changed_settings(), self._fabric.changed_offloads()
        return judge(
            [
                invariants.rate_accuracy(self._measurements),
                invariants.delay_accuracy(self._measurements),
                link_invariants.jitter_accuracy(self._measurements),
                link_invariants.settings_in_force("settings_in_force", "the network", settings),
                link_invariants.settings_in_force("offload_state", "offloads", offloads),
                link_invariants.nothing_changed(changes),
            ]
        )


def words_of(verdict: Verdict) -> list[str]:
    """For people: the verdict, and what does not hold."""
    broken = [f"{one.name}: {one.sentence}" for one in verdict.invariants if one.ok is False]
    return [f"the network: {verdict.status}, {len(verdict.invariants)} checks", *broken]

"""What software costs per message, and how memory is registered for it, as a scenario states them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from testbed.spec.base_model import Finding, StrictModel
from testbed.spec.value_types import (
    Duration,
    DurationOrNone,
    Fraction,
    choice,
)

POOLED, LAZY = REGISTRATION_MODES = ("pooled", "lazy")


class RegistrationSpec(StrictModel):
    """Cost of registering arrays with the network card, for protocols that send from and receive into them directly."""

    mode: Annotated[str, choice("a mode", REGISTRATION_MODES)] = POOLED
    """pooled: all memory is registered before the job begins. lazy: each array when it is first used, while its
    operation waits.
    """
    least_s: Duration = 0.1e-3
    """Shortest time for most arrays; uniformly drawn with the scenario's seed, up to `most`."""
    most_s: Duration = 1e-3
    """Longest time for most arrays."""
    rare_s: Duration = 0.1
    """Time for a few slow arrays."""
    rare_share: Fraction = 0.001
    """Share of arrays that take `rare`."""

    def checks(self) -> Iterator[Finding]:
        """Check that the range is not empty."""
        if self.least_s > self.most_s:
            yield Finding(("least",), f"{self.least_s:g} s", f"at most `most`, {self.most_s:g} s")


class SoftwareCostSpec(StrictModel):
    """Cost of messages in the software of a real host, paid at both ends under the virtual clock only.

    Under the virtual clock computing takes no time of its own; under the real clock the ranks' own software takes real
    time. The defaults: half of the 9.6 us that NCCL's tuning model gives for one hop of a ring over a network with its
    Simple protocol (NVIDIA/nccl, src/graph/tuning.cc, `hwLat`), and one copy at 450 GB/s (NVLink of an H100). All other
    costs default to nothing; `preset` has figures for them.
    """

    per_message_s: Duration = 4.8e-6
    """Time per message of any size, or per chunk with protocol staged. A rank's messages are processed one at a time.
    """
    per_gigabyte_s: Duration = 2.2e-3
    """Time per 10^9 real bytes of a message."""
    copy_per_gigabyte_s: Duration = 0.0
    """Additional time per 10^9 real bytes if the protocol copies (staged)."""
    per_note_s: DurationOrNone = None
    """Time per control message of a protocol (buffer ready, slot free); default: `per_message`."""
    handover_s: Duration = 0.0
    """Time to hand a message over between device and host; other messages proceed meanwhile."""
    launch_s: Duration = 0.0
    """Time before every operation begins (a collective, or one end of a point-to-point message): its kernel launch."""
    completion_s: Duration = 0.0
    """Time from an operation's last message until its waiter is notified."""
    synchronisation_s: Duration = 0.0
    """Time before an operation for which the host must read counts from the device."""
    registration: RegistrationSpec = RegistrationSpec()
    """Registration of ranks' arrays, for protocols that write into them directly (rendezvous)."""
    sm_cost: Fraction = 0.0
    """Share of a rank's compute speed that is lost while one of its operations is in progress, if the protocol copies
    (staged): its kernels occupy part of the accelerator. Applies under either clock.
    """

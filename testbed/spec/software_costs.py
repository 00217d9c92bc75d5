"""What handing messages over costs ranks' hosts and accelerators, as a scenario says it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from testbed.spec.base_model import Finding, Strict
from testbed.spec.value_types import Duration, DurationOrNone, Flag, Fraction, Size, choice, whole

POOLED, LAZY = REGISTRATION_MODES = ("pooled", "lazy")


class RegistrationSpec(Strict):
    """What it takes to register an array with the network card, where messages go straight from and into it."""

    mode: Annotated[str, choice("a mode", REGISTRATION_MODES)] = Field(
        default=POOLED,
        description="pooled: all memory is, before the job begins. lazy: each array when it is first used, which "
        "operations wait for.",
    )
    least_s: Duration = Field(
        default=0.1e-3,
        alias="least",
        description="Of most arrays, evenly drawn by the scenario's seed, at least.",
    )
    most_s: Duration = Field(default=1e-3, alias="most", description="And at most.")
    rare_s: Duration = Field(default=0.1, alias="rare", description="Of a few.")
    rare_share: Fraction = Field(default=0.001, description="How many those are, as a share.")

    def checks(self) -> Iterator[Finding]:
        """Least is no more than most."""
        if self.least_s > self.most_s:
            yield Finding(("least",), f"{self.least_s:g} s", f"at most `most`, {self.most_s:g} s")


class SoftwareCostSpec(Strict):
    """What messages cost the software of a real host, paid at both ends under the virtual clock only.

    There computing takes no time of its own; under the real clock the ranks' own software costs what it costs.
    The defaults: half of the 9.6 us that NCCL's own tuning model gives for one hop of a ring over a network with its
    Simple protocol (NVIDIA/nccl, src/graph/tuning.cc, `hwLat`), and one copy at 450 GB/s (NVLink of an H100). All else
    is nothing unless said; `preset` has figures for it.
    """

    per_message_s: Duration = Field(
        default=4.8e-6,
        alias="per_message",
        description="For every message, whatever its size; of protocol staged for every chunk. A rank's messages take "
        "this one after another.",
    )
    per_gigabyte_s: Duration = Field(
        default=2.2e-3, alias="per_gigabyte", description="For every 10^9 real bytes of a message."
    )
    copy_per_gigabyte_s: Duration = Field(
        default=0.0,
        alias="copy_per_gigabyte",
        description="As much more where the protocol copies (staged).",
    )
    per_note_s: DurationOrNone = Field(
        default=None,
        alias="per_note",
        description="For every note of a protocol, that a buffer is ready or a slot free; default: as per_message.",
    )
    handover_s: Duration = Field(
        default=0.0,
        alias="handover",
        description="Until a message is handed over between device and host, while others go on.",
    )
    launch_s: Duration = Field(
        default=0.0,
        alias="launch",
        description="For every operation (a collective, one end of a message between two ranks), before it begins: the "
        "launch of its kernel.",
    )
    completion_s: Duration = Field(
        default=0.0,
        alias="completion",
        description="For every operation, from its last message until who waits for it is told.",
    )
    synchronisation_s: Duration = Field(
        default=0.0,
        alias="synchronisation",
        description="Before an operation for which the host has to read counts from the device.",
    )
    registration: RegistrationSpec = Field(
        default=RegistrationSpec(),
        description="Of ranks' arrays, where messages go straight into them (rendezvous).",
    )
    sm_cost: Fraction = Field(
        default=0.0,
        description="Share of a rank's speed of computing that is lost while one of its operations is under way, where "
        "the protocol copies (staged): its kernels take part of the accelerator. By either clock.",
    )


class StagingSpec(Strict):
    """The window of protocol staged."""

    chunk_bytes: Size = Field(
        default=256 * 1024,
        alias="chunk",
        description="What a slot holds, in real bytes: of NCCLX's copies 128 to 512 KiB.",
    )
    slots: Annotated[int, whole(1, 4096)] = Field(
        default=8, description="Slots of a message; the receiver says when one is free again."
    )
    announced: Flag = Field(
        default=False,
        description="Whether they are free only once the receiver waits for the message and has said so, as of NCCL's "
        "network plugins; else from the beginning.",
    )

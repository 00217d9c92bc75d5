"""How a datagram transport mends losses, how much it sends, over which paths, as a scenario says it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from testbed.spec import value_types
from testbed.spec.base_model import Finding, Strict
from testbed.spec.keywords import BDP
from testbed.spec.value_types import choice, whole

RECOVERIES = ("go_back_n", "selective_repeat", "nack", "erasure", "xor")
CONTROLS = ("window", "credits", "aimd", "dcqcn", "swift", "none")
SPRAYS = ("none", "packet")
GO_BACK_N, PACKET = "go_back_n", "packet"
MOST_GROUP_PACKETS = 256

Window = Annotated[int | str, value_types.or_word(BDP, value_types.SIZE)]


class ErasureSpec(Strict):
    """Groups of packets of recoveries erasure and xor; a group ends with its message, its parity in proportion."""

    data: Annotated[int, whole(1, 255)] = Field(default=32, description="Packets of data in a whole group.")
    parity: Annotated[int, whole(1, 255)] = Field(default=8, description="Packets of parity for these.")

    def checks(self) -> Iterator[Finding]:
        """The code has as many symbols as a byte has values."""
        if self.data + self.parity > MOST_GROUP_PACKETS:
            yield Finding(
                ("parity",),
                f"{self.data} + {self.parity}",
                f"at most {MOST_GROUP_PACKETS} packets of a group",
            )


class DatagramSpec(Strict):
    """Of `kind: datagram`."""

    recovery: Annotated[str, choice("a recovery", RECOVERIES)] = Field(
        default="selective_repeat",
        description="go_back_n: all behind a lost packet is sent again. selective_repeat: what is lost, three round "
        "trips after it was sent. nack: what is lost, as soon as something sent later has come. erasure: parity goes "
        "with each group of packets, which mends any `parity` losses of it; xor: one loss in each of `parity` classes; "
        "what they do not mend is sent again.",
    )
    erasure: ErasureSpec = Field(default=ErasureSpec(), description="Groups of recoveries erasure and xor.")
    control: Annotated[str, choice("a control", CONTROLS)] = Field(
        default="window",
        description="What a sender may have under way. window: so many bytes, see `window`. credits: what the receiver "
        "grants, all senders together at its card's rate. aimd: TCP Reno's window. dcqcn: a rate, by ECN marks. swift: "
        "a window, by delay. none: whatever the card takes.",
    )
    window: Window = Field(
        default=BDP,
        description="Of control window. bdp: 1.25 times the product of rate and round trip of the empty path.",
    )
    spray: Annotated[str, choice("a spray", SPRAYS)] = Field(
        default="none",
        description="packet: each packet takes the next of `paths` source ports, those that lose or mark less often.",
    )
    paths: Annotated[int, whole(2, 64)] = Field(default=4, description="Source ports that are sprayed over.")

    def checks(self) -> Iterator[Finding]:
        """Who takes packets in order only cannot be sprayed at."""
        if self.recovery == GO_BACK_N and self.spray == PACKET:
            yield Finding(
                ("spray",), f"packet with recovery {GO_BACK_N}", "none: its receiver drops what is not next"
            )

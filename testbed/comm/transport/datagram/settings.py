"""What a scenario says of a datagram transport, as ranks get it."""

from __future__ import annotations

from dataclasses import dataclass

# what a window is of the path's rate times its round trip: acknowledgements come for several packets at once
WINDOW_PRODUCTS = 1.25


@dataclass(frozen=True)
class DatagramSettings:
    """recovery, control: names of RECOVERIES and CONTROLS. data, parity: packets of a group of erasure codes.

    paths: source ports that packets are sprayed over; 1 for none. window_bytes: of control `window`; None: by the path.
    rate_scale: emulated rates over real ones.
    """

    recovery: str = "selective_repeat"
    control: str = "window"
    data: int = 32
    parity: int = 8
    paths: int = 1
    window_bytes: int | None = None
    rate_scale: float = 1.0

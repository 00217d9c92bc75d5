"""Loss recoveries of the datagram transport, by the names that scenarios use."""

from testbed.comm.transport.datagram.recoveries.base import Feedback, Item, Parity, Recovery
from testbed.comm.transport.datagram.recoveries.erasure import Erasure, XorParity
from testbed.comm.transport.datagram.recoveries.go_back_n import GoBackN
from testbed.comm.transport.datagram.recoveries.selective_repeat import Nack, SelectiveRepeat

RECOVERIES: dict[str, type[Recovery]] = {
    "go_back_n": GoBackN,
    "selective_repeat": SelectiveRepeat,
    "nack": Nack,
    "erasure": Erasure,
    "xor": XorParity,
}

__all__ = ["RECOVERIES", "Feedback", "Item", "Parity", "Recovery"]

"""Fault-tolerant data parallelism: replicas fail and return, and surviving replicas continue with all-reduces.

A replica is the set of ranks that hold one copy of the model; it fails and returns as a whole. A coordinator
process next to the launcher decides the membership of each step. It talks to ranks over unix sockets, outside the
emulated network.
"""

from testbed.comm.replicas.loss_policy import Policy
from testbed.comm.replicas.member import RankDismissed, Summed
from testbed.comm.replicas.membership import Membership
from testbed.comm.replicas.ring import RingSettings
from testbed.comm.replicas.session import FTAR, ReplicaGroup, Session, SessionSettings

__all__ = [
    "FTAR",
    "Membership",
    "Policy",
    "RankDismissed",
    "ReplicaGroup",
    "RingSettings",
    "Session",
    "SessionSettings",
    "Summed",
]

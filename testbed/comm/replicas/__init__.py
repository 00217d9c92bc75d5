"""Replicas of a model that come and go: who is a member of which step, and all-reduces among those that live.

A replica is all ranks that hold one copy of the model between them; it fails and returns as a whole. A coordinator
beside the launcher alone says who the members are, on sockets that no emulated network carries.
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

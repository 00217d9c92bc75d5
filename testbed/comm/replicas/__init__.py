"""Replicas of a model that come and go: who is a member of which step, and all-reduces among those that live.

A replica is all ranks that hold one copy of the model between them; it fails and returns as a whole. A coordinator
beside the launcher alone says who the members are, on sockets that no emulated network carries.
"""

from testbed.comm.replicas.ftar import FTAR, ReplicaGroup
from testbed.comm.replicas.member import Left, Summed
from testbed.comm.replicas.membership import Membership
from testbed.comm.replicas.policy import Policy
from testbed.comm.replicas.ring import RingSettings
from testbed.comm.replicas.session import Session, SessionSettings

__all__ = [
    "FTAR",
    "Left",
    "Membership",
    "Policy",
    "ReplicaGroup",
    "RingSettings",
    "Session",
    "SessionSettings",
    "Summed",
]

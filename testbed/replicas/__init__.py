"""Replicas of a model that come and go: who is a member of which step, and all-reduces among those that live.

A replica is all ranks that hold one copy of the model between them; it fails and returns as a whole. A coordinator
beside the launcher alone says who the members are, on sockets that no emulated network carries.
"""

from testbed.replicas.ftar import FTAR, ReplicaGroup
from testbed.replicas.member import Left, Summed
from testbed.replicas.membership import Membership
from testbed.replicas.policy import Policy
from testbed.replicas.ring import RingSettings
from testbed.replicas.session import Session, SessionSettings

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

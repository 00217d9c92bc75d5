"""Check of this host: its capabilities with evidence, and the link engine and datapath that a run would use."""

from testbed.net.doctor.capabilities import Capability, Choice, choose
from testbed.net.doctor.host_resources import HostFacts, host_facts
from testbed.net.doctor.probes import probe_all
from testbed.net.doctor.report import report

__all__ = ["Capability", "Choice", "HostFacts", "choose", "host_facts", "probe_all", "report"]

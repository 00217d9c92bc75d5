"""Topology and scenario files: strict models, units, and errors with file, line, field, value and expectation."""

from testbed.config.architecture import ModelSpec
from testbed.config.background import BackgroundTrafficSpec
from testbed.config.buildings import Building, Clos, Host
from testbed.config.errors import ConfigError, Problem
from testbed.config.files import Kind, describe_kind, expand, expand_data, json_schema
from testbed.config.presets import PRESETS, preset_transport
from testbed.config.scenario import (
    ScaleSpec,
    Scenario,
    load_scenario,
)
from testbed.config.topology import (
    Topology,
    TopologySpec,
    load_topology,
    mac_address,
    probe_address,
)
from testbed.config.transport import (
    DISTANCES,
    MAX_SUBFLOWS,
    SocketsSpec,
    TransportSpec,
    distance,
)
from testbed.config.wan import WanLink
from testbed.config.workload import WorkloadSpec
from testbed.directions import Direction, LossBursts

__all__ = [
    "DISTANCES",
    "MAX_SUBFLOWS",
    "PRESETS",
    "BackgroundTrafficSpec",
    "Building",
    "Clos",
    "ConfigError",
    "Direction",
    "Host",
    "Kind",
    "LossBursts",
    "ModelSpec",
    "Problem",
    "ScaleSpec",
    "Scenario",
    "SocketsSpec",
    "Topology",
    "TopologySpec",
    "TransportSpec",
    "WanLink",
    "WorkloadSpec",
    "describe_kind",
    "distance",
    "expand",
    "expand_data",
    "json_schema",
    "load_scenario",
    "load_topology",
    "mac_address",
    "preset_transport",
    "probe_address",
]

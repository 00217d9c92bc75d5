"""What goes out to other programs and comes in from them: jobs as Chakra traces, for ASTRA-sim; topologies; figures."""

from testbed.exchange.astra_sim import export_astra_sim
from testbed.exchange.chakra import export_chakra
from testbed.exchange.containerlab import export_containerlab
from testbed.exchange.graphml import export_graphml
from testbed.exchange.importing import Given, import_topology, parse_hosts
from testbed.exchange.jobs import exported_job
from testbed.exchange.mininet import export_mininet
from testbed.exchange.monitoring import MetricsForm, export_metrics
from testbed.exchange.trackers import log_to_mlflow, log_to_wandb

__all__ = [
    "Given",
    "MetricsForm",
    "export_astra_sim",
    "export_chakra",
    "export_containerlab",
    "export_graphml",
    "export_metrics",
    "export_mininet",
    "exported_job",
    "import_topology",
    "log_to_mlflow",
    "log_to_wandb",
    "parse_hosts",
]

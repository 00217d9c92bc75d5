"""Exchange with other programs: jobs as Chakra traces and for ASTRA-sim, topologies, metrics, experiment trackers."""

from testbed.show.exchange.astra_sim import export_astra_sim
from testbed.show.exchange.chakra import export_chakra, load_job
from testbed.show.exchange.graph_files import export_graphml
from testbed.show.exchange.metrics_export import MetricsForm, export_metrics, log_to_mlflow, log_to_wandb
from testbed.show.exchange.topology_export import export_containerlab, export_mininet
from testbed.show.exchange.topology_import import ImportDefaults, import_topology, parse_hosts

__all__ = [
    "ImportDefaults",
    "MetricsForm",
    "export_astra_sim",
    "export_chakra",
    "export_containerlab",
    "export_graphml",
    "export_metrics",
    "export_mininet",
    "import_topology",
    "load_job",
    "log_to_mlflow",
    "log_to_wandb",
    "parse_hosts",
]

"""What programs of anybody get so that PyTorch in their own Python finds the backend `testbed`, joined as ranks are.

A folder of our own goes before their PYTHONPATH: in it this package alone, not the environment that it stands in, whose
other packages are for another Python; and an entry point by which PyTorch calls us when it is imported.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from testbed.comm.collectives import COLLECTIVES, TuningTable, collective_of
from testbed.contrib.torch.launch_env import DEFAULT_VARIABLE, VARIABLE, ProgramJob
from testbed.errors import did_you_mean
from testbed.measure.execution.program_flight import ProgramFlight
from testbed.spec.catalogue import accelerators
from testbed.spec.errors import ConfigError, Problem
from testbed.spec.scale import Scale
from testbed.spec.topology import Topology
from testbed.spec.transport import TransportSpec
from testbed.version import VERSION
from testbed.workload.job.endpoint_resolution import resolve_endpoints
from testbed.workload.job.endpoints import RankEndpoint

SITE = "testbed_torch_backend-{version}.dist-info"
ENTRY_POINTS = "[torch.backends]\ntestbed = testbed.contrib.torch:autoload\n"


@dataclass(frozen=True)
class TorchOptions:
    """How process groups of programs do their collectives.

    algorithms: by collective. default: whether programs get them that name no backend.
    """

    transport: TransportSpec = field(default_factory=TransportSpec)
    algorithms: Mapping[str, str] = field(default_factory=dict)
    tuning: TuningTable = field(default_factory=TuningTable)
    congestion_control: str | None = None
    default: bool = False


def algorithms_of(asked: Sequence[str]) -> dict[str, str]:
    """From `COLLECTIVE=ALGORITHM` words of a command line. ConfigError."""
    found = {}
    for word in asked:
        collective, equals, algorithm = word.partition("=")
        if not equals or COLLECTIVES.expected(collective) is not None:
            known = did_you_mean(collective, COLLECTIVES)
            raise _wrong(word, f"COLLECTIVE=ALGORITHM, of {known}")
        known_algorithms = collective_of(collective).algorithms
        if (expected := known_algorithms.expected(algorithm)) is not None:
            raise _wrong(word, expected)
        found[collective] = algorithm
    return found


def _wrong(got: str, expected: str) -> ConfigError:
    return ConfigError([Problem("command line", None, "--collective", got, expected)])


@contextlib.contextmanager
def torch_environment(
    options: TorchOptions,
    endpoints: Sequence[RankEndpoint],
    topology: Topology | None,
    scale: Scale,
    seed: int,
    flight: ProgramFlight | None = None,
) -> Iterator[dict[str, str]]:
    """The environment, and within the block the folder that it speaks of.

    endpoints: of ranks, with ports of their own. topology: emulated; None on loopback. flight: where ranks record.
    """
    wiring = resolve_endpoints(
        options.transport,
        scale,
        topology,
        endpoints,
        seed,
        congestion_control=options.congestion_control,
    )
    tuning = TuningTable(options.tuning.entries, scale.size_scale)
    job = ProgramJob(wiring, dict(options.algorithms), tuning, dict(accelerators()))
    with tempfile.TemporaryDirectory(prefix="testbed-torch-") as folder:
        if flight is not None:
            flight.make(Path(folder))
            job = replace(job, rings=folder)
        site = Path(folder) / "site"
        metadata = site / SITE.format(version=VERSION)
        metadata.mkdir(parents=True)
        (site / "testbed").symlink_to(Path(__file__).parents[2])
        (metadata / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: testbed-torch-backend\nVersion: {VERSION}\n"
        )
        (metadata / "entry_points.txt").write_text(ENTRY_POINTS)
        file = Path(folder) / "job.json"
        job.write(file)
        before = os.environ.get("PYTHONPATH")
        yield {
            "PYTHONPATH": os.pathsep.join([str(site), *([before] if before else [])]),
            VARIABLE: str(file),
            **({DEFAULT_VARIABLE: "1"} if options.default else {}),
            # as torchrun: ranks share this machine's cores
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        }

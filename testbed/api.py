"""The Python API, for notebooks and scripts: load a scenario, predict its steps, run it, analyse the results.

`import testbed` exports all of it: `testbed.load`, `predict`, `run`, `sweep`, `explore`, `up`, `Result`, `Sweep`.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from testbed.cli.experiments import run as experiment
from testbed.cli.experiments import sweep as sweeping
from testbed.cli.experiments.run import open_executor
from testbed.cli.experiments.sweep import SweepRequest
from testbed.measure.execution.network_setup import choose_network_without_ranks
from testbed.measure.execution.progress import Progress
from testbed.measure.execution.run import Request
from testbed.measure.results.result import Result
from testbed.measure.results.run_directory import default_path
from testbed.measure.results.sweep_result import Sweep
from testbed.net.fabric.fabric_state import command_in_host
from testbed.net.fabric.network import Fabric
from testbed.prediction.search import Exploration, Search, SearchProgress
from testbed.prediction.step_prediction import MAX_PACKETS, Prediction, Predictions  # noqa: F401 (testbed.Prediction)
from testbed.spec.errors import ConfigError  # noqa: F401 (testbed.ConfigError)
from testbed.spec.policy import DEFAULT_POLICY
from testbed.spec.scenario import Scenario, load_scenario
from testbed.spec.sweep_axes import axes_from_mapping

Source = str | Path | Mapping[str, Any]


def load(source: Source, set: Mapping[str, Any] | None = None) -> Scenario:
    """Read and check a scenario.

    Args:
        source: A scenario file, the name of a bundled one, or a mapping with the content of a file, in which file names
            are relative to the current folder.
        set: Values to change, by `--set` path, such as `{"topology.wan.0.delay": "10 ms", "trials": 3}`.

    Returns:
        The scenario, with every default filled in; `.to_yaml()` shows it.

    Raises:
        ConfigError: If the scenario is invalid; lists every problem with file, line, field, value and expectation.

    Example:
        >>> scenario = testbed.load("scenarios/quickstart.yaml", set={"algorithms": ["ring"]})
    """
    changes = [f"{path}={json.dumps(value)}" for path, value in (set or {}).items()]
    return load_scenario(source if isinstance(source, Mapping) else Path(source), changes)


def predict(scenario: Scenario | Source, clock: str = "virtual", packets: int = MAX_PACKETS) -> Predictions:
    """Predict step times with the step model, at the scale of a run; nothing is built or sent.

    Args:
        scenario: From `load`, or what `load` takes.
        clock: Clock whose calibration is used: "virtual" or "real".
        packets: Maximum number of packets to simulate individually, about 10 us each: those of a step, of the steps
            before it and, on lossy links, of all loss draws. Steps with more are simulated as fluid flows.

    Returns:
        A dict of `Prediction`, by name of the variant, or of the algorithm if there are no variants.

    Raises:
        ConfigError: The scenario is invalid.

    Example:
        >>> testbed.predict("scenarios/quickstart.yaml")["ring"].step_time_s
    """
    return experiment.predict(_loaded(scenario), clock, packets).variants


def run(
    scenario: Scenario | Source,
    *,
    clock: str = "virtual",
    jobs: int | None = None,
    memory: str | None = None,
    output: str | Path | None = None,
    progress: Callable[[str], None] | None = None,
) -> Result:
    """Build the network, run the job on it, measure, validate, and write the run's folder with its report.

    Args:
        scenario: From `load`, or what `load` takes.
        clock: "virtual" is exact and does not need root, which notebooks seldom have. "real" is this machine's clock
            and needs root; it is the default of the command `testbed run`, since it needs no kernel build.
        jobs: Virtual clock: guests to run at once; None: one per core, as memory allows.
        memory: Memory limit of each guest, such as "9 GiB"; None: the expected need of the job.
        output: The folder to create; None: `runs/NAME-DATE-TIME`.
        progress: Called with a line of text on progress.

    Returns:
        The results, with a verdict for each variant. Check `.status` before you use them.

    Raises:
        ConfigError: If the scenario is invalid, or cannot be run here.
        RunExists: If `output` already exists (a FileExistsError).
        RunError, FabricError, VirtualClockError: If the run fails; nothing is left behind.

    Example:
        >>> result = testbed.run("scenarios/quickstart.yaml")
        >>> {variant.name: variant.step_time_s.median for variant in result.variants}
    """
    file = "scenario" if isinstance(scenario, Scenario | Mapping) else str(scenario)
    scenario = _loaded(scenario)
    target = Path(output) if output is not None else default_path(scenario.name)
    request = Request(scenario, target, file, clock=clock, jobs=jobs, memory=memory)
    return experiment.run(request, _listener(progress or (lambda line: None)))


def explore(scenario: Scenario | Source, progress: Callable[[str], None] | None = None) -> Exploration:
    """Search a scenario's configurations, as set in its `explore`, for the fastest step, with the step model.

    Args:
        scenario: From `load`, or what `load` takes.
        progress: Called with a line of text on progress.

    Returns:
        The exploration: `.fitting` has feasible configurations, fastest first, and `.baselines` common practice, for
            comparison.

    Raises:
        ConfigError: If the scenario is invalid, or has no `explore`.
        NothingFits: If no configuration is feasible; the message says why.

    Example:
        >>> found = testbed.explore("explore/dense-70b-campus")
        >>> str(found.fitting[0].configuration), found.fitting[0].tried.step_time_s
    """
    loaded, notify = _loaded(scenario), progress or (lambda line: None)

    def report(standing: SearchProgress) -> None:
        notify(f"{standing.done} of {standing.planned}" if standing.screened is None else standing.doing)

    return Search(loaded, report).run()


def sweep(
    scenario: Scenario | Source,
    axes: Mapping[str, Any],
    *,
    clock: Literal["model", "virtual", "real"] = "model",
    confirm: int | None = None,
    jobs: int | None = None,
    output: str | Path | None = None,
    engine: Literal["processes", "dask"] = "processes",
    scheduler: str | None = None,
    progress: Callable[[str], None] | None = None,
) -> Sweep:
    """Evaluate a scenario at all values of one or two settings: predicted, and optionally measured.

    Args:
        scenario: From `load`, or what `load` takes.
        axes: By path, a range as accepted by `testbed sweep`, or a list of values.
        clock: Clock for measuring points. "model" only predicts them, or uses the virtual clock with `confirm`.
        confirm: Number of points to measure; None: all, unless `clock` is "model".
        jobs: Virtual clock: guests to run at once; None: one per core, as memory allows.
        output: The folder; an existing one with the same sweep is resumed. None means `runs/NAME-swept-DATE-TIME`.
        engine: Executor of the work: "processes" on this machine, or "dask" with local workers or those of `scheduler`.
        scheduler: Address of a running Dask cluster.
        progress: Called with a line of text on progress.

    Returns:
        Every point, predicted and measured; `.frame()` has a row per point and variant.

    Raises:
        ConfigError: If a range or the scenario is invalid, or the folder has other content.
        ExecutorError: If Dask is not installed, or a worker differs from this machine.
        RunError, FabricError, VirtualClockError: If a run fails; finished points are kept.

    Example:
        >>> found = testbed.sweep("quickstart", {"topology.wan.0.delay": "1ms..80ms:log:8", "policy": ["ecmp", "te"]})
        >>> found.frame()
    """
    source = scenario.to_data() if isinstance(scenario, Scenario) else scenario
    notify = progress or (lambda line: None)
    target = Path(output) if output is not None else default_path(f"{load_scenario(source).name}-swept")
    request = SweepRequest(
        source,
        (),
        axes_from_mapping(axes),
        target,
        clock=sweeping.measuring_clock(clock, confirm),
        confirm=confirm,
        jobs=jobs,
    )
    planned = sweeping.plan_sweep(request)
    with open_executor(engine, scheduler, jobs) as workers:
        return sweeping.sweep(
            planned.with_engine(workers),
            lambda done, total, words: notify(f"point {done + 1} of {total}: {words}") if words else None,
            _listener(notify),
        )


class RunningNetwork:
    """A running network; `fabric.net` is Mininet's own object."""

    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric

    @property
    def hosts(self) -> tuple[str, ...]:
        """The names of the hosts, in the order of the topology."""
        return tuple(host.name for host in self.fabric.topology.hosts)

    def exec(self, host: str, *command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a program inside a host and wait for it.

        Args:
            host: Name of the host, such as "east1". Hosts can resolve each other's names.
            command: The program and its arguments.
            check: Whether to raise CalledProcessError if the exit status is not 0.

        Raises:
            UnknownHost: If there is no such host (a ValueError).
            ProgramNotFound: If there is no such program.
        """
        inside = command_in_host(self.fabric.state, host, command)
        return subprocess.run(inside, capture_output=True, text=True, check=check)


@contextlib.contextmanager
def up(
    topology: str | Path | Mapping[str, Any],
    *,
    policy: str = DEFAULT_POLICY,
    size_scale: float | None = None,
    progress: Callable[[str], None] | None = None,
) -> Iterator[RunningNetwork]:
    """Build a network on this machine, as root, and remove it when the block ends, even after an error.

    Args:
        topology: A topology file, the name of a bundled one, or a mapping with its content.
        policy: Name of the transport policy.
        size_scale: Factor that divides all rates; None: the smallest value at which this machine can carry the traffic.
        progress: Called with a line of text on progress.

    Raises:
        ConfigError: If the topology is invalid, or too large for this machine.
        FabricError: If the network cannot be built; nothing is left behind.

    Example:
        >>> with testbed.up("two-buildings") as network:
        ...     print(network.exec("east1", "ping", "-c", "3", "west1").stdout)
    """
    wanted = "auto" if size_scale is None else size_scale
    network = choose_network_without_ranks(topology, policy, size_scale=wanted, policy_field="policy")
    with network.fabric(seed=1, progress=progress or (lambda line: None)) as fabric:
        yield RunningNetwork(fabric)


def _listener(notify: Callable[[str], None]) -> Progress:
    return Progress(notify, lambda done, total: notify(f"step {done + 1} of {total}"))


def _loaded(given: Scenario | Source) -> Scenario:
    return given if isinstance(given, Scenario) else load(given)

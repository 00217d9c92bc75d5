"""What a notebook or a script needs: load a scenario, predict its steps, run it, look at what came out.

`import testbed` has all of it: `testbed.load`, `predict`, `run`, `sweep`, `explore`, `up`, `Result`, `Sweep`.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from testbed.cli.experiments import predict as predicting
from testbed.cli.experiments import run as experiment
from testbed.cli.experiments import sweep as sweeping
from testbed.cli.experiments.run import Listener, open_executor
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
from testbed.spec.sweep_axes import axes_of

Source = str | Path | Mapping[str, Any]


def load(source: Source, set: Mapping[str, Any] | None = None) -> Scenario:
    """Read and check a scenario.

    Args:
        source: A scenario file, the name of one that comes with the testbed, or the mapping that one would hold;
            files named in a mapping are found from the current folder.
        set: Values to change, by path, as `--set` has them: `{"topology.wan.0.delay": "10 ms", "trials": 3}`.

    Returns:
        The scenario, with every default filled in; `.to_yaml()` shows it.

    Raises:
        ConfigError: With every problem: file, line, field, value, and what was expected.

    Example:
        >>> scenario = testbed.load("scenarios/quickstart.yaml", set={"algorithms": ["ring"]})
    """
    changes = [f"{path}={json.dumps(value)}" for path, value in (set or {}).items()]
    return load_scenario(source if isinstance(source, Mapping) else Path(source), changes)


def predict(scenario: Scenario | Source, clock: str = "virtual", packets: int = MAX_PACKETS) -> Predictions:
    """What the model says that a step takes, at the scale of a run; nothing is built or sent.

    Args:
        scenario: From `load`, or what `load` takes.
        clock: "virtual" or "real": whose calibration is taken.
        packets: That are played one by one at the most, some 10 us each; of a step that has more, with those before it
            and, where links lose packets, all draws of which, bytes flow.

    Returns:
        A dict of `Prediction`, by name of the variant, or of the algorithm where there are none.

    Raises:
        ConfigError: For a scenario that does not fit.

    Example:
        >>> testbed.predict("scenarios/quickstart.yaml")["ring"].step_time_s
    """
    return predicting.predict(_scenario(scenario), clock, packets).variants


def run(
    scenario: Scenario | Source,
    *,
    clock: str = "virtual",
    jobs: int | None = None,
    memory: str | None = None,
    output: str | Path | None = None,
    progress: Callable[[str], None] | None = None,
) -> Result:
    """Build the network, run the job on it, measure, judge, and write the run's folder with its report.

    Args:
        scenario: From `load`, or what `load` takes.
        clock: "virtual": exact, without root, which a notebook seldom has; "real": this machine's, as root, which the
            command `testbed run` takes unless told, since it needs no kernel that is built first.
        jobs: How many guests at once, under the virtual clock; None: one for each core, if memory allows.
        memory: What each guest may use, "9 GiB"; None: what the job is expected to need.
        output: The folder to make; None: `runs/NAME-DATE-TIME`.
        progress: Called with a line whenever there is something to tell; None: nothing is told.

    Returns:
        The figures, with a verdict for each variant; look at `.status` before you believe them.

    Raises:
        ConfigError: For what does not fit, or cannot be run here.
        RunExists: Where `output` is there already; a FileExistsError.
        RunError, FabricError, VirtualClockError: When it could not be brought to its end; nothing is left behind.

    Example:
        >>> result = testbed.run("scenarios/quickstart.yaml")
        >>> {variant.name: variant.step_time_s.median for variant in result.variants}
    """
    file = "scenario" if isinstance(scenario, Scenario | Mapping) else str(scenario)
    scenario = _scenario(scenario)
    tell = progress or (lambda line: None)
    target = Path(output) if output is not None else default_path(scenario.name)
    telling = Progress(tell, lambda done, total: tell(f"step {done + 1} of {total}"))
    request = Request(scenario, target, file, clock=clock, jobs=jobs, memory=memory)
    return experiment.run(request, Listener(telling))


def explore(scenario: Scenario | Source, progress: Callable[[str], None] | None = None) -> Exploration:
    """Search a scenario's configurations, which its `explore` names, for the quickest step, by the model.

    Args:
        scenario: From `load`, or what `load` takes.
        progress: Called with a line whenever there is something to tell; None: nothing is told.

    Returns:
        `.fitting`: what was tried and fits, the quickest first; `.baselines`: what people run today, beside it.

    Raises:
        ConfigError: For a scenario without `explore`, or one that does not fit.
        NothingFits: Where no configuration does; it says why.

    Example:
        >>> found = testbed.explore("explore/dense-70b-campus")
        >>> str(found.fitting[0].configuration), found.fitting[0].tried.step_time_s
    """
    loaded, tell = _scenario(scenario), progress or (lambda line: None)

    def told(standing: SearchProgress) -> None:
        tell(f"{standing.done} of {standing.planned}" if standing.screened is None else standing.doing)

    return Search(loaded, told).run()


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
    """Take a scenario through all values of one or two settings: by the model, then measured.

    Args:
        scenario: From `load`, or what `load` takes.
        axes: By path a range as `testbed sweep` takes it, or a list of values.
        clock: By which points are measured; "model": none, but with `confirm` so many by the virtual clock.
        confirm: How many points are measured; None: all, unless `clock` is "model".
        jobs: How many guests at once, under the virtual clock; None: one for each core, if memory allows.
        output: The folder; one that holds the same sweep is gone on with. None: `runs/NAME-swept-DATE-TIME`.
        engine: Who works: "processes" of this machine, or "dask", whose workers are here or those of `scheduler`.
        scheduler: The address of a Dask cluster's.
        progress: Called with a line whenever there is something to tell; None: nothing is told.

    Returns:
        Every point, by the model and as measured; `.frame()` has a row per point and variant.

    Raises:
        ConfigError: For ranges or a scenario that do not fit, or a folder that holds something else.
        ExecutorError: Where Dask is not there, or a worker is not as this machine is.
        RunError, FabricError, VirtualClockError: When a run could not be brought to its end; what was done stays.

    Example:
        >>> found = testbed.sweep("quickstart", {"topology.wan.0.delay": "1ms..80ms:log:8", "policy": ["ecmp", "te"]})
        >>> found.frame()
    """
    source = scenario.to_data() if isinstance(scenario, Scenario) else scenario
    tell = progress or (lambda line: None)
    target = Path(output) if output is not None else default_path(f"{load_scenario(source).name}-swept")
    request = SweepRequest(
        source,
        (),
        axes_of(axes),
        target,
        clock=sweeping.clock_for(clock, confirm),
        confirm=confirm,
        jobs=jobs,
    )
    listener = Listener(Progress(tell, lambda done, total: tell(f"step {done + 1} of {total}")))
    planned = sweeping.plan_sweep(request)
    with open_executor(engine, scheduler, jobs) as workers:
        return sweeping.sweep(
            planned.by(workers),
            lambda done, total, words: tell(f"point {done + 1} of {total}: {words}") if words else None,
            listener,
        )


class RunningNetwork:
    """A network that is up. `fabric.net` is Mininet's own object."""

    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric

    @property
    def hosts(self) -> tuple[str, ...]:
        """Names of its hosts, in the order of the topology."""
        return tuple(host.name for host in self.fabric.topology.hosts)

    def exec(self, host: str, *command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a program inside a host, to its end.

        Args:
            host: Its name, such as "east1"; hosts know each other by name.
            command: The program and its arguments.
            check: Whether another exit status than 0 raises CalledProcessError.

        Raises:
            UnknownHost: For a host that there is not; a ValueError.
            ProgramNotFound: For a program that there is not.
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
    """Build a network on this machine, as root; it goes when the block ends, however it ends.

    Args:
        topology: A topology file, the name of one that comes with the testbed, or the mapping that one would hold.
        policy: How it treats traffic: a transport policy's name.
        size_scale: Divides all rates; None: the smallest that this machine carries.
        progress: Called with a line whenever there is something to tell; None: nothing is told.

    Raises:
        ConfigError: For a topology that does not fit, or that this machine does not carry.
        FabricError: When it could not be built; nothing is left behind.

    Example:
        >>> with testbed.up("two-buildings") as network:
        ...     print(network.exec("east1", "ping", "-c", "3", "west1").stdout)
    """
    wanted = "auto" if size_scale is None else size_scale
    network = choose_network_without_ranks(topology, policy, size_scale=wanted, policy_field="policy")
    with network.fabric(seed=1, progress=progress or (lambda line: None)) as fabric:
        yield RunningNetwork(fabric)


def _scenario(given: Scenario | Source) -> Scenario:
    return given if isinstance(given, Scenario) else load(given)

"""What programs are given so that PyTorch finds the backend, and what is refused. No PyTorch is needed."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import PathDistribution
from pathlib import Path

import pytest

from testbed.comm.collectives import TuningTable
from testbed.comm.collectives.algorithm_selection import Entry
from testbed.contrib.torch.launch_env import DEFAULT_VARIABLE, VARIABLE, BackendError, ProgramJob
from testbed.measure.execution.program_run import TorchOptions, parse_algorithm_options, torch_environment
from testbed.spec.errors import ConfigError
from testbed.spec.scale import Scale
from testbed.workload.job.endpoint_resolution import loopback_endpoints


def test_algorithms_are_named_by_collective() -> None:
    assert parse_algorithm_options(["all_reduce=ring", "all_gather=far_first"]) == {
        "all_reduce": "ring",
        "all_gather": "far_first",
    }
    for word, message in (
        ("ring", "--collective: got ring, expected COLLECTIVE=ALGORITHM, of .*all_reduce"),
        ("al_reduce=ring", "--collective: got al_reduce=ring, .*did you mean all_reduce"),
        ("all_reduce=rings", "--collective: got all_reduce=rings, expected .*ring"),
    ):
        with pytest.raises(ConfigError, match=message):
            parse_algorithm_options([word])


def test_programs_find_the_job_and_the_backend_and_nothing_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/somewhere/else")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    tuning = TuningTable((Entry("all_reduce", 2, 1, None, "ring"),))
    options = TorchOptions(algorithms={"broadcast": "tree"}, tuning=tuning, default=True)
    with loopback_endpoints(2) as endpoints:
        pass
    with torch_environment(options, endpoints, None, Scale(8), 1) as environment:
        site, *others = environment["PYTHONPATH"].split(os.pathsep)
        assert others == ["/somewhere/else"]
        assert environment["OMP_NUM_THREADS"] == environment[DEFAULT_VARIABLE] == "1"
        (metadata,) = Path(site).glob("*.dist-info")
        (entry,) = PathDistribution(metadata).entry_points
        assert (entry.group, entry.name, entry.value) == (
            "torch.backends",
            "testbed",
            "testbed.contrib.torch:autoload",
        )
        job = ProgramJob.read(Path(environment[VARIABLE]))
        assert [endpoint.port for endpoint in job.wiring.ranks] == [endpoint.port for endpoint in endpoints]
        assert (job.algorithm("broadcast"), job.algorithm("all_reduce")) == ("tree", "auto")
        assert job.tuning == TuningTable(tuning.entries, 8.0)
        assert job.accelerators["h100"]["peak"]["bf16"] == 989e12
        code = "import sys, testbed.contrib.torch.launch_env; print(testbed.__file__, *sys.modules)"
        done = subprocess.run(
            [sys.executable, "-S", "-c", code],
            env={"PYTHONPATH": os.pathsep.join([site, *_with("numpy")])},
            cwd="/",
            capture_output=True,
            text=True,
            check=True,
        )
        file, *modules = done.stdout.split()
        assert file.startswith(site)
        assert not {"pydantic", "yaml", "mininet", "torch"} & set(modules)
    assert not Path(site).exists()


def _with(name: str) -> list[str]:
    """The folder that a package is in."""
    return [str(Path(sys.modules[name].__file__ or "").parents[1])]


def test_a_program_that_nobody_has_started_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(BackendError, match=r"expected a program that was started by: testbed launch"):
        ProgramJob.here()


def test_without_pytorch_or_its_needs_a_warning_says_so() -> None:
    code = "import testbed.contrib.torch; testbed.contrib.torch.autoload()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "torch backend testbed: No module named 'torch'" in done.stderr

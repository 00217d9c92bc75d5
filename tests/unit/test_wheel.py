"""The wheel, installed in an environment of its own outside the checkout: what is in it, and that it works there."""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/how-to/plugins/algorithms.md"

CHECK = """
import testbed
from testbed.contrib import conformance
from leaders import leaders
from testbed.comm.collectives import ALL_REDUCE, RowsAlgorithm

conformance.check_algorithm(leaders, sizes=(1, 2, 5))
conformance.check_algorithm(RowsAlgorithm(lambda count, most: count), sizes=(2, 3))
try:
    conformance.check_algorithm("ring", "all_gather", sizes=(3,), numels=(4,), typed=[("float32", "sum")])
    conformance.check_algorithm(RowsAlgorithm(lambda count, most: 0), sizes=(2,))
except conformance.Nonconforming as error:
    print(error)
print(testbed.__file__, conformance.__file__)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    command = [
        str(Path(sys.executable).with_name("uv")),
        "build",
        "--wheel",
        "--quiet",
        "--out-dir",
        str(folder),
    ]
    command += ["--build-constraints", str(ROOT / "requirements/build.lock"), "--require-hashes", str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The environment. Libraries are those of the tests' own; a path file does not take its editable testbed along."""
    folder = tmp_path_factory.mktemp("installed") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    command = [
        str(Path(sys.executable).with_name("uv")),
        "pip",
        "install",
        "--quiet",
        "--offline",
        "--no-deps",
    ]
    subprocess.run([*command, "--python", folder / "bin/python", wheel], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder


def run(folder: Path, *command: str | Path, path: str = "/usr/bin:/bin") -> str:
    """Return a command's output, run outside any checkout and without this environment's settings for Python."""
    environment = {"PATH": path, "HOME": str(folder)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_wheel_has_the_package_and_nothing_beside_it(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"testbed"}
    assert {"testbed/shipped/scenarios/quickstart.yaml", "testbed/py.typed"} <= set(names)


def test_an_algorithm_of_ones_own_is_checked_where_only_the_wheel_is(installed: Path, tmp_path: Path) -> None:
    """That of the page."""
    (code, *_) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "leaders.py").write_text(code)
    (tmp_path / "check.py").write_text(CHECK)
    wrong, where = run(tmp_path, installed / "bin/python", "check.py").splitlines()
    assert re.search(r"sent\(1, 7\): got 0, expected 1 to 7|sent\(1, 1\): got 0, expected 1 to 1", wrong)
    assert all(Path(file).is_relative_to(installed) for file in where.split())


def test_the_command_finds_what_is_shipped(installed: Path, tmp_path: Path) -> None:
    assert "hierarchical" in run(tmp_path, installed / "bin/testbed", "plan", "quickstart", "--json")


def test_the_library_of_flows_is_in_the_wheel(installed: Path, tmp_path: Path) -> None:
    """No compiler is on the path, and none is needed."""
    assert "hierarchical" in run(
        tmp_path, installed / "bin/testbed", "predict", "quickstart", "--packets", "0", path=""
    )

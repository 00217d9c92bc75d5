"""The Vagrantfile: what it asks of each provider, and what it says to settings that make no sense."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

CHECKOUT = Path(__file__).parents[2]
PROVIDERS = ("virtualbox", "vmware_desktop", "parallels", "libvirt")
FOUND = {name: shutil.which(name) for name in ("ruby", "vagrant")}


def environment(**settings: str) -> dict[str, str]:
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("TESTBED_", "VAGRANT_"))
    }
    return {**kept, **settings}


def read(provider: str, **settings: str) -> subprocess.CompletedProcess[str]:
    stub = Path(__file__).with_name("vagrant_stub.rb")
    command = [FOUND["ruby"] or "ruby", str(stub), str(CHECKOUT / "Vagrantfile"), provider]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, env=environment(**settings), timeout=30
    )


def asked(provider: str, **settings: str) -> dict[str, Any]:
    done = read(provider, **settings)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


needs_ruby = pytest.mark.skipif(FOUND["ruby"] is None, reason="no ruby here (tools/bootstrap validate)")


@pytest.mark.skipif(FOUND["vagrant"] is None, reason="no vagrant here (tools/bootstrap validate)")
@pytest.mark.parametrize("machines", ["1", "2"])
def test_vagrant_itself_finds_the_file_valid(machines: str, tmp_path: Path) -> None:
    shutil.copy(CHECKOUT / "Vagrantfile", tmp_path)  # it leaves a folder of its own beside the file
    (tmp_path / "tools").symlink_to(CHECKOUT / "tools")
    done = subprocess.run(
        ["vagrant", "validate", "--ignore-provider"],
        cwd=tmp_path,
        env=environment(TESTBED_MACHINES=machines, VAGRANT_HOME=str(tmp_path / "home")),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Vagrantfile validated successfully." in done.stdout


@needs_ruby
@pytest.mark.parametrize("provider", PROVIDERS)
def test_every_provider_gets_its_box_processors_and_memory(provider: str) -> None:
    found = asked(provider)
    assert found["box"] == ("cloud-image/debian-12" if provider == "libvirt" else "bento/debian-12")
    assert found["provider"]["cpus"] == 4
    assert found["provider"]["memory"] == 8192
    ((_, provision),) = found["provision"]
    assert (CHECKOUT / provision["path"]).stat().st_mode & 0o111
    assert provision["args"] == []
    other = asked(provider, TESTBED_BOX="ubuntu-24.04", TESTBED_CPUS="2", TESTBED_MEMORY="3072")
    assert other["box"].endswith("/ubuntu-24.04")
    assert (other["provider"]["cpus"], other["provider"]["memory"]) == (2, 3072)
    assert asked(provider, TESTBED_BOX="mine")["box"] == "mine"


@needs_ruby
def test_without_kvm_libvirt_emulates_a_processor_that_numpy_runs_on() -> None:
    assert "driver" not in asked("libvirt")["provider"]
    emulated = asked("libvirt", TESTBED_KVM="0")["provider"]
    assert (emulated["driver"], emulated["cpu_mode"]) == ("qemu", "custom")
    # without SSE 4.2 `import numpy` ends in a signal
    assert emulated["cpu_model"] not in ("qemu64", "kvm64")
    assert emulated["qemuargs"] == [[{"value": "-icount"}], [{"value": "shift=0"}]]
    assert emulated["cpus"] == 1
    assert "qemuargs" not in asked("libvirt", TESTBED_KVM="0", TESTBED_MACHINES="2")["provider"]
    assert asked("libvirt", TESTBED_KVM="0", TESTBED_CPUS="2")["provider"]["cpus"] == 2


@needs_ruby
def test_several_machines_have_names_and_addresses_and_know_of_each_other() -> None:
    found = asked("virtualbox", TESTBED_MACHINES="3")
    addresses = [network[1]["ip"] for machine in found["machines"].values() for network in machine["network"]]
    assert list(found["machines"]) == ["testbed1", "testbed2", "testbed3"]
    assert found["provision"][0][1]["args"] == addresses
    assert len(set(addresses)) == 3
    assert [machine["primary"] for machine in found["machines"].values()] == [True, False, False]


@needs_ruby
@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("TESTBED_CPUS", "0", "a whole number, 1 or more"),
        ("TESTBED_MEMORY", "8 GB", "a whole number, 2048 or more"),
        ("TESTBED_KVM", "no", "a whole number, 0 to 1"),
        ("TESTBED_MACHINES", "17", "a whole number, 1 to 16"),
    ],
)
def test_a_setting_that_makes_no_sense_is_one_line(name: str, value: str, expected: str) -> None:
    done = read("libvirt", **{name: value})
    assert done.returncode == 1
    assert done.stderr == f'{name}: got "{value}", expected {expected}\n'

"""Kernel sources out of a distribution's archive: a small one in a folder, read by the real apt."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from testbed.errors import BadInput
from testbed.net.errors import VirtualClockError
from testbed.net.virtual.guest import seccomp_argument
from testbed.net.virtual.kernel_source import APT_PROGRAMS, apt_sources, choose_package, fetch_source

needs_apt = pytest.mark.skipif(
    any(shutil.which(program) is None for program in APT_PROGRAMS), reason="no apt on this machine"
)


def archive(folder: Path, *versions: str) -> list[str]:
    """A flat archive of packages of kernel sources; its line of sources.list."""
    folder.mkdir()
    entries = []
    for version in versions:
        name = f"linux-source-{version}"
        root = folder / "root"
        (root / "usr/src").mkdir(parents=True)
        (root / "DEBIAN").mkdir()
        with tarfile.open(root / f"usr/src/{name}.tar.xz", "w:xz") as tar:
            tar.addfile(tarfile.TarInfo(f"{name}/Makefile"))
        control = f"Package: {name}\nVersion: {version}-1\nArchitecture: all\nMaintainer: x <x@example.org>\n"
        (root / "DEBIAN/control").write_text(f"{control}Description: source\n")
        package = folder / f"{name}_{version}-1_all.deb"
        subprocess.run(["dpkg-deb", "-b", str(root), str(package)], check=True, capture_output=True)
        shutil.rmtree(root)
        data = package.read_bytes()
        figures = (
            f"Filename: ./{package.name}\nSize: {len(data)}\nSHA256: {hashlib.sha256(data).hexdigest()}\n"
        )
        entries.append(f"{control}{figures}Description: source\n")
    (folder / "Packages").write_text("\n".join(entries))
    return [f"deb [trusted=yes] file:{folder} ./"]


@needs_apt
def test_the_newest_source_that_was_tried_is_fetched_and_nothing_else_is_left(tmp_path: Path) -> None:
    lines = archive(tmp_path / "archive", "6.1", "7.2", "7.3", "7.9")
    (tmp_path / "work").mkdir()
    said: list[str] = []
    found = fetch_source(tmp_path / "work", (6, 16), lambda line, share: said.append(line), lines)
    assert found == tmp_path / "work/linux-source-7.3.tar.xz"
    with tarfile.open(found) as tar:
        assert tar.getnames() == ["linux-source-7.3/Makefile"]
    assert [path.name for path in (tmp_path / "work").iterdir()] == ["linux-source-7.3.tar.xz"]
    assert said == ["fetching linux-source-7.3 from the distribution's archive"]


@needs_apt
@pytest.mark.parametrize(
    ("versions", "words"), [(("6.1",), "its newest is linux-source-6.1"), ((), "it has none")]
)
def test_an_archive_without_one_as_new_is_told(tmp_path: Path, versions: tuple[str, ...], words: str) -> None:
    lines = archive(tmp_path / "archive", *versions)
    with pytest.raises(VirtualClockError, match=f"no kernel source of Linux 6.16 or newer: {words}"):
        fetch_source(tmp_path, (6, 16), lambda line, share: None, lines)


@needs_apt
def test_an_archive_that_does_not_answer_is_told(tmp_path: Path) -> None:
    lines = ["deb [trusted=yes] http://127.0.0.1:9/debian stable main"]
    with pytest.raises(VirtualClockError, match=r"6.16 or newer: Failed to fetch .*127\.0\.0\.1"):
        fetch_source(tmp_path, (6, 16), lambda line, share: None, lines)


def test_of_several_packages_the_newest_that_was_tried_is_taken() -> None:
    names = [
        "linux-source-6.1",
        "linux-source-7.2",
        "linux-source-7.3",
        "linux-source-8.0",
        "linux-source-5.10",
    ]
    assert choose_package(names) == "linux-source-7.3"
    assert (
        choose_package(["linux-source-8.0", "linux-source-7.11", "linux-source-5.10"]) == "linux-source-7.11"
    )
    assert choose_package(["linux-source-5.10"]) is None


def test_without_apt_it_is_told_what_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(VirtualClockError, match="apt-get not found"):
        apt_sources()


def test_guests_stop_by_a_filter_where_their_kernel_can_unless_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TESTBED_GUEST_SECCOMP", raising=False)
    assert seccomp_argument("7.3.4") == ["seccomp=auto"]
    assert seccomp_argument("6.1.176") == seccomp_argument("6.12.3") == []
    monkeypatch.setenv("TESTBED_GUEST_SECCOMP", "off")
    assert seccomp_argument("6.16") == ["seccomp=off"]
    monkeypatch.setenv("TESTBED_GUEST_SECCOMP", "never")
    with pytest.raises(BadInput, match="TESTBED_GUEST_SECCOMP: got never, expected auto, on, off"):
        seccomp_argument("7.3.4")

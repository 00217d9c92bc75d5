"""Kernel sources: found locally or downloaded by apt without root, unpacked and patched."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from testbed.net.errors import VirtualClockError
from testbed.net.virtual.kernel_image import (
    NEWEST_TESTED_VERSION,
    OLDEST_VERSION,
    format_version,
    parse_version,
)
from testbed.net.virtual.kernel_patches import PATCHES, PATCHES_BEFORE, PATCHES_SINCE, Patches

PACKAGED = Path("/usr/src")
# What building needs: a program, and the package of Debian and Ubuntu that has it.
TOOLS = {
    "make": "make",
    "gcc": "gcc",
    "ld": "binutils",
    "nm": "binutils",
    "flex": "flex",
    "bison": "bison",
    "bc": "bc",
    "tar": "tar",
    "xz": "xz-utils",
    "bzip2": "bzip2",
}
GET_SOURCE = "give a kernel source tree or archive: testbed virtual build --source PATH"


@dataclass(frozen=True)
class Source:
    """A source tree, or an archive of one."""

    path: Path

    @property
    def is_tree(self) -> bool:
        """Whether it needs no unpacking."""
        return self.path.is_dir()


def missing_tools() -> list[str]:
    """Packages (by Debian's names) of the programs that are not on PATH."""
    return sorted({package for tool, package in TOOLS.items() if shutil.which(tool) is None})


def find_source(given: Path | None, packaged: Path = PACKAGED) -> Source:
    """The source given, or the newest that the distribution's packages put here. VirtualClockError."""
    if given is not None:
        if given.is_dir() and not (given / "arch/um/Kconfig").exists():
            raise VirtualClockError(f"{given}: not a kernel source tree (it has no arch/um/Kconfig)")
        if not given.exists():
            raise VirtualClockError(f"{given}: no such kernel source tree or archive")
        return Source(given.resolve())
    found = [
        path for path in packaged.glob("linux-source-*.tar.*") if parse_version(path.name) >= OLDEST_VERSION
    ]
    if not found:
        raise VirtualClockError(
            f"no kernel source of Linux {format_version(OLDEST_VERSION)} or newer in {packaged}: {GET_SOURCE}"
        )
    return Source(max(found, key=lambda path: parse_version(path.name)).resolve())


def unpack(source: Source, folder: Path) -> Path:
    """The tree, unpacked or copied into `folder`, with the changes that the virtual clock needs."""
    tree = _copy(source.path, folder / "source") if source.is_tree else _unpack(source, folder)
    version = parse_version(read_kernel_version(tree))
    for name, changes in patches_for(version).items():
        file = tree / name
        text = file.read_text() if file.exists() else ""
        for pattern, line in changes.items():
            text, count = re.subn(pattern, line, text)
            if count != 1:
                raise VirtualClockError(
                    f"{source.path}: {name}: {count} places look like `{pattern}`, expected one"
                )
        file.unlink()  # in a copy it may be the same file as in the tree it was copied from
        file.write_text(text)
    return tree


def patches_for(version: tuple[int, ...]) -> Patches:
    """What is changed in a source of this version."""
    older = [changes for before, changes in PATCHES_BEFORE.items() if version < before]
    newer = [changes for since, changes in PATCHES_SINCE.items() if version >= since]
    found: Patches = {}
    for changes in (PATCHES, *older, *newer):
        for name, lines in changes.items():
            found[name] = {**found.get(name, {}), **lines}
    return found


def _copy(tree: Path, target: Path) -> Path:
    """A tree of hard links where that works, which takes a second; else of copies."""
    for how in ("-al", "-a"):
        command = ["cp", how, str(tree), str(target)]
        if subprocess.run(command, capture_output=True, check=False).returncode == 0:
            return target
        shutil.rmtree(target, ignore_errors=True)
    raise VirtualClockError(f"{tree}: cannot be copied to {target.parent}")


def _unpack(source: Source, folder: Path) -> Path:
    command = ["tar", "-xf", str(source.path), "-C", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise VirtualClockError(f"{source.path}: cannot be unpacked: {done.stderr.strip()[-500:]}")
    trees = [entry for entry in folder.iterdir() if (entry / "arch/um/Kconfig").exists()]
    if not trees:
        raise VirtualClockError(
            f"{source.path}: holds no kernel source tree (no arch/um/Kconfig one level down)"
        )
    return trees[0]


def read_kernel_version(tree: Path) -> str:
    """As `make kernelversion` says it, read from the top Makefile. VirtualClockError for too old a tree."""
    makefile = (tree / "Makefile").read_text()
    parts = {
        key: value.strip()
        for key, value in re.findall(
            r"^(VERSION|PATCHLEVEL|SUBLEVEL|EXTRAVERSION) =(.*)$", makefile, re.MULTILINE
        )
    }
    version = f"{parts['VERSION']}.{parts['PATCHLEVEL']}.{parts.get('SUBLEVEL') or 0}{parts.get('EXTRAVERSION', '')}"
    if (int(parts["VERSION"]), int(parts["PATCHLEVEL"])) < OLDEST_VERSION:
        raise VirtualClockError(
            f"{tree}: Linux {version}; the virtual clock needs {format_version(OLDEST_VERSION)} or newer"
        )
    return version


KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
# What to look through beside the release's own, of a Debian.
SUITES = ("{codename}-backports", "trixie-backports", "stable-backports")
APT_PROGRAMS = ("apt-get", "apt-cache", "dpkg-deb")
TIMEOUT_S = 15


def choose_package(names: Iterable[str]) -> str | None:
    """Of packages such as linux-source-7.3 the newest that was tried, else the next after it; None for none."""
    known = [name for name in names if parse_version(name) >= OLDEST_VERSION]
    if tried := [name for name in known if parse_version(name)[:2] <= NEWEST_TESTED_VERSION]:
        return max(tried, key=parse_version)
    return min(known, key=parse_version, default=None)


def apt_sources() -> list[str]:
    """Lines of a sources.list for this machine: its own archive, and the same archive's newer suites.

    VirtualClockError where there is no apt, or none that it is configured for.
    """
    missing = [program for program in APT_PROGRAMS if shutil.which(program) is None]
    if missing:
        raise VirtualClockError(
            f"no {missing[0]} here: only a distribution with apt is known to have sources"
        )
    release = platform.freedesktop_os_release()
    codename = release.get("VERSION_CODENAME", "")
    archives = _list_archives([])
    if not archives:  # lists of packages are often thrown away, in containers
        with tempfile.TemporaryDirectory() as lists:
            Path(lists, "partial").mkdir()
            options = ["-o", f"Dir::State::lists={lists}", "-o", "APT::Sandbox::User=root"]
            _run_unchecked(["apt-get", *options, "update", "-q"], None)
            archives = _list_archives(options)
    own = [line.split()[0] for line in archives if line.split()[1] == codename]
    if not own:
        raise VirtualClockError(f"apt is not configured for an archive of {codename or 'this distribution'}")
    lines = [f"deb {line}" for line in archives if line.split()[0] in own]
    if release.get("ID") == "debian" and KEYRING.exists():
        suites = [suite.format(codename=codename) for suite in SUITES]
        lines = [
            f"deb [signed-by={KEYRING}] {own[0]} {suite} main" for suite in dict.fromkeys((codename, *suites))
        ]
    return lines


def _list_archives(options: Sequence[str]) -> list[str]:
    """Address, suite and component of each main archive that apt has lists of."""
    form = "$(REPO_URI) $(RELEASE) $(COMPONENT)"
    told = _run(["apt-get", *options, "indextargets", "--format", form, "Created-By: Packages"])
    return sorted({line for line in told.splitlines() if line.endswith(" main")})


def fetch_source(
    folder: Path,
    at_least: tuple[int, ...],
    progress: Callable[[str, float | None], None],
    lines: Sequence[str] | None = None,
) -> Source:
    """The newest kernel source that the distribution's archive has, in `folder`.

    Args:
        folder: Where its archive of some 160 MB, and what apt keeps meanwhile, are put.
        at_least: An older version is not worth it.
        progress: Called with what is fetched.
        lines: Of sources.list, where not this machine's.

    Raises:
        VirtualClockError: Without apt, without an answer, or when there is none as new.
    """
    apt = _Apt(folder / "apt", apt_sources() if lines is None else lines)
    names = apt.packages()
    name = choose_package(names)
    if name is None or parse_version(name) < at_least:
        known = f"its newest is {name}" if name else apt.complaint or "it has none"
        raise VirtualClockError(
            f"the distribution's archive has no kernel source of Linux {format_version(at_least)} or newer: {known}"
        )
    progress(f"fetching {name} from the distribution's archive", None)
    return Source(apt.download(name, folder))


class _Apt:
    """apt with lists, cache and sources of its own."""

    def __init__(self, folder: Path, lines: Sequence[str]) -> None:
        for name in ("lists/partial", "cache/archives/partial"):
            (folder / name).mkdir(parents=True)
        sources = folder / "sources.list"
        sources.write_text("".join(f"{line}\n" for line in lines))
        self._folder = folder
        settings = {
            "Dir::Etc::sourcelist": sources,
            "Dir::Etc::sourceparts": "/dev/null",
            "Dir::Etc::preferencesparts": "/dev/null",
            "Dir::State::lists": folder / "lists",
            "Dir::State::status": "/dev/null",  # what is installed here is not what can be fetched
            "Dir::Cache": folder / "cache",
            "APT::Architectures": "amd64",
            "APT::Sandbox::User": "root",
            "Acquire::Languages": "none",
            "Acquire::Retries": 1,
            "Acquire::http::Timeout": TIMEOUT_S,
            "Acquire::https::Timeout": TIMEOUT_S,
        }
        self._options = [word for key, value in settings.items() for word in ("-o", f"{key}={value}")]
        # A suite that is not there is one less to look through, and for apt itself no more than a warning.
        done = _run_unchecked(["apt-get", *self._options, "update", "-q"], folder)
        warnings = [line[3:] for line in done.stderr.splitlines() if line.startswith(("W: ", "E: "))]
        self.complaint = warnings[0] if warnings else ""

    def packages(self) -> list[str]:
        """Names of packages of kernel sources."""
        told = self._run("apt-cache", "search", "--names-only", r"^linux-source-[0-9.]+$")
        return [line.split()[0] for line in told.splitlines() if line]

    def download(self, name: str, folder: Path) -> Path:
        """The archive that is in a package."""
        self._run("apt-get", "download", "-q", name)
        (package,) = self._folder.glob(f"{name}_*.deb")
        _run(["dpkg-deb", "-x", str(package), str(self._folder / "package")])
        package.unlink()
        found = [*self._folder.glob("package/usr/src/linux-source-*.tar.*")]
        if len(found) != 1:
            raise VirtualClockError(f"{name}: holds {len(found)} archives of a kernel source, expected one")
        target = folder / found[0].name
        shutil.move(found[0], target)
        shutil.rmtree(self._folder)
        return target

    def _run(self, program: str, *arguments: str) -> str:
        return _run([program, *self._options, *arguments], self._folder)


def _run(command: list[str], folder: Path | None = None) -> str:
    done = _run_unchecked(command, folder)
    if done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise VirtualClockError(f"{command[0]} failed: {said[-1] if said else f'status {done.returncode}'}")
    return done.stdout


def _run_unchecked(command: list[str], folder: Path | None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "LC_ALL": "C"},
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )

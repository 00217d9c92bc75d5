"""Kernel sources: found locally or downloaded with apt without root, then unpacked and patched."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Sequence
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
# Programs that the build needs, and their packages in Debian and Ubuntu.
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


def missing_tools() -> list[str]:
    """Return the Debian packages of the tools that are not on PATH."""
    return sorted({package for tool, package in TOOLS.items() if shutil.which(tool) is None})


def find_source(given: Path | None, packaged: Path = PACKAGED) -> Path:
    """Return the given source (an archive or a tree), or the newest one in the folder of the distribution's packages.

    Raises:
        VirtualClockError: There is no source, or the given one is not a kernel source.
    """
    if given is not None:
        if given.is_dir() and not (given / "arch/um/Kconfig").exists():
            raise VirtualClockError(f"{given}: not a kernel source tree (it has no arch/um/Kconfig)")
        if not given.exists():
            raise VirtualClockError(f"{given}: no such kernel source tree or archive")
        return given.resolve()
    found = [
        path for path in packaged.glob("linux-source-*.tar.*") if parse_version(path.name) >= OLDEST_VERSION
    ]
    if not found:
        raise VirtualClockError(
            f"no kernel source of Linux {format_version(OLDEST_VERSION)} or newer in {packaged}: {GET_SOURCE}"
        )
    return max(found, key=lambda path: parse_version(path.name)).resolve()


def unpack(source: Path, folder: Path) -> Path:
    """Unpack or copy a source (an archive or a tree) into a folder and apply the patches of the virtual clock.

    Raises:
        VirtualClockError: The source cannot be unpacked, is too old, or a patch does not apply.
    """
    tree = _copy(source, folder / "source") if source.is_dir() else _unpack(source, folder)
    version = parse_version(read_kernel_version(tree))
    for name, changes in patches_for(version).items():
        file = tree / name
        text = file.read_text() if file.exists() else ""
        for pattern, line in changes.items():
            text, count = re.subn(pattern, line, text)
            if count != 1:
                raise VirtualClockError(f"{source}: {name}: got {count} matches of `{pattern}`, expected one")
        file.unlink()  # it may be a hard link to the file in the original tree
        file.write_text(text)
    return tree


def patches_for(version: tuple[int, ...]) -> Patches:
    """Return the patches for a version of the source."""
    older = [changes for before, changes in PATCHES_BEFORE.items() if version < before]
    newer = [changes for since, changes in PATCHES_SINCE.items() if version >= since]
    found: Patches = {}
    for changes in (PATCHES, *older, *newer):
        for name, lines in changes.items():
            found[name] = {**found.get(name, {}), **lines}
    return found


def _copy(tree: Path, target: Path) -> Path:
    """Copy a tree with hard links (this takes a second), or with copies if that fails."""
    for options in ("-al", "-a"):
        command = ["cp", options, str(tree), str(target)]
        if subprocess.run(command, capture_output=True, check=False).returncode == 0:
            return target
        shutil.rmtree(target, ignore_errors=True)
    raise VirtualClockError(f"{tree}: cannot be copied to {target.parent}")


def _unpack(source: Path, folder: Path) -> Path:
    command = ["tar", "-xf", str(source), "-C", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise VirtualClockError(f"{source}: cannot be unpacked: {done.stderr.strip()[-500:]}")
    trees = [entry for entry in folder.iterdir() if (entry / "arch/um/Kconfig").exists()]
    if not trees:
        raise VirtualClockError(
            f"{source}: contains no kernel source tree (no arch/um/Kconfig one level down)"
        )
    return trees[0]


def read_kernel_version(tree: Path) -> str:
    """Read the version from the top Makefile, as `make kernelversion` prints it.

    Raises:
        VirtualClockError: The version is too old.
    """
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
            f"{tree}: got Linux {version}, expected {format_version(OLDEST_VERSION)} or newer for the virtual clock"
        )
    return version


KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
# Debian suites to search in addition to the release's own.
SUITES = ("{codename}-backports", "trixie-backports", "stable-backports")
APT_PROGRAMS = ("apt-get", "apt-cache", "dpkg-deb")
TIMEOUT_S = 15


def choose_package(names: Iterable[str]) -> str | None:
    """Choose among packages such as linux-source-7.3.

    Returns:
        The newest one up to the newest tested version, else the oldest one after it, else None.
    """
    known = [name for name in names if parse_version(name) >= OLDEST_VERSION]
    if tested := [name for name in known if parse_version(name)[:2] <= NEWEST_TESTED_VERSION]:
        return max(tested, key=parse_version)
    return min(known, key=parse_version, default=None)


def apt_sources() -> list[str]:
    """Return the lines of a sources.list for this machine: its own archive, and newer suites of the same archive.

    Raises:
        VirtualClockError: There is no apt, or it is not configured for an archive.
    """
    missing = [program for program in APT_PROGRAMS if shutil.which(program) is None]
    if missing:
        raise VirtualClockError(
            f"{missing[0]} not found: kernel sources can be fetched only on a distribution with apt"
        )
    release = platform.freedesktop_os_release()
    codename = release.get("VERSION_CODENAME", "")
    archives = _list_archives([])
    if not archives:  # containers often have no package lists
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
    """Return the address, suite and component of each main archive in apt's package lists."""
    form = "$(REPO_URI) $(RELEASE) $(COMPONENT)"
    output = _run(["apt-get", *options, "indextargets", "--format", form, "Created-By: Packages"])
    return sorted({line for line in output.splitlines() if line.endswith(" main")})


def fetch_source(
    folder: Path,
    at_least: tuple[int, ...],
    progress: Callable[[str, float | None], None],
    lines: Sequence[str] | None = None,
) -> Path:
    """Fetch the newest kernel source from the distribution's archive.

    Args:
        folder: Target of the source archive of about 160 MB, and of apt's temporary files.
        at_least: The oldest version to fetch.
        progress: Called with the name of the package.
        lines: Lines of sources.list; None for those of this machine.

    Raises:
        VirtualClockError: There is no apt, the archive is not reachable, or it has no such version.
    """
    apt = _Apt(folder / "apt", apt_sources() if lines is None else lines)
    names = apt.list_packages()
    name = choose_package(names)
    if name is None or parse_version(name) < at_least:
        known = f"its newest is {name}" if name else apt.warning or "it has none"
        raise VirtualClockError(
            f"the distribution's archive has no kernel source of Linux {format_version(at_least)} or newer: {known}"
        )
    progress(f"fetching {name} from the distribution's archive", None)
    return apt.download(name, folder)


class _Apt:
    """apt with its own package lists, cache and sources."""

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
            "Dir::State::status": "/dev/null",  # ignore the packages installed on this machine
            "Dir::Cache": folder / "cache",
            "APT::Architectures": "amd64",
            "APT::Sandbox::User": "root",
            "Acquire::Languages": "none",
            "Acquire::Retries": 1,
            "Acquire::http::Timeout": TIMEOUT_S,
            "Acquire::https::Timeout": TIMEOUT_S,
        }
        self._options = [word for key, value in settings.items() for word in ("-o", f"{key}={value}")]
        # A missing suite is only a warning, for apt, too.
        done = _run_unchecked(["apt-get", *self._options, "update", "-q"], folder)
        warnings = [line[3:] for line in done.stderr.splitlines() if line.startswith(("W: ", "E: "))]
        self.warning = warnings[0] if warnings else ""

    def list_packages(self) -> list[str]:
        """Return the names of the packages with kernel sources."""
        output = self._run("apt-cache", "search", "--names-only", r"^linux-source-[0-9.]+$")
        return [line.split()[0] for line in output.splitlines() if line]

    def download(self, name: str, folder: Path) -> Path:
        """Download a package and move the source archive in it to a folder."""
        self._run("apt-get", "download", "-q", name)
        (package,) = self._folder.glob(f"{name}_*.deb")
        _run(["dpkg-deb", "-x", str(package), str(self._folder / "package")])
        package.unlink()
        found = [*self._folder.glob("package/usr/src/linux-source-*.tar.*")]
        if len(found) != 1:
            raise VirtualClockError(
                f"{name}: got {len(found)} kernel source archives in the package, expected one"
            )
        target = folder / found[0].name
        shutil.move(found[0], target)
        shutil.rmtree(self._folder)
        return target

    def _run(self, program: str, *arguments: str) -> str:
        return _run([program, *self._options, *arguments], self._folder)


def _run(command: list[str], folder: Path | None = None) -> str:
    done = _run_unchecked(command, folder)
    if done.returncode != 0:
        lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
        reason = lines[-1] if lines else f"status {done.returncode}"
        raise VirtualClockError(f"{command[0]} failed: {reason}")
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

"""Kernel sources: found where the distribution's package puts them, or at a path; unpacked; asked for their version."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from testbed.net.virtual.errors import VirtualClockError
from testbed.net.virtual.kernel_patches import CHANGES, CHANGES_BEFORE, CHANGES_FROM, Changes
from testbed.net.virtual.versions import OLDEST, dotted, numbers

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
    found = [path for path in packaged.glob("linux-source-*.tar.*") if numbers(path.name) >= OLDEST]
    if not found:
        raise VirtualClockError(
            f"no kernel source of Linux {dotted(OLDEST)} or newer in {packaged}: {GET_SOURCE}"
        )
    return Source(max(found, key=lambda path: numbers(path.name)).resolve())


def unpack(source: Source, folder: Path) -> Path:
    """The tree, unpacked or copied into `folder`, with the changes that the virtual clock needs."""
    tree = _copy(source.path, folder / "source") if source.is_tree else _unpack(source, folder)
    version = numbers(version_of(tree))
    for name, changes in changes_of(version).items():
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


def changes_of(version: tuple[int, ...]) -> Changes:
    """What is changed in a source of this version."""
    older = [changes for before, changes in CHANGES_BEFORE.items() if version < before]
    newer = [changes for since, changes in CHANGES_FROM.items() if version >= since]
    found: Changes = {}
    for changes in (CHANGES, *older, *newer):
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


def version_of(tree: Path) -> str:
    """As `make kernelversion` says it, read from the top Makefile. VirtualClockError for too old a tree."""
    makefile = (tree / "Makefile").read_text()
    parts = {
        key: value.strip()
        for key, value in re.findall(
            r"^(VERSION|PATCHLEVEL|SUBLEVEL|EXTRAVERSION) =(.*)$", makefile, re.MULTILINE
        )
    }
    version = f"{parts['VERSION']}.{parts['PATCHLEVEL']}.{parts.get('SUBLEVEL') or 0}{parts.get('EXTRAVERSION', '')}"
    if (int(parts["VERSION"]), int(parts["PATCHLEVEL"])) < OLDEST:
        raise VirtualClockError(f"{tree}: Linux {version}; the virtual clock needs {dotted(OLDEST)} or newer")
    return version

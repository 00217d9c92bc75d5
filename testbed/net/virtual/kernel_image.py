"""Built kernels: where they are stored, their versions, and which one fits."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from importlib import resources
from pathlib import Path

from testbed.caches import user_cache
from testbed.net.errors import NoKernelError
from testbed.net.virtual.kernel_patches import PATCHES, PATCHES_BEFORE, PATCHES_SINCE

CACHE_VARIABLE = "TESTBED_KERNELS"
SYSTEM_CACHE = Path("/var/cache/scale-across-testbed/kernels")
MANIFEST = "manifest.json"


@dataclass(frozen=True)
class KernelImage:
    """A kernel that was built and verified.

    `clock_address` is where its process holds the virtual time (int64, nanoseconds). `checked` are the features that
    were tried in it.
    """

    folder: Path
    version: str
    recipe: str
    clock_address: int
    checked: tuple[str, ...]

    @property
    def kernel(self) -> Path:
        """The kernel, a program."""
        return self.folder / "linux"

    @property
    def randomness(self) -> Path:
        """The library that seeds it."""
        return self.folder / "seeded_random.so"

    @cached_property
    def digest(self) -> str:
        """The beginning of the SHA-256 of the program and the library that seeds it: one build's, of one compiler."""
        found = hashlib.sha256()
        for file in (self.kernel, self.randomness):
            found.update(file.read_bytes())
        return found.hexdigest()[:12]

    def write(self) -> None:
        """Make it found from now on."""
        document = {**asdict(self), "folder": None, "schema": 1}
        (self.folder / MANIFEST).write_text(json.dumps(document, indent=1) + "\n")

    @classmethod
    def read(cls, folder: Path) -> KernelImage | None:
        """The image in a folder; None when there is none, or only half of one."""
        try:
            found = json.loads((folder / MANIFEST).read_text())
            image = cls(
                folder, found["version"], found["recipe"], found["clock_address"], tuple(found["checked"])
            )
        except (OSError, ValueError, KeyError):
            return None
        return image if os.access(image.kernel, os.X_OK) and image.randomness.exists() else None


def read_recipe_file(name: str) -> str:
    """A file of the recipe, from this package."""
    return (resources.files("testbed.net.virtual") / name).read_text()


def recipe() -> str:
    """What identifies the recipe: a kernel of another one does not fit."""
    sets = [((), PATCHES), *PATCHES_BEFORE.items(), *PATCHES_SINCE.items()]
    changes = [[before, str(file), lines] for before, of_files in sets for file, lines in of_files.items()]
    parts = (read_recipe_file("kernel.config"), read_recipe_file("seeded_random.c"), json.dumps(changes))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


def kernel_folders() -> list[Path]:
    """Where kernels may be, in the order in which they are looked for."""
    if chosen := os.environ.get(CACHE_VARIABLE):
        return [Path(chosen)]
    return [user_cache("kernels"), SYSTEM_CACHE]


def writable_kernel_folder() -> Path:
    """Where a kernel built now goes: root's serves all users of the machine."""
    return kernel_folders()[-1] if os.geteuid() == 0 else kernel_folders()[0]


def find_image(folders: Iterable[Path] | None = None) -> KernelImage:
    """The newest kernel built by today's recipe. NoKernelError."""
    looked = list(kernel_folders() if folders is None else folders)
    found = [
        image
        for folder in looked
        for entry in _list_folder(folder)
        if (image := KernelImage.read(entry)) is not None and image.recipe == recipe()
    ]
    if not found:
        raise NoKernelError(", ".join(map(str, looked)))
    return max(found, key=lambda image: parse_version(image.version))


def _list_folder(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:  # not there, or not ours to look into
        return []


OLDEST_VERSION = (6, 1)
"""Time travel is older, but nothing older was tried."""
SECCOMP_SINCE = (6, 16)
"""From here on a guest's programs can stop by a filter of their own (seccomp) instead of being traced: quicker."""
NEWEST_TESTED_VERSION = (7, 3)


def parse_version(name: str) -> tuple[int, ...]:
    """The version in a name such as linux-source-6.1.tar.xz or 6.1.176-rc1; empty for none."""
    found = re.search(r"\d+(?:\.\d+)+", name)
    return tuple(map(int, found.group().split("."))) if found else ()


def format_version(version: Sequence[int]) -> str:
    """As people write it."""
    return ".".join(map(str, version))

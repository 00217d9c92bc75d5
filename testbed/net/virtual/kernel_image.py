"""Built kernels: where they are stored, their versions, and which one to use."""

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

    `clock_address` is the address of the virtual time (int64, nanoseconds) in its process. `checked` are the features
    that were tested in it.
    """

    folder: Path
    version: str
    recipe: str
    clock_address: int
    checked: tuple[str, ...]

    @property
    def kernel(self) -> Path:
        """Path of the kernel, an executable."""
        return self.folder / "linux"

    @property
    def randomness(self) -> Path:
        """Path of the library that seeds its random numbers."""
        return self.folder / "seeded_random.so"

    @cached_property
    def digest(self) -> str:
        """Start of the SHA-256 of the kernel and its library, which differs between builds and compilers."""
        found = hashlib.sha256()
        for file in (self.kernel, self.randomness):
            found.update(file.read_bytes())
        return found.hexdigest()[:12]

    def write(self) -> None:
        """Write the manifest by which the image is found."""
        document = {**asdict(self), "folder": None, "schema": 1}
        (self.folder / MANIFEST).write_text(json.dumps(document, indent=1) + "\n")

    @classmethod
    def read(cls, folder: Path) -> KernelImage | None:
        """Read the image in a folder; None if there is no complete one."""
        try:
            found = json.loads((folder / MANIFEST).read_text())
            image = cls(
                folder, found["version"], found["recipe"], found["clock_address"], tuple(found["checked"])
            )
        except (OSError, ValueError, KeyError):
            return None
        return image if os.access(image.kernel, os.X_OK) and image.randomness.exists() else None


def read_recipe_file(name: str) -> str:
    """Read a file of the recipe from this package."""
    return (resources.files("testbed.net.virtual") / name).read_text()


def recipe() -> str:
    """Return the hash of the recipe: configuration, random library, patches. Only kernels of this recipe are used."""
    sets = [((), PATCHES), *PATCHES_BEFORE.items(), *PATCHES_SINCE.items()]
    patches = [[version, str(file), lines] for version, files in sets for file, lines in files.items()]
    parts = (read_recipe_file("kernel.config"), read_recipe_file("seeded_random.c"), json.dumps(patches))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


def kernel_folders() -> list[Path]:
    """Return the folders in which kernels are searched, in this order."""
    if chosen := os.environ.get(CACHE_VARIABLE):
        return [Path(chosen)]
    return [user_cache("kernels"), SYSTEM_CACHE]


def writable_kernel_folder() -> Path:
    """Return the folder for a newly built kernel; root's kernels are available to all users of the machine."""
    return kernel_folders()[-1] if os.geteuid() == 0 else kernel_folders()[0]


def find_image(folders: Iterable[Path] | None = None) -> KernelImage:
    """Find the newest kernel that was built by the current recipe. Raises NoKernelError if there is none."""
    searched = list(kernel_folders() if folders is None else folders)
    found = [
        image
        for folder in searched
        for entry in _list_folder(folder)
        if (image := KernelImage.read(entry)) is not None and image.recipe == recipe()
    ]
    if not found:
        raise NoKernelError(", ".join(map(str, searched)))
    return max(found, key=lambda image: parse_version(image.version))


def _list_folder(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:  # missing or not readable
        return []


OLDEST_VERSION = (6, 1)
"""The oldest tested version; time travel itself is older."""
SECCOMP_SINCE = (6, 16)
"""From this version on the kernel can intercept system calls with seccomp, which is faster than ptrace."""
NEWEST_TESTED_VERSION = (7, 3)


def parse_version(name: str) -> tuple[int, ...]:
    """Parse the version in a name such as linux-source-6.1.tar.xz or 6.1.176-rc1; empty if there is none."""
    found = re.search(r"\d+(?:\.\d+)+", name)
    return tuple(map(int, found.group().split("."))) if found else ()


def format_version(version: Sequence[int]) -> str:
    """Format a version as text, such as "6.16"."""
    return ".".join(map(str, version))

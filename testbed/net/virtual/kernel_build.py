"""Build of the guest's kernel: configure, compile, locate its clock, boot it, and test every feature."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from testbed.net.errors import NoKernelError, VirtualClockError
from testbed.net.virtual.guest import Guest, GuestSettings
from testbed.net.virtual.kernel_image import (
    OLDEST_VERSION,
    SECCOMP_SINCE,
    KernelImage,
    find_image,
    parse_version,
    read_recipe_file,
    recipe,
    writable_kernel_folder,
)
from testbed.net.virtual.kernel_source import (
    GET_SOURCE,
    PACKAGED,
    fetch_source,
    find_source,
    missing_tools,
    read_kernel_version,
    unpack,
)

CLOCK_SYMBOL = "time_travel_time"
LOG_LINES = 15
REQUIRED_SPACE_BYTES = 3 << 30

Progress = Callable[[str, float | None], None]
"""Called with the current phase and its completed share from 0 to 1, or None if that is not known."""


def build(
    given: Path | None, again: bool, progress: Progress, fetch: bool = True
) -> tuple[KernelImage, bool]:
    """Build the kernel, or find an image that was built before.

    Args:
        given: The source. None: the source of the fastest kernel available. Guests are faster from Linux 6.16 on, so
            that is the distribution's package in /usr/src if it is new enough, else the newest in the distribution's
            archive, else the package in /usr/src.
        again: Build even if there is an image of the same source version and recipe.
        progress: Called with each phase.
        fetch: Whether to use the distribution's archive.

    Returns:
        The image, and whether it was built now.

    Raises:
        VirtualClockError: There is no source, tools are missing, or the build failed.
    """
    if missing := missing_tools():
        raise VirtualClockError(
            f"building the kernel needs: {' '.join(missing)} (names of Debian's packages)"
        )
    cache = writable_kernel_folder()
    try:
        cache.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise VirtualClockError(
            f"{cache}: {error.strerror}; set TESTBED_KERNELS to use another folder"
        ) from error
    with tempfile.TemporaryDirectory(dir=cache, prefix=".build-") as scratch:
        if given is None and not again and (quick := _find_fast_image(cache)):
            return quick, False
        source = find_source(given) if given else _find_or_fetch_source(Path(scratch), progress, fetch)
        if not again and (known := _find_image_of(source, cache)):
            return known, False
        if shutil.disk_usage(cache).free < REQUIRED_SPACE_BYTES:
            raise VirtualClockError(
                f"{cache}: building needs {REQUIRED_SPACE_BYTES >> 30} GiB of free space there"
            )
        return _build(source, Path(scratch), cache, progress), True


def _find_or_fetch_source(scratch: Path, progress: Progress, fetch: bool) -> Path:
    """Return the source in /usr/src if it is new enough, else that in the distribution's archive, else any."""
    packaged: Path | None = None
    with contextlib.suppress(VirtualClockError):
        packaged = find_source(None)
    if packaged is not None and (parse_version(packaged.name) >= SECCOMP_SINCE or not fetch):
        return packaged
    try:
        if not fetch:
            raise VirtualClockError("the distribution's archive was not searched")
        return fetch_source(scratch, SECCOMP_SINCE if packaged else OLDEST_VERSION, progress)
    except VirtualClockError as error:
        if packaged is None:
            message = f"no kernel source in {PACKAGED}, and none fetched: {error}"
            raise VirtualClockError(message, hint=GET_SOURCE) from None
        progress(f"using {packaged.name}, with slower guests: {error}", None)
        return packaged


def _find_fast_image(cache: Path) -> KernelImage | None:
    """Return the newest image of the current recipe if it is of Linux 6.16 or newer."""
    with contextlib.suppress(NoKernelError):
        image = find_image([cache])
        if parse_version(image.version) >= SECCOMP_SINCE:
            return image
    return None


def _build(source: Path, scratch: Path, cache: Path, progress: Progress) -> KernelImage:
    objects, result = scratch / "objects", scratch / "result"
    objects.mkdir()
    result.mkdir()
    progress(f"unpacking {source.name}", None)
    tree = unpack(source, scratch)
    version = read_kernel_version(tree)
    folder = cache / f"{version}-{recipe()}"
    progress(f"configuring Linux {version}", None)
    configure(tree, objects)
    _compile(tree, objects, progress)
    shutil.copy2(objects / "linux", result / "linux")
    subprocess.run(["strip", "--strip-debug", str(result / "linux")], check=False, capture_output=True)
    shutil.copy2(objects / ".config", result / "config")
    code = scratch / "seeded_random.c"
    code.write_text(read_recipe_file("seeded_random.c"))
    _run(["gcc", "-shared", "-fPIC", "-O2", "-o", str(result / "seeded_random.so"), str(code)], "compiling")
    address = find_clock_address(objects / "linux")
    progress("booting it and testing every feature", None)
    checked = try_features(KernelImage(result, version, recipe(), address, ()))
    shutil.rmtree(folder, ignore_errors=True)
    result.chmod(0o755)
    result.rename(folder)
    _note_source(source, folder)
    image = KernelImage(folder, version, recipe(), address, checked)
    image.write()
    return image


def configure(tree: Path, objects: Path) -> None:
    """Write `.config`.

    Args:
        tree: The kernel source.
        objects: The build folder.

    Raises:
        VirtualClockError: The source lacks required options; the message lists them.
    """
    wanted = [line for line in read_recipe_file("kernel.config").splitlines() if line.startswith("CONFIG_")]
    seed = objects.parent / "wanted.config"
    seed.write_text("".join(f"{line.replace('=?', '=y')}\n" for line in wanted))
    _run([*_make(tree, objects), "-s", f"KCONFIG_ALLCONFIG={seed}", "allnoconfig"], "configuring")
    got = set((objects / ".config").read_text().splitlines())
    missing = [line for line in wanted if not line.endswith(("=?", "=n")) and line not in got]
    if missing:
        raise VirtualClockError(
            f"{tree}: this kernel source cannot be configured with: {', '.join(missing)}\n"
            "use another one: testbed virtual build --source PATH"
        )


def _compile(tree: Path, objects: Path, progress: Progress) -> None:
    """Run make; the progress is the number of object files built so far."""
    progress("compiling", 0.0)
    jobs = f"-j{len(os.sched_getaffinity(0))}"
    began_s, seen, lines = time.monotonic(), 0, []
    expected = 1400  # objects of Linux 7.3 with this recipe; used for the progress bar only
    with subprocess.Popen(
        [*_make(tree, objects), jobs, "linux"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        # so that ccache ignores the folder, which differs each time
        env={**os.environ, "CCACHE_BASEDIR": str(objects.parent), "CCACHE_NOHASHDIR": "1"},
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                lines.append(line)
                if re.match(r"\s+(CC|AS|LD|AR)\s", line):
                    seen += 1
                    progress("compiling", min(0.99, seen / expected))
        except BaseException:
            process.terminate()
            raise
    if process.returncode != 0:
        errors = [line for line in lines if "rror" in line] or lines
        raise VirtualClockError(
            "the kernel does not compile:\n" + "".join(errors[-LOG_LINES:] + lines[-LOG_LINES:]).rstrip()
        )
    progress(f"compiled in {time.monotonic() - began_s:.0f} s", 1.0)


def find_clock_address(kernel: Path) -> int:
    """Return the address of the virtual time in the kernel's process."""
    for line in _run(["nm", str(kernel)], "reading symbols").splitlines():
        fields = line.split()
        if fields[-1] == CLOCK_SYMBOL:
            return int(fields[0], 16)
    raise VirtualClockError(f"{kernel}: has no symbol {CLOCK_SYMBOL}; was it built with time travel?")


def _make(tree: Path, objects: Path) -> list[str]:
    ccache = ["CC=ccache gcc"] if shutil.which("ccache") else []
    return ["make", "-C", str(tree), "ARCH=um", f"O={objects}", "KBUILD_BUILD_TIMESTAMP=0", *ccache]


def _run(command: list[str], doing: str) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, errors="replace", check=False, stdin=subprocess.DEVNULL
    )
    if done.returncode != 0:
        lines = (done.stderr.strip() or done.stdout.strip()).splitlines()[-LOG_LINES:]
        raise VirtualClockError(f"{doing} failed: {' '.join(command[:2])} ...\n" + "\n".join(lines))
    return done.stdout


# The version of an archive is inside it, and unpacking takes long. So an image records its archive's name, size and
# modification time.
def _stamp(source: Path) -> str:
    status = source.stat()
    return f"{source.name} {status.st_size} {status.st_mtime_ns}"


def _note_source(source: Path, folder: Path) -> None:
    if not source.is_dir():
        (folder / "source").write_text(_stamp(source))


def _find_image_of(source: Path, cache: Path) -> KernelImage | None:
    if source.is_dir():
        return KernelImage.read(cache / f"{read_kernel_version(source)}-{recipe()}")
    for note in cache.glob("*/source"):
        image = KernelImage.read(note.parent)
        if image is not None and image.recipe == recipe() and note.read_text() == _stamp(source):
            return image
    return None


FEATURES_PROGRAM = Path(__file__).with_name("features_in_guest.py")
MEMORY_BYTES = 512 << 20
TIMEOUT_S = 120.0


def try_features(image: KernelImage) -> tuple[str, ...]:
    """Test all features in a guest and return their names.

    Raises:
        VirtualClockError: The test failed, or features do not work; the message has the reason for each.
    """
    stdout: list[str] = []
    stderr: list[str] = []
    settings = GuestSettings(memory_bytes=MEMORY_BYTES, timeout_s=TIMEOUT_S, open_vswitch=False)
    guest = Guest(image, settings)
    command = [sys.executable, "-S", "-E", str(FEATURES_PROGRAM)]
    result = guest.run(command, Path("/"), {"TESTBED_UID": str(os.geteuid())}, stdout.append, stderr.append)
    try:
        found: dict[str, str] = json.loads("".join(stdout))
    except ValueError:
        raise VirtualClockError(
            f"the features could not be tested (status {result.status}): {''.join(stderr) or ''.join(stdout)}"
        ) from None
    if broken := {name: reason for name, reason in found.items() if reason}:
        listed = "\n".join(f"  {name}: {reason}" for name, reason in broken.items())
        raise VirtualClockError(f"the kernel boots, but these features do not work in it:\n{listed}")
    return tuple(found)

"""Run short scripts of `ip`, `tc`, `bridge` and the like inside a namespace; an error is an exception."""

from __future__ import annotations

import subprocess

from testbed.net.links.errors import LinkError

TIMEOUT_S = 30


def inside(pid: int | None, arguments: list[str]) -> list[str]:
    """The command line that runs `arguments` in the namespaces of process `pid` (None: right here)."""
    return arguments if pid is None else ["mnexec", "-a", str(pid), *arguments]


def run_script(pid: int | None, commands: list[str]) -> str:
    """Run shell commands one after the other, stopping at the first that fails; returns what they printed.

    Raises LinkError with the command's own words when one fails, prints to standard error, or hangs.
    """
    if not commands:
        return ""
    script = "\n".join(commands) + "\n"
    try:
        done = subprocess.run(
            inside(pid, ["sh", "-e"]),
            input=script,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except FileNotFoundError as error:
        raise LinkError(f"cannot run {error.filename}: not installed") from error
    except subprocess.TimeoutExpired as error:
        raise LinkError(f"no end after {TIMEOUT_S} s: {script.strip()}") from error
    complaint = done.stderr.strip()
    if done.returncode != 0 or complaint:
        raise LinkError(
            f"failed ({done.returncode}): {complaint or 'no message'}\n  while running: {script.strip()}"
        )
    return done.stdout

"""Signals end a command wherever they find it."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

# the signal comes where an exception cannot leave; then the program goes on, for ten seconds at most
LOST = """
import signal, sys, time, weakref
from testbed.cli.main import raise_on_signals

class Thing:
    def __del__(self):
        if {finaliser}:
            signal.raise_signal({number})

signal.signal({number}, signal.SIG_DFL)  # who runs the tests may ignore it: `nohup`, a shell's background
raise_on_signals()
thing = Thing()
callback = weakref.ref(thing, lambda reference: {finaliser} or signal.raise_signal({number}))
try:
    del thing
    print("goes on", flush=True)
    time.sleep(10)
finally:
    print("cleaned", flush=True)
"""


def ended(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize("finaliser", [True, False], ids=["finaliser", "weak reference"])
@pytest.mark.parametrize(
    ("number", "status"),
    [(signal.SIGINT, -signal.SIGINT), (signal.SIGTERM, 143), (signal.SIGHUP, 129)],
)
def test_a_signal_is_not_lost_where_nothing_can_be_raised(number: int, status: int, finaliser: bool) -> None:
    code = LOST.format(number=int(number), finaliser=finaliser)
    done = ended(code)
    assert (done.returncode, done.stdout) == (status, "goes on\ncleaned\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_what_was_ignored_at_the_start_stays_ignored(number: int) -> None:
    code = (
        f"import signal\nsignal.signal({int(number)}, signal.SIG_IGN)\n"
        "from testbed.cli.main import raise_on_signals\nraise_on_signals()\n"
        f"signal.raise_signal({int(number)})\nprint('goes on')"
    )
    done = ended(code)
    assert (done.returncode, done.stdout) == (0, "goes on\n")


def test_other_errors_that_cannot_be_raised_are_told_as_ever() -> None:
    code = "class Thing:\n    def __del__(self): raise ValueError('told')\nThing()"
    code = f"from testbed.cli.main import raise_on_signals\nraise_on_signals()\n{code}"
    done = ended(code)
    assert done.returncode == 0
    assert "ValueError: told" in done.stderr


def test_ctrl_c_is_told_and_other_ends_are_not() -> None:
    code = (
        "import signal, sys, typer\nfrom testbed.cli import main as command\n"
        "app = sys.modules['testbed.cli.main'].app\n"
        "@app.command()\ndef nap(number: int):\n"
        "    signal.raise_signal(number) if number else sys.exit(130)\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "sys.argv[1:] = ['nap', '{number}']\ncommand()"
    )
    done = ended(code.format(number=int(signal.SIGINT)))
    assert done.returncode == 130
    assert done.stderr == "interrupted; no network, process or unfinished run is left behind\n"
    for number, status in ((int(signal.SIGTERM), 143), (0, 130)):
        done = ended(code.format(number=number))
        assert (done.returncode, done.stderr) == (status, "")


@pytest.mark.parametrize("error", ["RuntimeError('half done')", "TestbedError('half done')"])
def test_what_fails_because_of_a_signal_is_the_signals_end(error: str) -> None:
    code = (
        "import signal, sys, typer\nfrom testbed.cli import main as command\n"
        "from testbed.errors import TestbedError\n"
        "app = sys.modules['testbed.cli.main'].app\n"
        "@app.command()\ndef nap(number: int):\n"
        "    try: number and signal.raise_signal(number)\n"
        f"    finally: raise {error}\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "sys.argv[1:] = ['nap', '{number}']\ncommand()"
    )
    for number, said in ((signal.SIGINT, "interrupted; no network"), (signal.SIGTERM, "")):
        done = ended(code.replace("{number}", str(int(number))))
        assert done.returncode == 128 + number
        assert done.stderr.startswith(said)
        assert "half done" not in done.stderr
    done = ended(code.replace("{number}", "0"))
    assert done.returncode == 1
    assert "half done" in done.stderr


# a timer's signals find the main thread between any two of its instructions
ASKING = """
import contextlib, random, signal, subprocess, time
from testbed.cli.main import raise_on_signals

raise_on_signals()
signal.signal(signal.SIGALRM, signal.getsignal(signal.SIGTERM))
process = subprocess.Popen(["sleep", "60"], stdout=subprocess.DEVNULL)
try:
    for _ in range(300):
        with contextlib.suppress(SystemExit):
            signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-4, 6e-4))
            while True:
                {ask}
                time.sleep(0)
finally:
    process.kill()
print(process.wait(timeout=5))
"""


@pytest.mark.parametrize(
    "ask", ["process.poll()", "with contextlib.suppress(subprocess.TimeoutExpired): process.wait(timeout=0)"]
)
def test_a_signal_leaves_no_process_that_cannot_be_waited_for(ask: str) -> None:
    done = ended(ASKING.format(ask=ask))
    assert (done.returncode, done.stdout) == (0, "-9\n"), done.stderr

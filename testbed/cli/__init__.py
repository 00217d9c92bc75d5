"""The command `testbed`: arguments, output, and its experiments (run, sweep, explore, calibrate)."""

from testbed.cli.main import main

__all__ = ["main"]

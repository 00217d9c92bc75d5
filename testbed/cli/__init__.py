"""The command `testbed`: parse arguments, call, print."""

from testbed.cli.main import main

__all__ = ["main"]

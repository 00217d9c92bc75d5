"""The command `testbed`: parse, call, print. Nothing is decided here."""

from testbed.cli.main import main

__all__ = ["main"]

"""The controller's process: `python -m testbed.controller --rules FILE`.

Listens on 127.0.0.1 only. Standard output carries events, one JSON object a line, and nothing else:

    {"event": "listening", "port": 40001}
    {"event": "installed", "dpid": 1, "bridge": "tb1e0", "rules": 12}    a switch acknowledged its rules, read back
    {"event": "ready", "dpids": [1, 2]}                                  all switches of the file did
    {"event": "error", "message": "..."}                                 at any time; the process goes on

Ends with status 0 on SIGTERM or SIGINT, with 2 when the rules cannot be read or the library is missing. The switches
keep their rules.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from testbed.controller.rules import Rule, loads
from testbed.links.process import end_with_parent

BACKLOG = 128


class Events:
    """Standard output, kept for events: whatever else prints goes to standard error from here on."""

    def __init__(self) -> None:
        self._stream = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)

    def report(self, event: Mapping[str, Any]) -> None:
        """Write one event. The process ends when nobody reads them any more."""
        try:
            self._stream.write(json.dumps(event) + "\n")
            self._stream.flush()
        except BrokenPipeError:
            os._exit(1)


def read_rules(path: str) -> dict[int, list[Rule]]:
    """The rules in a file, or on standard input for "-". ValueError, OSError."""
    try:
        return loads(sys.stdin.read() if path == "-" else Path(path).read_text())
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the rules, listen, install them into the switches that connect."""
    parser = argparse.ArgumentParser(
        prog="python -m testbed.controller", description="Install rules into switches."
    )
    parser.add_argument(
        "--rules", required=True, metavar="FILE", help="rules by datapath id, as JSON; - for stdin"
    )
    parser.add_argument(
        "--port", type=int, default=0, help="TCP port on 127.0.0.1; 0 (default) takes a free one"
    )
    options = parser.parse_args(arguments)
    end_with_parent(signal.SIGTERM)
    for number in (signal.SIGTERM, signal.SIGINT):
        # at once: there is nothing to undo, and the library's threads cannot be joined
        signal.signal(number, lambda *_: os._exit(0))
    events = Events()
    try:
        rules = read_rules(options.rules)
        listener = socket.create_server(("127.0.0.1", options.port), backlog=BACKLOG)
    except (OSError, ValueError) as error:
        events.report({"event": "error", "message": str(error)})
        return 2
    # Switches may connect from here on; they are answered as soon as the library is loaded, which takes a while.
    events.report({"event": "listening", "port": listener.getsockname()[1]})
    try:
        from testbed.controller import compat  # noqa: PLC0415
        from testbed.controller.app import RuleInstaller  # noqa: PLC0415
    except ImportError as error:
        events.report({"event": "error", "message": f"the controller library cannot be loaded: {error}"})
        return 2
    return compat.run(listener, RuleInstaller, rules=rules, report=events.report)


if __name__ == "__main__":
    sys.exit(main())

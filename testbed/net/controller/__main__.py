"""The controller's process: `python -m testbed.net.controller --rules FILE`.

Listens on 127.0.0.1 only. Standard output carries events, one JSON object a line, and nothing else:

    {"event": "listening", "port": 40001}                                for switches; with "api_port" for people
    {"event": "installed", "dpid": 1, "bridge": "tb1e0", "rules": 12}    a switch acknowledged its rules, read back
    {"event": "ready", "dpids": [1, 2]}                                  all switches of the file did
    {"event": "repaired", "dpid": 1, "bridge": "tb1e0", "words": "..."}  somebody had changed them
    {"event": "port", "dpid": 1, "port": 3, "up": false}
    {"event": "policy", "policy": {...}, "rules": 24}                    another one is in force
    {"event": "replanned", "down": ["a-b-0"], "changed": 6}              the same one, with links down or up again;
                                         "seconds" since the word of a switch that it goes by
    {"event": "changed", "rules": 6}                                     so many were written for it
    {"event": "policy_error", "message": "..."}                          the last good rules stay
    {"event": "error", "message": "..."}                                 at any time; the process goes on

Moments are `time_s`, of CLOCK_MONOTONIC. The interface for people (`controller.api`) is there if the file says
what network this is and TESTBED_CONTROLLER_TOKEN is set.

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

from testbed.net.controller.process import Snapshot
from testbed.net.controller.rules import Rule, loads
from testbed.processes import set_parent_death_signal

BACKLOG = 128
TOKEN_VARIABLE = "TESTBED_CONTROLLER_TOKEN"


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


def read_rules(path: str) -> tuple[dict[int, list[Rule]], Mapping[str, Any] | None]:
    """The rules, and what network they are for, in a file, or on standard input for "-". ValueError, OSError."""
    try:
        return loads(sys.stdin.read() if path == "-" else Path(path).read_text())
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the rules, listen, install them into the switches that connect."""
    parser = argparse.ArgumentParser(
        prog="python -m testbed.net.controller", description="Install rules into switches."
    )
    parser.add_argument(
        "--rules", required=True, metavar="FILE", help="rules by datapath id, as JSON; - for stdin"
    )
    parser.add_argument(
        "--api-port", type=int, default=0, help="the same for the interface that `testbed policy` uses"
    )
    parser.add_argument(
        "--port", type=int, default=0, help="TCP port on 127.0.0.1; 0 (default) takes a free one"
    )
    options = parser.parse_args(arguments)
    set_parent_death_signal(signal.SIGTERM)
    for number in (signal.SIGTERM, signal.SIGINT):
        # at once: there is nothing to undo, and the library's threads cannot be joined
        signal.signal(number, lambda *_: os._exit(0))
    events = Events()
    token = os.environ.pop(TOKEN_VARIABLE, "")
    try:
        rules, network = read_rules(options.rules)
        snapshot = Snapshot(**network) if network else None
        listener = socket.create_server(("127.0.0.1", options.port), backlog=BACKLOG)
        ports = {"port": listener.getsockname()[1]}
        interface = None
        if snapshot and token:
            interface = socket.create_server(("127.0.0.1", options.api_port), backlog=BACKLOG)
            ports["api_port"] = interface.getsockname()[1]
    except (OSError, ValueError, TypeError) as error:
        events.report({"event": "error", "message": str(error)})
        return 2
    # Switches may connect from here on; they are answered as soon as the library is loaded, which takes a while.
    events.report({"event": "listening", **ports})
    try:
        from testbed.net.controller import compat  # noqa: PLC0415
        from testbed.net.controller.app import RuleInstaller  # noqa: PLC0415
        from testbed.net.controller.policy_service import (  # noqa: PLC0415
            PolicyService,
            handler,
            rules_for,
        )
    except ImportError as error:
        events.report({"event": "error", "message": f"the controller library cannot be loaded: {error}"})
        return 2

    def begin(app: RuleInstaller) -> None:
        assert snapshot is not None
        service = PolicyService(app, snapshot, events.report)
        if interface is not None:
            compat.serve(interface, handler(service, token))

    if snapshot and not rules:
        rules = {dpid: list(own) for dpid, own in rules_for(snapshot).items()}
    application = (
        RuleInstaller,
        {
            "rules": rules,
            "report": events.report,
            "rule_s": snapshot.rule_s if snapshot else 0.0,
        },
    )
    return compat.run(listener, *application, begin if snapshot else None)


if __name__ == "__main__":
    sys.exit(main())

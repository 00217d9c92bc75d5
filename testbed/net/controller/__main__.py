"""The controller process: `python -m testbed.net.controller --rules FILE`.

It listens on 127.0.0.1 only. Standard output carries events, one JSON object per line, and nothing else:

    {"event": "listening", "port": 40001}                                OpenFlow port; "api_port" for the HTTP API
    {"event": "installed", "dpid": 1, "bridge": "tb1e0", "rules": 12}    rules installed and read back
    {"event": "ready", "dpids": [1, 2]}                                  all switches in the file have their rules
    {"event": "repaired", "dpid": 1, "bridge": "tb1e0", "words": "..."}  rules changed by someone else were restored
    {"event": "port", "dpid": 1, "port": 3, "up": false}
    {"event": "policy", "policy": {...}, "rules": 24}                    another policy is in force
    {"event": "replanned", "down": ["a-b-0"], "changed": 6}              same policy, after links went down or came up;
                                         "seconds" since the switch reported the port
    {"event": "changed", "rules": 6}                                     number of rules written for a change
    {"event": "policy_error", "message": "..."}                          the last good rules stay in force
    {"event": "error", "message": "..."}                                 at any time; the process keeps running

Timestamps are `time_s`, on CLOCK_MONOTONIC. The HTTP API (`process.ControllerApi`) is served if the file contains a
network snapshot and TESTBED_CONTROLLER_TOKEN is set.

The exit status is 0 on SIGTERM or SIGINT, and 2 when the rules cannot be read or the library is missing. The switches
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
    """An event writer that reserves standard output for itself and redirects all other prints to standard error."""

    def __init__(self) -> None:
        self._stream = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)

    def report(self, event: Mapping[str, Any]) -> None:
        """Write one event; exit the process when the reader has closed the pipe."""
        try:
            self._stream.write(json.dumps(event) + "\n")
            self._stream.flush()
        except BrokenPipeError:
            os._exit(1)


def read_rules(path: str) -> tuple[dict[int, list[Rule]], Mapping[str, Any] | None]:
    """Read rules and the optional network snapshot from a file, or from standard input for "-".

    Raises:
        ValueError: The content is not valid.
        OSError: The file cannot be read.
    """
    try:
        return loads(sys.stdin.read() if path == "-" else Path(path).read_text())
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the rules, listen, and install them in the switches that connect; return an exit status on failure."""
    parser = argparse.ArgumentParser(
        prog="python -m testbed.net.controller", description="Install rules into switches."
    )
    parser.add_argument(
        "--rules", required=True, metavar="FILE", help="rules by datapath id, as JSON; - for stdin"
    )
    parser.add_argument(
        "--api-port", type=int, default=0, help="likewise, for the HTTP API that `testbed policy` uses"
    )
    parser.add_argument(
        "--port", type=int, default=0, help="TCP port on 127.0.0.1; 0 (default) picks a free one"
    )
    options = parser.parse_args(arguments)
    set_parent_death_signal(signal.SIGTERM)
    for number in (signal.SIGTERM, signal.SIGINT):
        # Exit immediately: there is nothing to clean up, and the library's threads cannot be joined.
        signal.signal(number, lambda *_: os._exit(0))
    events = Events()
    token = os.environ.pop(TOKEN_VARIABLE, "")
    try:
        rules, network = read_rules(options.rules)
        snapshot = Snapshot(**network) if network else None
        listener = socket.create_server(("127.0.0.1", options.port), backlog=BACKLOG)
        ports = {"port": listener.getsockname()[1]}
        api_listener = None
        if snapshot and token:
            api_listener = socket.create_server(("127.0.0.1", options.api_port), backlog=BACKLOG)
            ports["api_port"] = api_listener.getsockname()[1]
    except (OSError, ValueError, TypeError) as error:
        events.report({"event": "error", "message": str(error)})
        return 2
    # Switches may connect from here on; they get an answer once the library is loaded, which takes a while.
    events.report({"event": "listening", **ports})
    try:
        from testbed.net.controller import compat  # noqa: PLC0415
        from testbed.net.controller.app import RuleInstaller  # noqa: PLC0415
        from testbed.net.controller.policy_service import (  # noqa: PLC0415
            PolicyService,
            make_handler,
            rules_for,
        )
    except ImportError as error:
        events.report({"event": "error", "message": f"the controller library cannot be loaded: {error}"})
        return 2

    def start_service(app: RuleInstaller) -> None:
        assert snapshot is not None
        service = PolicyService(app, snapshot, events.report)
        if api_listener is not None:
            compat.serve(api_listener, make_handler(service, token))

    if snapshot and not rules:
        rules = {dpid: list(own) for dpid, own in rules_for(snapshot).items()}
    app_arguments = {
        "rules": rules,
        "report": events.report,
        "rule_s": snapshot.rule_s if snapshot else 0.0,
    }
    return compat.run(listener, RuleInstaller, app_arguments, start_service if snapshot else None)


if __name__ == "__main__":
    sys.exit(main())

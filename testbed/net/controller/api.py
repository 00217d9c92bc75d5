"""The controller's own interface: HTTP on 127.0.0.1, with a token. `testbed policy` talks to it.

Every request has the header `Authorization: Bearer TOKEN`; bodies and answers are JSON.

    GET  /policy    what is in force: policy, options, queues, links that are down, rules per bridge
    PUT  /policy    {"name": "te", "options": {...}}: put it in force; answers when every switch holds its rules
    POST /diff      the same body: what would change
    GET  /rules     all rules with packet and byte counts

An error is {"error": "..."} with status 400 (what was asked), 401 (the token), 404, or 502 (the switches).
"""

from __future__ import annotations

import json
import secrets
import socket
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler
from typing import Any, ClassVar

from testbed.net.controller.errors import ControllerError, PolicyError
from testbed.net.controller.policy_service import PolicyService

MAX_BODY_BYTES = 64 * 1024**2
TIMEOUT_S = 30.0


def handler(service: PolicyService, token: str) -> Callable[[socket.socket, Any], None]:
    """What answers one connection."""

    class Handler(_Handler):
        routes: ClassVar[Mapping[tuple[str, str], Callable[[Any], Any]]] = {
            ("GET", "/policy"): lambda body: service.show(),
            ("GET", "/rules"): lambda body: service.rules(),
            ("PUT", "/policy"): service.set,
            ("POST", "/diff"): service.diff,
        }
        expected = f"Bearer {token}"

    def answer(connection: socket.socket, address: Any) -> None:
        with connection:
            connection.settimeout(TIMEOUT_S)
            Handler(connection, address, None)  # type: ignore[arg-type]

    return answer


class _Handler(BaseHTTPRequestHandler):
    routes: ClassVar[Mapping[tuple[str, str], Callable[[Any], Any]]] = {}
    expected = ""

    def _serve(self) -> None:
        given = self.headers.get("Authorization", "")
        if not secrets.compare_digest(given.encode(), self.expected.encode()):
            return self._say(401, {"error": "the token is missing or wrong"})
        route = self.routes.get((self.command, self.path))
        if route is None:
            return self._say(404, {"error": f"there is no {self.command} {self.path}"})
        try:
            size = int(self.headers.get("Content-Length") or 0)
            if size > MAX_BODY_BYTES:
                raise ValueError(f"a body of {size} bytes")
            body = json.loads(self.rfile.read(size)) if size else {}
            if not isinstance(body, dict):
                raise ValueError("the body is not an object")
            return self._say(200, route(body))
        except (PolicyError, ValueError, TypeError, KeyError) as error:
            return self._say(400, {"error": str(error)})
        except ControllerError as error:
            return self._say(502, {"error": str(error)})

    do_GET = do_PUT = do_POST = _serve

    def _say(self, status: int, answer: Any) -> None:
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Nothing: standard error is for what goes wrong."""

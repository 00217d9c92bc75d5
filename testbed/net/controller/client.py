"""The controller's interface, from the side of those who use it. See testbed.net.controller.api."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from testbed.net.controller.errors import ControllerError, PolicyError

TIMEOUT_S = 60.0


@dataclass(frozen=True)
class ControllerApi:
    """A running controller's interface at 127.0.0.1.

    Methods raise PolicyError for what was asked, ControllerError for all else; the policy in force stays.
    """

    port: int
    token: str

    def show(self) -> dict[str, Any]:
        """The policy in force, with its notes and queues, and how many rules each bridge should hold."""
        return self._ask("GET", "/policy")

    def rules(self) -> dict[str, Any]:
        """All rules with packet and byte counts, by bridge."""
        return self._ask("GET", "/rules")

    def set(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Install another policy; returns once all switches have its rules."""
        return self._ask("PUT", "/policy", asked)

    def diff(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """What `set` would change."""
        return self._ask("POST", "/diff", asked)

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT_S)
        try:
            data = None if body is None else json.dumps(body)
            connection.request(method, path, data, {"Authorization": f"Bearer {self.token}"})
            response = connection.getresponse()
            answer: dict[str, Any] = json.loads(response.read())
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise ControllerError(
                f"the controller does not answer: {error or type(error).__name__}"
            ) from error
        finally:
            connection.close()
        if response.status == 200:
            return answer
        kind = PolicyError if response.status == 400 else ControllerError
        raise kind(answer["error"])

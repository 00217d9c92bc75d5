"""HTTP server of the live page, only on loopback and only for addresses with its secret token."""

from __future__ import annotations

import contextlib
import hmac
import json
import secrets
import sys
import threading
from collections.abc import Iterator
from functools import lru_cache
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from testbed.errors import BadInput
from testbed.measure.results.result import SUMMARY
from testbed.measure.results.run_directory import partial_path
from testbed.show.live.page_data import FINISHED, RUNNING, Json, PageData
from testbed.show.live.run_sources import FinishedRun, RunFollower, timeline
from testbed.spec.scale import Scale

LOOPBACK = "127.0.0.1"
EVERY_S = 0.5
REPORT = "report.html"
PAGE = ("page.html", "page.css", "page.js", "charts.js", "tables.js", "saving.js", "echarts.js")
KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class LivePage:
    """The live page of a run, as a context manager.

    Args:
        folder: The run's folder, or where the folder will be.
        port: 0 for any free port.
        expected: Whether the run may start later.

    Raises:
        BadInput: If there is no run and none is expected, or the port is taken.
        BadResult: If the run is broken.
    """

    def __init__(self, folder: Path, port: int = 0, *, expected: bool = False) -> None:
        self.folder = folder.resolve()
        self.token = secrets.token_urlsafe(16)
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._run: RunFollower | FinishedRun | None = None
        if not expected:
            self._open()
        try:
            self._server = _Server((LOOPBACK, port), self)
        except OSError as error:
            raise BadInput(
                where="--port", got=str(port), expected=f"a port that is free ({error.strerror})"
            ) from None
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), daemon=True)

    @property
    def address(self) -> str:
        """The page's URL."""
        return f"http://{LOOPBACK}:{self.port}/{self.token}/"

    @property
    def port(self) -> int:
        """The TCP port."""
        return int(self._server.server_address[1])

    def __enter__(self) -> LivePage:
        self._thread.start()
        return self

    def __exit__(self, *reason: object) -> None:
        self._closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def report(self) -> bytes | None:
        """The run's report; None until there is one."""
        try:
            return (self.folder / REPORT).read_bytes()
        except OSError:
            return None

    def document(self) -> Json:
        """Return all data that can be shown now."""
        with self._lock:
            run = self._updated_run()
            if run is None:
                return {"state": "waiting", "name": self.folder.name}
            return run.view.document()

    def timeline(self, part: int, step: int) -> Json:
        """Return the timeline of one step, given its part of the run and its number in that part."""
        with self._lock:
            run = self._updated_run()
            files: list[Path] = [] if run is None else run.files(part)
            scale = Scale() if run is None else run.scale
            offset_s = 0.0 if run is None else run.offset_s(part)
        return timeline(files, step, scale, offset_s)

    def updates(self) -> Iterator[Json | None]:
        """Yield updates until the run has ended, starting with all existing data; None if there is nothing new."""
        sent_view: PageData | None = None
        known: Json = {}
        while not self._closing.is_set():
            with self._lock:
                run = self._updated_run()
                view = None if run is None else run.view
                update: Json | None = None
                if view is not None and view is not sent_view:
                    update = {"all": view.document()}
                elif view is not None and view.known() != known:
                    update = {"more": view.since(known)}
                if view is not None:
                    known, is_over = view.known(), view.state != RUNNING
            yield update
            if view is not None and is_over:
                return
            sent_view = view
            self._closing.wait(EVERY_S)

    def _updated_run(self) -> RunFollower | FinishedRun | None:
        with contextlib.suppress(BadInput):
            if self._run is None:
                self._open()
        if self._run is not None:
            self._run.update()
            if self._run.view.state == FINISHED and isinstance(self._run, RunFollower):
                self._run = FinishedRun(self.folder)
        return self._run

    def _open(self) -> None:
        if partial_path(self.folder).is_dir():
            self._run = RunFollower(self.folder)
        elif (self.folder / SUMMARY).exists():
            self._run = FinishedRun(self.folder)
        else:
            raise BadInput(
                where="RUN", got=str(self.folder), expected="the folder of a finished or running run"
            )


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], page: LivePage) -> None:
        super().__init__(address, _Handler)
        self.page = page

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore browsers that have disconnected."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        request = self._authorised_request()
        if request is None:
            self._send(b"not here\n", "text/plain", HTTPStatus.NOT_FOUND)
            return
        path, query = request
        path = path or "page.html"
        if path in PAGE:
            self._send(_page_file(path), f"{KINDS[Path(path).suffix]}; charset=utf-8")
        elif path == REPORT and (report := self.server.page.report) is not None:
            self._send(report, "text/html; charset=utf-8")
        elif path == "state":
            self._json(self.server.page.document())
        elif path == "timeline":
            self._timeline(query)
        elif path == "news":
            self._send_updates()
        else:
            self._send(b"not here\n", "text/plain", HTTPStatus.NOT_FOUND)

    def _authorised_request(self) -> tuple[str, dict[str, list[str]]] | None:
        """Return the requested path and query if the token and the host are valid; None otherwise."""
        page = self.server.page
        hosts = {f"{name}:{page.port}" for name in (LOOPBACK, "localhost")}
        address = urlsplit(self.path)
        _, _, rest = address.path.partition("/")
        token, slash, path = rest.partition("/")
        has_token = hmac.compare_digest(token.encode(), page.token.encode())
        if not (has_token and slash and self.headers.get("Host") in hosts):
            return None
        return path, parse_qs(address.query)

    def _timeline(self, query: dict[str, list[str]]) -> None:
        try:
            part, step = (int(query[name][0]) for name in ("part", "step"))
        except (KeyError, ValueError):
            self._send(b"part and step: whole numbers\n", "text/plain", HTTPStatus.BAD_REQUEST)
            return
        self._json(self.server.page.timeline(part, step))

    def _send_updates(self) -> None:
        self.send_response(HTTPStatus.OK)
        self._headers("text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        with contextlib.suppress(OSError):  # the client has disconnected
            for found in self.server.page.updates():
                line = ": nothing new" if found is None else f"data: {_to_json(found)}"
                self.wfile.write(f"{line}\n\n".encode())
                self.wfile.flush()

    def _json(self, document: Json) -> None:
        self._send(_to_json(document).encode(), "application/json")

    def _send(self, content: bytes, kind: str, status: HTTPStatus = HTTPStatus.OK) -> None:
        self.send_response(status)
        self._headers(kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _headers(self, kind: str) -> None:
        self.send_header("Content-Type", kind)
        self.send_header("Content-Security-Policy", POLICY)
        self.send_header("Cache-Control", "no-store")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("X-Content-Type-Options", "nosniff")

    def log_message(self, format: str, *arguments: Any) -> None:
        """Log nothing."""


def _to_json(document: Json) -> str:
    return json.dumps(document, separators=(",", ":"))


@lru_cache
def _page_file(name: str) -> bytes:
    """Return a file of the page; its style sheet starts with those of reports."""
    content = resources.files("testbed.show.live").joinpath("page").joinpath(name).read_bytes()
    if name == "page.css":
        templates = resources.files("testbed.show.report").joinpath("templates")
        shared = [templates.joinpath(sheet).read_bytes() for sheet in ("report.css", "drawing.css")]
        return b"\n".join([*shared, content])
    return content

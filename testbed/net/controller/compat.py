"""The one door to the controller library: os-ken, or Ryu 4.34, of which os-ken is the maintained continuation.

Import names from here, never from either library. `TESTBED_CONTROLLER_LIBRARY` chooses: "os-ken" (default) or "ryu".
What the two need to run as a plain process, without their own launchers, is here too.
"""

from __future__ import annotations

import importlib
import os
import socket
import sys
import threading
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

LIBRARY_VARIABLE = "TESTBED_CONTROLLER_LIBRARY"
LIBRARIES = ("os-ken", "ryu")
SIGNAL_WAIT_S = 0.5  # a signal that comes just before a sleep begins is acted on when it ends

library = os.environ.get(LIBRARY_VARIABLE, LIBRARIES[0])
if library == "os-ken":
    os.environ["OSKEN_HUB_TYPE"] = "native"  # plain threads
    _package, _application = "os_ken", "OSKenApp"
elif library == "ryu":
    # Ryu runs on eventlet and must patch before anything else of it is imported. It asks for a name that eventlet
    # dropped in 0.31 and that only its web server would use.
    _wsgi: Any = importlib.import_module("eventlet.wsgi")
    if not hasattr(_wsgi, "ALREADY_HANDLED"):
        _wsgi.ALREADY_HANDLED = b""
    importlib.import_module("ryu.lib.hub").patch(thread=False)
    _package, _application = "ryu", "RyuApp"
else:
    raise ImportError(f"{LIBRARY_VARIABLE}: got {library!r}, expected one of {', '.join(LIBRARIES)}")


def _module(name: str) -> Any:
    return importlib.import_module(f"{_package}.{name}")


_app_manager = _module("base.app_manager")
_controller = _module("controller.controller")
_ofp_handler = _module("controller.ofp_handler")
_handler = _module("controller.handler")
_event = _module("controller.event")
hub: Any = _module("lib.hub")
ofp_event: Any = _module("controller.ofp_event")
Application: Any = getattr(_app_manager, _application)
OPENFLOW_13: int = _module("ofproto.ofproto_v1_3").OFP_VERSION


# with Ryu all runs in one thread, whose parts must wait in its own way
Event: Any = threading.Event if library == "os-ken" else hub.Event
Lock: Any = threading.Lock if library == "os-ken" else hub.Semaphore


Handler = TypeVar("Handler", bound=Callable[..., None])


def on(event: Any) -> Callable[[Handler], Handler]:
    """Decorate a method of an application that handles an event of switches whose handshake is done."""

    def mark(handler: Handler) -> Handler:
        marked: Handler = _handler.set_ev_cls(event, _handler.MAIN_DISPATCHER)(handler)
        return marked

    return mark


class Call(_event.EventBase):  # type: ignore[misc, name-defined]  # the libraries have no types
    """Something to be done in an application's own thread."""

    def __init__(self, work: Callable[[], None]) -> None:
        super().__init__()
        self.work = work


def on_call(handler: Handler) -> Handler:
    """Decorate the method of an application that handles a `Call`."""
    marked: Handler = _handler.set_ev_handler(Call)(handler)
    return marked


class _Connections(_ofp_handler.OFPHandler):  # type: ignore[misc, name-defined]  # the libraries have no types
    """Does the OpenFlow handshake on connections to one socket that is open already.

    The libraries' own servers cannot be given port 0 or a socket, and with no port open 6633 and 6653 to the world.
    """

    def __init__(self, listener: socket.socket) -> None:
        super().__init__()
        self._listener = listener

    def start(self) -> Any:
        super(_ofp_handler.OFPHandler, self).start()
        return hub.spawn(self._accept)

    def _accept(self) -> None:
        while True:
            connection, address = self._listener.accept()
            hub.spawn(_controller.datapath_connection_factory, connection, address)


def serve(listener: socket.socket, answer: Callable[[socket.socket, Any], None]) -> None:
    """Have each connection to `listener` answered by itself; returns at once."""
    listener = _cooperative(listener)

    def accept() -> None:
        while True:
            hub.spawn(answer, *listener.accept())

    hub.spawn(accept)


def run(
    listener: socket.socket,
    application: type,
    arguments: dict[str, Any],
    begin: Callable[[Any], None] | None = None,
) -> NoReturn:
    """Run an application (built with `arguments`) for the switches that connect to `listener`, for ever.

    `begin` is called with it before the first switch is answered.
    """
    listener = _cooperative(listener)
    manager = _app_manager.AppManager.get_instance()
    connections = manager.instantiate(_Connections, listener)
    made = manager.instantiate(application, **arguments)
    made.start()
    print(f"controller library {library} {_version()}", file=sys.stderr)
    if begin is not None:
        begin(made)
    connections.start()
    while True:  # not on a thread's end or an event: only sleeping lets signals through with both libraries
        hub.sleep(SIGNAL_WAIT_S)


def _cooperative(listener: socket.socket) -> socket.socket:
    if library != "ryu":
        return listener
    made: socket.socket = importlib.import_module("eventlet.greenio").GreenSocket(listener)
    return made


def _version() -> str:
    return importlib.import_module("importlib.metadata").version(library)  # type: ignore[no-any-return]

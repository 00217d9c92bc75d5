"""A compatibility layer over the controller libraries: Ryu 4.34, or os-ken, which is Ryu's maintained fork.

Import names from here, never from either library. `TESTBED_CONTROLLER_LIBRARY` selects "os-ken" (default) or "ryu".
`run` and `serve` replace the libraries' own launchers, so that the controller is a plain process.
"""

from __future__ import annotations

import importlib
import os
import socket
import sys
import threading
from collections.abc import Callable
from importlib import metadata
from typing import Any, NoReturn, TypeVar

LIBRARY_VARIABLE = "TESTBED_CONTROLLER_LIBRARY"
LIBRARIES = ("os-ken", "ryu")
SIGNAL_WAIT_S = 0.5  # a signal that arrives just before a sleep is handled when the sleep ends

library = os.environ.get(LIBRARY_VARIABLE, LIBRARIES[0])
if library == "os-ken":
    os.environ["OSKEN_HUB_TYPE"] = "native"  # plain threads
    _package, _application = "os_ken", "OSKenApp"
elif library == "ryu":
    # Ryu runs on eventlet, which must monkey-patch before any other Ryu import. Ryu imports a name that eventlet
    # dropped in 0.31; only its web server, which is not used here, needs it.
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


# With Ryu, everything runs as green threads of one thread, which must use eventlet's primitives to wait.
Event: Any = threading.Event if library == "os-ken" else hub.Event
Lock: Any = threading.Lock if library == "os-ken" else hub.Semaphore


Handler = TypeVar("Handler", bound=Callable[..., None])


def on(event: Any) -> Callable[[Handler], Handler]:
    """Decorate an application's method as the handler of an event, for switches that completed the handshake."""

    def mark(handler: Handler) -> Handler:
        marked: Handler = _handler.set_ev_cls(event, _handler.MAIN_DISPATCHER)(handler)
        return marked

    return mark


class Call(_event.EventBase):  # type: ignore[misc, name-defined]  # the libraries have no types
    """An event that carries a function to run in the application's own thread."""

    def __init__(self, function: Callable[[], None]) -> None:
        super().__init__()
        self.function = function


def on_call(handler: Handler) -> Handler:
    """Decorate an application's method as the handler of `Call` events."""
    marked: Handler = _handler.set_ev_handler(Call)(handler)
    return marked


class _Connections(_ofp_handler.OFPHandler):  # type: ignore[misc, name-defined]  # the libraries have no types
    """An OpenFlow handshake handler for connections to a socket that is already listening.

    The libraries' own servers accept neither port 0 nor a socket, and by default they open 6633 and 6653 to the world.
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
    """Call `answer` in a thread for each connection to `listener`; return at once."""
    listener = _make_cooperative(listener)

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
    """Run an application for the switches that connect to `listener`; never return.

    Args:
        listener: The listening socket for OpenFlow connections.
        application: The application's class.
        arguments: Keyword arguments of its constructor.
        begin: Called with the application before the first switch gets an answer.
    """
    listener = _make_cooperative(listener)
    manager = _app_manager.AppManager.get_instance()
    connections = manager.instantiate(_Connections, listener)
    instance = manager.instantiate(application, **arguments)
    instance.start()
    print(f"controller library {library} {metadata.version(library)}", file=sys.stderr)
    if begin is not None:
        begin(instance)
    connections.start()
    # Do not join a thread or wait for an event: with both libraries only a sleep lets signals through.
    while True:
        hub.sleep(SIGNAL_WAIT_S)


def _make_cooperative(listener: socket.socket) -> socket.socket:
    if library != "ryu":
        return listener
    green: socket.socket = importlib.import_module("eventlet.greenio").GreenSocket(listener)
    return green

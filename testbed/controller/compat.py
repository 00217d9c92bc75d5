"""The one door to the controller library: os-ken, or Ryu 4.34, of which os-ken is the maintained continuation.

Import names from here, never from either library. `TESTBED_CONTROLLER_LIBRARY` chooses: "os-ken" (default) or "ryu".
What the two need to run as a plain process, without their own launchers, is here too.
"""

from __future__ import annotations

import importlib
import os
import socket
import sys
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
hub: Any = _module("lib.hub")
ofp_event: Any = _module("controller.ofp_event")
Application: Any = getattr(_app_manager, _application)
OPENFLOW_13: int = _module("ofproto.ofproto_v1_3").OFP_VERSION


Handler = TypeVar("Handler", bound=Callable[..., None])


def on(event: Any) -> Callable[[Handler], Handler]:
    """Decorate a method of an application that handles an event of switches whose handshake is done."""

    def mark(handler: Handler) -> Handler:
        marked: Handler = _handler.set_ev_cls(event, _handler.MAIN_DISPATCHER)(handler)
        return marked

    return mark


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


def run(listener: socket.socket, application: type, **arguments: Any) -> NoReturn:
    """Run an application (built with `arguments`) for the switches that connect to `listener`, for ever."""
    if library == "ryu":
        listener = importlib.import_module("eventlet.greenio").GreenSocket(listener)
    manager = _app_manager.AppManager.get_instance()
    connections = manager.instantiate(_Connections, listener)
    manager.instantiate(application, **arguments).start()
    print(f"controller library {library} {_version()}", file=sys.stderr)
    connections.start()
    while True:  # not on a thread's end or an event: only sleeping lets signals through with both libraries
        hub.sleep(SIGNAL_WAIT_S)


def _version() -> str:
    return importlib.import_module("importlib.metadata").version(library)  # type: ignore[no-any-return]

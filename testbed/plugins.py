"""Registries of plug-ins by name: built-in, from installed packages, or as `FILE.py:NAME`.

Each extensible package has a `Registry`. Lower packages look it up with `registry` when they check a name, so that
names are not listed twice.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import importlib.util
import pkgutil
import re
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, TypeVar

from testbed.errors import BadInput, TestbedError, did_you_mean

OWN_FILE = re.compile(r"(?P<file>.+\.py):(?P<name>[A-Za-z_]\w*)")

T = TypeVar("T")


def map_strings(value: Any, change: Callable[[str], str]) -> Any:
    """Return data with a function applied to every string in it, except for keys."""
    if isinstance(value, Mapping):
        return {key: map_strings(item, change) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [map_strings(item, change) for item in value]
    return change(value) if isinstance(value, str) else value


def resolve_file_names(value: Any, folder: Path) -> Any:
    """Return data with every FILE.py:NAME in it made absolute, relative to `folder`."""

    def resolve(name: str) -> str:
        own = OWN_FILE.fullmatch(name)
        return name if own is None else f"{(folder / own['file']).resolve()}:{own['name']}"

    return map_strings(value, resolve)


def is_file_name(name: str) -> bool:
    """Return whether a name has the form FILE.py:NAME, so that its target can change."""
    return OWN_FILE.fullmatch(name) is not None


def short_name(name: str) -> str:
    """Return a name for display: FILE.py:NAME without the file's folder."""
    own = OWN_FILE.fullmatch(name)
    return name if own is None else f"{Path(own['file']).name}:{own['name']}"


def shorten_names(value: Any) -> Any:
    """Return data for display, with every FILE.py:NAME in it without the file's folder."""
    return map_strings(value, short_name)


def disambiguate_names(names: Sequence[str]) -> dict[str, str]:
    """Return a map from display names to names: FILE:NAME for FILE.py:NAME, with a number if two are the same."""
    found: dict[str, str] = {}
    for name in names:
        own = OWN_FILE.fullmatch(name)
        label = name if own is None else f"{Path(own['file']).stem}:{own['name']}"
        same = sum(key == label or key.startswith(f"{label}-") for key in found)
        found[f"{label}-{same + 1}" if same else label] = name
    return found


REGISTRIES = {
    "workloads": "testbed.workload.job.kinds:WORKLOADS",
    "schedules": "testbed.workload.schedules:SCHEDULES",
    "collectives": "testbed.comm.collectives.registry:COLLECTIVES",
    "policies": "testbed.net.controller.policies:POLICIES",
    "transports": "testbed.comm.transport.kinds:TRANSPORTS",
    "congestion_controls": "testbed.net.paths.congestion:CONGESTION_CONTROLS",
    "panels": "testbed.show.report.panels:PANELS",
    "protocols": "testbed.comm.transport.protocols:PROTOCOLS",
    "bootstraps": "testbed.comm.transport.bootstraps:BOOTSTRAPS",
}
"""Location of each registry, MODULE:NAME."""


class PluginError(BadInput):
    """The error for a plug-in that is missing, has the wrong type, or raised an unexpected exception."""


class Registry(Mapping[str, T], Generic[T]):
    """Plug-ins of one kind by name. As a mapping it has the named ones; `find` also accepts files.

    Args:
        what: Singular noun for messages, such as "policy".
        package: Package whose modules register the built-in ones; they are imported when names are first looked up.
        entry_points: Entry-point group under which installed packages list their plug-ins.
        check: Function of a plug-in that returns what it should be ("a class derived from Policy"), or None if it is
            valid.
        prefix: Common prefix of this registry's entry points if several share a group, such as "all_reduce.".
    """

    def __init__(
        self,
        what: str,
        package: str,
        entry_points: str,
        check: Callable[[object], str | None],
        prefix: str = "",
    ) -> None:
        self.prefix = prefix
        self.what, self.package, self.entry_points, self.check = what, package, entry_points, check
        self._known: dict[str, T] = {}
        self._installed: dict[str, importlib.metadata.EntryPoint] = {}
        self._complete = False
        self._completing = threading.RLock()  # other threads wait until all names are known

    def register(self, name: str) -> Callable[[T], T]:
        """Register a plug-in under a name; usable as a decorator."""

        def add(thing: T) -> T:
            if name in self._known:
                raise PluginError(where=self.what, got=f"{name} twice", expected="each name once")
            self._known[name] = thing
            return thing

        return add

    def find(self, name: str) -> T:
        """Return a plug-in by name or FILE.py:NAME; raise PluginError if it does not load."""
        if name in self:
            return self[name]
        own = OWN_FILE.fullmatch(name)
        if own is None:
            expected = f"FILE.py:NAME or one of {did_you_mean(name, self)}"
            raise PluginError(where=self.what, got=repr(name), expected=expected)
        return self._checked(name, self._load_from_file(name, Path(own["file"]), own["name"]))

    def expected(self, value: object) -> str | None:
        """Return what is expected in place of a name, or None if it is valid; do not load a file."""
        if isinstance(value, str):
            if value in self:
                return None
            if own := OWN_FILE.fullmatch(value):
                if Path(own["file"]).is_file():
                    return None
                return f"{self._with_article} of a Python file; there is no {own['file']}"
        return f"FILE.py:NAME or {self._with_article}: {did_you_mean(value, self)}"

    @property
    def _with_article(self) -> str:
        return f"{'an' if self.what[0] in 'aeiou' else 'a'} {self.what}"

    def __getitem__(self, name: str) -> T:
        if name not in self._known:  # scanning installed packages takes time
            self._complete_names()
        if name in self._known:
            return self._known[name]
        entry = self._installed[name]
        with attribute_errors(f"{self.what} {name}", Path(entry.value)):
            self._known[name] = self._checked(name, entry.load())
        return self._known[name]

    @property
    def installed(self) -> tuple[str, ...]:
        """The names from installed packages."""
        self._complete_names()
        return tuple(self._installed)

    def __iter__(self) -> Iterator[str]:
        self._complete_names()
        return iter(dict.fromkeys((*self._known, *self._installed)))

    def __len__(self) -> int:
        return len(list(iter(self)))

    def _complete_names(self) -> None:
        with self._completing:
            if not self._complete:
                self._complete = True  # set first, since imported modules may look up names, too
                self._load_names()

    def _load_names(self) -> None:
        package = importlib.import_module(self.package)
        for module in pkgutil.iter_modules(package.__path__):
            importlib.import_module(f"{self.package}.{module.name}")
        for entry in importlib.metadata.entry_points(group=self.entry_points):
            if not entry.name.startswith(self.prefix):
                continue
            name = entry.name.removeprefix(self.prefix)
            if name in self._known:
                raise PluginError(
                    where=f"{self.what} {name}",
                    got=f"an entry point ({entry.value})",
                    expected="a name that is not built in",
                )
            self._installed[name] = entry

    def _load_from_file(self, name: str, path: Path, wanted: str) -> Any:
        module = load_file(path, f"{self.what} {name}")
        if not hasattr(module, wanted):
            ours = [
                key
                for key, value in vars(module).items()
                if not key.startswith("_")
                and getattr(value, "__module__", module.__name__) == module.__name__
                and not isinstance(value, ModuleType)
            ]
            raise PluginError(
                where=f"{self.what} {name}",
                got=f"no {wanted} in the file",
                expected=f"a name in it: {did_you_mean(wanted, ours) or 'it defines none'}",
            )
        return getattr(module, wanted)

    def _checked(self, name: str, thing: Any) -> T:
        expected = self.check(thing)
        if expected is not None:
            got = f"a {type(thing).__name__}" if not isinstance(thing, type) else f"class {thing.__name__}"
            raise PluginError(where=f"{self.what} {name}", got=got, expected=expected)
        found: T = thing
        return found


def derived_from(base: type) -> Callable[[object], str | None]:
    """Return a check that accepts classes derived from this base."""

    def check(thing: object) -> str | None:
        fits = isinstance(thing, type) and issubclass(thing, base)
        return None if fits else f"a class derived from {base.__name__}"

    return check


def registry(kind: str) -> Registry[Any]:
    """Return the registry of a kind, one of REGISTRIES."""
    module, _, name = REGISTRIES[kind].partition(":")
    found: Registry[Any] = getattr(importlib.import_module(module), name)
    return found


_modules: dict[Path, tuple[int, ModuleType]] = {}


def load_file(path: Path, what: str) -> ModuleType:
    """Import a Python file as a module, once until it changes; a PluginError names `what`."""
    path = path.resolve()
    if not path.is_file():
        raise PluginError(f"{what}: there is no file {path}")
    changed = path.stat().st_mtime_ns
    if path in _modules and _modules[path][0] == changed:
        return _modules[path][1]
    # numbered, since files in different folders can have the same name
    spec = importlib.util.spec_from_file_location(f"testbed_plugin_{len(_modules)}_{path.stem}", path)
    assert spec is not None  # true for any .py file
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look up their module
    with attribute_errors(what, path):
        spec.loader.exec_module(module)
    _modules[path] = changed, module
    return module


@contextlib.contextmanager
def attribute_errors(what: str, file: Path) -> Iterator[None]:
    """Convert exceptions of user code in this block into one error that names `what` and the line in `file`."""
    try:
        yield
    except TestbedError:
        raise
    except Exception as error:
        raise PluginError(f"{what}: {describe_exception(error, file)}") from error


def describe_exception(error: Exception, file: Path) -> str:
    """Return an exception as one line, with the last line of `file` that it passed through, or where it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if Path(frame.filename) == file] or frames
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return f"{text} ({own[-1].filename}, line {own[-1].lineno})" if own else text

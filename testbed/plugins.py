"""What can be added under a name: the testbed's own, what installed packages bring, and `FILE.py:NAME`.

Each room that has something to add to has a `Registry` of it. Whoever checks names below that room finds the registry
by `registry`: names are asked for when they are needed, not written down a second time.
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


def resolve_file_names(value: Any, folder: Path) -> Any:
    """Data as written in a file, with every FILE.py:NAME in it found from `folder`."""
    if isinstance(value, Mapping):
        return {key: resolve_file_names(item, folder) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [resolve_file_names(item, folder) for item in value]
    own = OWN_FILE.fullmatch(value) if isinstance(value, str) else None
    return value if own is None else f"{(folder / own['file']).resolve()}:{own['name']}"


def is_file_name(name: str) -> bool:
    """Whether it is FILE.py:NAME, which may be something else later."""
    return OWN_FILE.fullmatch(name) is not None


def short_name(name: str) -> str:
    """For people: of FILE.py:NAME without the file's folder."""
    own = OWN_FILE.fullmatch(name)
    return name if own is None else f"{Path(own['file']).name}:{own['name']}"


def shorten_names(value: Any) -> Any:
    """For people: data with every FILE.py:NAME in it without the file's folder, the reverse of `resolve_file_names`."""
    if isinstance(value, Mapping):
        return {key: shorten_names(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [shorten_names(item) for item in value]
    return short_name(value) if isinstance(value, str) else value


def disambiguate_names(names: Sequence[str]) -> dict[str, str]:
    """What names are known by beside each other: FILE:NAME of FILE.py:NAME, with a number where two have the same."""
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
"""Where each registry stands, MODULE:NAME."""


class PluginError(BadInput):
    """A plug-in that is not there, or is not what it should be, or raises what it should not."""


class Registry(Mapping[str, T], Generic[T]):
    """One kind of thing by name; as a mapping it holds what has a name, `find` takes files as well.

    Args:
        what: One of them, for people: "policy".
        package: Modules of it register what the testbed has itself; they are imported when names are first asked for.
        entry_points: The group under which installed packages name theirs.
        check: Of something found under a name: what it should be ("a class derived from Policy"), None if it is.
        prefix: What entry points of this registry begin with, where several share a group: "all_reduce.".
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
        self._completing = threading.RLock()  # who comes second waits until all names are there

    def register(self, name: str) -> Callable[[T], T]:
        """Decorate, or call with, what goes by this name from now on."""

        def keep(thing: T) -> T:
            if name in self._known:
                raise PluginError(where=self.what, got=f"{name} twice", expected="each name once")
            self._known[name] = thing
            return thing

        return keep

    def find(self, name: str) -> T:
        """By name, or of a file as FILE.py:NAME. PluginError."""
        if name in self:
            return self[name]
        own = OWN_FILE.fullmatch(name)
        if own is None:
            expected = f"FILE.py:NAME or one of {did_you_mean(name, self)}"
            raise PluginError(where=self.what, got=repr(name), expected=expected)
        return self._checked(name, self._of_file(name, Path(own["file"]), own["name"]))

    def expected(self, value: object) -> str | None:
        """Without loading a file: what should stand in place of a name; None where it will do."""
        if isinstance(value, str):
            if value in self:
                return None
            if own := OWN_FILE.fullmatch(value):
                if Path(own["file"]).is_file():
                    return None
                return f"{self._one} of a Python file; there is no {own['file']}"
        return f"FILE.py:NAME or {self._one}: {did_you_mean(value, self)}"

    @property
    def _one(self) -> str:
        return f"{'an' if self.what[0] in 'aeiou' else 'a'} {self.what}"

    def __getitem__(self, name: str) -> T:
        if name not in self._known:  # a look at what is installed takes time
            self._complete_names()
        if name in self._known:
            return self._known[name]
        entry = self._installed[name]
        with attribute_errors(f"{self.what} {name}", Path(entry.value)):
            self._known[name] = self._checked(name, entry.load())
        return self._known[name]

    @property
    def installed(self) -> tuple[str, ...]:
        """Names that installed packages bring."""
        self._complete_names()
        return tuple(self._installed)

    def __iter__(self) -> Iterator[str]:
        self._complete_names()
        return iter(dict.fromkeys((*self._known, *self._installed)))

    def __len__(self) -> int:
        return len(list(iter(self)))

    def _complete_names(self) -> None:
        with self._completing:
            self._complete_once()

    def _complete_once(self) -> None:
        if self._complete:
            return
        self._complete = True  # first of all: what is imported may ask, too
        package = importlib.import_module(self.package)
        for module in pkgutil.iter_modules(package.__path__):
            importlib.import_module(f"{self.package}.{module.name}")
        for entry in importlib.metadata.entry_points(group=self.entry_points):
            if not entry.name.startswith(self.prefix):
                continue
            name = entry.name[len(self.prefix) :]
            if name in self._known:
                raise PluginError(
                    where=f"{self.what} {name}",
                    got=f"an entry point ({entry.value})",
                    expected="a name that the testbed does not have itself",
                )
            self._installed[name] = entry

    def _of_file(self, name: str, path: Path, wanted: str) -> Any:
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
                expected=f"a name in it: {did_you_mean(wanted, ours) or 'there is none'}",
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
    """A check for classes of this base."""

    def check(thing: object) -> str | None:
        fits = isinstance(thing, type) and issubclass(thing, base)
        return None if fits else f"a class derived from {base.__name__}"

    return check


def registry(kind: str) -> Registry[Any]:
    """That of a kind, one of REGISTRIES."""
    module, _, name = REGISTRIES[kind].partition(":")
    found: Registry[Any] = getattr(importlib.import_module(module), name)
    return found


_modules: dict[Path, tuple[int, ModuleType]] = {}


def load_file(path: Path, what: str) -> ModuleType:
    """A Python file as a module, loaded once until it changes. PluginError names `what`."""
    path = path.resolve()
    if not path.is_file():
        raise PluginError(f"{what}: there is no file {path}")
    changed = path.stat().st_mtime_ns
    if path in _modules and _modules[path][0] == changed:
        return _modules[path][1]
    # two files of one name are two modules
    spec = importlib.util.spec_from_file_location(f"testbed_plugin_{len(_modules)}_{path.stem}", path)
    assert spec is not None  # for any .py
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    with attribute_errors(what, path):
        spec.loader.exec_module(module)
    _modules[path] = changed, module
    return module


@contextlib.contextmanager
def attribute_errors(what: str, file: Path, kind: type[TestbedError] = PluginError) -> Iterator[None]:
    """What somebody's code raises in this block becomes one error of a kind that names it and its line in `file`."""
    try:
        yield
    except TestbedError:
        raise
    except Exception as error:
        raise kind(f"{what}: {describe_exception(error, file)}") from error


def describe_exception(error: Exception, file: Path) -> str:
    """An exception in one line, with the last line of `file` that it went through, or where it came from."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if Path(frame.filename) == file] or frames
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return f"{text} ({own[-1].filename}, line {own[-1].lineno})" if own else text

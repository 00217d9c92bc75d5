"""Names of things that can be added: the testbed's own, those of files, those of installed packages."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest

from testbed.net.controller.policies import LinkPolicy, Policy
from testbed.net.controller.policies.multipath import Ecmp
from testbed.plugins import (
    REGISTRIES,
    PluginError,
    Registry,
    derived_from,
    disambiguate_names,
    registry,
    resolve_file_names,
    shorten_names,
)

MINE = """
from testbed.net.controller import LinkPolicy
LIMIT = 3

class Mine(LinkPolicy):
    def choose(self, ends):
        return ends[-1:]
"""


@pytest.fixture
def policies() -> Registry[type[Policy]]:
    found: Registry[type[Policy]] = Registry(
        "policy", "testbed.net.controller.policies", "testbed.tests", derived_from(Policy)
    )
    found.register("last")(Ecmp)
    return found


@pytest.mark.parametrize("kind", REGISTRIES)
def test_every_registry_has_names_and_what_they_stand_for(kind: str) -> None:
    found = registry(kind)
    assert len(found) > 0
    for name in found:
        assert found.check(found[name]) is None
        assert found.expected(name) is None


def test_a_file_brings_its_own(policies: Registry[type[Policy]], tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(MINE)
    found = policies.find(f"{file}:Mine")
    assert issubclass(found, LinkPolicy)
    assert policies.find(f"{file}:Mine") is found, "loaded once"
    file.write_text(MINE.replace("ends[-1:]", "ends[:1]") + "# changed\n")
    assert policies.find(f"{file}:Mine") is not found, "changed, loaded again"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("lats", "policy: got 'lats', expected FILE.py:NAME or one of last; did you mean last?"),
        ("FILE:Nine", "policy FILE:Nine: got no Nine in the file, expected a name in it: LIMIT, Mine; did"),
        ("FILE:LIMIT", "policy FILE:LIMIT: got a int, expected a class derived from Policy"),
        ("/nowhere/a.py:Mine", "policy /nowhere/a.py:Mine: there is no file /nowhere/a.py"),
    ],
)
def test_what_is_not_there_is_named(
    policies: Registry[type[Policy]], tmp_path: Path, name: str, message: str
) -> None:
    file = tmp_path / "mine.py"
    file.write_text(MINE)
    with pytest.raises(PluginError) as caught:
        policies.find(name.replace("FILE", str(file)))
    assert str(caught.value).replace(str(file), "FILE").startswith(message)


def test_a_file_that_does_not_load_is_told_with_its_line(
    policies: Registry[type[Policy]], tmp_path: Path
) -> None:
    file = tmp_path / "mine.py"
    file.write_text("import os\n1 / 0\n")
    with pytest.raises(PluginError, match=rf"ZeroDivisionError: division by zero \({file}, line 2\)"):
        policies.find(f"{file}:Mine")


def test_installed_packages_bring_theirs(
    policies: Registry[type[Policy]], monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = importlib.metadata.EntryPoint(
        "theirs", "testbed.net.controller.policies.multipath:Ecmp", "testbed.tests"
    )
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [entry])
    assert "theirs" in policies
    assert policies["theirs"] is Ecmp
    assert policies.expected("theirs") is None


def test_a_name_is_given_once(policies: Registry[type[Policy]]) -> None:
    with pytest.raises(PluginError, match="policy: got last twice, expected each name once"):
        policies.register("last")(Ecmp)


def test_things_of_files_have_short_names_that_differ() -> None:
    names = ["ring", "/a/mine.py:tree", "/b/mine.py:tree", "/b/mine.py:trees", "/c/d/mine.py:tree"]
    assert disambiguate_names(names) == {
        "ring": "ring",
        "mine:tree": "/a/mine.py:tree",
        "mine:tree-2": "/b/mine.py:tree",
        "mine:trees": "/b/mine.py:trees",
        "mine:tree-3": "/c/d/mine.py:tree",
    }
    assert shorten_names({"algorithms": ["ring", "/a/mine.py:tree"], "trials": 3}) == {
        "algorithms": ["ring", "mine.py:tree"],
        "trials": 3,
    }


def test_files_named_in_a_file_are_found_from_its_folder() -> None:
    data = {"policy": {"name": "own/mine.py:Mine"}, "algorithms": ["ring", "other.py:Ring"], "trials": 3}
    assert resolve_file_names(data, Path("/somewhere")) == {
        "policy": {"name": "/somewhere/own/mine.py:Mine"},
        "algorithms": ["ring", "/somewhere/other.py:Ring"],
        "trials": 3,
    }

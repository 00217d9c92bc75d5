"""Scenarios that come with the testbed, copied where they can be edited."""

from __future__ import annotations

import shutil
from pathlib import Path

import yaml

from testbed.config.errors import ConfigError, Problem
from testbed.config.scenario import load_scenario
from testbed.config.shipped import shipped
from testbed.errors import did_you_mean


def copy_example(scenario: str, folder: Path) -> tuple[Path, ...]:
    """Copy a shipped scenario, with its topology and its trace beside it, into a folder, made if it is not there.

    Args:
        scenario: Its name, such as "quickstart" or "controller/windows".
        folder: Where to; other files may be in it.

    Returns:
        The copies, the scenario first; it loads, as it names the other copies.

    Raises:
        ConfigError: For a name that is none, and for a file that is there already; nothing is copied.
    """
    known = shipped("scenarios")
    if scenario not in known:
        raise _wrong("--scenario", scenario, did_you_mean(scenario, known))
    source = known[scenario]
    own = folder / source.name
    targets = {own: source}
    document = yaml.safe_load(source.read_text())
    named = {"topology": document.get("topology"), "trace": document["workload"].get("trace")}
    files = {key: file for key, file in named.items() if isinstance(file, str)}
    for file in files.values():
        targets[folder / Path(file).name] = (source.parent / file).resolve()
    for target in targets:
        if target.exists():
            raise _wrong("FOLDER", str(folder), f"one without {target.name}")
    folder.mkdir(parents=True, exist_ok=True)
    for target, given in targets.items():
        shutil.copy(given, target)
    text = own.read_text()
    for key, file in files.items():
        text = text.replace(f"{key}: {file}", f"{key}: {Path(file).name}", 1)
    own.write_text(text)
    load_scenario(own)
    return tuple(targets)


def _wrong(field: str, value: str, expected: str) -> ConfigError:
    return ConfigError([Problem("command line", None, field, value, expected)])

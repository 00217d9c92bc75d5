"""Scenarios and topologies that come with the testbed, by name: `quickstart`, `controller/windows`, `two-buildings`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

PACKAGE = Path(__file__).parents[1]
# in a wheel they are inside the package; in a checkout at its top
HOME = PACKAGE / "shipped" if (PACKAGE / "shipped").is_dir() else PACKAGE.parent
KINDS = ("scenarios", "topologies")


def located(given: Path | str, kinds: Sequence[str] = KINDS) -> Path:
    """The file that is meant: the path itself, or, for a name without suffix that is no file here, the shipped one.

    Of the first kind that has it. What is neither is given back as it is.
    """
    path = Path(given)
    if path.suffix != ".yaml" and not path.is_absolute() and not path.exists():
        for kind in kinds:
            file = HOME / kind / f"{path}.yaml"
            if file.is_file():
                return file
    return path


def shipped(kind: str) -> dict[str, Path]:
    """All of a kind (scenarios, topologies) by name."""
    return dict(_named(HOME / kind))


def _named(folder: Path) -> Iterator[tuple[str, Path]]:
    for file in sorted(folder.rglob("*.yaml")):
        yield str(file.relative_to(folder).with_suffix("")), file

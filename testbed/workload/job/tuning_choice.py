"""The tuning table behind the algorithm `auto`: one that `testbed bench --tune` wrote, or the built-in rule."""

from __future__ import annotations

from pathlib import Path

from testbed.comm.collectives import TuningTable
from testbed.spec.errors import ConfigError, Problem
from testbed.spec.scale import UNSCALED, Scale


def tuning_of(path: Path | str | None, where: str, field: str, scale: Scale = UNSCALED) -> TuningTable:
    """Return the tuning table of a file, or the built-in rule if there is no file.

    Its sizes are those at `size_scale` 1, which the arrays of a scaled job represent.

    Args:
        path: The file.
        where: File that names it, for errors.
        field: Field that names it, for errors.
        scale: Scale of the job.

    Raises:
        ConfigError: If the file cannot be read, or has no table.
    """
    if path is None:
        return TuningTable(size_scale=scale.size_scale)
    try:
        entries = TuningTable.read(Path(path)).entries
    except OSError as error:
        raise ConfigError([Problem(where, None, field, str(path), str(error.strerror))]) from None
    except ValueError as error:
        raise ConfigError([Problem(where, None, field, str(path), str(error))]) from None
    return TuningTable(entries, scale.size_scale)

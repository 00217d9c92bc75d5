"""What `auto` goes by in a job: a table that `testbed bench --tune` wrote, or the rule where there is none."""

from __future__ import annotations

from pathlib import Path

from testbed.comm.collectives import TuningTable
from testbed.spec.errors import ConfigError, Problem
from testbed.spec.scale import UNSCALED, Scale


def tuning_of(path: Path | str | None, where: str, field: str, scale: Scale = UNSCALED) -> TuningTable:
    """The table of a file; of sizes as they are at `size_scale` 1, which a scaled job's arrays stand for.

    where, field: who names the file, for the ConfigError if that holds no table.
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

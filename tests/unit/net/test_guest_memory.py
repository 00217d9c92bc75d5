"""The file that is a guest's memory."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from testbed.net.errors import VirtualClockError
from testbed.net.virtual import guest_memory
from testbed.net.virtual.guest_memory import MemoryFile

MIB = 1 << 20


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where guests' memory goes."""
    monkeypatch.setattr(guest_memory, "SHARED_MEMORY", tmp_path)
    return tmp_path


def test_what_was_written_counts_also_when_its_maker_is_gone(folder: Path) -> None:
    memory = MemoryFile(MIB)
    assert memory.folder == folder
    assert memory.used_bytes is None
    with tempfile.TemporaryFile(dir=folder, buffering=0) as made:
        made.truncate(64 * MIB)
        made.write(b"x" * 3 * MIB)
        os.fsync(made)
        memory.attach(os.getpid())
    assert memory.used_bytes is not None
    assert 3 * MIB <= memory.used_bytes < 4 * MIB
    memory.close()
    assert memory.used_bytes is None


def test_files_that_have_a_name_or_are_elsewhere_are_not_it(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    memory = MemoryFile(MIB)
    with (folder / "named").open("wb"), tempfile.TemporaryFile(dir=tmp_path_factory.mktemp("other")):
        memory.attach(os.getpid())
    assert memory.used_bytes is None


def test_room_is_wanted_for_what_is_expected_only(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(folder))
    with pytest.raises(VirtualClockError, match="no space for the guest's 1125899906842624 MiB of memory in"):
        MemoryFile(1 << 70)

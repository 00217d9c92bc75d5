"""The machine's default receive buffer is raised for a moment and put back, also after a kill."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.net.fabric import open_vswitch


@pytest.fixture
def default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "rmem_default"
    path.write_text("212992\n")
    monkeypatch.setattr(open_vswitch, "DEFAULT_RECEIVE_BUFFER", path)
    return path


def test_raised_within_and_put_back_after_an_error_too(default: Path, tmp_path: Path) -> None:
    root = tmp_path / "state"
    root.mkdir()
    seen = []

    def fail_within() -> None:
        with open_vswitch.large_receive_buffers(root):
            seen.append(default.read_text())
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_within()
    assert seen == [str(open_vswitch.LARGE_RECEIVE_BUFFER_BYTES)]
    assert default.read_text() == "212992"
    assert list(root.iterdir()) == []


def test_put_back_after_a_kill(default: Path, tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "rmem_default").write_text("212992")
    default.write_text(str(open_vswitch.LARGE_RECEIVE_BUFFER_BYTES))
    open_vswitch.restore_after_kill(tmp_path / "state")
    assert default.read_text() == "212992"
    open_vswitch.restore_after_kill(tmp_path / "absent")


def test_a_larger_default_is_left_alone(default: Path, tmp_path: Path) -> None:
    default.write_text("99999999")
    (tmp_path / "state").mkdir()
    with open_vswitch.large_receive_buffers(tmp_path / "state"):
        assert default.read_text() == "99999999"
    assert default.read_text() == "99999999"

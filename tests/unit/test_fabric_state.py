"""The mark by which a fabric's processes are found again."""

from __future__ import annotations

import os

import pytest

from testbed.fabric.state import ENVIRONMENT_MARK, marked


@pytest.mark.parametrize("former", [None, "00ab"])
def test_processes_of_a_block_are_marked_and_later_ones_are_as_before(
    monkeypatch: pytest.MonkeyPatch, former: str | None
) -> None:
    monkeypatch.delenv(ENVIRONMENT_MARK, raising=False)
    if former is not None:
        monkeypatch.setenv(ENVIRONMENT_MARK, former)
    with marked("12cd"):
        assert os.environ[ENVIRONMENT_MARK] == "12cd"
    assert os.environ.get(ENVIRONMENT_MARK) == former

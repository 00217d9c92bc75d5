"""The policy that the documentation writes, and the test that it shows, as they stand there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]


def test_the_tutorials_policy_does_what_its_own_test_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (REPOSITORY / "docs" / "policies.md").read_text(encoding="utf-8")
    policy, test = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(policy.splitlines()) <= 30
    (tmp_path / "elephants.py").write_text(policy)
    (tmp_path / "topologies").symlink_to(REPOSITORY / "topologies")
    monkeypatch.chdir(tmp_path)
    exec(compile(test, "docs/policies.md", "exec"), {})

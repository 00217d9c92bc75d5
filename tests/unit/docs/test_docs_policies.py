"""The policy that the documentation writes, and the test that it shows, as they stand there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import testbed

REPOSITORY = Path(__file__).parents[3]


def test_the_policy_of_the_page_does_what_its_own_test_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (REPOSITORY / "docs/how-to/plugins/policies.md").read_text(encoding="utf-8")
    policy, test = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (scenario,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    assert len(policy.splitlines()) <= 30
    (tmp_path / "elephants.py").write_text(policy)
    (tmp_path / "elephants.yaml").write_text(scenario)
    (tmp_path / "topologies").symlink_to(REPOSITORY / "topologies")
    monkeypatch.chdir(tmp_path)
    exec(compile(test, "docs/how-to/plugins/policies.md", "exec"), {})
    found = testbed.predict("elephants.yaml")
    assert found["ring"].step_time_s > 0
    with pytest.raises(testbed.TestbedError, match="shere"):
        testbed.predict(testbed.load("elephants.yaml", set={"policy.options": {"shere": 1}}))

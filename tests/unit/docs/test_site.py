"""The documentation's site: its gallery, its navigation, its links, and the commands that its tutorials name."""

from __future__ import annotations

import importlib.util
import re
import shlex
import shutil
import subprocess
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer
import yaml
from typer.testing import CliRunner

from testbed.cli.main import LazyCommand, app
from testbed.errors import BadInput
from testbed.spec.catalogue import shipped
from testbed.spec.examples import header

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
GENERATED = {"gallery.md", "reference/commands.md", "reference/api.md", "changelog.md"}
PAGES = sorted(path for path in DOCS.rglob("*.md"))


@pytest.fixture(scope="module")
def site_pages() -> ModuleType:
    spec = importlib.util.spec_from_file_location("site_pages", ROOT / "tools" / "site_pages.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", shipped("scenarios"))
def test_every_scenario_asks_and_says_which_command_answers(name: str) -> None:
    found = header(shipped("scenarios")[name].read_text(), name)
    assert found.question.endswith("?")
    own = [command for command in found.commands if f"scenarios/{name}.yaml" in command]
    assert own, "a command that runs it"
    for command in found.commands:
        if command.startswith("testbed "):
            check_command(command)


def test_a_scenario_without_a_question_is_named() -> None:
    command = "#\n#     testbed run x.yaml\nname: x\n"
    assert header(f"# Why? Because.\n{command}", "x").words == "Because."
    assert header(f"# Why? Because.\n{command}", "x").commands == ("testbed run x.yaml",)
    for text in (f"# A pair. Why?\n{command}", f"# A pair.\n{command}", "# Why?\nname: x\n", "name: x\n"):
        with pytest.raises(BadInput, match=r"^x: got a comment"):
            header(text, "x")


def test_commands_that_go_on_are_one_and_remarks_are_none() -> None:
    lines = [
        "# Why?",
        "#",
        "#     testbed run x.yaml   # a minute",
        "#     testbed run x.yaml \\",
        "#         --set a=1",
    ]
    text = "\n".join([*lines, "name: x\n"])
    assert header(text, "x").commands == ("testbed run x.yaml", "testbed run x.yaml --set a=1")


def test_the_gallery_has_question_command_and_picture(site_pages: ModuleType, tmp_path: Path) -> None:
    files = {name: shipped("scenarios")[name] for name in ("quickstart", "inference/partitions")}
    page, *pictures = site_pages.write_gallery(tmp_path, files)
    text = page.read_text()
    for (name, file), picture in zip(files.items(), pictures, strict=True):
        assert header(file.read_text(), name).question in text
        assert f"]({picture.relative_to(tmp_path)})" in text
        assert "".join(ET.parse(picture).getroot().itertext()).count("host") > 0
    assert "    testbed run scenarios/quickstart.yaml\n" in text
    assert "](../scenarios/inference/partitions.yaml)" in text


def test_init_lists_what_each_asks() -> None:
    listed = CliRunner().invoke(app, ["init"]).stdout.splitlines()
    (line,) = (line for line in listed if line.startswith("  quickstart "))
    assert line.endswith(f"  {header(shipped('scenarios')['quickstart'].read_text(), 'quickstart').question}")
    assert "topologies:" in listed


@pytest.mark.thorough
def test_every_network_can_be_drawn(site_pages: ModuleType) -> None:
    for file in shipped("scenarios").values():
        assert ET.fromstring(site_pages.network_svg(file)).tag.endswith("svg")


def test_the_navigation_has_every_page_once() -> None:
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    listed = list(pages_of(config["nav"]))
    assert len(listed) == len(set(listed))
    assert set(listed) == {page.relative_to(DOCS).as_posix() for page in PAGES} | GENERATED


def pages_of(nav: Any) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    else:
        for entry in nav if isinstance(nav, list) else nav.values():
            yield from pages_of(entry)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(DOCS).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for path in re.findall(r"\]\(([^)#\s]+)(?:#[^)\s]*)?\)", text):
        if "://" not in path:
            assert (page.parent / path).exists(), path


def test_links_out_of_the_pages_lead_to_copies(site_pages: ModuleType, tmp_path: Path) -> None:
    def led(text: str, page: str = "plugins/policies.md") -> str:
        found: str = site_pages.led_inside(text, Path(page), tmp_path)
        return found

    assert led("[it](../../tools/bootstrap)") == "[it](../files/tools/bootstrap.txt)"
    assert (tmp_path / "files/tools/bootstrap.txt").read_bytes() == (ROOT / "tools/bootstrap").read_bytes()
    assert led("[new](../CHANGELOG.md)", "results.md") == "[new](changelog.md)"
    assert led("[all](../../scenarios/explore)") == "all"
    for same in ("[a](algorithms.md#b)", "[b](https://example.org/x)", "[c](#d)"):
        assert led(same) == same
    assert led("[e](docs/how-to/explore.md#f)", "changelog.md") == "[e](how-to/explore.md#f)"


def test_every_command_has_its_part(site_pages: ModuleType) -> None:
    text = "\n".join(site_pages.command_lines())
    for command in ("testbed run", "testbed link set", "testbed virtual build"):
        assert f"\n## {command}\n" in text
    assert "<code>--strict</code>" in text
    assert "--ranks-per-process N&#124;all" in text
    assert all(line.count("|") == 3 for line in text.splitlines() if line.startswith("| <code>"))
    assert text.count("\n## ") > 30


TUTORIALS = [
    (page.name, line.strip().removeprefix("sudo "))
    for page in [DOCS / "index.md", *sorted((DOCS / "tutorials").glob("*.md"))]
    for line in page.read_text().splitlines()
    if re.match(r"    (sudo )?testbed [a-z]", line)
]


@pytest.mark.parametrize(("page", "line"), TUTORIALS)
def test_commands_of_the_tutorials_are_commands(page: str, line: str) -> None:
    check_command(re.sub(r"\s+# .*", "", line).split(";")[0].split(" > ")[0])


def check_command(line: str) -> None:
    """That there is such a command with such options, and, in capitals or not at all, such a scenario."""
    words = shlex.split(line)[1:]
    command: Any = typer.main.get_command(app)
    while hasattr(command, "commands"):
        command = command.commands[words.pop(0)]
        if isinstance(command, LazyCommand):
            command = command.load()
    options = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    words = words[: words.index("--")] if "--" in words else words
    assert {word for word in words if word.startswith("-")} <= options | {"--help"}
    if command.name in ("run", "predict", "plan", "explore"):
        name = words[0]
        assert name in shipped("scenarios") or name.endswith(".yaml") or name.isupper()
        if name.startswith("scenarios/"):
            assert (ROOT / name).is_file()


@pytest.mark.thorough
def test_the_site_builds_with_every_link_checked(site_pages: ModuleType, tmp_path: Path) -> None:
    mkdocs = ROOT / ".venv-site" / "bin" / "mkdocs"
    if not mkdocs.exists():
        pytest.skip("no .venv-site; tools/bootstrap site makes it")
    pages, site = tmp_path / "build" / "pages", tmp_path / "build" / "site"
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    site_pages.main(pages)
    command = [str(mkdocs), "build", "--strict"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (site / "search" / "search_index.js").is_file()
    for page in site.rglob("*.html"):
        fetched = re.findall(
            r"<(?:script|img)[^>]*\ssrc=\"(https?:[^\"]*)|<link[^>]*href=\"(https?:[^\"]*)", page.read_text()
        )
        assert not fetched, page
    (pages / "index.md").write_text("[nowhere](nowhere.md) and [no part](results.md#no-such-part)")
    broken = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert broken.returncode != 0
    assert "nowhere.md" in broken.stderr
    assert "no-such-part" in broken.stderr

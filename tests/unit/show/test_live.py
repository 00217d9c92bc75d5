from __future__ import annotations

import http.client
import json
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from rich.console import Console
from typer.testing import CliRunner

from testbed.cli.main import app
from testbed.cli.run import shown
from testbed.errors import BadInput
from testbed.measure.execution.progress import RunLive
from testbed.measure.results.shards import split_into_shards
from testbed.show.live.page_data import FAILED, FINISHED, RUNNING, JsonlTail
from testbed.show.live.run_sources import FinishedRun, RunFollower, timeline
from testbed.show.live.server import LOOPBACK, LivePage
from testbed.spec.scale import Scale
from testbed.spec.scenario import load_scenario
from tests.unit.show.live_run import LiveRun
from tests.unit.show.report_run import BUCKETS, SyntheticRun


def test_a_growing_file_is_read_by_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "some.jsonl"
    tail = JsonlTail(path)
    assert tail.read_new() == []
    path.write_text('{"a": 1}\n{"a": 2')
    assert tail.read_new() == [{"a": 1}]
    assert tail.read_new() == []
    with path.open("a") as file:
        file.write('}\n{"b": 3}\n')
    assert tail.read_new() == [{"a": 2}, {"b": 3}]
    assert JsonlTail(path, b'"b"').read_new() == [{"b": 3}]
    with path.open("a") as file:
        file.write('{"a": \n{"a": 4}\n')  # cut where its writer was killed
    assert tail.read_new() == [{"a": 4}]


def test_a_run_is_followed_from_its_begin_to_its_end(tmp_path: Path) -> None:
    run = LiveRun(tmp_path / "run")
    run.begin()
    following = RunFollower(run.folder)
    view = following.view
    following.update()
    assert (view.state, view.name, view.phases) == (RUNNING, "quickstart", ["starting 8 ranks"])
    assert view.network is not None
    assert [building["name"] for building in view.network["buildings"]] == ["east", "west"]
    assert view.network["links"][0]["rate_bps"] == pytest.approx(285.7e9)
    known = view.known()
    run.step()
    following.update()
    assert view.known() != known
    news = view.since(known)
    assert news["phases"] == []
    assert [(one["variant"], one["trial"]) for one in news["steps"]] == [("ring", 0)]
    step = view.steps[0]
    # times count from the first reading, at 0.0 of the source
    spans = [sample for sample in run.samples if sample["step"] == 0 and sample["operation"] == "step"]
    assert step.start_s == pytest.approx(min(span["start_s"] for span in spans))
    assert step.end_s == pytest.approx(max(span["end_s"] for span in spans))
    whole = len(view.readings[0].times_s)
    run.step()
    run.event()
    following.update()
    assert len(view.since(view.known())["steps"]) == 0
    assert len(view.steps) == 2
    assert view.since({"readings": [whole]})["readings"][0]["times_s"][0] > step.end_s - 0.2
    assert [(event["time_s"], event["words"]) for event in view.events] == [
        (1.0, "link_down east-west-0 begins")
    ]
    run.finish()
    following.update()
    assert view.state == FINISHED


def test_steps_wait_for_their_last_rank(tmp_path: Path) -> None:
    run = LiveRun(tmp_path / "run")
    run.begin()
    run.step()
    late = run.part / "rank-7.jsonl"
    words = late.read_text()
    late.write_text("")
    following = RunFollower(run.folder)
    following.update()
    assert following.view.steps == []
    late.write_text(words)
    following.update()
    assert len(following.view.steps) == 1


def test_what_links_carry_is_a_share_of_their_rate(tmp_path: Path) -> None:
    run = LiveRun(tmp_path / "run")
    run.begin()
    run.step()
    following = RunFollower(run.folder)
    following.update()
    readings, step = following.view.readings[0], following.view.steps[0]
    each_s = 0.1
    carried = 8 * run.like._link_bytes("ring")
    for row in readings.used[:1]:
        assert sum(row) * each_s * 285.7e9 == pytest.approx(carried, rel=0.05)
    assert max(readings.used[0]) == pytest.approx(carried / (step.end_s - step.start_s) / 285.7e9, rel=0.02)
    assert readings.drops[0][-1] == 0  # of those before it began there is nothing to say
    lost = [line["losses"] for line in run.like._link_counters()]
    assert 0 < readings.losses[0][-1] <= max(lost)


def test_parts_that_were_done_before_anybody_looked_are_whole(tmp_path: Path) -> None:
    run = LiveRun(tmp_path / "run")
    run.begin()
    for name in ("samples.jsonl", "links.jsonl"):
        (run.part / name).write_text((run.source / name).read_text())
    (run.part / "live.jsonl").unlink()
    (run.part / "shard.json").write_text(json.dumps({"manifest": run.manifest}))
    following = RunFollower(run.folder)
    following.update()
    over = FinishedRun(run.source)
    assert following.view.network == over.view.network
    assert following.view.steps == over.view.steps
    assert following.view.readings[0].since(0) == over.view.readings[0].since(0)
    assert timeline(following.files(0), 3, following.scale, following.offset_s(0)) == timeline(
        over.files(0), 3, over.scale, over.offset_s(0)
    )


def test_a_step_that_a_lost_rank_never_ends_is_shown_when_others_went_on(tmp_path: Path) -> None:
    run = LiveRun(tmp_path / "run")
    run.begin()
    lost = run.part / "rank-7.jsonl"
    following = RunFollower(run.folder)
    for expected in (0, 0, 1, 2):
        run.step()
        lost.unlink()
        following.update()
        assert len(following.view.steps) == expected


def test_a_run_that_fails_says_why(tmp_path: Path) -> None:
    run = LiveRun(tmp_path / "run")
    run.begin()
    following = RunFollower(run.folder)
    following.update()
    run.fail("rank 3 on east4: gone")
    following.update()
    assert (following.view.state, following.view.words) == (FAILED, "rank 3 on east4: gone")


def test_what_went_on_and_what_is_over_look_alike(tmp_path: Path) -> None:
    run = LiveRun(tmp_path / "run")
    run.begin()
    for _ in range(10):
        run.step()
    following = RunFollower(run.folder)
    following.update()
    went = following.view
    there = timeline(following.files(0), 3, following.scale, following.offset_s(0))
    run.finish()
    over = FinishedRun(run.folder)
    for one, other in zip(went.steps, over.view.steps, strict=True):
        assert one[:4] == other[:4]
        assert one[4:] == pytest.approx(other[4:])
    assert went.network == over.view.network
    assert over.view.head["status"] == "trusted"
    assert over.view.readings[0].used[0][:50] == pytest.approx(went.readings[0].used[0][:50], abs=1e-4)
    here = timeline(over.files(0), 3, over.scale, over.offset_s(0))
    assert here["names"] == there["names"]
    assert here["start_s"] == pytest.approx(there["start_s"])


def test_a_timeline_has_computing_above_what_was_in_flight(tmp_path: Path) -> None:
    over = FinishedRun(SyntheticRun().write(tmp_path / "run"))
    found = timeline(over.files(0), 2, over.scale, 0.0)
    assert found["ranks"] == list(range(8))
    assert len(found["rank"]) == 8 * (2 * BUCKETS + 3)
    assert all(len(found[name]) == len(found["rank"]) for name in ("row", "start_s", "end_s", "kind", "name"))
    by_row: dict[int, set[str]] = {}
    for row, kind in zip(found["row"], found["kind"], strict=True):
        by_row.setdefault(row, set()).add(found["kinds"][kind])
    assert by_row[0] == {"forward", "backward", "wait", "optimizer"}
    assert set().union(*(kinds for row, kinds in by_row.items() if row)) == {"communication"}
    assert found["rows"] == max(found["row"]) + 1
    assert timeline(over.files(0), 99, over.scale, 0.0)["ranks"] == []


def ask(page: LivePage, path: str, host: str | None = None) -> tuple[int, bytes, http.client.HTTPMessage]:
    connection = http.client.HTTPConnection(LOOPBACK, page.port, timeout=10)
    try:
        connection.request("GET", path, headers={} if host is None else {"Host": host})
        answer = connection.getresponse()
        return answer.status, answer.read(), answer.headers
    finally:
        connection.close()


def test_the_page_is_for_those_who_know_its_address(tmp_path: Path) -> None:
    with LivePage(SyntheticRun().write(tmp_path / "run")) as page:
        assert page.address.startswith(f"http://127.0.0.1:{page.port}/")
        status, content, headers = ask(page, f"/{page.token}/")
        assert status == 200
        assert b"<h1" in content
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe-eval" not in policy
        assert headers["Cache-Control"] == "no-store"
        assert json.loads(ask(page, f"/{page.token}/state")[1])["state"] == "finished"
        for path in ("/", "/state", f"/{page.token}", f"/{page.token[:-1]}x/", f"/{page.token}/../page.html"):
            assert ask(page, path)[0] == 404, path
        # a name that leads here, from a page of somebody else's
        assert ask(page, f"/{page.token}/", host=f"evil.example:{page.port}")[0] == 404
        assert ask(page, f"/{page.token}/timeline?part=0&step=x")[0] == 400
        assert ask(page, f"/{page.token}/report.html")[0] == 404
        (page.folder / "report.html").write_text("its own")
        assert ask(page, f"/{page.token}/report.html")[1] == b"its own"


def test_no_page_names_another_machine() -> None:
    folder = Path(__file__).parents[3] / "testbed/show/live/page"
    for name in ("page.html", "page.css", "page.js", "charts.js", "tables.js", "saving.js"):
        assert "://" not in (folder / name).read_text(), name


def test_news_begin_with_all_and_end_with_the_run(tmp_path: Path) -> None:
    run = LiveRun(tmp_path / "run")
    run.begin()
    with LivePage(run.folder) as page:
        news = page.updates()
        assert next(news) == {"all": page.document()}
        assert next(news) is None
        run.step()
        more = next(news)
        assert more is not None
        assert len(more["more"]["steps"]) == 1
        run.finish()
        last = next(news)
        assert last is not None
        assert last["all"]["status"] == "trusted"
        assert list(news) == []


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="expected the folder of a finished or running run"):
        LivePage(tmp_path)
    page = LivePage(tmp_path / "to-come", expected=True)
    with page:
        assert page.document()["state"] == "waiting"
        with pytest.raises(BadInput, match="a port that is free"):
            LivePage(tmp_path / "other", page.port, expected=True)


def test_the_command_says_where_the_page_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = LiveRun(tmp_path / "run")
    console = Console(stderr=True)
    with shown(run.folder, True, console):
        said = capsys.readouterr().err
        address = urlsplit(said.removeprefix("Page: ").strip())
        assert (address.scheme, address.hostname) == ("http", "127.0.0.1")
        run.begin()
        connection = http.client.HTTPConnection(LOOPBACK, address.port or 0, timeout=10)
        connection.request("GET", f"{address.path}state")
        assert json.loads(connection.getresponse().read())["state"] == "running"
        connection.close()
    assert f"testbed watch {run.folder}" in capsys.readouterr().err.replace("\n", "")
    with shown(run.folder, False, console):
        assert capsys.readouterr().err == ""
    refused = CliRunner().invoke(app, ["watch", str(tmp_path / "nothing")])
    assert isinstance(refused.exception, BadInput)


def test_a_run_that_may_lose_replicas_gives_a_page_nothing_to_take_rates_from(tmp_path: Path) -> None:
    def works(scenario: str) -> set[bool]:
        asked = load_scenario(Path(__file__).parents[3] / "scenarios" / scenario)
        folder = tmp_path / Path(scenario).stem
        folder.mkdir()
        RunLive(folder, folder, asked, split_into_shards(asked), Scale())
        head = json.loads((folder / "live.jsonl").read_text().splitlines()[0])
        return {variant["work"] is not None for variant in head["variants"]}

    assert works("quickstart.yaml") == {True}
    assert works("faults/replica-loss.yaml") == {False}

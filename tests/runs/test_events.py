"""``gangrun events``: one line for each decision, numbered so that a reader can go on where it stopped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gangrun.core.events import NodeLost, NodeSilent, TermTaken
from gangrun.display.explain_page import RunEvent, run_event
from gangrun.runs.timeline import EventFeed
from tests.command_line import Call
from tests.runs.builder import Builder
from tests.runs.stories import failed, restarted, running


def lines(gangrun: Call, *words: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in gangrun("events", "train", "--json", *words).out.splitlines()]


def test_the_lines_are_the_decisions_that_explain_tells(runs: Path, gangrun: Call) -> None:
    failed(runs)
    *told, end = lines(gangrun)
    story = [one for one in gangrun("explain", "train", "--json").json["story"] if one["event"]]
    assert [(one["record"], one["kind"], one["reason"]) for one in told] == [
        (one["record"], one["event"], one["concluded"]) for one in story
    ]
    assert all(msgspec.convert(one, RunEvent) for one in (*told, end))
    fell = next(one for one in told if one["kind"] == "RankExited")
    assert (fell["ranks"], fell["nodes"], fell["was"], fell["phase"]) == ([2], ["n1"], "RUNNING", "STOPPING")
    assert (end["kind"], end["phase"], end["exit_code"], end["seq"]) == ("RunEnded", "FAILED", 1, told[-1]["seq"])


@pytest.mark.parametrize("options", [(), ("--all",)])
def test_a_reader_goes_on_after_the_number_that_it_saw_last(runs: Path, gangrun: Call, options: tuple[str]) -> None:
    failed(runs)
    *told, _ = lines(gangrun, *options)
    numbers = [one["seq"] for one in told]
    assert numbers == sorted(set(numbers))
    for k in (0, 3, len(told) - 1):
        *rest, end = lines(gangrun, *options, "--since", str(numbers[k]))
        assert rest == told[k + 1 :] and end["kind"] == "RunEnded"


def test_following_an_ended_run_exits_as_wait_does(runs: Path, gangrun: Call) -> None:
    failed(runs)
    followed = gangrun("events", "train", "--json", "--follow")
    assert followed.code == gangrun("wait", "train").code == 1
    assert followed.out == gangrun("events", "train", "--json").out


def test_people_get_a_sentence(runs: Path, gangrun: Call) -> None:
    restarted(runs)
    told = gangrun("events", "train").out.splitlines()
    assert any("RuntimeError: shape mismatch: 3 vs 4: " in line and "STOPPING" in line for line in told)
    assert len(told) == len(lines(gangrun))


def test_a_feed_goes_on_over_supervisors_and_tells_nothing_twice(runs: Path) -> None:
    story = running(runs)
    feed = EventFeed(story.paths)

    def poll() -> list[RunEvent]:
        return [run_event(story.run, entry) for entry in feed.poll()]

    told = poll()
    assert told and poll() == []
    story.on(NodeSilent("n1", story.now - 3.0))
    told += poll()
    story.supervisor()
    story.on(NodeLost("n1", story.now - 9.0, "no answer"))
    newest = poll()
    assert [(one.kind, one.term, one.nodes) for one in newest] == [("TermTaken", 2, ()), ("NodeLost", 2, ("n1",))]
    assert told + newest == [run_event(story.run, entry) for entry in EventFeed(story.paths).poll()]


def test_an_event_of_a_deposed_supervisor_changes_no_number(runs: Path) -> None:
    story = running(runs)
    before = [run_event(story.run, entry) for entry in EventFeed(story.paths).poll()]
    late = story.paths.journal(1).read_bytes().splitlines(keepends=True)[-1]
    story.supervisor()
    after = [run_event(story.run, entry).seq for entry in EventFeed(story.paths).poll()]
    number = json.loads(late)["n"]
    with story.paths.journal(1).open("ab") as file:
        file.write(late.replace(f'"n":{number}'.encode(), f'"n":{number + 1}'.encode()))
    again = [run_event(story.run, entry).seq for entry in EventFeed(story.paths, everything=True).poll()]
    assert set(after) <= set(again) and [one.seq for one in before] == after[: len(before)]


def test_a_term_has_room_for_its_records(runs: Path) -> None:
    story = Builder(runs).supervisor(took_over=False)
    story.on(TermTaken(1, story.job, (), (), -1))
    assert [entry.record.n for entry in EventFeed(story.paths).poll()] == [1]
    assert EventFeed(story.paths, 1_000_000_001).poll() == []

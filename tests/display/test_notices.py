"""What of a run is news, and that the same journal makes the same news with the same keys."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from gangrun.core.events import CancelRequested, ProgressMarked, ResumeRequested
from gangrun.display.notices import EtaWatch, NewsItem, NoticeReader, message
from gangrun.entry.notifier import PendingNews, Teller
from gangrun.launch.sidecars import OwnerEnd
from gangrun.runs.snapshot import read
from gangrun.wire.spec import NEWS, NotifySpec
from tests.runs.builder import Builder
from tests.runs.stories import cancelled, failed, fall, restarted, running, succeeded

HOUR = 3600.0


def news(story: Builder) -> list[NewsItem]:
    run = read(story.paths, timeline=True)
    return NoticeReader(story.name, story.run).read(run.records, run.state)


@pytest.mark.parametrize(
    ("life", "kinds"),
    [
        (running, ["started"]),
        (succeeded, ["started", "finished"]),
        (cancelled, ["started", "finished"]),
        (restarted, ["started", "recovered"]),
        (failed, ["started", "attention", "recovered"]),
    ],
)
def test_each_kind_of_news_has_its_reason(tmp_path: Path, life, kinds: list[str]) -> None:
    assert [one.kind for one in news(life(tmp_path))] == kinds


def test_a_recovery_says_what_failed_whose_fault_it_was_and_what_it_cost(tmp_path: Path) -> None:
    (recovered,) = (one for one in news(restarted(tmp_path)) if one.kind == "recovered")
    assert recovered.title == "train recovered after 9 s: attempt 1 trains"
    what, cause, how = recovered.body.splitlines()
    assert what.startswith("rank 2 on n1 raised RuntimeError: shape mismatch") and cause == "cause: rank error"
    assert how.startswith("how: restart in place, 9.00 s") and how.endswith("11 steps and 164 GPU-seconds lost")


def test_news_read_piece_by_piece_and_anew_have_the_same_keys(tmp_path: Path) -> None:
    story = failed(tmp_path)
    run, reader = read(story.paths, timeline=True), NoticeReader(story.name, story.run)
    pieces = [one.key for record in run.records for one in reader.read([record], run.state)]
    assert set(pieces) == {one.key for one in news(story)}
    story.supervisor()
    assert {one.key for one in news(story)} == set(pieces)


def test_a_run_that_a_person_resumed_starts_once_more(tmp_path: Path) -> None:
    story = running(tmp_path).on(CancelRequested("eve")).stopped()
    story.supervisor(took_over=False)
    story.on(ResumeRequested("eve", story.job, 1, "auto"))
    assert [one.kind for one in news(story)] == ["started", "finished"]
    story.up()
    assert [one.kind for one in news(story)] == ["started", "finished", "started"]


# ---- when a message is sent ----


def notice(kind: str, number: int) -> NewsItem:
    return NewsItem(kind, f"{kind}-{number}", f"{kind} {number}", "why")


def test_news_of_a_kind_waits_and_comes_together() -> None:
    box = PendingNews(300.0)
    first, second, third = (notice("recovered", k) for k in range(3))
    box.waiting.append(first)
    assert box.due(0.0) == [first]
    box.sent([first], 0.0)
    box.waiting += [second, third]
    assert box.due(299.0) == [] and box.due(300.0) == [second, third]
    assert box.due(1.0, final=True) == [second, third]
    title, body, _ = message(box.due(300.0), "r")
    assert title == "recovered 2 (and 1 more)" and "- recovered 1" in body and body.endswith("[r recovered-2]")


@pytest.mark.parametrize("kind", NEWS)
def test_only_what_needs_a_person_or_is_the_end_is_never_held_back(kind: str) -> None:
    box = PendingNews(300.0)
    box.sent([notice(kind, 0)], 0.0)
    box.waiting += [notice("started" if kind == "eta" else "eta", 1), notice(kind, 2)]
    box.sent([box.waiting[0]], 0.0)
    assert bool(box.due(1.0)) == (kind in ("attention", "finished"))


def test_a_service_that_refuses_is_asked_four_times_and_then_counted() -> None:
    box, one, now, tried = PendingNews(300.0), notice("attention", 0), 0.0, 0
    box.waiting.append(one)
    while box.waiting:
        if box.due(now):
            tried += 1
            assert box.refused([one], now) == (tried == 4)
            assert box.due(now + 1.0) == []
        now += 1.0
    assert tried == 4 and now == 1 + 5 + 15 + 45


def told(story: Builder, titles: list[str], answers: str = "", on: tuple[str, ...] = NEWS) -> Teller:
    spec = NotifySpec(services=("json",), on=on, every_s=0.0)

    def send(k: int, title: str, body: str, tone: str) -> str:
        titles.append(title)
        return answers

    return Teller(msgspec.structs.replace(story.spec, notify=spec), story.paths, send)


def test_a_notifier_that_starts_anew_tells_only_what_is_new(tmp_path: Path) -> None:
    story, titles = restarted(tmp_path), list[str]()
    teller = told(story, titles)
    teller.look()
    assert teller.flush() and len(titles) == 2
    fall(story.on(ProgressMarked(1, 31), 30))
    again = told(story, titles)
    again.look()
    again.flush()
    assert titles[2:] == ["train failed and needs you"]


def test_news_that_nobody_took_is_told_by_the_next_notifier(tmp_path: Path) -> None:
    story, titles = running(tmp_path), list[str]()
    teller = told(story, titles, answers="service 1 (json) did not take the message")
    teller.look()
    assert not teller.flush()
    again = told(story, titles)
    again.look()
    assert again.flush() and titles == ["train started", "train started"]


def test_only_kinds_that_were_asked_for_are_told(tmp_path: Path) -> None:
    story, titles = failed(tmp_path), list[str]()
    teller = told(story, titles, on=("attention",))
    teller.look()
    teller.flush()
    assert titles == ["train failed and needs you"]


@pytest.mark.parametrize(
    ("end", "titles"),
    [
        (OwnerEnd(75), []),
        (OwnerEnd(130, "a job of the run was cancelled in Slurm"), ["train was cancelled"]),
        (OwnerEnd(78, "the disk is gone"), ["train failed and needs you"]),
        (OwnerEnd(1), ["train failed and needs you"]),
    ],
)
def test_the_end_that_no_supervisor_wrote_is_told_by_the_owner(tmp_path: Path, end: OwnerEnd, titles) -> None:
    said = list[str]()
    teller = told(running(tmp_path), said, on=("attention", "finished"))
    teller.owner_left(end)
    teller.flush(final=True)
    assert said == titles


def test_an_end_that_a_supervisor_wrote_is_told_once(tmp_path: Path) -> None:
    said = list[str]()
    teller = told(failed(tmp_path), said, on=("attention", "finished"))
    teller.owner_left(OwnerEnd(1))
    teller.flush(final=True)
    assert said == ["train failed and needs you"]


# ---- the estimate of the end ----


def test_an_end_that_moves_by_more_than_a_fifth_is_news_once() -> None:
    watch = EtaWatch(0.0)
    assert watch.look(60.0, 99 * HOUR, "t") is None and watch.promised_end is None  # too early to promise anything
    assert watch.look(HOUR, 9 * HOUR, "t") is None and watch.promised_end == 10 * HOUR
    assert watch.look(5 * HOUR, 7 * HOUR, "t") is None  # 12 h: just a fifth
    slip = watch.look(5 * HOUR, 8 * HOUR, "t")
    assert slip is not None and slip.title == "t will end 3 h later than estimated"
    assert watch.look(6 * HOUR, 7 * HOUR, "t") is None and watch.look(7 * HOUR, None, "t") is None
    assert EtaWatch(0.0, 10 * HOUR).look(5 * HOUR, 8 * HOUR, "t") is not None  # kept over notifiers

"""``gangrun logs``: lines of nodes, ranks and attempts; following to the end; who failed first."""

from __future__ import annotations

import io
import threading
from dataclasses import replace
from pathlib import Path

from gangrun.adapters.clock import SystemClock
from gangrun.adapters.fs.disk import Disk
from gangrun.agent.ranks.logs import CappedLog
from gangrun.core.events import AnomalySeen, CancelRequested, ProgressMarked, ProgressStalled, RankExited, StacksTaken
from gangrun.core.evidence import Anomaly, AnomalyKind, RankExit, RankObservation, RankStack
from gangrun.core.model import OnAnomaly, Phase
from gangrun.core.policy import Policy
from gangrun.display.live_view import LiveView, Observer
from gangrun.launch.owner import closing
from gangrun.runs.follow import JournalReplay
from gangrun.runs.rank_output import lost_output
from gangrun.runs.snapshot import read
from tests.command_line import Call
from tests.runs.builder import Builder
from tests.runs.stories import cancelled, failed, restarted, running, succeeded
from tests.waiting import until


def printed(story: Builder, attempt: int, node: str, *lines: str, part: str = "") -> None:
    folder = story.paths.logs / str(attempt)
    folder.mkdir(exist_ok=True)
    with (folder / f"{node}.log{part}").open("a") as file:
        file.writelines(line + "\n" for line in lines)


def view_of(story: Builder, out: io.StringIO, err: io.StringIO | None = None) -> LiveView:
    """The screen of ``gangrun run``."""
    logs = story.paths.logs
    return LiveView(
        lambda attempt, node: logs / str(attempt) / f"{node}.log", lambda term: {}, lambda: 0.0, out,
        err or io.StringIO(),
    )  # fmt: skip


def test_what_gangrun_run_leaves_out_is_said_once(runs: Path) -> None:
    story = restarted(runs)
    printed(story, 1, "n0", "[n0:rank0] zero", "[n0:rank1] one")
    printed(story, 1, "n1", "[n1:rank2] two", "[n1:rank3] three")
    shown, told = io.StringIO(), io.StringIO()
    view = view_of(story, shown, told)
    view.tick(replace(story.state, attempt=replace(story.state.attempt, number=0)))
    view.tick(story.state)
    assert shown.getvalue().splitlines() == ["[n0:rank0] zero", "[n1:rank3] three"]
    assert told.getvalue().count("only the output of ranks 0 and 3 is shown here; gangrun logs -f") == 1


def test_all_that_was_printed_before_the_end_is_shown_at_the_end(runs: Path) -> None:
    story = running(runs)
    shown, lines = io.StringIO(), [f"[n0:rank0] {k} {'x' * 1000}" for k in range(5000)]
    view = view_of(story, shown)
    view.tick(story.state)
    printed(story, 0, "n0", *lines)
    view.close()
    assert shown.getvalue().splitlines() == lines


class Takes(io.StringIO):
    """A terminal that takes one piece, and the next once it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.full, self.goes_on = threading.Event(), threading.Event()

    def write(self, text: str) -> int:
        if self.full.is_set():
            self.goes_on.wait(60)
        self.full.set()
        return super().write(text)


def test_who_leaves_waits_for_no_terminal_that_takes_nothing_and_is_waited_for_while_it_does(runs: Path) -> None:
    story, out = running(runs), Takes()
    lines = [f"[n0:rank0] {k} {'x' * 1000}" for k in range(3000)]
    printed(story, 0, "n0", *lines)
    observer = Observer(JournalReplay(story.paths, Disk()), SystemClock(), view_of(story, out))
    observer.start()
    assert out.full.wait(60)
    assert not observer.leave(0.2)
    assert not observer.leave(60.0, lambda: True), "who is in a hurry does not wait at all"
    out.goes_on.set()
    assert observer.leave(60.0)
    assert out.getvalue().splitlines() == lines


def test_a_log_that_goes_on_in_other_files_is_shown_on_and_on(runs: Path) -> None:
    story = running(runs)
    shown = io.StringIO()
    view, log = view_of(story, shown), CappedLog(story.paths.logs / "0" / "n0.log", 1000, 1000)
    for number in range(500):
        log.write(f"[n0:rank0] {number}\n".encode())
        if number % 25 == 0:
            view.tick(story.state)
    log.close()
    view.close()
    assert shown.getvalue().splitlines() == [f"[n0:rank0] {k}" for k in range(500)]


def test_the_newest_attempt_node_by_node(runs: Path, gangrun: Call) -> None:
    story = restarted(runs)
    printed(story, 0, "n0", "[n0:rank0] old")
    printed(story, 1, "n1", "[n1:rank2] two", "[n1:gangrun] ours")
    printed(story, 1, "n0", "[n0:rank0] zero", "[n0:rank1] one")
    assert gangrun("logs").out.splitlines() == [
        "[n0:rank0] zero", "[n0:rank1] one", "[n1:rank2] two", "[n1:gangrun] ours"
    ]  # fmt: skip
    assert gangrun("logs", "--attempt", "0").out == "[n0:rank0] old\n"


def test_by_rank_node_and_tail(runs: Path, gangrun: Call) -> None:
    story = running(runs)
    printed(story, 0, "n0", *(f"[n0:rank{k % 2}] line {k}" for k in range(6)))
    printed(story, 0, "n1", "[n1:rank2] other [n0:rank0] quoted")
    printed(story, 0, "rank-0", "only with --log-per-rank")
    assert gangrun("logs", "--rank", "0").out.splitlines() == [f"[n0:rank0] line {k}" for k in (0, 2, 4)]
    assert gangrun("logs", "--rank", "1-2", "--tail", "1").out.splitlines() == [
        "[n0:rank1] line 5", "[n1:rank2] other [n0:rank0] quoted"
    ]  # fmt: skip
    assert gangrun("logs", "--node", "n1").out.count("\n") == 1
    assert gangrun("logs", "--rank", "x").code == 2


def test_a_rank_that_does_not_exist_is_refused_with_those_that_do(runs: Path, gangrun: Call) -> None:
    story = restarted(runs)
    for attempt in (0, 1):
        printed(story, attempt, "n0", "[n0:rank0] zero")
    said = gangrun("logs", "--rank", "0,7-9")
    assert (said.code, said.out) == (2, "")
    assert "there is no rank 7; this run has ranks 0 to 3" in said.err
    for more in (("--errors",), ("--follow",), ("--attempt", "0")):
        assert gangrun("logs", "--rank", "4", *more).code == 2
    assert "attempt 0 has ranks 0 to 3" in gangrun("logs", "--rank", "4", "--attempt", "0").err
    assert gangrun("logs", "--rank", "0").out == "[n0:rank0] zero\n"


def test_a_node_without_output_is_refused_with_those_that_have_some(runs: Path, gangrun: Call) -> None:
    story = running(runs)
    printed(story, 0, "n0", "[n0:rank0] zero")
    said = gangrun("logs", "--node", "n7")
    assert said.code == 1
    assert "there is no output of node n7 in attempt 0" in said.err and "nodes with output: n0" in said.err
    assert "attempts with output: 0" in gangrun("logs", "--attempt", "5").err


def test_head_and_tail_files_are_one_log(runs: Path, gangrun: Call) -> None:
    story = running(runs)
    printed(story, 0, "n0", "head")
    printed(story, 0, "n0", "older tail", part=".tail.1")
    printed(story, 0, "n0", "tail", part=".tail")
    assert gangrun("logs").out.splitlines() == ["head", "older tail", "tail"]


def test_nothing_printed_yet_is_said_with_the_reason(runs: Path, gangrun: Call) -> None:
    story = running(runs)
    said = gangrun("logs")
    assert said.code == 1
    assert story.state.reason in said.err
    printed(story, 0, "n0", "x")
    assert "attempts with output: 0" in gangrun("logs", "--attempt", "5").err
    assert "of node n9" in gangrun("logs", "--node", "n9").err


def test_following_goes_over_attempts_and_ends_with_the_run(runs: Path, gangrun: Call) -> None:
    story = restarted(runs).owned_by_us()
    printed(story, 0, "n0", "[n0:rank0] old")
    printed(story, 1, "n0", "[n0:rank0] first")

    def end() -> None:
        printed(story, 1, "n0", "[n0:rank0] second")
        story.on(CancelRequested("eve")).stopped()
        printed(story, 1, "n0", "[n0:rank0] last")

    timer = threading.Timer(0.3, end)
    timer.start()
    said = gangrun("logs", "-f")
    timer.join()
    assert said.out.splitlines() == ["[n0:rank0] first", "[n0:rank0] second", "[n0:rank0] last"]


def test_a_half_written_line_is_waited_for(runs: Path) -> None:
    from gangrun.runs.rank_output import NewLines, Wanted

    story = running(runs)
    folder = story.paths.logs / "0"
    folder.mkdir()
    log = folder / "n0.log"
    log.write_bytes(b"[n0:rank0] whole\n[n0:rank0] ha")
    follower = NewLines(story.paths, Wanted(), 0)
    assert list(follower.poll()) == ["[n0:rank0] whole"]
    with log.open("ab") as file:
        file.write(b"lf\n")
    assert until(lambda: list(follower.poll()), 5, "the other half") == ["[n0:rank0] half"]
    tail = folder / "n0.log.tail"
    tail.write_bytes(b"[n0:rank0] tail\n")
    assert list(follower.poll()) == ["[n0:rank0] tail"]
    tail.rename(folder / "n0.log.tail.1")  # a tail that is turned is not read again
    tail.write_bytes(b"[n0:rank0] newer\n")
    assert list(follower.poll()) == ["[n0:rank0] newer"]


def test_errors_begin_with_the_first_to_fail(runs: Path, gangrun: Call) -> None:
    failed(runs)
    said = gangrun("logs", "--errors").out.splitlines()
    assert said[0].startswith("verdict on attempt 1: rank 2 on n1 raised RuntimeError: shape mismatch")
    assert said[2].startswith("first to fail in attempt 1: rank 2 on n1: ended with exit code 1: RuntimeError")
    text = "\n".join(said)
    assert text.index("shape mismatch") < text.index("a peer exited first") < text.index("ranks 1,3: stopped by")
    assert "ranks failed in attempt 0 too" in text


def test_errors_as_json(runs: Path, gangrun: Call) -> None:
    failed(runs)
    found = gangrun("logs", "--errors", "--json").json
    assert found["attempts_with_failures"] == [0, 1]
    assert [group["ranks"] for group in found["failures"]] == [[2], [0], [1, 3]]
    assert [group["victim"] for group in found["failures"]] == [False, True, True]
    assert "Traceback" in found["failures"][0]["error"]["traceback"]


def test_the_same_traceback_is_told_once(runs: Path, gangrun: Call) -> None:
    from tests.runs.builder import ERROR

    story = Builder(runs).supervisor().up()
    for rank in (3, 0, 1, 2):
        story.exit(rank, error=ERROR)
    said = gangrun("logs", "--errors").out
    assert said.count("Traceback") == 1
    assert "first to fail in attempt 0: rank 3 on n1" in said
    assert "the same: ranks 0-2" in said


def test_without_a_traceback_the_last_lines_stand_in(runs: Path, gangrun: Call) -> None:
    story = Builder(runs).supervisor().up()
    printed(story, 0, "n0", *(f"[n0:rank1] line {k}" for k in range(40)))
    story.exit(1, signal=9)
    said = gangrun("logs", "--errors").out
    assert "killed by SIGKILL (9)" in said
    assert "line 39" in said
    assert "line 3\n" not in said


def test_no_failure(runs: Path, gangrun: Call) -> None:
    succeeded(runs)
    assert gangrun("logs", "--errors").out == "no rank failed\n"
    assert gangrun("logs", "--errors", "--json").json["failures"] == []
    assert gangrun("logs", "--errors", "-f").code == 2
    assert gangrun("logs", "--json").code == 2


def test_texts_that_the_journal_left_out_come_from_a_rank_that_has_one(runs: Path, gangrun: Call) -> None:
    from tests.runs.builder import ERROR

    story = Builder(runs).supervisor().up()
    story.exit(3, error=replace(ERROR, message="", traceback="")).exit(0, error=ERROR)
    said = gangrun("logs", "--errors").out
    assert "first to fail in attempt 0: rank 3 on n1" in said and "shape mismatch: 3 vs 4" in said


def test_the_culprit_is_the_verdicts_by_when_its_error_was_written(runs: Path, gangrun: Call) -> None:
    """Rank 0 fell before rank 3 did, whose destructors took their time; rank 3's error is older."""
    from tests.runs.builder import ERROR

    story = Builder(runs).supervisor().up()
    late = replace(ERROR, kind="ValueError", signature="other")
    now = story.now
    story.on(RankExited(0, RankExit(0, "n0", 1, error=ERROR, at=now + 1.0)))
    story.on(RankExited(0, RankExit(3, "n1", 1, error=late, at=now + 9.0, written_at=now + 0.5)))
    story.stopped()
    said = gangrun("logs", "--errors").out.splitlines()
    assert said[0].startswith("verdict on attempt 0: rank 3 on n1 raised ValueError")
    assert said[2].startswith("first to fail in attempt 0: rank 3 on n1: ended with exit code 1: ValueError")


def hung(runs: Path) -> Builder:
    """Rank 3 stands elsewhere than the others."""
    story = Builder(runs, policy=replace(Policy(), restarts_max_count=0)).supervisor().up()
    seen = tuple(RankObservation(rank, f"n{rank // 2}", "S", 7, 0.0) for rank in range(4))
    story.on(ProgressStalled(0, 130.0, 120.0, seen))
    frames = ["distributed_c10d.py:3252 in all_reduce"] * 3 + ["data.py:9 in read"]
    story.on(StacksTaken(0, tuple(RankStack(r, f"n{r // 2}", f, f"/r/stacks/{r}") for r, f in enumerate(frames))))
    for rank in range(4):
        story.exit(rank, signal=9, by_us=True)
    return story.stopped()


def test_after_a_hang_the_rank_that_the_verdict_names_comes_first_with_its_stack(runs: Path, gangrun: Call) -> None:
    story = hung(runs)
    said = gangrun("logs", "--errors").out.splitlines()
    assert "rank 3 on n1 is in data.py:9 in read while the others wait" in said[0]
    assert said[2] == "rank 3 on n1 hung in data.py:9 in read; its stack: /r/stacks/3"
    assert "first to fail" not in "\n".join(said), "all fell because they were stopped"
    assert said[-1].startswith("ranks 0-3: stopped by gangrun with SIGKILL (9)")
    found = gangrun("logs", "--errors", "--json").json
    assert found["hung"] == [{"rank": 3, "node": "n1", "frame": "data.py:9 in read", "stack": "/r/stacks/3"}]
    assert found["verdict"] == story.state.attempts[0].reason


def test_a_stall_that_passed_names_nobody(runs: Path, gangrun: Call) -> None:
    story = Builder(runs).supervisor().up()
    story.on(ProgressStalled(0, 130.0, 120.0, ())).on(ProgressMarked(0, 9))
    assert gangrun("logs", "--errors").out == "no rank failed\n"
    story.exit(1, signal=11).stopped()
    assert "hung" not in gangrun("logs", "--errors").out


def test_a_full_disk_under_the_output_is_told_at_the_end_and_does_not_change_the_exit_code(runs: Path) -> None:
    story = running(runs)
    told = io.StringIO()
    with Path("/dev/full").open("w") as full:
        view = LiveView(story.paths.node_log, lambda term: {}, lambda: 0.0, full, told)
        view.tick(story.state)
        view.refused.append("[n0:rank0] a line that no disk takes")
        view.losses[0, "n0"] = "38 bytes: No space left on device"
        view.close()
        assert "up to 1 lines are missing in this output: No space left on device" in told.getvalue()
        view.let_go()  # python flushes at its exit, and so does the end of this block: an error here is exit code 120
    (note,) = lost_output(story.paths)
    assert note.endswith("missing in logs/0/n0.log (38 bytes: No space left on device)")


def test_the_end_of_a_failed_run_is_told_below_the_last_output(runs: Path) -> None:
    """The culprit with its traceback once, and its victims as victims."""
    story = failed(runs)
    printed(story, 1, "n0", "[n0:rank0] the last line")
    told = io.StringIO()
    view = LiveView(
        story.paths.node_log, lambda term: {}, lambda: 0.0, told, told, closing=lambda: closing(story.paths)
    )
    for record in read(story.paths, timeline=True).records:
        view.record(record)
    view.tick(story.state)
    view.close()
    text = told.getvalue()
    end = text.index(story.state.reason)
    assert 0 < text.index("the last line") < end < text.index("first to fail in attempt 1: rank 2 on n1")
    assert text.count("Traceback") == 1
    assert "rank 0 (a peer exited first): " in text[end:]
    run = story.paths.run
    more = f"gangrun explain {run} shows every decision; gangrun resume {run} continues the run"
    assert text.endswith(f"gangrun logs --errors {run} shows all tracebacks\n{more}\n")


def test_the_end_of_a_cancelled_run_says_how_to_go_on_and_that_of_a_good_one_does_not(runs: Path) -> None:
    def told_of(story: Builder) -> str:
        told = io.StringIO()
        view = view_of(story, told, told)
        view.closing = lambda: closing(story.paths)
        for record in read(story.paths, timeline=True).records:
            view.record(record)
        view.close()
        return told.getvalue()

    story = cancelled(runs)
    words = f"gangrun resume {story.run} continues the run; gangrun explain {story.run} shows every decision\n"
    assert told_of(story).endswith(words)
    assert "gangrun" not in told_of(succeeded(runs, run="20261118-110640-other")).splitlines()[-1].partition(" ")[2]


def test_the_end_of_a_run_in_which_no_rank_failed_names_none(runs: Path) -> None:
    """All ranks saved, and were stopped for a loss that was NaN."""
    story = Builder(runs, policy=replace(Policy(), on_anomaly=OnAnomaly.CHECKPOINT)).supervisor().up()
    story.on(AnomalySeen(0, 0, "n0", Anomaly(AnomalyKind.NOT_FINITE, 7, 47, 40, "loss", "NaN", lasting=True)))
    for rank in range(4):
        story.exit(rank, signal=9, by_us=True)
    story.stopped()
    assert story.state.phase is Phase.FAILED, story.state.reason
    run = story.paths.run
    assert closing(story.paths) == [
        f"gangrun explain {run} shows every decision; gangrun resume {run} continues the run"
    ]

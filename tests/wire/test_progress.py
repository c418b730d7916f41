"""The progress slot: both ends on one file, torn records, requests, and files that are none."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest

from gangrun.wire import progress
from gangrun.wire.progress import (
    RING_COUNT,
    ProgressPage,
    Report,
    Reports,
    SlotError,
    SlotReading,
    StepRequest,
    TrainingPhase,
)
from gangrun.wire.saves import ATTEMPTS_MAX_COUNT, SIZE_BYTES, SavesTold, decode, encode


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "slot")


def report(words: progress.Words, step: int) -> None:
    """As a training script does: odd, fields, even."""
    ints = words.ints
    ints[progress.W_SEQ] += 1
    ints[progress.W_OWNER], ints[progress.W_STEP], ints[progress.W_PHASE] = 4711, step, TrainingPhase.TRAIN
    ints[progress.W_AT] = 10**9
    words.floats[progress.W_LOSS], words.floats[progress.W_GRAD_NORM] = 2.5, 0.5
    ints[progress.W_SEQ] += 1


def test_a_new_slot_says_that_nothing_was_reported(path: str) -> None:
    slot = ProgressPage(path, 3)
    read = slot.read()
    assert (read.rank, read.owner_pid, read.writes_count, read.step, read.phase) == (3, 0, 0, -1, TrainingPhase.UNKNOWN)
    assert (read.loss, read.grad_norm, read.total_steps, read.tokens_count) == (None, None, -1, -1)
    assert not read.torn
    assert Path(path).stat().st_mode & 0o777 == 0o600
    with pytest.raises(FileExistsError):
        ProgressPage(path, 3)
    slot.close()
    assert not Path(path).exists()


def test_what_the_script_writes_the_agent_reads(path: str) -> None:
    slot = ProgressPage(path, 3)
    words = progress.attach(path)
    report(words, 12)
    words.ints[progress.W_SAVES_ON_STOP] = 1
    words.ints[progress.W_HANDLED] = 2
    assert slot.read() == SlotReading(3, 4711, 1, 12, TrainingPhase.TRAIN, 10**9, 2.5, 0.5, True, 2)
    words.close()
    slot.close(remove=False)
    assert Path(path).exists()


def test_each_report_is_read_once(path: str) -> None:
    slot = ProgressPage(path, 3)
    words = progress.attach(path)
    assert slot.reports() == Reports(0)
    words.report(1, 2.5, 0.5)
    words.report(2, None, 0.25)
    words.report(3, 1.5, None)
    told = slot.reports()
    assert told == Reports(3, (Report(1, 2.5, 0.5), Report(2, None, 0.25), Report(3, 1.5, None)))
    assert slot.reports() == Reports(3)


@pytest.mark.parametrize("after_count", [0, RING_COUNT - 2, RING_COUNT, 5 * RING_COUNT])
@pytest.mark.parametrize(("loss", "norm"), [(math.nan, None), (-math.inf, 2.0), (math.nan, math.inf)])
def test_no_loss_that_is_not_finite_is_missed_however_many_steps_follow(
    path: str, after_count: int, loss: float, norm: float | None
) -> None:
    slot = ProgressPage(path, 3)
    words = progress.attach(path)
    words.report(7, loss, norm)
    for step in range(8, 8 + after_count):
        words.report(step, 2.0, None)
    told = slot.reports()
    bad = [one.step for one in told.entries if not math.isfinite(one.loss or 0.0)]
    assert bad == ([7] if after_count <= RING_COUNT - 2 else [])
    assert told.missed_step == (-1 if bad else 7)
    assert slot.reports() == Reports(1 + after_count)  # once


def test_an_infinite_gradient_norm_that_the_ring_lost_is_no_loss(path: str) -> None:
    """A loss scaler of fp16 makes such by design."""
    slot = ProgressPage(path, 3)
    words = progress.attach(path)
    words.report(7, 2.0, math.inf)
    for step in range(8, 8 + 2 * RING_COUNT):
        words.report(step, 2.0, 1.0)
    assert slot.reports().missed_step == -1


def test_a_page_of_an_older_agent_has_no_ring(path: str) -> None:
    slot = ProgressPage(path, 3)
    os.truncate(path, progress.SIZE_BYTES)
    words = progress.attach(path)
    words.report(1, math.nan, None)
    report(words, 12)
    assert slot.read().step == 12
    words.close()


def test_a_loss_that_is_not_a_number_is_a_loss(path: str) -> None:
    slot = ProgressPage(path, 3)
    words = progress.attach(path)
    words.floats[progress.W_LOSS], words.floats[progress.W_GRAD_NORM] = math.nan, -math.inf
    words.ints[progress.W_TOTAL_STEPS], words.ints[progress.W_TOKENS] = 1000, 2**40
    read = slot.read()
    assert read.loss is not None
    assert math.isnan(read.loss)
    assert (read.grad_norm, read.total_steps, read.tokens_count) == (-math.inf, 1000, 2**40)
    words.close()
    slot.close()


def test_a_writer_that_stands_in_the_middle_of_a_record_blocks_nobody(path: str) -> None:
    slot = ProgressPage(path, 0)
    words = progress.attach(path)
    report(words, 12)
    words.ints[progress.W_SEQ] += 1
    words.ints[progress.W_STEP] = 13
    read = slot.read()
    assert read.torn
    assert read.step == 13


def test_a_record_that_changes_between_two_looks_is_looked_at_again(path: str) -> None:
    slot = ProgressPage(path, 0)
    words = progress.attach(path)
    looks = 0
    look = slot._once

    def while_it_is_written() -> tuple[int, ...]:
        nonlocal looks
        looks += 1
        if looks <= 3:
            report(words, looks)
        return look()

    slot._once = while_it_is_written  # type: ignore[method-assign]
    read = slot.read()
    assert (read.step, read.torn) == (3, False)
    assert looks == 4


def test_each_request_replaces_the_one_before(path: str) -> None:
    slot = ProgressPage(path, 0)
    words = progress.attach(path)
    assert slot.save_asked == -1
    assert slot.ask(StepRequest.CHECKPOINT_NOW, 7) == 1
    assert slot.add(StepRequest.STOP_AFTER_STEP) == slot.generation == 1
    assert slot.save_asked == 7
    assert slot.ask(StepRequest.STOP | StepRequest.CHECKPOINT_NOW) == 2
    request = words.ints[progress.W_REQUESTS]
    assert (request >> progress.GENERATION_SHIFT, StepRequest(request & 0xFF)) == (
        2,
        StepRequest.STOP | StepRequest.CHECKPOINT_NOW,
    )


def test_what_is_no_slot_is_refused(tmp_path: Path) -> None:
    short = tmp_path / "short"
    short.write_bytes(b"x" * 100)
    with pytest.raises(SlotError, match="256 bytes, this file has 100"):
        progress.attach(str(short))
    other = tmp_path / "other"
    other.write_bytes(b"GRSLOT\x02\x00".ljust(progress.SIZE_BYTES, b"\0"))
    with pytest.raises(SlotError, match="version 1"):
        progress.attach(str(other))
    with pytest.raises(FileNotFoundError):
        progress.attach(str(tmp_path / "none"))


def test_it_comes_back_and_never_changes_its_length() -> None:
    told = SavesTold(2, 1e9, 300.0, "every 300 s, as asked", saved_step=40, saved_at=1e9, persist_s=2.5)
    assert decode(encode(told)) == told and len(encode(told)) == SIZE_BYTES
    long = SavesTold(2, 1e9, 300.0, "x", failures_count=3, failed_step=41, failed_why='ü"\\' * 5000 + "\ud800",
        stalled=tuple((10**6 + k, 10**6 + 0.25) for k in range(ATTEMPTS_MAX_COUNT)),
    )  # fmt: skip
    assert len(encode(long)) == SIZE_BYTES
    back = decode(encode(long))
    assert back is not None and back.failed_why.startswith('ü"\\ü') and back.failures_count == 3


def test_what_is_torn_alien_or_newer_is_nothing() -> None:
    block = encode(SavesTold(2, 1e9, 300.0, "x"))
    for data in (b"", block[:30], b"[]", b"\xff", encode(SavesTold(2, 1e9, 300.0, "x", schema=2)), b'{"attempt": "a"}'):
        assert decode(data) is None


def test_who_follows_a_rank_hears_what_is_asked_of_it_and_writes_nothing(path: str) -> None:
    slot = ProgressPage(path, 3)
    report(slot._words, 7)
    follower = progress.FollowerWords(slot._words)
    assert (follower.ints[progress.W_STEP], follower.ints[progress.W_FIRST_STEP]) == (-1, -1)
    slot._words.ints[progress.W_SAVE_STEP] = 9
    assert follower.ints[progress.W_SAVE_STEP] == 9
    report(follower, 8)
    assert follower.ints[progress.W_STEP] == 8 and slot.read().step == 7
    follower.close()
    slot.close()


def test_what_a_script_found_lies_beside_its_slot_and_is_counted(path: str, tmp_path: Path) -> None:
    page = ProgressPage(path, 0)
    words = progress.attach(path)
    assert page.read().findings_count == 0 and progress.read_findings(path) == b""
    progress.write_findings(path, words, b"{}")
    progress.write_findings(path, words, b'{"divergence":null}')
    assert page.read().findings_count == 2
    assert progress.read_findings(path) == b'{"divergence":null}'
    assert sorted(one.name for one in tmp_path.iterdir()) == ["slot", "slot.findings"], "none is half written"

"""What Slurm is asked for: a file that every successor is submitted from, by later versions too."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangrun.wire import submission as submissions
from gangrun.wire.submission import (
    Requeue,
    Submission,
    SubmissionError,
    comment,
    refill_comment,
    refill_of,
    refill_submission,
)

SUBMISSION = Submission(
    job_name="train.20261121-065001-k3f9x",
    nodes_count=6,
    python="/home/me/a b/bin/python",
    working_directory="/home/me/'work' $HOME\n☃",
    gpus_per_node="a100:8",
    gres="gpu:8",
    partition="gpu",
    account="proj",
    qos="high",
    time="1-00:00:00",
    exclude="n[1-3],n7",
    nodelist="n8",
    constraint="ib&a100",
    cpus_per_task="12",
    mem="0",
    exclusive=True,
    reservation="res",
    dependency="afterok:17",
    sbatch=(("mail-type", "END"), ("spread-job", None)),
    srun=(("mpi", "none"),),
    setup=("module load cuda", 'source "v env"/bin/activate; export A=1'),
    needs_python=True,
    requeue=Requeue.SAME_JOB,
)


def test_a_submission_comes_back_as_it_was_and_people_can_read_it() -> None:
    data = submissions.encode(SUBMISSION)
    assert submissions.decode(data) == SUBMISSION
    assert data.count(b"\n") > 20


def test_what_was_not_asked_is_left_to_the_site() -> None:
    least = Submission(job_name="n", nodes_count=1, python="p", working_directory="/w")
    assert submissions.decode(submissions.encode(least)) == least
    assert not any(getattr(least, name) for name in ("time", "mem", "partition", "exclude", "sbatch", "setup"))


def test_a_job_is_known_by_its_run_and_place() -> None:
    assert comment("20261121-065001-k3f9x", 3) == "gr:20261121-065001-k3f9x:3"


def changed(**fields: Any) -> bytes:
    return msgspec.json.encode({**msgspec.json.decode(submissions.encode(SUBMISSION)), **fields})


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (changed(schema=submissions.SCHEMA + 1, setup="all new"), "schema 2, newer.*upgrade"),
        (changed(schema="x"), "not a run's submission.*schema"),
        (changed(nodes_count="six"), "not a run's submission.*nodes_count"),
        (changed(requeue="perhaps"), "not a run's submission.*requeue"),
        (changed(sbatch=[["a"]]), "not a run's submission.*sbatch"),
        (b"[]", "not a run's submission"),
        (b"", "not a run's submission"),
        (submissions.encode(SUBMISSION)[:-40], "not a run's submission"),
        (b'"\xff"', "not a run's submission"),
        (b"[" * 100_000, "not a run's submission"),
    ],
)
def test_a_submission_that_cannot_be_used_says_why(data: bytes, words: str) -> None:
    with pytest.raises(SubmissionError, match=words):
        submissions.decode(data)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    with suppress(SubmissionError):
        submissions.decode(data)


@given(at=st.integers(0, 1200), bit=st.integers(0, 7))
def test_a_flipped_bit_is_read_or_refused(at: int, bit: int) -> None:
    data = bytearray(submissions.encode(SUBMISSION))
    data[at % len(data)] ^= 1 << bit
    with suppress(SubmissionError):
        submissions.decode(bytes(data))


def test_a_refill_is_one_node_under_a_name_and_a_comment_of_its_own() -> None:
    refill = refill_submission(SUBMISSION)
    assert (refill.nodes_count, refill.nodelist, refill.dependency) == (1, "", "")
    assert (refill.job_name, refill.requeue) == (f"{SUBMISSION.job_name}-refill", Requeue.RESUBMIT)
    assert (refill.exclude, refill.gres, refill.partition) == (
        SUBMISSION.exclude,
        SUBMISSION.gres,
        SUBMISSION.partition,
    )
    assert refill.time == SUBMISSION.time
    assert refill_of(refill_comment("r1", 3, 12)) == ("r1", 12)
    assert refill_of(comment("r1", 3)) is None


@pytest.mark.parametrize(("left_s", "minutes"), [(7200.0, "120"), (61.0, "2"), (5.0, "1"), (-3.0, "1")])
def test_a_refill_asks_for_no_more_time_than_the_runs_own_job_has_left(left_s: float, minutes: str) -> None:
    assert refill_submission(SUBMISSION, left_s).time == minutes

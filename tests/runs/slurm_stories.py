"""Runs on Slurm as their directories show them, and the jobs that pretended tools tell of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gangrun.adapters.fs.run_dir import write_submission
from gangrun.core.events import ActDone, CheckpointSeen, NodeLost, NodeSilent
from gangrun.core.policy import Policy
from gangrun.wire.submission import Submission, comment, refill_comment, refill_name
from tests.runs.builder import Builder
from tests.runs.stories import STEP_20
from tests.slurm_parts.pretend_tools import PretendTools

NAME = "train.20261118-110640-abcde"


def submitted(runs: Path, *, job: str = "12", refills: bool = False, **what: Any) -> Builder:
    """A run directory as ``gangrun submit`` leaves it."""
    story = Builder(runs, world="slurm", job=job, **what)
    submission = Submission(
        job_name=NAME, nodes_count=len(story.nodes), python="/opt/gangrun/python", working_directory=str(runs),
        refills=refills,
    )  # fmt: skip
    write_submission(story.disk, story.paths, submission)
    return story


def held(runs: Path, **what: Any) -> Builder:
    """Running, by job 12's supervisor on n0."""
    return submitted(runs, **what).supervisor().up().owner(host="n0")


def leaving(runs: Path, **what: Any) -> Builder:
    """n1 is lost; the successor is asked for without it, and in the queue."""
    story = submitted(runs, policy=Policy(can_requeue=True), **what).supervisor().up().on(CheckpointSeen(STEP_20), 60)
    story.owner(host="n0")
    story.on(NodeSilent("n1", story.now)).on(NodeLost("n1", story.now, "its lease ran out"), 40).stopped()
    assert story.state.underway.submitting, story.reasons
    return story.on(ActDone((story.term, 1), "SubmitSuccessor"))


def job(tools: PretendTools, story: Builder, number: int, state: str, reason: str = "None", *, seq: int = 0,
        **more: Any) -> None:  # fmt: skip
    """A job of the run."""
    tools.job(number, state, reason, name=NAME, comment=comment(story.run, seq), **more)


def refill(tools: PretendTools, story: Builder, number: int, state: str, reason: str = "None", *, n: int = 1,
           **more: Any) -> None:  # fmt: skip
    """A one-node job beside job 0 of the run."""
    tools.job(number, state, reason, name=refill_name(NAME), comment=refill_comment(story.run, 0, n), **more)

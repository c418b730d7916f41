"""When a refill's batch script starts something, and when it leaves: the journal says so, or Slurm, or neither does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gangrun.adapters.fs.disk import Disk
from gangrun.adapters.fs.job_claims import JobClaim, JobClaims
from gangrun.adapters.fs.journal import JournalWriter
from gangrun.adapters.fs.run_dir import RunPaths
from gangrun.adapters.slurm.scheduler import SlurmScheduler
from gangrun.core.model import Ending, Phase, Refill, RefillStage, Roster, RunState, Shape
from gangrun.entry.slurm_refill import ALONE_MAX_S, JOINS_WITHIN_S, WantedRefill, claimed
from gangrun.wire import record as wire_record
from gangrun.wire.record import Record
from tests.slurm_parts.pretend import PretendJob, PretendSlurm, PretendTime

STATE = RunState(
    run="r", shape=Shape(2, 2, 1, 1), job="7", term=1, phase=Phase.RUNNING,
    roster=Roster(refills=(Refill(1, 0.0),), expected=("n1", "n2")),
)  # fmt: skip


class Case:
    """A refill of job 7, and what the run directory and Slurm say of it."""

    def __init__(self, folder: Path) -> None:
        self.time = PretendTime()
        self.slurm = PretendSlurm(self.time)
        self.main = self.slurm.add(PretendJob("7", comment="gr:r:0", state="RUNNING"))
        self.paths, self.term = RunPaths(folder / "r"), 0
        for path in (self.paths.jobs, self.paths.journal(1).parent, self.paths.claim(1).parent):
            path.mkdir(parents=True, exist_ok=True)
        JobClaims(self.paths, Disk()).claim(JobClaim(0, "7", 0, "n1", 1, 1))
        self.says(STATE)
        self.wanted = WantedRefill(self.paths, Disk(), SlurmScheduler(self.slurm), self.time, 0, 1)

    def says(self, state: RunState) -> None:
        """A new term begins with this state."""
        self.term += 1
        record = Record(
            v=wire_record.SCHEMA, term=self.term, n=0, at=0.0, wall=0.0, kind="Snapshot", phase=state.phase.value,
            reason="reads", patch=wire_record.snapshot(replace(state, term=self.term)),
        )  # fmt: skip
        JournalWriter(Disk(), self.paths.journal(self.term)).append(wire_record.encode(record))


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case(tmp_path)


def test_it_is_wanted_once_journal_and_slurm_have_said_so(case: Case) -> None:
    case.slurm.down = True
    assert (case.wanted.why_not(), case.wanted.is_known) == ("", False)
    case.slurm.down = False
    case.time.advance(11.0)
    assert (case.wanted.why_not(), case.wanted.is_known) == ("", True)
    assert (case.wanted.token, case.wanted.roster) == ("7", ("n1", "n2"))


@pytest.mark.parametrize(
    ("state", "why"),
    [
        (replace(STATE, phase=Phase.SUCCEEDED), "the run has ended"),
        (replace(STATE, seq=1), "is over"),
        (replace(STATE, ending=Ending(leaving=True)), "is over"),
        (replace(STATE, roster=Roster()), "refill 1 is not wanted any more"),
    ],
)
def test_the_journal_says_that_it_is_not(case: Case, state: RunState, why: str) -> None:
    case.says(state)
    assert why in case.wanted.why_not()


@pytest.mark.parametrize("state", ["COMPLETING", "CANCELLED", "NODE_FAIL", "PENDING"])
def test_its_job_runs_no_more(case: Case, state: str) -> None:
    assert case.wanted.why_not() == ""
    case.main.state = state
    case.time.advance(11.0)
    assert case.wanted.why_not() == f"job 7 is {state} in Slurm"


def test_the_same_job_in_another_stay_is_another(case: Case) -> None:
    assert case.wanted.why_not() == ""
    case.main.restarts = 1
    case.time.advance(11.0)
    assert "requeued" in case.wanted.why_not()


def test_an_agent_that_does_not_join_is_waited_for_in_vain(case: Case) -> None:
    case.time.advance(JOINS_WITHIN_S + 1)
    assert "has not joined" in case.wanted.why_not()
    here = replace(STATE.roster.refills[0], stage=RefillStage.HERE, node="m0")
    case.says(replace(STATE, roster=Roster(refills=(here,))))
    assert case.wanted.why_not() == ""


def test_where_neither_slurm_nor_a_supervisor_gives_a_sign_it_leaves(case: Case) -> None:
    here = replace(STATE.roster.refills[0], stage=RefillStage.HERE, node="m0")
    case.says(replace(STATE, roster=Roster(refills=(here,))))
    assert case.wanted.why_not() == ""
    case.slurm.down = True
    case.time.advance(ALONE_MAX_S - 1)
    case.says(replace(STATE, roster=Roster(refills=(here,))))
    assert case.wanted.why_not() == ""
    case.time.advance(ALONE_MAX_S - 1)
    assert case.wanted.why_not() == ""
    case.time.advance(2.0)
    assert "neither Slurm nor a supervisor gave a sign" in case.wanted.why_not()


def test_one_job_alone_is_a_refill(case: Case) -> None:
    first, second = (JobClaim(0, job, 0, "n3", 5, 5) for job in ("8", "9"))
    assert claimed(Disk(), case.paths, 1, first) == ""
    assert claimed(Disk(), case.paths, 1, first) == ""
    assert claimed(Disk(), case.paths, 1, second) == "refill 1 is job 8"
    assert JobClaims(case.paths, Disk()).highest() == 0, "it has no place in the sequence of jobs"

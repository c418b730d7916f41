"""Why SIGTERM came, from what Slurm shows of the job inside the grace.

No clock, no process: ``jobs.JobWatch`` asks Slurm, again where the answer is not there yet. The rows were seen on 22.05
and 24.11 (``docs/slurm.md``). Slurm shows COMPLETING for every job on its way out; what differs is beside it.
"""

from __future__ import annotations

from gangrun.adapters.slurm.scheduler import JobFacts
from gangrun.core.events import NoticeKind

LIMIT_SLACK_S = 1.0  # Slurm tells whole seconds
NODES_FAILED = frozenset({"NODE_FAIL", "BOOT_FAIL"})
OUR_COMMENT = "gr:"


def why_terminated(
    known_end_wall: float | None, known_restarts: int, facts: JobFacts | None, now_wall: float
) -> NoticeKind:
    """The kind of notice; ``UNKNOWN`` means stop, and for a job that runs on also that it may be too early to tell.

    ``known_end_wall`` is the planned end as last seen while the job ran: on its way out Slurm shows the real one.
    """
    if facts is None:
        return NoticeKind.UNKNOWN
    if facts.restarts_count > known_restarts:
        return NoticeKind.REQUEUE  # by an admin, or by a preemption without grace: the same job will start again
    if facts.preempted or facts.state == "PREEMPTED":
        return NoticeKind.PREEMPTION
    if facts.reason == "TimeLimit" or facts.state in {"TIMEOUT", "DEADLINE"}:
        return NoticeKind.TIME_LIMIT
    if not _by_itself(facts) and known_end_wall is not None and now_wall >= known_end_wall - LIMIT_SLACK_S:
        return NoticeKind.TIME_LIMIT
    if facts.state in NODES_FAILED or (_by_itself(facts) and not facts.runs and (facts.exit_signal or _is_ours(facts))):
        return NoticeKind.BATCH_DIED  # killed, not by Slurm; or ours, which ends only once all is decided
    if facts.state == "CANCELLED" or (facts.state == "COMPLETING" and not _by_itself(facts)):
        return NoticeKind.CANCEL
    return NoticeKind.UNKNOWN  # it runs: a signal without an end (``scancel -s TERM``). Or its batch script broke


def _is_ours(facts: JobFacts) -> bool:
    """Submitted by gangrun? What a user's own script does as it ends is what he wants."""
    return facts.comment.startswith(OUR_COMMENT)


def _by_itself(facts: JobFacts) -> bool:
    """Did the batch script end it? Then Slurm gives a reason (NonZeroExitCode, JobLaunchFailure, RaisedSignal)."""
    return facts.exit_code > 0 or (not facts.runs and facts.reason != "")

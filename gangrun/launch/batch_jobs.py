"""The jobs of a run as Slurm is asked for them.

``gangrun submit`` asks for job 0, the supervisor of one job for the next, ``gangrun resume`` for one more: all by the
same ``submission.json``. Nothing of submitit is loaded before something is submitted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gangrun.adapters.fs.disk import Disk
from gangrun.adapters.fs.run_dir import RunPaths, read_submission
from gangrun.adapters.slurm.commands import Tools
from gangrun.entry.wiring import own_command
from gangrun.runs import submitted_job_ids
from gangrun.wire.submission import Submission


@dataclass(frozen=True, slots=True)
class BatchJobs:
    """Writes and sends batch scripts of one run. Raises what ``adapters.slurm.submission`` raises."""

    paths: RunPaths
    submission: Submission
    tools: Tools
    hear: Callable[[str], None] = lambda words: None  # what sbatch says beside the job's number

    def command(self, seq: int) -> list[str]:
        """What the batch script of job ``seq`` becomes."""
        arguments = ["--run-dir", str(self.paths.root), "--seq", str(seq)]
        return own_command("gangrun.entry.job", arguments, self.submission.python)

    def script(self, seq: int, exclude: Sequence[str] = (), dependency: str = "") -> str:
        """The exact text."""
        from gangrun.adapters.slurm.submission import script

        return script(self.submission, self.paths, seq, self.command(seq), exclude=exclude, dependency=dependency)

    def submit(self, seq: int, exclude: Sequence[str] = (), dependency: str = "") -> str:
        """Send it; the job id."""
        from gangrun.adapters.slurm.submission import submit

        job = submit(
            self.submission, self.paths, seq, self.command(seq), self.tools,
            exclude=exclude, dependency=dependency, hear=self.hear,
        )  # fmt: skip
        submitted_job_ids.note(self.paths, seq, job)
        return job


def batch_jobs(paths: RunPaths, tools: Tools) -> BatchJobs:
    """Those of a run that was submitted; ``RunDirError`` or ``SubmissionError`` where it was not, or is damaged."""
    return BatchJobs(paths, read_submission(Disk(), paths), tools)

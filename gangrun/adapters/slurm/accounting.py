"""What accounting remembers of a job that the controller has forgotten.

One question, where sacct is there and works; most small clusters have none, and nothing here depends on it.
"""

from __future__ import annotations

from gangrun.adapters.slurm.commands import Tools
from gangrun.adapters.slurm.scheduler import ENDED, FIELD, JobFacts
from gangrun.core.nodeset import NodesetError, unfold

COLUMNS = ("State", "NodeList", "JobName")
WITHIN_S = 5.0


def remembered(tools: Tools, job: str, name: str) -> JobFacts | None:
    """How a job of that name ended; None where nobody can tell. Numbers are given out again after a while."""
    argv = ("sacct", "-n", "-X", "-P", f"--delimiter={FIELD}", "-j", job, "-o", ",".join(COLUMNS))
    answer = tools.run(argv, WITHIN_S)
    for line in reversed(answer.out.splitlines() if answer.code == 0 else ()):
        found = dict(zip(COLUMNS, line.split(FIELD, len(COLUMNS) - 1), strict=False))
        state = found["State"].partition(" ")[0]  # "CANCELLED by 1000"
        if state in ENDED and found.get("JobName") == name:
            return JobFacts(job=job, name=name, state=state, nodes=_nodes(found["NodeList"]))
    return None


def _nodes(text: str) -> tuple[str, ...]:
    try:
        return () if " " in text else unfold(text)  # "None assigned"
    except NodesetError:
        return ()

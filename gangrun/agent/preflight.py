"""What a node must prove before ranks start on it.

A refusal names the figure and the cure. What is merely poor is said, not refused.
"""

from __future__ import annotations

from collections.abc import Callable

from gangrun.agent import limits
from gangrun.agent.brain.facts import Checked
from gangrun.agent.limits import MemoryLimits

NOFILE_SPARE = 1024  # beside one file per agent: journals, logs, libraries
NO_LIMITS = MemoryLimits()


def preflight(
    *,
    nofile_hard: int,
    agents_count: int,
    probe: Callable[[], str],
    clock: Callable[[], str],
    cpus_asked: int | None = None,
    cpus_allowed: int = 0,
    memory: MemoryLimits = NO_LIMITS,
    ranks_count: int = 1,
) -> Checked:
    """``probe``: what the run directory lacks, "" if nothing; ``clock``: what is wrong with this node's, if known.

    ``cpus_asked``: for this node, of the scheduler; ``cpus_allowed``: how many its affinity leaves to us and our ranks.
    ``memory``: what this node's ``ranks_count`` ranks may have.

    May hang where the file system does: run it as an errand.
    """
    needed = agents_count + NOFILE_SPARE
    if nofile_hard < needed:
        return Checked(
            False, f"a process may open {nofile_hard} files, a supervisor here needs {needed}: raise `ulimit -Hn`"
        )
    lack = limits.refusal(memory, ranks_count) or probe()
    if lack:
        return Checked(False, lack)
    poor: list[str] = []
    if wrong := clock():  # wall clocks only annotate, so no promise hangs on this
        poor.append(wrong)
    if cpus_asked is not None and cpus_allowed < cpus_asked:
        poor.append(f"its ranks may use {cpus_allowed} of the {cpus_asked} CPUs asked for: data loading may be slow")
    poor += limits.poor(memory, ranks_count)
    return Checked(True, "; ".join(poor))

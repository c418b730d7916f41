"""What a node must prove before ranks start on it, the memory that its ranks may have among it.

A refusal names the figure and the cure. What is merely poor is said, not refused. Limits of the shell that submitted
travel with a job, and a default of the scheduler's may be a hundred megabytes: both show as ranks that die long after
the start, for want of what could have been asked for.
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from gangrun.agent.brain.facts import Checked
from gangrun.health.framework.readings import number_in, text_of
from gangrun.wire import job_variables

GB, MB = 1e9, 1 << 20
OURS_BYTES = 48 * MB  # warden and agent
RANK_LEAST_BYTES = 8 * MB  # a python that has imported nothing
RANK_POOR_BYTES = GB  # torch and its libraries, and no model yet
GIVEN_SHARE = 0.9
UNLIMITED_BYTES = 1 << 60  # version 1 of cgroups says "no limit" by a number


@dataclass(frozen=True, slots=True)
class MemoryLimits:
    """In bytes; None: no limit, or not known."""

    together: int | None = None  # of all that runs here
    source: str = ""  # who says so
    asked: int | None = None  # of the scheduler, for this node
    address_space: int | None = None  # of one process
    data: int | None = None
    locked: int | None = None
    total: int | None = None  # what the machine has
    infiniband: bool = False


def memory_limits(variables: Mapping[str, str], root: Path = Path("/")) -> MemoryLimits:
    """As they are for this process, and so for what it starts."""
    together = min(_cgroups(root), default=None)
    return MemoryLimits(
        together=together[0] if together else None,
        source=together[1] if together else "",
        asked=job_variables.memory_bytes(variables),
        address_space=_of_process(resource.RLIMIT_AS),
        data=_of_process(resource.RLIMIT_DATA),
        locked=_of_process(resource.RLIMIT_MEMLOCK),
        total=_total(root),
        infiniband=any((root / "sys/class/infiniband").glob("*")),
    )


def refusal(limits: MemoryLimits, ranks_count: int) -> str:
    """Why no rank could even begin here; "" where they can."""
    if limits.together is None or limits.together >= OURS_BYTES + ranks_count * RANK_LEAST_BYTES:
        return ""
    return (
        f"all that runs here may use {_shown(limits.together)} of memory together ({limits.source}): {ranks_count}"
        " ranks cannot even begin with that; ask for more with --mem"
    )


def poor_limits(limits: MemoryLimits, ranks_count: int) -> Iterator[str]:
    """What a run may die of later."""
    together = limits.together
    if together is not None and together < ranks_count * RANK_POOR_BYTES:
        each = f", {_shown(together / ranks_count)} each" if ranks_count > 1 else ""
        yield (
            f"its ranks may use {_shown(together)} of memory together{each} ({limits.source}): ask for more with --mem"
        )
    elif together is not None and limits.asked is not None and together < GIVEN_SHARE * limits.asked:
        yield f"{_shown(limits.asked)} of memory were asked for, its ranks may use {_shown(together)} ({limits.source})"
    if limits.address_space is not None and limits.total is not None and limits.address_space < limits.total:
        yield (
            f"a process may have {_shown(limits.address_space)} of address space (`ulimit -v`): CUDA reserves more than"
            " the machine has"
        )
    if limits.data is not None and limits.total is not None and limits.data < limits.total:
        yield f"a process may have {_shown(limits.data)} of data (`ulimit -d`), the machine has {_shown(limits.total)}"
    if limits.infiniband and limits.locked is not None and limits.total is not None and limits.locked < limits.total:
        yield (
            f"a process may lock {_shown(limits.locked)} of memory (`ulimit -l`): InfiniBand needs it without a limit;"
            " a job has the limit of the shell that submits it, unless PropagateResourceLimitsExcept=MEMLOCK is set"
        )


def _shown(count_bytes: float) -> str:
    return f"{count_bytes / GB:.1f} GB" if count_bytes >= GB else f"{count_bytes / 1e6:.1f} MB"


def _of_process(what: int) -> int | None:
    soft = resource.getrlimit(what)[0]
    return None if soft == resource.RLIM_INFINITY else soft


def _total(root: Path) -> int | None:
    for line in text_of(root / "proc/meminfo").splitlines():
        words = line.split()
        if words[:1] == ["MemTotal:"] and len(words) > 1 and words[1].isdigit():
            return int(words[1]) * 1024
    return None


def _cgroups(root: Path) -> Iterator[tuple[int, str]]:
    """The limit of our cgroup and of each one above it: the least holds."""
    for line in text_of(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers == "":
            base, name = root / "sys/fs/cgroup", "memory.max"
        elif "memory" in controllers.split(","):
            base, name = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes"
        else:
            continue
        inside = Path(path.lstrip("/"))
        for folder in (inside, *inside.parents):
            limit = number_in(base / folder / name)
            if limit is not None and limit < UNLIMITED_BYTES:
                yield limit, f"{name} of its cgroup"


NOFILE_SPARE = 1024  # beside one file per agent: journals, logs, libraries
NO_LIMITS = MemoryLimits()


def preflight(
    *,
    nofile_hard: int,
    agents_count: int,
    probe: Callable[[], str],
    clock: Callable[[], str],
    checkpoint_probe: Callable[[], str] = str,
    cpus_asked: str = "",
    cpus_allowed: int = 0,
    memory: MemoryLimits = NO_LIMITS,
    ranks_count: int = 1,
) -> Checked:
    """``probe``: what the run directory lacks, "" if nothing; ``clock``: what is wrong with this node's, if known;
    ``checkpoint_probe``: what the checkpoint directory lacks for saves to be safe.

    ``cpus_asked``: for this node, of the scheduler, "" if it does not say. ``cpus_allowed``: how many its affinity
    leaves to us and our ranks.
    ``memory``: what this node's ``ranks_count`` ranks may have.

    It hangs if the file system does: run it as a background task.
    """
    needed = agents_count + NOFILE_SPARE
    if nofile_hard < needed:
        return Checked(
            False, f"a process may open {nofile_hard} files, a supervisor here needs {needed}: raise `ulimit -Hn`"
        )
    lack = refusal(memory, ranks_count) or probe()
    if lack:
        return Checked(False, lack)
    poor: list[str] = []
    if wrong := clock():  # wall clocks only annotate, so no promise hangs on this
        poor.append(wrong)
    if unsafe := checkpoint_probe():  # the script may save elsewhere, or not at all
        poor.append(unsafe)
    if cpus_asked.isdecimal() and cpus_allowed < int(cpus_asked):
        poor.append(f"its ranks may use {cpus_allowed} of the {cpus_asked} CPUs asked for: data loading may be slow")
    poor += poor_limits(memory, ranks_count)
    return Checked(True, "; ".join(poor))

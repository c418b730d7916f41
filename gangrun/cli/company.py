"""Two runs that save to one directory at once would resume from each other's steps (room: cli; reads, never writes).

Known are the runs in this user's index. ``run`` and ``resume`` start at once, so they refuse; so does a job of a run
that was submitted, when it begins. ``submit`` only tells of it: a run that waits in a queue may well be meant to go on
from what the other one saves.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path

from gangrun.adapters.fs.disk import Disk
from gangrun.adapters.fs.index import IndexEntry
from gangrun.adapters.fs.run_dir import RunDirError, RunPaths, read_spec
from gangrun.cli.errors import UserError
from gangrun.cli.reading import Reading, patience, read
from gangrun.cli.resume_point import RUNS_MAX_COUNT
from gangrun.cli.terminal import clean
from gangrun.cli.times import pause, steady_now, wall_now
from gangrun.wire.spec import RunSpec, SpecError

SIGN_WITHIN_S = 30.0  # a supervisor that lives writes every 5 s
GIVES_WAY_WITHIN_S = 20.0  # it had only begun: on the busiest machine it is gone by then
LOOK_EVERY_S = 0.2

Known = Iterable[IndexEntry]


def refuse_company(spec: RunSpec, known: Known, now: float) -> None:
    """An error where another run that shows signs of life saves to this one's directory."""
    if (other := _company(spec, known, now)) is not None:
        raise _refusal(spec, other)


def give_way(spec: RunSpec, known: Callable[[], Known], within_s: float = GIVES_WAY_WITHIN_S) -> None:
    """The same once this run can be seen itself. Of two that began at once, neither of which saw the other before, the
    one with the later name gives way at once, and the other waits for that; one that had begun before gives no way.
    """
    _alone(spec, known, within_s, lambda other: other.spec.run < spec.run)


def refuse_lasting_company(spec: RunSpec, known: Callable[[], Known]) -> None:
    """The same where nobody is in a hurry: a run that was killed has its time to be seen so."""
    _alone(spec, known, SIGN_WITHIN_S, lambda other: False)


def _alone(spec: RunSpec, known: Callable[[], Known], within_s: float, at_once: Callable[[Reading], bool]) -> None:
    give_up_at = steady_now() + within_s
    while (other := _company(spec, known(), wall_now())) is not None:
        if at_once(other) or steady_now() >= give_up_at:
            raise _refusal(spec, other)
        pause(LOOK_EVERY_S)


def words_of_company(spec: RunSpec, known: Known, now: float) -> str:
    """Who saves there now; "" where nobody does."""
    return "" if (other := _company(spec, known, now)) is None else _words(spec, other)


def _company(spec: RunSpec, known: Known, now: float) -> Reading | None:
    if not spec.checkpoint.directory:
        return None
    directory = os.path.realpath(spec.checkpoint.directory)
    for entry in islice(known, RUNS_MAX_COUNT):
        other = None if entry.run == spec.run else _saving_to(directory, RunPaths(Path(entry.path)))
        if other is not None and _lives(other, now):
            return other
    return None


def _words(spec: RunSpec, other: Reading) -> str:
    place = os.path.realpath(spec.checkpoint.directory)
    return clean(f"run {other.spec.run} ({other.spec.name}) saves to {place}, and has not ended")


def _refusal(spec: RunSpec, other: Reading) -> UserError:
    hint = f"wait for it, end it (gangrun cancel {other.spec.run}), or give another --checkpoint-dir"
    return UserError("busy", _words(spec, other), clean(hint))


def _saving_to(directory: str, paths: RunPaths) -> Reading | None:
    try:
        with patience(str(paths.root)):
            place = read_spec(Disk(), paths).checkpoint.directory
            return read(paths) if place and os.path.realpath(place) == directory else None
    except (OSError, RunDirError, SpecError, UserError):
        return None  # gone, or not to be read: it says nothing of whether it lives


def _lives(other: Reading, now: float) -> bool:
    if other.owner_alive and other.owner is not None and (other.state is None or other.owner.seq > other.state.seq):
        return True  # it begins, or begins again: its journal does not say so yet
    if other.ended or other.owner_alive is False:
        return False
    begun = other.spec.created_wall if other.spec.world == "local" else 0.0
    return now - max(other.last_sign() or 0.0, begun) <= SIGN_WITHIN_S

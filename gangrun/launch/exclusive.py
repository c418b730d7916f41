"""Two runs that save to one directory at once would resume from each other's steps.

Known are the runs in this user's index. An owner on this host can be looked for. Of any other run only what it writes
tells whether it lives, and no clock is believed in that: what still writes when we have looked for a while lives, and
what is silent for longer than a supervisor ever is does not. Each claims its place before it looks, so that of two at
least one sees the other. ``submit`` only tells: a run in a queue may be meant to go on from what the other one saves.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import click

from gangrun.adapters.fs.disk import Disk
from gangrun.adapters.fs.index import IndexEntry
from gangrun.adapters.fs.run_dir import RunDirError, RunPaths, read_spec
from gangrun.display.text import clean
from gangrun.errors import NO_SUCH_RUN, UserError
from gangrun.runs.liveness import begins, lives_now
from gangrun.runs.snapshot import RunSnapshot, ask_scheduler, patience, read, with_queue
from gangrun.runs.times import pause, steady_now, wall_now
from gangrun.wire.spec import RunSpec, SpecError

LASTS_S = 30.0  # a chained job may begin while the last words of the one before are being written
GIVES_WAY_WITHIN_S = 20.0  # it had only begun: on the busiest machine it is gone by then
SILENT_S = 30.0  # a supervisor that lives writes every 5 s
BEGINS_S = 120.0  # from a job's claim to its supervisor's first record
ASK_EVERY_S = 10.0  # the scheduler, of a job that has claimed and not begun
TOLD_WITHIN_S = 600.0
LONG_OVER_S = 48 * 3600.0  # two hosts that disagree on their time zones are 26 h apart at most
LOOK_EVERY_S = 1.0
ANSWERS_WITHIN_S = 60.0

T = TypeVar("T")
Known = Callable[[], Iterable[IndexEntry]]


@dataclass(frozen=True, slots=True)
class Time:
    """How time passes for who looks."""

    now: Callable[[], float] = steady_now
    wall: Callable[[], float] = wall_now
    wait: Callable[[float], None] = pause
    answers_within_s: float = ANSWERS_WITHIN_S  # a file system; what lies on one that hangs is left aside


TIME = Time()


def refuse_company(spec: RunSpec, known: Known, time: Time = TIME) -> None:
    """An error where another run that saves to this one's directory is seen to live, at once."""
    for paths in _saving_there(spec, known, time):
        look, _ = _bounded(lambda paths=paths: _look(paths, time.wall()), time)  # type: ignore[misc]
        if look is not None and look.life:
            raise _refusal(spec, look.reading)


def words_of_company(spec: RunSpec, known: Known, time: Time = TIME) -> tuple[str, str]:
    """Who seems to save there now, in words and by its id; "" where nobody does."""
    for paths in _saving_there(spec, known, time):
        look, _ = _bounded(lambda paths=paths: _look(paths, time.wall()), time)  # type: ignore[misc]
        if look is not None and (look.life or (look.life is None and look.silent_for_s < TOLD_WITHIN_S)):
            return _words(spec, look.reading), look.reading.spec.run
    return "", ""


def give_way(spec: RunSpec, known: Known, within_s: float = GIVES_WAY_WITHIN_S, time: Time = TIME) -> None:
    """The same once this run has its place and can be seen itself. Of two that began at once the one with the later
    name gives way at once, and the other waits for that; one that had begun before gives no way.
    """
    _alone(spec, known, within_s, lambda other: other.spec.run < spec.run, time)


def refuse_lasting_company(spec: RunSpec, known: Known, time: Time = TIME) -> None:
    """The same where nobody is in a hurry: a run that ends, or was killed, has its time to be seen so."""
    _alone(spec, known, LASTS_S, lambda other: False, time)


def _alone(spec: RunSpec, known: Known, within_s: float, at_once: Callable[[RunSnapshot], bool], time: Time) -> None:
    began, told = time.now(), False
    others = [_Watched(paths, began) for paths in _saving_there(spec, known, time)]
    while others := [one for one in others if one.may_live(spec, time)]:
        for one in others:
            other = one.reading
            if other is not None and one.lives and (at_once(other) or one.sign_at - began >= within_s):
                raise _refusal(spec, other)
        if not told:
            told = True
            place = spec.checkpoint.directory
            _say(f"run {others[0].paths.run} saves to {place} too: checking whether it is still alive")
        time.wait(LOOK_EVERY_S)


@dataclass(frozen=True, slots=True)
class _Look:
    """What one look at another run shows."""

    reading: RunSnapshot
    life: bool | None  # None: only what it writes can tell
    silent_for_s: float  # by clocks that may be wrong; 0: the clocks cannot tell


@dataclass(slots=True)
class _Watched:
    """Another run while we look at it."""

    paths: RunPaths
    sign_at: float  # by our clock: since then it has shown nothing new
    lives: bool = False
    reading: RunSnapshot | None = None
    ask_at: float = 0.0  # whether the job of a claim that nothing follows is over

    def may_live(self, spec: RunSpec, time: Time) -> bool:
        """Another look; False: it does not live, or has been silent for too long."""
        asks = time.now() >= self.ask_at
        look, why = _bounded(lambda: _look(self.paths, time.wall(), asks=asks), time)
        now, before = time.now(), self.reading
        if asks:
            self.ask_at = now + ASK_EVERY_S
        if why:
            if now - self.sign_at < SILENT_S:
                return True
            _say(f"cannot tell whether run {self.paths.run} is alive, so gangrun ignores that run: {why}")
            return False
        if look is None or look.life is False:
            return False
        self.reading = look.reading
        if look.life or (before is not None and before.signs() != look.reading.signs()):
            self.lives, self.sign_at = True, now
        elif before is None and look.silent_for_s > LONG_OVER_S:
            return False
        return now - self.sign_at < _silence_s(spec, look.reading)


def _look(paths: RunPaths, wall: float, *, asks: bool = True) -> _Look | None:
    """None: it is gone. ``asks``: also the scheduler, of a job that has claimed its place and not begun: one that was
    killed there left nothing else that tells.
    """
    try:
        reading = read(paths)
    except UserError as error:
        if error.code == NO_SUCH_RUN:
            return None
        raise
    life = lives_now(reading)
    if asks and life is None and reading.spec.is_scheduled and begins(reading):
        is_over = with_queue(reading, ask_scheduler(reading)).owner_alive is False
        life = False if is_over else None
    signs = [paths.jobs.stat().st_mtime] if begins(reading) else []
    if (last := reading.last_sign()) is not None:
        signs.append(last)
    return _Look(reading, life, max(0.0, min((wall - sign for sign in signs), default=0.0)))


def _silence_s(spec: RunSpec, other: RunSnapshot) -> float:
    """Of two jobs that begin in one moment one must look for longer, and sees the other one begin."""
    if not begins(other):
        return SILENT_S
    return BEGINS_S if spec.run < other.spec.run else 2 * BEGINS_S


def _words(spec: RunSpec, other: RunSnapshot) -> str:
    place = os.path.realpath(spec.checkpoint.directory)
    return clean(f"run {other.spec.run} ({other.spec.name}) saves to {place}, and has not ended")


def _refusal(spec: RunSpec, other: RunSnapshot) -> UserError:
    hint = f"wait for it, end it (gangrun cancel {other.spec.run}), or give another --checkpoint-dir"
    return UserError("busy", _words(spec, other), clean(hint))


def _saving_there(spec: RunSpec, known: Known, time: Time) -> list[RunPaths]:
    """All other runs that do, however old: one that began a month ago may live. Of each only the spec is read."""
    found: list[RunPaths] = []

    def look() -> None:
        directory, disk = os.path.realpath(spec.checkpoint.directory), Disk()
        same = {"": False}
        unknown: OSError | None = None
        for entry in known():
            paths = RunPaths(Path(entry.path))
            try:
                place = "" if entry.run == spec.run else read_spec(disk, paths).checkpoint.directory
            except (RunDirError, SpecError):
                continue  # gone, or of no shape that lives
            except OSError as error:
                unknown = error
                continue
            if place not in same:
                same[place] = os.path.realpath(place) == directory
            if same[place]:
                found.append(paths)
        if unknown is not None:
            raise unknown

    if spec.checkpoint.directory:
        _, why = _bounded(look, time)
        if why:
            _say(f"cannot check all your runs for one that saves to {spec.checkpoint.directory}: {why}")
    return list(found)


def _bounded(look: Callable[[], T], time: Time) -> tuple[T | None, str]:
    """Beside us, as an old run on a file system that hangs must not hold a whole allocation; else why there is none."""
    found: list[T] = []
    why = ["a file system does not answer"]

    def work() -> None:
        try:
            found.append(look())
        except UserError as error:
            why.append(error.message)
        except (OSError, RuntimeError) as error:  # nobody knows where the home directory is, say
            why.append(str(error))

    thread = threading.Thread(target=work, name="company", daemon=True)
    with patience("the directories of your runs"):
        thread.start()
        thread.join(time.answers_within_s)
    return (found[0], "") if found else (None, why[-1])


def _say(words: str) -> None:
    click.echo(f"gangrun: {clean(words)}", err=True)

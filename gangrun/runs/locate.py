"""Which run is meant: by id, prefix, name, job id or path, or the newest of this directory.

The index of runs is a hint; a job that a supervisor submitted is not in it, so a number is also looked up among the
claims of known runs, and at last in the queue.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import click

from gangrun.adapters.fs.disk import Disk
from gangrun.adapters.fs.index import Ambiguous, Found, Index, IndexEntry, Missing
from gangrun.adapters.fs.job_claims import JobClaims
from gangrun.adapters.fs.run_dir import RunPaths
from gangrun.config import environment
from gangrun.core.text import one_line
from gangrun.errors import NO_SUCH_RUN, UserError
from gangrun.runs.liveness import RunLiveness, liveness_of
from gangrun.runs.snapshot import read
from gangrun.runs.state import run_state
from gangrun.runs.times import wall_now

LISTED_COUNT = 10


def default_runs_dir() -> str:
    """Where runs lie if nobody says otherwise; a config that cannot be read must not stop a viewer."""
    if not _somebody_says():
        return environment.RUNS_DIR
    from gangrun.config.layers import layered, usual_files

    try:
        return str(layered({}, environment.all_variables(), usual_files())["runs_dir"].value)
    except UserError as error:
        click.echo(f"gangrun: {one_line(error.message)} (left aside here)", err=True)
        return environment.RUNS_DIR


def _somebody_says() -> bool:
    """Is there anything that could set it? Mostly not, and then nobody need know all settings."""
    try:
        files = any(file.exists() for file in environment.config_files())
    except OSError:
        return True
    return files or "GANGRUN_RUNS_DIR" in environment.all_variables()


def index_of(runs_dir: str | None) -> Index:
    """The user's index, which also looks into the runs directory here; with ``runs_dir`` only what lies there."""
    folder = Path(runs_dir or default_runs_dir()).expanduser().absolute()
    if runs_dir:
        return Index(folder / ".no-index", also=(folder,))
    return Index(environment.state_home() / "runs", also=(folder,))


def find(token: str | None, runs_dir: str | None = None, *, steering: bool = False, ending: bool = False) -> RunPaths:
    """The run that the user means: id, unique prefix, name, job id or path.

    None: the newest run that was started in this directory; to look at one (not ``steering``), else the newest of all;
    to end one (``ending``), if that one has ended, the only one here that is alive. Of several runs with one name, the
    newest; to steer one, the only one that is alive. Which run was taken is said, unless the command shows it.
    """
    index = index_of(runs_dir)
    if token is None:
        return _newest(index.entries(), runs_dir, steering=steering, ending=ending)
    if token.isdecimal() and (held := _by_job(token, index)) is not None:
        return held
    match index.find(token):
        case Found(entry):
            return RunPaths(Path(entry.path))
        case Ambiguous(entries) if all(entry.name == token for entry in entries):
            return _one_of_a_name(entries, steering=steering)
        case Ambiguous(entries):
            raise UserError("ambiguous run", f"{token!r} means several runs:", _listed(entries), NO_SUCH_RUN)
        case Missing(nearest):
            direct = _direct(token, index)
            if direct is not None:
                return direct
            hint = f"did you mean {' or '.join(nearest)}?" if nearest else "gangrun status --all lists the runs"
            raise UserError("no such run", f"no run {token!r}{_where(runs_dir)}", hint, NO_SUCH_RUN)


def _newest(entries: Sequence[IndexEntry], runs_dir: str | None, *, steering: bool, ending: bool) -> RunPaths:
    if not entries:
        raise UserError("no such run", f"no run yet{_where(runs_dir)}", "gangrun run starts one", NO_SUCH_RUN)
    here = entries if runs_dir else [entry for entry in entries if entry.directory == _working_directory()]
    found = (here or entries)[0]
    named = f"{one_line(found.run)} ({one_line(found.name)})"
    if not steering:
        return RunPaths(Path(found.path))
    if not here:
        words, hint = "no run was started in this directory", f"name the run (the newest is {named})"
        raise UserError("no such run", words, hint, NO_SUCH_RUN)
    whose = f"run{_where(runs_dir)}" if runs_dir else "run that was started in this directory"
    alive = [] if not ending or _is_alive(_liveness(found)) else [e for e in here[1:] if _is_alive(_liveness(e))]
    if len(alive) > 1:
        words = f"the newest {whose} is not alive, and several older ones are; name one by its id:"
        raise UserError("ambiguous run", words, _listed(alive), NO_SUCH_RUN)
    if alive:
        found = alive[0]
        named = f"{one_line(found.run)} ({one_line(found.name)})"
        _say(f"taking {named}, the only {whose} that is alive")
    else:
        _say(f"taking {named}, the newest {whose}")
    return RunPaths(Path(found.path))


def _is_alive(liveness: RunLiveness) -> bool:
    return liveness not in (RunLiveness.ENDED, RunLiveness.ABANDONED)


def _working_directory() -> str:
    try:
        return os.getcwd()
    except OSError:  # it was removed
        return "-"


def _say(words: str) -> None:
    click.echo(f"gangrun: {words}", err=True)


def _by_job(job: str, index: Index) -> RunPaths | None:
    """The run whose job this is, before the number is taken for the beginning of an id."""
    entries = index.entries()
    for entry in entries:
        if job in entry.jobs:
            return RunPaths(Path(entry.path))
    disk = Disk()
    for entry in entries:
        paths = RunPaths(Path(entry.path))
        try:
            claims = JobClaims(paths, disk).all()
        except OSError:  # some other run's file system: that run is found by its name
            continue
        if any(claim.job == job for claim in claims):
            return paths
    return _by_comment(job, entries)


def _by_comment(job: str, entries: Sequence[IndexEntry]) -> RunPaths | None:
    """A job that waits has claimed nothing yet. Where no run has a scheduler, none is asked."""
    if not any(_may_be_submitted(RunPaths(Path(entry.path))) for entry in entries):
        return None
    from gangrun.runs.jobs import run_of

    run = run_of(job)
    return next((RunPaths(Path(entry.path)) for entry in entries if run and entry.run == run), None)


def _may_be_submitted(paths: RunPaths) -> bool:
    try:
        return Disk().exists(paths.submission)
    except OSError:
        return True


def _where(runs_dir: str | None) -> str:
    return f" in {runs_dir}" if runs_dir else ""


def _listed(entries: Sequence[IndexEntry]) -> str:
    lines = [f"{one_line(e.run)}  {one_line(e.name)}  {one_line(e.path)}" for e in entries[:LISTED_COUNT]]
    more = len(entries) - LISTED_COUNT
    return "\n".join([*lines, *([f"and {more} more"] if more > 0 else [])])


def _one_of_a_name(entries: Sequence[IndexEntry], *, steering: bool) -> RunPaths:
    """To look at: the newest. To steer: the only one that is alive, else the only one that has not ended."""
    named, taken = f"{len(entries)} runs are named {one_line(entries[0].name)}", entries[0]
    words = f"this is the newest, {one_line(taken.run)}"
    if steering:
        lives = {entry.run: _liveness(entry) for entry in entries}
        going = [entry for entry in entries if lives[entry.run] is not RunLiveness.ENDED]
        alive = [entry for entry in going if _is_alive(lives[entry.run])]
        if len(alive or going) > 1:
            which = "are alive" if alive else "have not ended"
            words = f"several runs named {taken.name!r} {which}; name one by its id:"
            raise UserError("ambiguous run", words, _listed(alive or going), NO_SUCH_RUN)
        if going:
            taken = (alive or going)[0]
            words = f"{one_line(taken.run)} is the only one that {'is alive' if alive else 'has not ended'}"
        else:
            words = f"all have ended; {words}"
    _say(f"{named}; {words}")
    return RunPaths(Path(taken.path))


def _liveness(entry: IndexEntry) -> RunLiveness:
    try:
        run = read(RunPaths(Path(entry.path)), scheduler=True)
    except (UserError, OSError):
        return RunLiveness.UNKNOWN
    return RunLiveness.ENDED if run_state(run, wall_now()).ended else liveness_of(run, wall_now())


def _direct(token: str, index: Index) -> RunPaths | None:
    """A run directory that the index could not understand: reading it will say why."""
    if not token:
        return None
    for folder in (Path(), *index.also):
        try:
            paths = RunPaths((folder / token).absolute())
            if paths.machine.is_dir():
                return paths
        except (OSError, ValueError):
            continue
    return None


def entries_of(runs_dir: str | None) -> tuple[IndexEntry, ...]:
    """All runs that are known, newest first."""
    return index_of(runs_dir).entries()

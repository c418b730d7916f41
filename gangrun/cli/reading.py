"""Finding a run and reading what its journal says (room: cli): no daemon is asked, the journal is the state.

Shared by every command that looks at a run. Nothing here writes. Next: ``status_json`` and ``story`` for what is made
of a reading.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import click

from gangrun import processes
from gangrun.adapters.fs.disk import Disk
from gangrun.adapters.fs.index import Ambiguous, Found, Index, IndexEntry, Missing
from gangrun.adapters.fs.job_claims import JobClaim, JobClaims
from gangrun.adapters.fs.journal import JournalReader
from gangrun.adapters.fs.live import Live, read_counter
from gangrun.adapters.fs.run_dir import CancelMark, RunDirError, RunPaths, read_cancelled, read_spec
from gangrun.adapters.local import box
from gangrun.cli import environment
from gangrun.cli.errors import NO_SUCH_RUN, UNKNOWN, UserError
from gangrun.cli.terminal import clean
from gangrun.core.model import TERMINAL, RunState
from gangrun.wire import claim as wire_claim
from gangrun.wire.claim import Claim
from gangrun.wire.record import Record, RecordError, replay
from gangrun.wire.spec import RunSpec, SpecError

PATIENCE_S = 5.0
UNCLAIMED_FOR_S = 60.0  # a run that nobody took up for so long after it was made will not be taken up by itself
LISTED_COUNT = 10
UNREPLAYABLE = (RecordError, TypeError, ValueError)


@dataclass(frozen=True, slots=True)
class Reading:
    """One run as its directory tells it now."""

    paths: RunPaths
    spec: RunSpec
    state: RunState | None  # None: no supervisor has begun yet
    records: tuple[Record, ...]
    notes: tuple[str, ...]
    live: Live | None
    claim: Claim | None  # of the newest term
    owner: JobClaim | None
    owner_alive: bool | None  # None: on another host, or no owner
    cancelled: CancelMark | None

    @property
    def ended(self) -> bool:
        """Is the run over?"""
        return self.state is not None and self.state.phase in TERMINAL

    def abandoned(self, now: float) -> bool:
        """Not over, and nobody is left to end it, as far as this host can tell."""
        if self.ended:
            return False
        if self.owner is None:
            return now - self.spec.created_wall > UNCLAIMED_FOR_S
        return self.owner_alive is False

    def last_sign(self) -> float | None:
        """When anything of the run was last written, by the wall clock."""
        signs = [self.records[-1].wall] if self.records else []
        if self.live is not None:
            signs.append(self.live.wall)
        return max(signs, default=None)


def default_runs_dir() -> str:
    """Where runs lie if nobody says otherwise; a config that cannot be read must not stop a viewer."""
    from gangrun.cli.config import layered, usual_files

    try:
        return str(layered({}, environment.all_variables(), usual_files())["runs_dir"].value)
    except UserError as error:
        click.echo(f"gangrun: {clean(error.message)} (left aside here)", err=True)
        return "gangrun_runs"


def index_of(runs_dir: str | None) -> Index:
    """The user's index, which also looks into the runs directory here; with ``runs_dir`` only what lies there."""
    folder = Path(runs_dir or default_runs_dir()).expanduser().absolute()
    if runs_dir:
        return Index(folder / ".no-index", also=(folder,))
    return Index(environment.state_home() / "runs", also=(folder,))


def find(token: str | None, runs_dir: str | None = None, *, steering: bool = False) -> RunPaths:
    """The run that the user means: id, unique prefix, name, job id or path; None: the newest.

    Of several runs with one name the newest is meant; to steer it the others must have ended, or it would be a guess.
    """
    index = index_of(runs_dir)
    match index.find(token):
        case Found(entry):
            return RunPaths(Path(entry.path))
        case Ambiguous(entries) if all(entry.name == token for entry in entries):
            return _newest_of_a_name(entries, steering=steering)
        case Ambiguous(entries):
            raise UserError("ambiguous run", f"{token!r} means several runs:", _listed(entries), NO_SUCH_RUN)
        case Missing(nearest):
            direct = _direct(token, index)
            if direct is not None:
                return direct
            hint = f"did you mean {' or '.join(nearest)}?" if nearest else "gangrun status --all lists the runs"
            if token is None:
                raise UserError("no such run", f"no run yet{_where(runs_dir)}", "gangrun run starts one", NO_SUCH_RUN)
            raise UserError("no such run", f"no run {token!r}{_where(runs_dir)}", hint, NO_SUCH_RUN)


def _where(runs_dir: str | None) -> str:
    return f" in {runs_dir}" if runs_dir else ""


def _listed(entries: Sequence[IndexEntry]) -> str:
    lines = [f"{clean(e.run)}  {clean(e.name)}  {clean(e.path)}" for e in entries[:LISTED_COUNT]]
    more = len(entries) - LISTED_COUNT
    return "\n".join([*lines, *([f"and {more} more"] if more > 0 else [])])


def _newest_of_a_name(entries: Sequence[IndexEntry], *, steering: bool) -> RunPaths:
    newest, *others = entries
    if steering:
        going = [entry for entry in others if not _has_ended(entry)]
        if going:
            words = f"several runs are named {newest.name!r} and have not ended; name one by its id:"
            raise UserError("ambiguous run", words, _listed([newest, *going]), NO_SUCH_RUN)
    else:
        told = f"{len(entries)} runs are named {clean(newest.name)}; this is the newest, {clean(newest.run)}"
        click.echo(f"gangrun: {told}", err=True)
    return RunPaths(Path(newest.path))


def _has_ended(entry: IndexEntry) -> bool:
    try:
        return read(RunPaths(Path(entry.path))).ended
    except (UserError, OSError):
        return False  # nobody can tell


def _direct(token: str | None, index: Index) -> RunPaths | None:
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


@contextmanager
def patience(what: str) -> Iterator[None]:
    """Say so if a file system does not answer; the kernel alone decides how long that lasts."""
    words = f"gangrun: still waiting for {clean(what)} to answer (Ctrl-C leaves; the run does not notice)"
    timer = threading.Timer(PATIENCE_S, lambda: click.echo(words, err=True))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def read(paths: RunPaths, *, story: bool = False) -> Reading:
    """Read a run; ``story`` also brings every record, else only the newest term's."""
    with patience(str(paths.root)):
        return _read(paths, story)


def _read(paths: RunPaths, story: bool) -> Reading:
    disk = Disk()
    spec = spec_of(paths, disk)
    history = JournalReader(paths, disk).read(newest_only=not story)
    try:
        state = replay(history.records)
    except UNREPLAYABLE as error:
        raise unreplayable(spec, error) from error
    return reading_of(paths, spec, state, history.records, history.notes)


def unreplayable(spec: RunSpec, error: Exception) -> UserError:
    """A journal whose lines are whole and whose patches are of another shape than any gangrun writes."""
    return UserError("journal", f"the journal of {spec.run} cannot be replayed: {error}", "", UNKNOWN)


def reading_of(
    paths: RunPaths, spec: RunSpec, state: RunState | None, records: tuple[Record, ...], notes: tuple[str, ...]
) -> Reading:
    """What the journal told, with what lies beside it."""
    if state is None and (records or notes):
        why = "; ".join(notes) or "it has no snapshot to begin with"
        hint = f"it lies in {paths.journals}"
        raise UserError("journal", f"the journal of {spec.run} cannot be read: {why}", hint, UNKNOWN)
    disk = Disk()
    claims = JobClaims(paths, disk)
    highest = claims.highest()
    owner = claims.holder(highest) if highest >= 0 else None
    return Reading(
        paths,
        spec,
        state,
        records,
        notes,
        read_counter(disk, paths, state.term) if state else None,
        _claim_of(paths, disk, state.term) if state else None,
        owner,
        alive(owner),
        read_cancelled(disk, paths),
    )


def spec_of(paths: RunPaths, disk: Disk) -> RunSpec:
    """The spec, or what is wrong with it in words."""
    try:
        return read_spec(disk, paths)
    except RunDirError as error:
        raise UserError("run directory", error.message, error.hint, NO_SUCH_RUN) from error
    except SpecError as error:
        raise UserError("spec", f"{paths.root.name}: {error}", f"it lies in {paths.spec}", UNKNOWN) from error


def _claim_of(paths: RunPaths, disk: Disk, term: int) -> Claim | None:
    try:
        return wire_claim.decode(disk.read(paths.claim(term), limit=1 << 20))
    except (OSError, wire_claim.ClaimError):
        return None


def alive(claim: JobClaim | None) -> bool | None:
    """Does the owner's process live? None where this host cannot tell."""
    if claim is None or claim.host != box.short_name():
        return None
    proc = processes.read_proc(claim.pid)
    return proc is not None and proc.start_ticks == claim.start_ticks and proc.state != "Z"

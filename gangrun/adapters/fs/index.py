"""The index of a user's runs, so that ``status`` finds them wherever they lie.

One small file per run; each is a hint only: the run directory itself is the truth, and an entry whose directory went
is stale. Which folder the index is in is told by the caller.
"""

from __future__ import annotations

import difflib
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from gangrun.adapters.fs.disk import Disk
from gangrun.adapters.fs.run_dir import MACHINE_DIR, RunDirError, RunPaths, file_name
from gangrun.wire import spec as wire_spec


class IndexEntry(msgspec.Struct, frozen=True):
    """One run as the index knows it."""

    run: str
    name: str
    path: str
    created_wall: float
    jobs: tuple[str, ...] = ()
    pids: tuple[int, ...] = ()
    v: int = 1
    directory: str = ""  # where it was started; "" in entries that an older gangrun wrote


@dataclass(frozen=True, slots=True)
class Found:
    """Exactly one run is meant."""

    entry: IndexEntry


@dataclass(frozen=True, slots=True)
class Ambiguous:
    """Several runs match, newest first."""

    entries: tuple[IndexEntry, ...]


@dataclass(frozen=True, slots=True)
class Missing:
    """No run matches; ``nearest`` are names and ids that look alike."""

    nearest: tuple[str, ...]


@dataclass(slots=True)
class Index:
    """Entries under ``folder``. Also looks into ``also``: runs directories whose runs may not be listed here."""

    folder: Path
    also: tuple[Path, ...] = ()
    disk: Disk = field(default_factory=Disk)

    def put(self, entry: IndexEntry) -> None:
        """Add or replace; raises ``OSError``, which callers may take lightly: the run does not depend on it."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        target = self._file(entry.run)
        self.disk.replace(target, msgspec.json.encode(entry) + b"\n", target.with_name(f".{target.name}.tmp"))

    def remove(self, run: str) -> None:
        """Forget a run; its directory stays."""
        self.disk.discard((self._file(run),))

    def _file(self, run: str) -> Path:
        return self.folder / f"{file_name(run)}.json"

    def entries(self, stale: bool = False) -> tuple[IndexEntry, ...]:
        """Runs, newest first; with ``stale`` those whose directory is gone instead."""
        listed = {entry.run: entry for entry in self._listed() if self._stands(entry) != stale}
        if not stale:
            for entry in self._unlisted():
                listed.setdefault(entry.run, entry)
        return tuple(sorted(listed.values(), key=lambda entry: (entry.created_wall, entry.run), reverse=True))

    def _stands(self, entry: IndexEntry) -> bool:
        try:
            return self.disk.exists(RunPaths(Path(entry.path)).spec)
        except OSError:  # nobody knows: it is not forgotten, and whoever reads it is told why that fails
            return True

    def _listed(self) -> Iterable[IndexEntry]:
        for name in _names(self.disk, self.folder):
            if name.startswith(".") or not name.endswith(".json"):
                continue
            try:
                yield msgspec.json.decode(self.disk.read(self.folder / name, limit=1 << 20), type=IndexEntry)
            except (OSError, msgspec.MsgspecError):
                continue

    def _unlisted(self) -> Iterable[IndexEntry]:
        for runs_dir in self.also:
            for name in _names(self.disk, runs_dir):
                try:
                    spec = wire_spec.decode(self.disk.read(RunPaths(runs_dir / name).spec))
                except (OSError, wire_spec.SpecError):
                    continue
                path = str((runs_dir / name).absolute())
                yield IndexEntry(spec.run, spec.name, path, spec.created_wall, directory=spec.working_directory)

    def find(self, token: str) -> Found | Ambiguous | Missing:
        """By id, job id, name, unique prefix of an id or name, path."""
        entries = self.entries()
        tests: tuple[Callable[[IndexEntry], bool], ...] = (
            lambda entry: entry.run == token,
            lambda entry: token in entry.jobs,
            lambda entry: entry.name == token,
            lambda entry: bool(token) and entry.run.startswith(token),
            lambda entry: bool(token) and entry.name.startswith(token),
        )
        for test in tests:
            match tuple(entry for entry in entries if test(entry)):
                case ():
                    continue
                case (only,):
                    return Found(only)
                case several:
                    return Ambiguous(several)
        return self._by_path(token) or Missing(_nearest(token, entries))

    def _by_path(self, token: str) -> Found | None:
        if "/" not in token and token not in (".", ".."):
            return None
        path = Path(token).absolute()
        try:
            spec = wire_spec.decode(self.disk.read(RunPaths(path).spec))
        except (OSError, ValueError):
            return None
        return Found(IndexEntry(run=spec.run, name=spec.name, path=str(path), created_wall=spec.created_wall))

    def forget_stale(self) -> tuple[IndexEntry, ...]:
        """Drop entries whose directory is gone; returns them."""
        gone = self.entries(stale=True)
        for entry in gone:
            self.remove(entry.run)
        return gone


def _names(disk: Disk, folder: Path) -> tuple[str, ...]:
    try:
        return disk.names(folder)
    except OSError:
        return ()


def _nearest(token: str, entries: Iterable[IndexEntry]) -> tuple[str, ...]:
    known = list(dict.fromkeys(name for entry in entries for name in (entry.name, entry.run) if name))
    return tuple(difflib.get_close_matches(token, known, n=3, cutoff=0.5))


def remove_run(disk: Disk, path: Path) -> None:
    """Delete a run directory with all in it; refuses what is not one. The user's checkpoints lie elsewhere."""
    paths = RunPaths(path)
    if not path.is_absolute() or not disk.is_dir(path) or not disk.is_dir(path / MACHINE_DIR):
        raise RunDirError(f"{path} is not a gangrun run directory", "nothing was deleted")
    if not disk.exists(paths.spec):
        raise RunDirError(f"{path} has no spec.json", "nothing was deleted; remove it by hand if it is a leftover")
    for acts in (paths.terms / name for name in _names(disk, paths.terms) if name.endswith(".acts")):
        if disk.is_dir(acts):
            disk.chmod(acts, 0o700)
    # The spec goes last: a deletion cut short is still known as a run and can be done again.
    inside = [path / name for name in disk.names(path)] + [paths.machine / name for name in disk.names(paths.machine)]
    for entry in inside:
        if entry not in (paths.machine, paths.spec):
            _remove(entry)
    shutil.rmtree(path)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()

"""What a file system can do, tried out.

Asked at submit and at preflight of the runs directory and the checkpoint directory. It may hang where the file system
does: run it where a deadline can leave it behind. No verdict beyond words: what to do about a lack is the caller's.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gangrun.adapters.fs.disk import Disk
from gangrun.ports import Clock

FSYNC_SLOW_S = 1.0
FREE_LOW_BYTES = 256 * 1024 * 1024
_SIZE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """Facts about ``path``. ``lacks``: what does not work, each with what it means; ``warnings``: what is poor."""

    path: str
    writable: bool
    exclusive: bool = False  # O_EXCL lets one through
    link: bool = False
    rename_across: bool = False  # a directory from one parent to another
    seal: bool = False  # mode 0500 refuses creation
    as_root: bool = False
    fsync_s: float = 0.0
    free_bytes: int = 0
    lacks: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def usable(self) -> bool:
        """Whether a run directory may live here: terms need at least O_EXCL."""
        return self.writable and self.exclusive

    @property
    def unsafe_for_saves(self) -> tuple[str, ...]:
        """What a checkpoint directory lacks to keep late saves out; staging that modes do not seal is renamed away."""
        return () if self.writable and self.rename_across else self.lacks

    @property
    def words(self) -> tuple[str, ...]:
        """All of it, for people."""
        return self.lacks + self.warnings


def nearest_folder(path: Path) -> Path:
    """The directory itself, or the nearest one above it that is there: it will be made in that one.

    Where that cannot be found out it is the directory itself: ``probe`` says what is wrong with it.
    """
    try:
        return next((folder for folder in (path, *path.parents) if folder.is_dir()), path)
    except OSError:
        return path


def probe(path: Path, clock: Clock, nonce: str, disk: Disk | None = None) -> ProbeReport:
    """Try out ``path`` (a directory) in a folder of its own, which is removed again. Never raises ``OSError``."""
    disk = disk or Disk()
    place = path / f".gangrun-probe-{nonce}"
    try:
        disk.mkdir(place)
    except OSError as error:
        return ProbeReport(str(path), writable=False, lacks=(f"cannot write to {path}: {_why(error)}",))
    try:
        return _Trial(disk, path, place, clock).report()
    finally:
        _clean(disk, place)


class _Trial:
    def __init__(self, disk: Disk, path: Path, place: Path, clock: Clock) -> None:
        self.disk, self.path, self.place, self.clock = disk, path, place, clock
        self.lacks: list[str] = []
        self.warnings: list[str] = []

    def report(self) -> ProbeReport:
        fsync_s = self._fsync()
        exclusive = self._try("O_EXCL does not work: no run may live here", self._exclusive)
        link = self._try("link(2) does not work: claims fall back to O_EXCL", self._link)
        rename = self._try(
            "a directory cannot be renamed to another parent: only checkpoints named in the journal will count",
            self._rename_across,
        )
        seal = self._try("mode 0500 does not keep writers out: terms are sealed by removing their folders", self._seal)
        free = self._free()
        return ProbeReport(
            path=str(self.path),
            writable=fsync_s is not None,
            exclusive=exclusive,
            link=link,
            rename_across=rename,
            seal=seal,
            as_root=os.geteuid() == 0,
            fsync_s=fsync_s or 0.0,
            free_bytes=free,
            lacks=tuple(self.lacks),
            warnings=tuple(self.warnings),
        )

    def _try(self, meaning: str, trial: Callable[[], str]) -> bool:
        try:
            why = trial()
        except OSError as error:
            why = _why(error)
        if why:
            self.lacks.append(f"{self.path}: {meaning} ({why})")
        return not why

    def _fsync(self) -> float | None:
        file, started = self.place / "file", self.clock.now()
        try:
            self.disk.write_new(file, b"\0" * _SIZE_BYTES)
            self.disk.fsync_dir(self.place)
            same = len(self.disk.read(file)) == _SIZE_BYTES
        except OSError as error:
            self.lacks.append(f"cannot write to {self.path}: {_why(error)}")
            return None
        if not same:
            self.lacks.append(f"{self.path}: what was written does not read back")
            return None
        taken_s = self.clock.now() - started
        if taken_s > FSYNC_SLOW_S:
            self.warnings.append(f"{self.path}: writing 4 KiB durably took {taken_s:.1f} s")
        return taken_s

    def _exclusive(self) -> str:
        file = self.place / "exclusive"
        self.disk.close(self.disk.create(file))
        try:
            self.disk.close(self.disk.create(file))
        except FileExistsError:
            return ""
        return "a file was created twice"

    def _link(self) -> str:
        source, target = self.place / "source", self.place / "target"
        self.disk.write_new(source, b"x")
        self.disk.link(source, target)
        try:
            self.disk.link(source, target)
        except FileExistsError:
            return ""
        return "a name was linked twice"

    def _rename_across(self) -> str:
        one, other = self.place / "one", self.place / "other"
        for folder in (one, other, one / "moved"):
            self.disk.mkdir(folder)
        self.disk.write_new(one / "moved" / "file", b"x")
        self.disk.rename(one / "moved", other / "moved")
        return "" if self.disk.read(other / "moved" / "file") == b"x" else "its content did not come along"

    def _seal(self) -> str:
        folder = self.place / "sealed"
        self.disk.mkdir(folder)
        self.disk.chmod(folder, 0o500)
        try:
            self.disk.close(self.disk.create(folder / "late"))
        except OSError as error:
            return "" if error.errno in (errno.EACCES, errno.EPERM) else _why(error)
        return "file permissions do not restrict root" if os.geteuid() == 0 else "a file was created in it"

    def _free(self) -> int:
        try:
            free = self.disk.free_bytes(self.place)
        except OSError as error:
            self.warnings.append(f"{self.path}: free space unknown: {_why(error)}")
            return 0
        if free < FREE_LOW_BYTES:
            self.warnings.append(f"{self.path}: only {free // 2**20} MiB are free")
        return free


def _clean(disk: Disk, place: Path) -> None:
    """Remove the folder of the trial; what cannot be removed stays, hidden."""
    try:
        for name in disk.names(place):
            entry = place / name
            if disk.is_dir(entry):
                disk.chmod(entry, 0o700)
                _clean(disk, entry)
            else:
                disk.discard((entry,))
        disk.rmdir(place)
    except OSError:
        return


def _why(error: OSError) -> str:
    return error.strerror or str(error)

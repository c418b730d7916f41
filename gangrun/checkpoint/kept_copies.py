"""Copies of a file that its script overwrites, so that a torn newest one can be stepped back from.

``NAME.1`` is the newest copy; the oldest makes way. A copy keeps its original's time, which tells the save, and comes
to its name by rename, so no name ever shows half of one. It is made of what was judged whole, piece by piece. Each
piece reaches the disk before the next one is read, and the work is given up when the script writes or ``give_up`` says
so. A file system that can share blocks (XFS, Btrfs, NFS 4.2) copies nothing. A hard link would be no copy of what the
script overwrites in place. It serves, and costs nothing, if each save is another file: then the script renames.

Only the supervisor of the newest term rotates copies. If a deposed one has looked at its term just before another took
over, it may still put a whole, older save at ``NAME.1``. No copy is torn by that, and their times still order them.
"""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from gangrun.checkpoint.records import sync_directory
from gangrun.checkpoint.scan import MACHINE_FOLDER, Identity, OneFile
from gangrun.core.checkpoints.resume import shown

PIECE_BYTES = 64 * 1024 * 1024
RENAMES_COUNT = 2  # so many new files in a row: the script renames; one may have been moved there by a person
_PREFIX = "copying-"
_NOT_HERE = {errno.EXDEV, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL}
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT}


class NotCopied(OSError):
    """Something is more urgent than a copy; the message says what."""


@dataclass(slots=True)
class KeptCopies:
    """The copies of one file, as one supervisor keeps them; used by one thread."""

    directory: str
    file: OneFile
    may_rotate: Callable[[], bool] = lambda: True
    give_up: Callable[[], bool] = lambda: False
    _last: Identity | None = None  # of the file, when it was last seen whole
    _new_files_count: int = 0  # saves that were another file than the one before, in a row
    _in_place: bool = False

    @property
    def path(self) -> str:
        """The file that the script writes."""
        return os.path.join(self.directory, self.file.name)

    def keep(self, judged: Identity) -> str:
        """Copy what was ``judged`` whole, if there is no copy of it; "", or why there is none."""
        self._learn(judged)
        there = [Identity.of(path) for path in self._names() if os.path.lexists(path)]
        if any(self._is_copy(one, judged) for one in there):
            return ""
        made = ""
        try:
            made = self._made_of(self.path, judged, self.give_up, linked=self._new_files_count >= RENAMES_COUNT)
            if not self.may_rotate():
                raise NotCopied(0, "another supervisor has taken over")
            self._rotate(made, judged)
        except OSError as error:
            return f"no copy of {shown(self.file.name)} is kept: {error.strerror}"
        finally:
            with suppress(OSError):
                os.unlink(made)
        return ""

    def put_in_place(self, copy: str) -> Callable[[], None]:
        """Copy a copy; what is returned gives the new one the file's name. Both raise OSError."""
        try:
            made = self._made_of(copy, Identity.of(copy), lambda: False, linked=False)
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise
            made = copy

        def rename() -> None:
            os.rename(made, self.path)
            sync_directory(self.directory)

        return rename

    def forget(self) -> None:
        """What bears the name may now be another file by gangrun's doing: it says nothing of how the script writes."""
        self._last, self._new_files_count = None, 0

    def _learn(self, seen: Identity) -> None:
        """Does the script rename, or overwrite in place? Once seen in place, its files are never linked."""
        before, self._last = self._last, seen
        if before is not None and before != seen:
            self._in_place = self._in_place or before.inode == seen.inode
            self._new_files_count = 0 if self._in_place else self._new_files_count + 1

    def _is_copy(self, one: Identity, judged: Identity) -> bool:
        """A link to the file itself is none, if the script overwrites in place."""
        if one.marker is None or judged.marker is None or one.marker[1:] != judged.marker[1:]:
            return False
        return not (self._in_place and one.inode == judged.inode)

    def _path(self, name: str) -> str:
        return os.path.join(self.directory, name)

    def _names(self) -> list[str]:
        return [self._path(self.file.copy_name(number)) for number in range(1, self.file.copies_count + 1)]

    def _rotate(self, made: str, judged: Identity) -> None:
        """Each copy takes the next name, up to the first name that is free; the last one is overwritten."""
        copies = self._names()
        for copy in copies:  # a link, of a script that now overwrites in place, is the very file
            if os.path.lexists(copy) and Identity.of(copy).inode == judged.inode:
                os.unlink(copy)
        free = next((number for number, copy in enumerate(copies) if not os.path.lexists(copy)), len(copies) - 1)
        for number in range(free, 0, -1):
            os.rename(copies[number - 1], copies[number])
        os.rename(made, copies[0])
        sync_directory(self.directory)

    def _made_of(self, source: str, judged: Identity, give_up: Callable[[], bool], *, linked: bool) -> str:
        """A file of our own with the bytes and the times of ``judged``, on the disk."""
        folder = self._path(MACHINE_FOLDER)
        os.makedirs(folder, exist_ok=True)
        for name in os.listdir(folder):
            if name.startswith(_PREFIX):  # of a supervisor that was killed meanwhile
                os.unlink(os.path.join(folder, name))
        descriptor, made = tempfile.mkstemp(prefix=_PREFIX, dir=folder)
        try:
            with open(descriptor, "wb", buffering=0) as target:
                if linked:
                    os.unlink(made)
                    os.link(source, made, follow_symlinks=False)
                else:
                    copy_as_judged(source, target.fileno(), judged, give_up)
            if Identity.of(source) != judged:
                raise NotCopied(0, "the script has written to it meanwhile")
        except OSError:
            with suppress(OSError):
                os.unlink(made)
            raise
        return made


def copy_as_judged(source: str, target: int, judged: Identity, give_up: Callable[[], bool]) -> None:
    """Raises ``NotCopied`` if it is not, or not any more, what was judged."""
    _, size, mtime_ns = judged.marker or (0, 0, 0)
    free = os.fstatvfs(target)
    if free.f_bavail * free.f_frsize < 2 * size:  # the script's next save must find room too
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    descriptor, at = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), 0
    try:
        while at < size:
            if give_up() or Identity.of(source) != judged:
                raise NotCopied(0, "the script writes to it, or the checkpoint directory is needed")
            count = _copy_piece(descriptor, target, min(PIECE_BYTES, size - at), at)
            if not count:
                raise NotCopied(0, "it became shorter")
            os.fdatasync(target)
            at += count
        os.fchmod(target, os.fstat(descriptor).st_mode & 0o777)
        os.utime(target, ns=(mtime_ns, mtime_ns))
        os.fsync(target)
    finally:
        os.close(descriptor)


def _copy_piece(source: int, target: int, count: int, at: int) -> int:
    """By the file system, if it can: it shares the blocks, or copies on the server."""
    try:
        return os.copy_file_range(source, target, count, at, at)
    except OSError as error:
        if error.errno not in _NOT_HERE:
            raise
    return os.pwrite(target, os.pread(source, count, at), at)

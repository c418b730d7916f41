"""The one narrow edge to file operations.

No meaning may enter: no path layout, no retry, no judging of errors. Each operation passes ``before`` and ``after``,
which a disk that fails on purpose overrides.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path

READ_ALL_BYTES = 1 << 62  # a journal that was read in part only would look torn
ABSENT = (FileNotFoundError, NotADirectoryError)  # the only errors that say "it is not there"; all others say nothing
REFUSED = (*ABSENT, PermissionError, IsADirectoryError)  # the same answer comes however often it is asked


class Disk:
    """Plain POSIX calls, each one short enough to be cut before or after. Errors are ``OSError`` as they come."""

    def before(self, op: str, path: Path) -> None:
        """Called before each operation; a subclass may block or raise here."""

    def after(self, op: str, path: Path) -> None:
        """Called after each operation that succeeded."""

    # ---- names ----

    def link(self, source: Path, target: Path) -> None:
        """link(2): fails with EEXIST where ``target`` is; of many callers one wins."""
        self.before("link", target)
        os.link(source, target, follow_symlinks=False)
        self.after("link", target)

    def rename(self, source: Path, target: Path) -> None:
        """rename(2): replaces a file ``target`` at once."""
        self.before("rename", target)
        os.rename(source, target)
        self.after("rename", target)

    def unlink(self, path: Path) -> None:
        """Remove a file's name."""
        self.before("unlink", path)
        os.unlink(path)
        self.after("unlink", path)

    def mkdir(self, path: Path, mode: int = 0o700) -> None:
        """Make one directory; EEXIST if the name is taken by anything."""
        self.before("mkdir", path)
        os.mkdir(path, mode)
        self.after("mkdir", path)

    def rmdir(self, path: Path) -> None:
        """Remove an empty directory; from then on nobody can create in it, even who looked it up before."""
        self.before("rmdir", path)
        os.rmdir(path)
        self.after("rmdir", path)

    def symlink(self, to: str, path: Path) -> None:
        """Make a symbolic link."""
        self.before("symlink", path)
        os.symlink(to, path)
        self.after("symlink", path)

    def chmod(self, path: Path, mode: int) -> None:
        """Set permission bits."""
        self.before("chmod", path)
        os.chmod(path, mode)
        self.after("chmod", path)

    # ---- looking ----

    def lstat(self, path: Path) -> os.stat_result:
        """What the name itself is; links are not followed."""
        self.before("lstat", path)
        result = os.lstat(path)
        self.after("lstat", path)
        return result

    def stat_fresh(self, path: Path) -> os.stat_result:
        """Like stat, after an open: network file systems ask the server at open, not at stat."""
        self.before("stat_fresh", path)
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            result = os.fstat(fd)
        finally:
            os.close(fd)
        self.after("stat_fresh", path)
        return result

    def is_dir(self, path: Path) -> bool:
        """Whether a directory is there now; False also where nobody may look. ``OSError``: not known."""
        try:
            return stat.S_ISDIR(self.lstat(path).st_mode)
        except (*ABSENT, PermissionError):
            return False

    def exists(self, path: Path) -> bool:
        """Whether the name was seen; False never proves that it is not there (stale caches). ``OSError``: not known."""
        try:
            self.lstat(path)
        except ABSENT:
            return False
        return True

    def names(self, path: Path) -> tuple[str, ...]:
        """Names in a directory, sorted; may be up to a minute old on network file systems."""
        self.before("names", path)
        result = tuple(sorted(os.listdir(path)))
        self.after("names", path)
        return result

    def read(self, path: Path, offset: int = 0, limit: int = READ_ALL_BYTES) -> bytes:
        """The file's bytes from ``offset``, at most ``limit``; opened anew each time."""
        self.before("read", path)
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            chunks: list[bytes] = []
            while limit > 0 and (chunk := os.pread(fd, min(limit, 1 << 20), offset)):
                chunks.append(chunk)
                offset += len(chunk)
                limit -= len(chunk)
        finally:
            os.close(fd)
        self.after("read", path)
        return b"".join(chunks)

    def free_bytes(self, path: Path) -> int:
        """What an ordinary user may still write there."""
        self.before("free_bytes", path)
        facts = os.statvfs(path)
        self.after("free_bytes", path)
        return facts.f_bavail * facts.f_frsize

    # ---- writing ----

    def create(self, path: Path, mode: int = 0o600) -> int:
        """O_EXCL: a new file, open for appending; of many callers one wins."""
        self.before("create", path)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
        self.after("create", path)
        return fd

    def open_append(self, path: Path) -> int:
        """An existing file, open for appending."""
        self.before("open_append", path)
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW)
        self.after("open_append", path)
        return fd

    def open_rewrite(self, path: Path, mode: int = 0o600) -> int:
        """A file to be overwritten in place; made if missing."""
        self.before("open_rewrite", path)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
        self.after("open_rewrite", path)
        return fd

    def write(self, fd: int, data: bytes, path: Path) -> int:
        """One write(2); may be short. ``path`` only says which file it is."""
        self.before("write", path)
        written = os.write(fd, data)
        self.after("write", path)
        return written

    def overwrite(self, fd: int, data: bytes, path: Path) -> int:
        """One pwrite(2) at the file's beginning; may be short."""
        self.before("overwrite", path)
        written = os.pwrite(fd, data, 0)
        self.after("overwrite", path)
        return written

    def fsync(self, fd: int, path: Path) -> None:
        """fsync(2)."""
        self.before("fsync", path)
        os.fsync(fd)
        self.after("fsync", path)

    def size(self, fd: int, path: Path) -> int:
        """Length of an open file."""
        self.before("size", path)
        result = os.fstat(fd).st_size
        self.after("size", path)
        return result

    def truncate(self, fd: int, length: int, path: Path) -> None:
        """ftruncate(2)."""
        self.before("truncate", path)
        os.ftruncate(fd, length)
        self.after("truncate", path)

    def close(self, fd: int) -> None:
        """close(2); an error of a file that was fsynced tells nothing new."""
        try:
            os.close(fd)
        except OSError:
            return

    def fsync_dir(self, path: Path) -> None:
        """Make names in ``path``, and its own mode, durable."""
        self.before("fsync_dir", path)
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
        self.after("fsync_dir", path)

    # ---- put together ----

    def write_all(self, fd: int, data: bytes, path: Path) -> None:
        """Write until nothing is left; on error some may be written."""
        view = data
        while view:
            view = view[self.write(fd, view, path) :]

    def write_new(self, path: Path, data: bytes, mode: int = 0o600) -> None:
        """A new whole file, fsynced; EEXIST where the name is taken. The parent is not fsynced."""
        fd = self.create(path, mode)
        try:
            self.write_all(fd, data, path)
            self.fsync(fd, path)
        finally:
            self.close(fd)

    def replace(self, path: Path, data: bytes, temporary: Path, mode: int = 0o600) -> None:
        """The whole of a small file at once, durably: readers see the old or the new one, never half."""
        self.discard((temporary,))
        self.write_new(temporary, data, mode)
        self.rename(temporary, path)
        self.fsync_dir(path.parent)

    def discard(self, paths: Iterable[Path]) -> None:
        """Remove files that may be there; nothing depends on it."""
        for path in paths:
            try:
                self.unlink(path)
            except OSError:
                continue

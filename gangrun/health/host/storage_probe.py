"""What may block for ever, and therefore runs in a child that can be left behind.

A file server that stands still holds whoever asks it in the kernel, where no signal reaches. Each function is one
child's whole life.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable

from gangrun.health.framework.check import Facts, Value

NOT_THERE = os.strerror(errno.ENOENT)
CONTENT = b"gangrun health probe\n" * 195  # 4 KiB, about


def directory(path: str, now: Callable[[], float]) -> Facts:
    """Space of the file system, and the time to write, sync, rename and read back a small file in ``path``."""
    values: dict[str, Value] = {}
    missing: dict[str, str] = {}
    try:
        room = os.statvfs(path)
        values |= {
            "size_bytes": room.f_blocks * room.f_frsize,
            "free_bytes": room.f_bavail * room.f_frsize,
            "used_share": _used_share(room),
            "read_only": int(bool(room.f_flag & os.ST_RDONLY)),
        }
        if room.f_files:
            values["inodes_free"] = room.f_favail
        else:
            missing["inodes_free"] = "this file system does not count them"
    except OSError as error:
        return Facts({path: {"broken": _words(error)}})
    began = now()
    try:
        _write_and_read(path)
        values["probe_s"] = now() - began
    except PermissionError:
        missing["probe_s"] = "you may not write there"
    except OSError as error:
        values["write_error"] = _words(error)
    return Facts({path: values}, {path: missing} if missing else {})


def _used_share(room: os.statvfs_result) -> float:
    """As df says it: of what ordinary users may have."""
    used = room.f_blocks - room.f_bfree
    return used / max(1, used + room.f_bavail)


def _write_and_read(path: str) -> None:
    name = os.path.join(path, f".gangrun-health-{socket.gethostname()}-{os.getpid()}")
    fd = os.open(f"{name}.part", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        try:
            os.write(fd, CONTENT)
            os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(f"{name}.part", name)
        fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if os.read(fd, len(CONTENT) + 1) != CONTENT:
                raise OSError("what was read back is not what was written")
        finally:
            os.close(fd)
    finally:
        for left in (name, f"{name}.part"):
            try:
                os.unlink(left)
            except OSError:
                continue


def names(hosts: tuple[str, ...], now: Callable[[], float]) -> Facts:
    """Does every name resolve, and how long does it take?"""
    values: dict[str, dict[str, Value]] = {}
    for host in (socket.gethostname(), *hosts):
        began = now()
        try:
            found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
            values[host] = {"resolve_s": now() - began, "address": str(found[0][4][0])}
        except (OSError, UnicodeError) as error:
            values[host] = {"resolve_s": now() - began, "error": str(error)}
    return Facts(values)


def _words(error: OSError) -> str:
    return error.strerror or str(error)

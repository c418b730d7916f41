"""The child that asks what may hang: ``python -m gangrun.entry.health_probe KIND WORDS...``.

It answers with one line of JSON and ends. Nothing is imported that its question does not need.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from typing import TYPE_CHECKING, Any

from gangrun.adapters.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable

    Plain = dict[str, Any]  # values as JSON has them

CONTENT = b"gangrun health probe\n" * 195  # 4 KiB, about
AT_WORK = ("active", "dcgm_test")  # what must not go on once nobody waits for it


def answer(kind: str, words: tuple[str, ...]) -> Any:
    """Plain values, as ``health.framework.readings`` reads them."""
    if kind == "gpu":
        try:
            from gangrun.adapters.nvml import snapshot
        except ImportError:
            return {"absent": "the python package nvidia-ml-py is not installed"}
        return snapshot()
    if kind == "active":
        from gangrun.entry.health_children import active

        return active(words[0], float(words[1]), *words[2:])
    if kind == "dcgm":
        from gangrun.entry.health_children import dcgm

        return dcgm(words)
    if kind == "dcgm_test":
        from gangrun.entry.health_children import dcgm

        return dcgm(words[1:], float(words[0]))
    if kind == "command":
        from gangrun.entry.health_children import site_command

        return site_command(float(words[0]), words[1:])
    now = SystemClock().now
    if kind == "directory":
        return probe_directory(words[0], now)
    if kind == "names":
        return probe_names(words, now)
    return {"absent": f"nobody knows how to ask for {kind}"}


def probe_directory(path: str, now: Callable[[], float]) -> Plain:
    """Space of the file system, and the time to write, sync, rename and read back a small file in ``path``."""
    values: Plain = {}
    missing: dict[str, str] = {}
    try:
        room = os.statvfs(path)
        used = room.f_blocks - room.f_bfree
        values |= {
            "size_bytes": room.f_blocks * room.f_frsize,
            "free_bytes": room.f_bavail * room.f_frsize,
            "used_share": used / max(1, used + room.f_bavail),  # as df says it: of what ordinary users may have
            "read_only": int(bool(room.f_flag & os.ST_RDONLY)),
        }
        if room.f_files:
            values["inodes_free"] = room.f_favail
        else:
            missing["inodes_free"] = "this file system does not count them"
    except OSError as error:
        return {"values": {path: {"broken": _words(error)}}}
    began = now()
    try:
        _write_and_read(path)
        values["probe_s"] = now() - began
    except PermissionError:
        missing["probe_s"] = "you may not write there"
    except OSError as error:
        values["write_error"] = _words(error)
    return {"values": {path: values}, "missing": {path: missing} if missing else {}}


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


def probe_names(hosts: tuple[str, ...], now: Callable[[], float]) -> Plain:
    """Does every name resolve, and how long does it take?"""
    values: Plain = {}
    for host in (socket.gethostname(), *hosts):
        began = now()
        try:
            found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
            values[host] = {"resolve_s": now() - began, "address": str(found[0][4][0])}
        except (OSError, UnicodeError) as error:
            values[host] = {"resolve_s": now() - began, "error": str(error)}
    return {"values": values}


def _words(error: OSError) -> str:
    return error.strerror or str(error)


def with_its_parent() -> None:
    """Die when whoever asked does: devices must not be at work where ranks may start."""
    import signal

    from gangrun.node.processes import PR_SET_PDEATHSIG, prctl

    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def main() -> None:
    """Answer and end at once: a library that is hard to leave must not keep us."""
    if sys.argv[1] in AT_WORK:
        with_its_parent()
    said = json.dumps(answer(sys.argv[1], tuple(sys.argv[2:])))
    sys.stdout.write(said + "\n")
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()

"""Keeps checkpoints in this node's memory, so that they outlive ranks and agents.

Started by the warden by path (``memory_keeper.py NAME LIMIT_BYTES``) and killed with it. It holds sealed memfds and
knows nothing of their content: a file is (attempt, step, nonce, name) and its bytes. Nothing is ever written to a disk,
so nothing has to be cleaned: all is gone with this process. Who speaks to it is of the same user and was told its name.

    new    attempt, step, nonce, name, size   -> an empty memfd of that size, or why there is no room
    done   the same                           -> sealed: nobody can change it any more
    whole  attempt, step, nonce               -> what was begun before it may go
    abandon attempt, step, nonce              -> gone
    held   attempt[, base]                    -> what is there of it, and of base; older attempts go
    open   attempt, step, nonce, name         -> the memfd, to read
    paths  attempt[, base]                    -> where base is read: its files as they are below /proc
    pin    attempt[, step, nonce | base]      -> these steps stay until who said so pins others, or goes

``base``: the step that the attempt began from, as [attempt, step, nonce]. It stays until a step of that attempt is
whole.

An answer comes in as many messages as it needs: each but the last begins with ``MORE``, the last one with ``LAST``.
"""

from __future__ import annotations

import fcntl
import json
import os
import resource
import selectors
import signal
import socket
import struct
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MESSAGE_MAX_BYTES = 128 * 1024
MORE, LAST = b"+", b"."
SHARE_OF_NODE = 4  # without a limit of the user's own: a quarter of what this node, or its cgroup, has
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL
GROWN = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW  # from the first on: it stays as large as was said
_CREDENTIALS = struct.Struct("3i")

Key = tuple[int, int, str]


class File:
    """One memfd; ``writer`` is the connection that may still write it, None once it is sealed.

    ``shown``: the same file under a number that only it ever has, or -1.
    """

    __slots__ = ("fd", "shown", "size", "writer")

    def __init__(self, fd: int, size: int, writer: socket.socket) -> None:
        self.fd, self.shown, self.size = fd, -1, size
        self.writer: socket.socket | None = writer


class Keeper:
    """What is kept, oldest first; every method answers with a message and perhaps a descriptor."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self._steps: dict[Key, dict[str, File]] = {}
        self._floor = -1  # attempts below it are over
        self._base: tuple[int, Key | None] = -1, None  # what this attempt began from
        self._shown_from = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2
        self._pins: dict[socket.socket, set[Key]] = {}
        self._needless: set[Key] = set()  # would have gone, but for somebody's pin

    def answer(self, said: dict[str, Any], writer: socket.socket) -> tuple[dict[str, Any], int]:
        """(what to say, a descriptor to hand over or -1)."""
        op, key = said.get("op"), (int(said.get("attempt", -1)), int(said.get("step", -1)), str(said.get("nonce", "")))
        name = str(said.get("name", ""))
        if op == "new":
            return self._new(key, name, int(said["size"]), writer)
        if op == "done":
            return self._done(key, name, writer), -1
        if op == "whole":
            return self._whole(key), -1
        if op == "abandon":
            self._drop(key)
            return {"ok": True}, -1
        base = said.get("base")
        if base is not None:
            self._base = key[0], (int(base[0]), int(base[1]), str(base[2]))
        if op == "pin":
            self._pins[writer] = set(self._of(key[0])) if key[1] < 0 else {key}
            self._sweep()
            return {"ok": True}, -1
        if op == "held":
            return self._held(key[0]), -1
        if op == "paths":
            return self._paths(), -1
        if op == "open":
            file = self._steps.get(key, {}).get(name)
            return ({"ok": True}, file.fd) if file and file.writer is None else _no(f"{name!r} is not kept")
        return _no(f"unknown: {op!r}")

    def _new(self, key: Key, name: str, size: int, writer: socket.socket) -> tuple[dict[str, Any], int]:
        if key[0] < self._floor:
            return _no(f"attempt {key[0]} is over")
        if not name or size < 0 or name in self._steps.get(key, {}):
            return _no(f"{name!r} of {size} bytes cannot be kept")
        self._forget(key[0])
        if self.used_bytes + size > self.limit_bytes:
            return _no(
                f"{_gib(size)} more would pass the limit of {_gib(self.limit_bytes)} for checkpoints in this node's "
                f"memory, of which {_gib(self.used_bytes)} are taken (--memory-limit)"
            )
        fd = os.memfd_create("gangrun-checkpoint", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, size)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, GROWN)
        self._steps.setdefault(key, {})[name] = File(fd, size, writer)
        self.used_bytes += size
        return {"ok": True}, fd

    def _done(self, key: Key, name: str, writer: socket.socket) -> dict[str, Any]:
        file = self._steps.get(key, {}).get(name)
        if file is None or file.writer is not writer:
            return {"ok": False, "why": f"{name!r} is not being written by you"}
        fcntl.fcntl(file.fd, fcntl.F_ADD_SEALS, SEALS)
        file.writer = None
        return {"ok": True}

    def _whole(self, key: Key) -> dict[str, Any]:
        if key not in self._steps:
            return {"ok": False, "why": "it is not kept"}
        for older in list(self._steps):
            if older == key:
                break
            self._needless.add(older)
        self._sweep()
        return {"ok": True}

    def _held(self, attempt: int) -> dict[str, Any]:
        self._forget(attempt)
        steps = [
            {"step": key[1], "nonce": key[2], "files": {n: f.size for n, f in files.items() if f.writer is None}}
            for key, files in self._of(attempt).items()
        ]
        return {"ok": True, "steps": steps, "used_bytes": self.used_bytes, "limit_bytes": self.limit_bytes}

    def _of(self, attempt: int) -> dict[Key, dict[str, File]]:
        """The steps that this attempt may be resumed from."""
        base = self._base_of(attempt)
        return {key: files for key, files in self._steps.items() if key[0] == attempt or key == base}

    def _base_of(self, attempt: int) -> Key | None:
        return self._base[1] if self._base[0] == attempt else None

    def _paths(self) -> dict[str, Any]:
        """By numbers that no other file gets after them: a path that is read too late must not lead to another step."""
        files = self._steps.get(self._base[1] or (-1, -1, ""), {})
        sealed = {name: file for name, file in files.items() if file.writer is None}
        for file in sealed.values():
            if file.shown < 0:
                file.shown = fcntl.fcntl(file.fd, fcntl.F_DUPFD_CLOEXEC, self._shown_from)
                self._shown_from = file.shown + 1
        return {"ok": True, "files": {name: f"/proc/{os.getpid()}/fd/{file.shown}" for name, file in sealed.items()}}

    def _forget(self, attempt: int) -> None:
        """A later attempt has chosen where it goes on: nothing older may be offered any more."""
        self._floor = max(self._floor, attempt)
        kept = self._base_of(self._floor)
        self._needless.update(key for key in self._steps if key[0] < self._floor and key != kept)
        self._sweep()

    def _sweep(self) -> None:
        """What nobody needs goes once nobody has it pinned."""
        for key in self._needless.difference(*self._pins.values()):
            self._drop(key)

    def _drop(self, key: Key) -> None:
        self._needless.discard(key)
        for file in self._steps.pop(key, {}).values():
            self._let_go(file)

    def _let_go(self, file: File) -> None:
        self.used_bytes -= file.size
        os.close(file.fd)
        if file.shown >= 0:
            os.close(file.shown)

    def left(self, writer: socket.socket) -> None:
        """Who wrote is gone: what it had not finished is worth nothing, and what it had pinned may go."""
        if self._pins.pop(writer, None) is not None:
            self._sweep()
        for key, files in list(self._steps.items()):
            for name in [name for name, file in files.items() if file.writer is writer]:
                self._let_go(files.pop(name))
            if not files:
                del self._steps[key]


def _no(why: str) -> tuple[dict[str, Any], int]:
    return {"ok": False, "why": why}, -1


def _gib(count: int) -> str:
    return f"{count / 2**30:.3g} GiB" if count >= 2**20 else f"{count} bytes"


class Server:
    """Connections of this user to one keeper."""

    def __init__(self, name: str, keeper: Keeper) -> None:
        self._keeper = keeper
        self._door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._door.bind(address(name))
        self._door.listen(128)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._door, selectors.EVENT_READ)

    def run(self) -> None:
        """For ever: whoever started us kills us."""
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._door:
                    self._enter()
                else:
                    self._hear(key.fileobj)  # type: ignore[arg-type]

    def _enter(self) -> None:
        peer, _ = self._door.accept()
        credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        if _CREDENTIALS.unpack(credentials)[1] != os.getuid():
            peer.close()
            return
        peer.settimeout(5.0)  # one that does not take its answer must not keep the others waiting
        self._selector.register(peer, selectors.EVENT_READ)

    def _hear(self, peer: socket.socket) -> None:
        try:
            data = peer.recv(MESSAGE_MAX_BYTES)
            if data:
                said, fd = self._answer(data, peer)
                text, at = json.dumps(said).encode(), 0
                while len(text) - at > MESSAGE_MAX_BYTES - 1:
                    peer.send(MORE + text[at : at + MESSAGE_MAX_BYTES - 1])
                    at += MESSAGE_MAX_BYTES - 1
                socket.send_fds(peer, [LAST + text[at:]], [fd] if fd >= 0 else [])
                return
        except OSError:
            pass
        self._selector.unregister(peer)
        self._keeper.left(peer)
        peer.close()

    def _answer(self, data: bytes, peer: socket.socket) -> tuple[dict[str, Any], int]:
        try:
            return self._keeper.answer(json.loads(data), peer)
        except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
            return _no(f"{type(error).__name__}: {error}")


def address(name: str) -> str:
    """Where a keeper of this name is met: no file, so nothing stays behind."""
    return "\0" + name


def limit_of(asked_bytes: int) -> int:
    """What was asked for; without that a share of the smaller of the node's memory and its cgroup's."""
    if asked_bytes > 0:
        return asked_bytes
    found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    try:
        with open("/proc/self/cgroup", encoding="ascii") as file:
            group = next(line.strip()[3:] for line in file if line.startswith("0::"))
        while True:
            try:
                with open(f"/sys/fs/cgroup{group}/memory.max", encoding="ascii") as file:
                    found.append(int(file.read()))
            except (OSError, ValueError):
                pass
            if group in ("", "/"):
                break
            group = os.path.dirname(group)
    except (OSError, StopIteration):
        pass
    return min(found) // SHARE_OF_NODE


def main(words: list[str]) -> int:
    """``NAME LIMIT_BYTES``; 0 bytes: this node's share."""
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(signum, signal.SIG_IGN)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # each file of each step is a descriptor here
    Server(words[0], Keeper(limit_of(int(words[1])))).run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

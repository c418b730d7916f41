"""The small JSON files that outlive an attempt: what was verified, and what an explicit resume request means.

``verified.json`` lies beside the checkpoints and saves reading them again while no file was written to. It only ever
saves work: content that cannot be read is no memory, a read-only directory is tolerated, and any difference in size,
times or inode means that the checkpoint is read again.

``resume-request.json`` lies in the run directory. After ``--resume 100`` the newer checkpoints that were there must not
win when the next attempt asks for the newest one, and a resume point outside the checkpoint directory must not be
forgotten. Here damaged content stops the run: a guess could resume what the user refused.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable
from typing import Literal

import msgspec

from gangrun.checkpoint.formats.dcp import BadFile, FileMark, Judgement, UnreadableFile, mark_of
from gangrun.checkpoint.formats.manifest import NO_CTIME
from gangrun.checkpoint.scan import MACHINE_FOLDER, StorageUnreadable
from gangrun.core.checkpoints.resume import shown

MEMORY_NAME = "verified.json"
_READ_MAX_BYTES = 64 * 1024 * 1024
_REMEMBERED_FILES_COUNT = 200_000  # oldest steps are forgotten first


class _Row(msgspec.Struct):
    """What is known of one step directory, and the seal of a validator that accepted it."""

    judged: Judgement
    accepted: object = ""  # alien content is no seal


class _VerifiedFile(msgspec.Struct):
    schema: Literal[2]
    checkpoints: dict[str, _Row]


class VerifiedBefore:
    """What was verified in one checkpoint directory; ``folder`` is gangrun's own."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._path = os.path.join(self._folder, MEMORY_NAME)
        rows = {name: row for name, row in _load(self._path).items() if row.judged.level and row.judged.marks}
        self._known = {name: row.judged for name, row in rows.items()}
        self._accepted = {name: row.accepted for name, row in rows.items() if isinstance(row.accepted, str)}
        self._changed = False

    def recall(self, name: str, path: str) -> Judgement | None:
        """The judgement of this step directory, if every file of it is as it was; None: look again."""
        judged = self._known.get(name)
        if judged is None:
            return None
        try:
            same = all(_as_it_was(mark_of(path, file), mark) for file, mark in judged.marks)
        except (BadFile, UnreadableFile):
            same = False
        if not same:
            self.forget(name)
        return judged if same else None

    def remember(self, name: str, judged: Judgement) -> None:
        """Keep what was found whole, by structure or in full; damaged ones are looked at again each time."""
        if judged.level is None:
            self.forget(name)
        elif self._known.get(name) != judged:
            self._known[name] = judged
            self._changed = True

    def forget(self, name: str) -> None:
        self._accepted.pop(name, None)
        self._changed = self._known.pop(name, None) is not None or self._changed

    def accept(self, name: str, seal: str) -> None:
        """Keep that somebody else accepts what is known of this step directory; ``seal`` says who, and what exactly."""
        if name in self._known and self._accepted.get(name) != seal:
            self._accepted[name] = seal
            self._changed = True

    def is_accepted(self, name: str, seal: str) -> bool:
        """The same who of the same."""
        return self._accepted.get(name) == seal

    def keep_only(self, names_newest_first: Iterable[str]) -> None:
        """Forget what is no longer there, and the oldest where there is too much."""
        left, kept = _REMEMBERED_FILES_COUNT, {}
        for name in names_newest_first:
            judged = self._known.get(name)
            if judged is not None and len(judged.marks) <= left:
                left -= len(judged.marks)
                kept[name] = judged
        self._changed = self._changed or len(kept) != len(self._known)
        self._known = kept
        self._accepted = {name: seal for name, seal in self._accepted.items() if name in kept}

    def save(self) -> str:
        """Write what changed; returns "" or why it could not be written, which costs time later and nothing else."""
        if not self._changed:
            return ""
        rows = {name: _Row(one, self._accepted.get(name, "")) for name, one in self._known.items()}
        try:
            write_json(self._folder, MEMORY_NAME, msgspec.to_builtins(_VerifiedFile(2, rows)))
        except OSError as error:
            why = os.strerror(error.errno or 0)
            return f"the list of verified checkpoints cannot be saved in {self._folder} ({why}): they are read again"
        self._changed = False
        return ""


def write_json(folder: str, name: str, body: object) -> None:
    """Replace a small JSON file: whole or not at all. The folder must be a true directory, not a link elsewhere."""
    os.makedirs(folder, exist_ok=True)
    if not stat.S_ISDIR(os.lstat(folder).st_mode):
        raise NotADirectoryError(20, "not a directory", folder)
    temporary = os.path.join(folder, f".{name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        with open(descriptor, "w", encoding="ascii") as file:
            file.write(json.dumps(body))  # not dump: that one is written in Python, and ten times slower
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, os.path.join(folder, name))
    except OSError:
        os.unlink(temporary)
        raise


def sync_directory(path: str) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _as_it_was(found: FileMark, known: FileMark) -> bool:
    """The time of the last change counts where it was remembered: hard links change it, and nothing else."""
    return found == known or (known[2] == NO_CTIME and (found[0], found[1], found[3]) == (known[0], known[1], known[3]))


def _load(path: str) -> dict[str, _Row]:
    """What is known; nothing where the file is not there, or is not ours."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            data = file.read(_READ_MAX_BYTES)
        try:
            return msgspec.json.decode(data, type=_VerifiedFile).checkpoints
        except msgspec.DecodeError:  # also for a file name that is no UTF-8, which json reads, at half the speed
            return msgspec.convert(json.loads(data), _VerifiedFile).checkpoints
    except (OSError, ValueError, RecursionError):
        return {}


RECORD_NAME = "resume-request.json"
_WORDS = "the record of an earlier resume request"


class RequestRecord(msgspec.Struct, frozen=True):
    """What the newest explicit request of this run still means."""

    ignored: frozenset[tuple[int, str | None]] = frozenset()  # (step, nonce) put out of use
    base_path: str = ""  # the checkpoint it asked for; "" when it asked for the beginning, or nobody asked
    forgotten_best_step: int = -1  # asked for the beginning: best steps up to this one no longer forbid it
    schema: Literal[1] = 1


def load_record(run_directory: str) -> RequestRecord:
    """The record, empty if nobody asked. Raises ``StorageUnreadable``: guessing could resume what the user refused."""
    path = os.path.join(run_directory, MACHINE_FOLDER, RECORD_NAME)
    try:
        with open(path, "rb") as file:
            body = json.load(file)
        if not {*RequestRecord.__struct_fields__} <= {*body}:
            raise ValueError("torn")
        return msgspec.convert(body, RequestRecord)
    except FileNotFoundError:
        return RequestRecord()
    except OSError as error:
        raise StorageUnreadable(
            f"{_WORDS} cannot be read from {shown(path)} ({os.strerror(error.errno or 0)})"
        ) from None
    except (ValueError, TypeError, RecursionError):
        raise StorageUnreadable(f"{_WORDS} cannot be read from {shown(path)}: its content is damaged") from None


def save_record(run_directory: str, record: RequestRecord) -> None:
    """Write the record before anything is done by it; raises ``StorageUnreadable`` if it cannot be kept."""
    folder = os.path.join(run_directory, MACHINE_FOLDER)
    try:
        write_json(folder, RECORD_NAME, msgspec.to_builtins(record))
    except OSError as error:
        raise StorageUnreadable(
            f"the resume request cannot be saved in {shown(folder)} ({os.strerror(error.errno or 0)})"
        ) from None

"""Moves unfinished and invalid step directories out of the way of the next attempt. Never deletes.

A directory above the resume step that no one may resume from would be written into again: half of one save and half of
another load without any error. Renamed away, late writes of a dead attempt land in files that nobody reads.

A supervisor may sleep between judging a directory and renaming it. Meanwhile another one takes over, and its attempt
commits a good checkpoint of the same name. So what is renamed must be what was judged: its identity is compared before
the rename and after it, and a directory that was moved by mistake goes back at once. Some mounts of object stores give
what is renamed new inodes; there the size and the time of its marker are what is compared after it.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gangrun.checkpoint.records import sync_directory, write_json
from gangrun.checkpoint.scan import MACHINE_FOLDER, Identity, StorageUnreadable
from gangrun.core.checkpoints.resume import Candidate, Kind, shown
from gangrun.wire.manifest import MANIFEST_NAME

FOLDER_NAME = "set-aside"
RECORD_NAME = "moved.json"
_TRIES_COUNT = 1000


@dataclass(frozen=True, slots=True)
class Moved:
    """One directory that was moved, and the command that brings it back."""

    step: int
    path: str
    now_at: str
    why: str

    @property
    def undo(self) -> str:
        """Safe to paste: quoted, never overwriting, never moving *into* a directory that took the old name."""
        return f"mv -nT -- {shlex.quote(self.now_at)} {shlex.quote(self.path)}"


def to_move(candidates: Iterable[Candidate], above_step: int) -> list[Candidate]:
    """Unfinished directories and those found invalid, above a step (-1: all); unknown formats are never touched."""
    bad = (c for c in candidates if c.kind is not Kind.UNKNOWN and c.judged and not (c.committed and c.valid))
    return [c for c in bad if c.step > above_step]


def set_aside(
    directory: str, moving: list[Candidate], attempt: str, judged: Mapping[str, Identity], own: str = ""
) -> tuple[Moved, ...]:
    """Move these under ``set-aside/<attempt>/`` of gangrun's ``own`` folder, ``.gangrun`` in there if none is given.

    ``judged``: by path, what was there as it was judged.

    The intent is on disk before the first rename and stays there as the record of what was moved from where. Raises
    ``StorageUnreadable`` if a directory would not go, or is another one by now: then the checkpoints have to be judged
    again.
    """
    if not moving:
        return ()
    try:
        folder = _fresh_folder(os.path.join(own or os.path.join(directory, MACHINE_FOLDER), FOLDER_NAME), attempt)
        planned = [
            Moved(c.step, c.path, os.path.join(folder, os.path.basename(c.path)), c.why_not or "not valid")
            for c in moving
        ]
        write_json(folder, RECORD_NAME, {"schema": 1, "attempt": attempt, "moved": [_row(one) for one in planned]})
        moved = tuple(one for one in planned if move(one.path, one.now_at, judged.get(one.path)))
        for changed in (folder, directory):
            sync_directory(changed)
    except OSError as error:
        raise StorageUnreadable(
            f"unfinished or invalid checkpoints in {shown(directory)} cannot be moved out of the way "
            f"({os.strerror(error.errno or 0)}); resuming beside them could mix two saves"
        ) from None
    return moved


def put_back(directory: str, run: str, paths: Iterable[str], own: str = "") -> tuple[str, ...]:
    """Bring back what this run moved away from these paths, and together with them for the same reason, where nothing
    took the name meanwhile; which came back. Raises ``StorageUnreadable``: then all that did not come back is still
    where it was.
    """
    base = os.path.join(own or os.path.join(directory, MACHINE_FOLDER), FOLDER_NAME)
    back = []
    try:
        folders = _folders_of(base, run)
        for wanted in paths:
            name = os.path.basename(wanted)
            held = [one for one in folders if wanted in _moved_from(one) and os.path.lexists(os.path.join(one, name))]
            moved = _moved_from(held[0]) if held else {}
            for path in (one for one, why in moved.items() if why == moved[wanted]):
                there = os.path.join(held[0], os.path.basename(path))
                if os.path.lexists(there) and not os.path.lexists(path) and move(there, path, Identity.of(there)):
                    back.append(path)
                    sync_directory(held[0])
                    sync_directory(directory)
    except OSError as error:
        why = os.strerror(error.errno or 0)
        raise StorageUnreadable(f"what was set aside in {shown(base)} cannot be put back ({why})") from None
    return tuple(back)


def _folders_of(base: str, run: str) -> list[str]:
    """Of this run's attempts, newest first."""
    pattern = re.compile(re.escape(run) + r"-([0-9]+)(?:\.([0-9]+))?")
    try:
        named = [(match, name) for name in os.listdir(base) if (match := pattern.fullmatch(name))]
    except FileNotFoundError:
        return []
    named.sort(key=lambda one: (int(one[0].group(1)), int(one[0].group(2) or 0)), reverse=True)
    return [os.path.join(base, name) for _, name in named]


def _moved_from(folder: str) -> dict[str, str]:
    """From where to why, as far as the record of a folder can be read."""
    try:
        with open(os.path.join(folder, RECORD_NAME), "rb") as file:
            return {str(row["from"]): str(row["why"]) for row in json.load(file)["moved"]}
    except (FileNotFoundError, ValueError, TypeError, KeyError, RecursionError):
        return {}


def _fresh_folder(parent: str, attempt: str) -> str:
    """A directory that this call made, so that no name in it is taken."""
    os.makedirs(parent, exist_ok=True)
    for number in range(_TRIES_COUNT):
        folder = os.path.join(parent, attempt if number == 0 else f"{attempt}.{number}")
        try:
            os.mkdir(folder)
        except FileExistsError:
            continue
        return folder
    raise FileExistsError(17, "too many set-aside directories", parent)


def move(source: str, target: str, judged: Identity | None) -> bool:
    """False if the source was gone before; ``StorageUnreadable`` if it is not what was ``judged``, which stays, or goes
    back. An error of the rename may be a lost reply: the target tells what really happened.
    """
    try:
        before = Identity.of(source)
    except FileNotFoundError:
        return False
    if before != judged:
        raise StorageUnreadable(f"{_replaced_words(source)} gangrun leaves it in place and chooses a checkpoint again")
    try:
        os.rename(source, target)
    except OSError:
        if os.path.lexists(source) or not _arrived(target, before):
            raise
    if not _arrived(target, before):
        raise StorageUnreadable(_replaced_words(source) + _returned(target, source))
    return True


def _replaced_words(path: str) -> str:
    return f"{shown(path)} was replaced by another save after gangrun had judged it:"


def _returned(moved: str, path: str) -> str:
    """Bring back what was moved by mistake, unless its name is taken by then; says which."""
    if not os.path.lexists(path):
        os.rename(moved, path)
        return " gangrun had moved the newer save by mistake, has put it back, and chooses a checkpoint again"
    undo = f"mv -nT -- {shlex.quote(moved)} {shlex.quote(path)}"
    return f" gangrun moved the new save, and a third one has taken its name; to bring the moved one back: {undo}"


def _arrived(target: str, before: Identity) -> bool:
    """Whether what bore this identity before the rename is here after it."""
    try:
        after = Identity.of(target)
    except FileNotFoundError:
        return False
    if after == before:
        return True
    same_marker = (after.marker and after.marker[1:]) == (before.marker and before.marker[1:])
    return same_marker and not _keeps_inodes(os.path.dirname(target))


def _keeps_inodes(folder: str) -> bool:
    """Whether a rename in there keeps them, found out by one; True if that cannot be tried."""
    try:
        with tempfile.TemporaryDirectory(prefix=".gangrun-trial-", dir=folder, ignore_cleanup_errors=True) as trial:
            first, second = os.path.join(trial, "1"), os.path.join(trial, "2")
            os.mkdir(first)
            with open(os.path.join(first, MANIFEST_NAME), "xb"):
                pass  # a marker, whose inode is compared too
            before = Identity.of(first)
            os.rename(first, second)
            return Identity.of(second) == before
    except OSError:
        return True


def _row(moved: Moved) -> dict[str, object]:
    return {"step": moved.step, "from": moved.path, "to": moved.now_at, "why": moved.why, "undo": moved.undo}

"""Makes a framework's tracker file name the checkpoint that was chosen, or takes it away. Never deletes.

It is one of the few things in a framework's folder that gangrun touches. A new one is made in gangrun's own folder and
takes the name by rename, so no start ever reads half of one. What was there is kept, with the command that undoes this.
"""

from __future__ import annotations

import os
import shlex
import stat
import tempfile
from contextlib import suppress
from dataclasses import dataclass

from gangrun.checkpoint.records import sync_directory
from gangrun.checkpoint.scan import StorageUnreadable, tracker_text
from gangrun.core.checkpoints.resume import shown
from gangrun.core.text import step_words
from gangrun.frameworks.framework import Framework

FOLDER_NAME = "trackers"
_MODE = 0o644


@dataclass(frozen=True, slots=True)
class Retold:
    """A tracker file that was rewritten or taken away, in words, and the command that undoes it."""

    words: str
    undo: str


def name_checkpoint(
    directory: str, own: str, attempt: str, framework: Framework, path: str, step: int
) -> Retold | None:
    """Let the framework's tracker name the checkpoint at ``path``; None if it does. Raises ``StorageUnreadable``."""
    tracker = framework.tracker
    if tracker is None:
        return None
    text, before = tracker.text(os.path.basename(path), step), tracker_text(directory, framework)
    if before is not None and _stripped(before) == text:
        return None
    place = os.path.join(directory, tracker.name)
    words = f"{tracker.name} now names {step_words(step)}"
    try:
        kept = "" if tracker.is_link else _kept(place, own, attempt)
        _replace(place, own, text, is_link=tracker.is_link)
    except OSError as error:
        why = f"{shown(place)} cannot be rewritten ({os.strerror(error.errno or 0)})"
        raise StorageUnreadable(f"{why}: {framework.title} would not load {step_words(step)}") from None
    if before is None and not kept:
        return Retold(f"{words} (it was missing)", f"rm -- {shlex.quote(place)}")
    return Retold(f"{words} (it {_named(before)})", _undo(before, kept, place))


def take_away(directory: str, own: str, attempt: str, framework: Framework) -> Retold | None:
    """Begin anew: move the tracker away, unless there is none. Raises ``StorageUnreadable``."""
    before = tracker_text(directory, framework)
    if framework.tracker is None or before is None:
        return None
    if _stripped(before) and framework.tracker.step_of(_stripped(before)) is None:
        return None  # what it names is no step, such as weights that were converted
    place = os.path.join(directory, framework.tracker.name)
    try:
        kept = "" if framework.tracker.is_link else _kept(place, own, attempt)
        os.unlink(place)
        sync_directory(directory)
    except OSError as error:
        why = f"{shown(place)} cannot be moved away ({os.strerror(error.errno or 0)})"
        raise StorageUnreadable(f"{why}: {framework.title} would not begin anew") from None
    words = f"{framework.tracker.name} was moved away (it {_named(before)})"
    return Retold(words, _undo(before, kept, place))


def _undo(before: str | None, kept: str, place: str) -> str:
    """A link needs no copy: its target is all that it holds."""
    if kept:
        return f"cp -T -- {shlex.quote(kept)} {shlex.quote(place)}"
    return f"ln -sfn -- {shlex.quote(before or '')} {shlex.quote(place)}"


def _named(before: str | None) -> str:
    return f"named {shown(_stripped(before))}" if before and _stripped(before) else "was empty (torn)"


def _stripped(text: str) -> str:
    """Without what a power loss leaves."""
    return text.strip("\0 \r\n\t")


def _kept(place: str, own: str, attempt: str) -> str:
    """A copy of the tracker in gangrun's folder, on the disk; "" if there is no tracker."""
    folder = os.path.join(own, FOLDER_NAME)
    os.makedirs(folder, exist_ok=True)
    try:
        descriptor = os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return ""
    with open(descriptor, "rb") as old:
        made, kept = tempfile.mkstemp(prefix=f"{os.path.basename(place)}-{attempt}-", dir=folder)
        with open(made, "wb") as copy:
            copy.write(old.read())
            copy.flush()
            os.fsync(copy.fileno())
    sync_directory(folder)
    return kept


def _replace(place: str, own: str, text: str, *, is_link: bool) -> None:
    if is_link:
        os.makedirs(own, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="new-", dir=own) as folder:
            os.symlink(text, link := os.path.join(folder, "link"))
            os.replace(link, place)
        sync_directory(os.path.dirname(place))
        return
    mode = _MODE
    with suppress(FileNotFoundError):
        mode = stat.S_IMODE(os.lstat(place).st_mode)
    made, path = tempfile.mkstemp(prefix="new-", dir=os.path.join(own, FOLDER_NAME))
    try:
        with open(made, "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())
        os.replace(path, place)
    except OSError:
        os.unlink(path)
        raise
    sync_directory(os.path.dirname(place))

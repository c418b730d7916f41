"""Lets the file that a script loads when it is told no path be the checkpoint that was chosen.

Lightning's ``ckpt_path="last"`` loads the newest ``last*.ckpt`` by time. If that one was torn, it would begin at 0; if
it is older than the choice, it would go back. A copy takes its place by rename: a link would share its bytes with the
choice, and Lightning's next save may overwrite them in place.
"""

from __future__ import annotations

import os
import shlex
import tempfile
from collections.abc import Iterable
from contextlib import suppress

from gangrun.checkpoint.kept_copies import copy_as_judged
from gangrun.checkpoint.records import sync_directory
from gangrun.checkpoint.scan import Identity, StorageUnreadable
from gangrun.checkpoint.set_aside import FOLDER_NAME
from gangrun.checkpoint.tracker import Retold
from gangrun.core.checkpoints.resume import Candidate, shown
from gangrun.frameworks.framework import Framework


def loaded_instead(framework: Framework, path: str, ours: Iterable[Candidate]) -> list[Candidate]:
    """The files that the script would load rather than the one at ``path``."""
    names = framework.loaded_as_newest
    if names is None:
        return []
    others = [one for one in ours if one.path != path and names.fullmatch(os.path.basename(one.path))]
    if not names.fullmatch(os.path.basename(path)):
        return others
    return [one for one in others if _saved_at(one.path) >= _saved_at(path)]


def is_needed(framework: Framework, path: str, ours: Iterable[Candidate], own: str) -> bool:
    """Has the script such a file, here or set aside, and is it not the one at ``path``?"""
    names = framework.loaded_as_newest
    if names is None or names.fullmatch(os.path.basename(path)):
        return False
    return any(names.fullmatch(os.path.basename(one)) for one in (*(c.path for c in ours), *_set_aside(own)))


def put(path: str, judged: Identity | None, own: str, name: str) -> Retold:
    """Copy the checkpoint to that name beside it. Raises ``StorageUnreadable``."""
    directory = os.path.dirname(path)
    place, made = os.path.join(directory, name), ""
    try:
        os.makedirs(own, exist_ok=True)
        descriptor, made = tempfile.mkstemp(prefix="stand-in-", dir=own)
        try:
            copy_as_judged(path, descriptor, judged or Identity.of(path), lambda: False)
        finally:
            os.close(descriptor)
        os.rename(made, place)
        sync_directory(directory)
    except OSError as error:
        with suppress(OSError):
            os.unlink(made)
        why = f"{shown(place)} cannot be made a copy of {shown(os.path.basename(path))}"
        raise StorageUnreadable(f"{why} ({error.strerror or error}): the script could begin anew") from None
    return Retold(f"{name} is now a copy of {shown(os.path.basename(path))}", f"rm -- {shlex.quote(place)}")


def _saved_at(path: str) -> int:
    try:
        return os.lstat(path).st_mtime_ns
    except OSError:
        return -1


def _set_aside(own: str) -> list[str]:
    return [name for _, _, names in os.walk(os.path.join(own, FOLDER_NAME)) for name in names]

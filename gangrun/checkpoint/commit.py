"""How a save becomes a checkpoint, and how one goes: by one rename each, from staging and into trash.

Staging is ``CKPT/.gangrun/<run>/<term>/<attempt>-<nonce>/``. Rank 0 of the attempt makes it, once. Nothing is ever
written into a directory that bears a step's name. Before the supervisor chooses the resume point of a later attempt it
seals the staging of all earlier ones: mode 0500 forbids the rename out of it that a commit is, and the rename into its
trash that a prune is. Modes bind neither root nor anybody on mounts of object stores. So each seal is tried: if a
directory can still be made in there, the staging is renamed away, and a late rename finds nothing.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
from dataclasses import dataclass

from gangrun.checkpoint.formats.dcp import BadFile, UnreadableFile
from gangrun.checkpoint.formats.manifest import read_manifest
from gangrun.checkpoint.records import sync_directory
from gangrun.checkpoint.scan import MACHINE_FOLDER, Identity, StorageUnreadable
from gangrun.checkpoint.set_aside import FOLDER_NAME as SET_ASIDE
from gangrun.checkpoint.set_aside import move
from gangrun.wire.manifest import MANIFEST_NAME, Manifest, ManifestError, encode

_TRASH = "trash"
_GONE = ".gone"
_ATTEMPT = re.compile(r"([0-9]+)-[^.]+")


class CommitRefused(OSError):
    """The rename did not happen: sealed by a later attempt, or the storage said no."""


@dataclass(frozen=True, slots=True)
class Staging:
    """Where one attempt writes. ``open`` makes it; the others of the attempt are told its path."""

    directory: str  # of the checkpoints
    run: str
    term: int
    attempt: int
    nonce: str

    @property
    def path(self) -> str:
        """The attempt's folder."""
        return os.path.join(self.run_folder, str(self.term), f"{self.attempt}-{self.nonce}")

    @property
    def run_folder(self) -> str:
        """What all attempts of the run share."""
        return os.path.join(self.directory, MACHINE_FOLDER, self.run)

    def open(self) -> None:
        """Make the folder; what older attempts of this run left unfinished goes."""
        os.makedirs(os.path.dirname(self.path), exist_ok=True)
        os.mkdir(self.path, 0o700)
        os.mkdir(os.path.join(self.path, _TRASH), 0o700)
        self._sweep()

    def begin(self, step: int, save: str) -> str:
        """A new, empty directory for one save; OSError once a later attempt sealed us."""
        path = os.path.join(self.path, f"saving-{step}-{save}")
        os.mkdir(path, 0o755)
        return path

    def commit(self, path: str, target: str, manifest: Manifest) -> None:
        """Write the manifest into ``path`` and rename it to ``target``; ``CommitRefused`` if it is not there after."""
        write_whole(os.path.join(path, MANIFEST_NAME), encode(manifest))
        sync_directory(path)
        try:
            if os.path.lexists(target):
                self._replace(path, target)
            else:
                try:
                    os.rename(path, target)
                except OSError as error:
                    if error.errno not in {errno.ENOTEMPTY, errno.EEXIST}:
                        raise
                    self._replace(path, target)  # meanwhile gangrun brought the same step here from memory
        except OSError as error:
            if not bears(target, manifest.nonce):  # a lost reply looks like a failure
                raise CommitRefused(
                    error.errno, f"step {manifest.step} could not be committed: {error.strerror}", target
                ) from None
        sync_directory(self.directory)

    def prune(self, path: str, judged: Identity) -> None:
        """Let a checkpoint go: out of sight by one rename, then its files. Raises ``StorageUnreadable`` if the name is
        another save's by now.
        """
        gone = self._trash_name(os.path.basename(path))
        if move(path, gone, judged):
            sync_directory(self.directory)
            shutil.rmtree(gone, ignore_errors=True)

    def abandon(self, path: str) -> None:
        """Remove an unfinished save; nothing is said about what cannot be removed now, a later attempt will."""
        try:
            gone = self._trash_name(os.path.basename(path))
            os.rename(path, gone)
        except OSError:
            return
        shutil.rmtree(gone, ignore_errors=True)

    def close(self) -> None:
        """Leave nothing behind, if nothing is in there."""
        for path in (os.path.join(self.path, _TRASH), self.path, os.path.dirname(self.path), self.run_folder):
            try:
                os.rmdir(path)
            except OSError:
                return

    def _trash_name(self, name: str) -> str:
        return _free_name(os.path.join(self.path, _TRASH), name)

    def _replace(self, path: str, target: str) -> None:
        """An older save of the same step is never written over: it is set aside, whole.

        A sealed attempt must not set aside what a later one has committed. So a rename within the staging comes first,
        which the seal refuses; and where the seal comes later, what was set aside goes back. Whatever fails, the new
        save bears its first name again, by which it is abandoned.
        """
        whole = f"{path}.whole"
        try:
            os.rename(path, whole)
            parent = os.path.join(self.directory, MACHINE_FOLDER, SET_ASIDE, f"{self.run}-{self.attempt}-replaced")
            os.makedirs(parent, exist_ok=True)
            older = _free_name(parent, os.path.basename(target))
            os.rename(target, older)
            try:
                os.rename(whole, target)
            except OSError:
                if not os.path.lexists(target):
                    os.rename(older, target)
                raise
        except OSError:
            with contextlib.suppress(OSError):
                os.rename(whole, path)
            raise

    def _sweep(self) -> None:
        """Renamed first: whoever still writes there finds nothing, even once its seal is broken to remove it."""
        for term in _listed(self.run_folder):
            folder = os.path.join(self.run_folder, term)
            for name in _listed(folder):
                match = _ATTEMPT.fullmatch(name.split(".")[0])
                old = match is not None and int(match.group(1)) < self.attempt
                if old:
                    _remove(os.path.join(folder, name))


def bears(target: str, nonce: str) -> bool:
    """Whether the checkpoint at this path is the save with this nonce."""
    try:
        return read_manifest(target).nonce == nonce
    except (ManifestError, BadFile, UnreadableFile):
        return False


def write_whole(path: str, data: bytes) -> None:
    """Write a new file and make it durable."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _free_name(folder: str, name: str) -> str:
    paths = (os.path.join(folder, f"{name}.{number}") for number in range(1000))
    free = next((path for path in paths if not os.path.lexists(path)), None)
    if free is None:
        raise FileExistsError(errno.EEXIST, "too many saves of one step", folder)
    return free


def _listed(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _remove(path: str) -> None:
    gone = path if path.endswith(_GONE) else path + _GONE
    try:
        if gone != path:
            os.rename(path, gone)
        for folder in (gone, os.path.join(gone, _TRASH)):
            os.chmod(folder, 0o700)
    except FileNotFoundError:  # steps that were brought from memory have no trash
        pass
    except OSError:
        return
    shutil.rmtree(gone, ignore_errors=True)


_SEALED = ".sealed"
_TRIAL = ".seal-trial"


def seal_staging(directory: str, run: str, attempt: int) -> None:
    """Seal every attempt before ``attempt``, whatever its term.

    Raises ``StorageUnreadable`` if one of them would not be sealed: then nothing may be chosen.
    """
    base = os.path.join(directory, MACHINE_FOLDER, run)
    try:
        for term in _numbered(base):
            for name in sorted(os.listdir(os.path.join(base, term))):
                match = _ATTEMPT.fullmatch(name)
                if match and int(match.group(1)) < attempt:
                    _seal(os.path.join(base, term, name))
    except OSError as error:
        raise StorageUnreadable(f"staging of older attempts in {base} cannot be sealed: {error.strerror}") from error


def _numbered(base: str) -> list[str]:
    try:
        return sorted((name for name in os.listdir(base) if name.isdecimal()), key=int)
    except FileNotFoundError:
        return []


def _seal(path: str) -> None:
    """By mode where that binds, else by another name; another supervisor may be doing the same."""
    folders = (path, os.path.join(path, _TRASH))
    for folder in folders:
        with contextlib.suppress(OSError):  # what this has brought about is tried, not believed
            os.chmod(folder, 0o500)
    if not all(_keeps_out(folder) for folder in folders):
        with contextlib.suppress(FileNotFoundError):
            os.rename(path, path + _SEALED)


def _keeps_out(folder: str) -> bool:
    """Whether no directory can be made in there, and so none renamed into or out of it."""
    trial = os.path.join(folder, _TRIAL)
    try:
        os.mkdir(trial)
    except (PermissionError, FileNotFoundError):
        return True
    except OSError:  # a full disk, for one, does not show that the mode binds; a rename needs no space
        return False
    with contextlib.suppress(OSError):  # another supervisor may have renamed the staging away by now
        os.rmdir(trial)
    return False

"""Which step directories there are: names and kinds only, nothing is judged here.

Symbolic links are seen and never followed. A directory that cannot be listed is trouble with the storage, never "no
checkpoints": that difference is what keeps a run from starting again from zero.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

from gangrun.checkpoint.formats.dcp_metadata import METADATA_NAME
from gangrun.checkpoint.formats.framework_directory import step_of_single, unfinished_words
from gangrun.checkpoint.formats.safetensors import INDEX_SUFFIX, SUFFIX
from gangrun.core.checkpoints.resume import Kind, shown
from gangrun.frameworks.framework import AUTO, FILE, Framework, frameworks_of
from gangrun.frameworks.layouts import Entry
from gangrun.wire.manifest import MANIFEST_NAME
from gangrun.wire.spec import CheckpointSpec

MACHINE_FOLDER = ".gangrun"
STEP_MAX = 10**18
DEFAULT_PATTERN = r"step-(\d+)"

_DCP_SUFFIX = ".distcp"
_UNFINISHED_METADATA = ".metadata.tmp"
_TRACKER_MAX_BYTES = 4096


class StorageUnreadable(Exception):
    """The storage did not answer: nobody can tell what is there. Wait or stop, never conclude."""


class BadPattern(ValueError):
    """The user's ``--checkpoint-pattern`` cannot be used; the message says why."""


def is_checkpoint(path: str) -> bool:
    """Whether this directory is a checkpoint itself, and none that holds some."""
    return any(os.path.lexists(os.path.join(path, name)) for name in (METADATA_NAME, MANIFEST_NAME))


@dataclass(frozen=True, slots=True)
class Identity:
    """Tells one directory from another that takes its name later."""

    device: int
    inode: int
    marker: tuple[int, int, int] | None  # inode, size and mtime_ns of the file that makes it a checkpoint

    @staticmethod
    def of(path: str) -> Identity:
        """Of what bears the name now; symbolic links are not followed. Raises OSError."""
        facts, marker = os.lstat(path), None
        if stat.S_ISREG(facts.st_mode):
            return Identity(facts.st_dev, facts.st_ino, (facts.st_ino, facts.st_size, facts.st_mtime_ns))
        for name in _telling_files(path):
            try:
                found = os.lstat(f"{path}/{name}")
            except OSError:  # the judgement says what is wrong with it
                continue
            marker = found.st_ino, found.st_size, found.st_mtime_ns
            break
        return Identity(facts.st_dev, facts.st_ino, marker)


def _telling_files(path: str) -> Iterator[str]:
    """What may tell one save from another in that directory, the most telling first."""
    yield from (MANIFEST_NAME, METADATA_NAME)
    tables = frameworks_of(AUTO)
    yield from (one.marker for one in tables if one.marker)
    counted = [
        one for one in tables if one.facts_file and not one.marker and one.step_of(os.path.basename(path)) is not None
    ]
    names = _names_in(path) if counted else []
    yield from filter(None, (one.telling_file(names) for one in counted))


@dataclass(frozen=True, slots=True)
class StepDirectory:
    """One name that the pattern takes for a step."""

    step: int
    name: str
    path: str
    kind: Kind
    committed: bool
    why: str = ""  # why it is unknown, or not committed
    unreadable: bool = False
    framework: Framework | None = None


@dataclass(frozen=True, slots=True)
class OneFile:
    """A file that the script overwrites with each save, and the copies that gangrun keeps: ``NAME.1`` is the newest.

    Nothing in it tells its step. Its number is the time of the save, in ms.
    """

    name: str
    copies_count: int = 0

    @property
    def text(self) -> str:
        return self.name

    def copy_name(self, number: int) -> str:
        return f"{self.name}.{number}"

    def step_of(self, name: str) -> None:
        """No name tells it."""


@dataclass(frozen=True, slots=True)
class StepPattern:
    """How directory names tell their step; a name must match as a whole."""

    text: str
    compiled: re.Pattern[str]
    group: int | str

    def step_of(self, name: str) -> int | None:
        """The step in a name, or None for a name that is not a step directory's."""
        match = self.compiled.fullmatch(name)
        digits = match.group(self.group) if match else None
        if not digits or not digits.isdecimal() or len(digits) > len(str(STEP_MAX)):
            return None
        step = int(digits)
        return step if step <= STEP_MAX else None


def step_pattern(text: str = DEFAULT_PATTERN) -> StepPattern:
    """Compile a pattern with exactly one group, or with one named ``step``; ``BadPattern`` says what is wrong."""
    try:
        compiled = re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise BadPattern(f"checkpoint pattern {shown(text)} is not a regular expression: {error}") from None
    if "step" in compiled.groupindex:
        return StepPattern(text, compiled, "step")
    if compiled.groups != 1:
        found = "none" if not compiled.groups else str(compiled.groups)
        raise BadPattern(
            f"checkpoint pattern {shown(text)} needs exactly one group around the step number, or one named step: "
            rf"it has {found}; for example {DEFAULT_PATTERN}"
        )
    return StepPattern(text, compiled, 1)


@dataclass(frozen=True, slots=True)
class FrameworkNaming:
    """As these frameworks name their directories, and else as the pattern says."""

    frameworks: tuple[Framework, ...]
    pattern: StepPattern

    @property
    def text(self) -> str:
        return "|".join((*(one.names.pattern for one in self.frameworks), self.pattern.text))

    def framework_of(self, name: str) -> Framework | None:
        """Whose directory bears such a name."""
        return next((one for one in self.frameworks if one.is_named(name)), None)

    def step_of(self, name: str) -> int | None:
        """The step in a name, or None for a name that is not a step directory's."""
        framework = self.framework_of(name)
        return self.pattern.step_of(name) if framework is None else framework.step_of(name)


Naming = StepPattern | OneFile | FrameworkNaming


def naming_of(asked: CheckpointSpec) -> Naming:
    """How a run's checkpoints are named: by a pattern, a framework, or one file; raises ``BadPattern``."""
    if asked.framework == FILE and not asked.file:
        raise BadPattern("--framework file judges one file, and no file is named: give --checkpoint-file, or its path")
    if asked.file:
        return OneFile(asked.file, asked.copies_count)
    pattern = step_pattern(asked.pattern)
    return FrameworkNaming(frameworks_of(asked.framework), pattern) if asked.framework else pattern


def machine_folder(directory: str, naming: Naming) -> str:
    """Where gangrun keeps what belongs to this directory.

    Not in a framework's: it may count, rotate or trip over what it finds there. Then it is beside it, unless that is
    another file system or may not be written: directories are renamed into it.
    """
    inside, (parent, name) = os.path.join(directory, MACHINE_FOLDER), os.path.split(directory)
    if not isinstance(naming, FrameworkNaming):
        return inside
    with suppress(OSError):  # one that is not there yet will be made beside it
        if os.stat(parent).st_dev != os.stat(directory).st_dev or not os.access(parent, os.W_OK):
            return inside
    return os.path.join(parent, MACHINE_FOLDER, name)


def list_steps(directory: str, pattern: Naming) -> list[StepDirectory]:
    """All step directories, newest first; a directory that is not there yet has none. Raises ``StorageUnreadable``."""
    return list(steps_newest_first(directory, pattern))


def steps_newest_first(directory: str, pattern: Naming) -> Iterator[StepDirectory]:
    """As ``list_steps``, but each step directory is looked into only when the caller comes to it."""
    if isinstance(pattern, OneFile):
        yield from _saves_of(directory, pattern)
        return
    for step, item in named_newest_first(directory, pattern):
        if (found := look_at(step, item.path, pattern, is_link=item.is_symlink())) is not None:
            yield found


def named_newest_first(directory: str, pattern: StepPattern | FrameworkNaming) -> list[tuple[int, os.DirEntry[str]]]:
    """Every name that the pattern takes for a step; no directory is looked into."""
    try:
        with os.scandir(directory) as names:
            listed = list(names)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StorageUnreadable(
            f"checkpoint directory {shown(directory)} cannot be read ({os.strerror(error.errno or 0)}): "
            "gangrun does not know which checkpoints exist"
        ) from None
    steps = [(step_there(item.path, pattern), item) for item in listed if item.name != MACHINE_FOLDER]
    known = [(step, item) for step, item in steps if step is not None]
    newest = max((step for step, _ in known), default=-1)
    known += [(newest + 1, item) for step, item in steps if step is None and _is_torn_save(item, pattern)]
    return sorted(known, key=lambda one: (one[0], one[1].name), reverse=True)


def step_there(path: str, naming: Naming) -> int | None:
    """The step of what stands there: by its name, or as a checkpoint of one file tells it; None: it is no checkpoint,
    or tells none.
    """
    name = os.path.basename(path)
    framework = naming.framework_of(name) if isinstance(naming, FrameworkNaming) else None
    inside = step_of_single(path, framework) if framework is not None and framework.single_file else None
    return naming.step_of(name) if inside is None else inside


def _is_torn_save(item: os.DirEntry[str], naming: Naming) -> bool:
    """Is it named as a save, and does it tell no step? It counts as the newest: a script may load it."""
    framework = naming.framework_of(item.name) if isinstance(naming, FrameworkNaming) else None
    return framework is not None and framework.single_file and not item.is_symlink()


def _saves_of(directory: str, file: OneFile) -> Iterator[StepDirectory]:
    """The file, then its copies, newest first. What bears the name is what the script loads: no copy is newer."""
    names = [file.name, *(file.copy_name(number) for number in range(1, file.copies_count + 1))]
    found = [one for name in names if (one := look_at_file(os.path.join(directory, name))) is not None]
    if found and found[0].name == file.name:
        found = [replace(one, step=min(one.step, found[0].step)) for one in found]
    yield from sorted(found, key=lambda one: (one.step, one.name == file.name), reverse=True)


def look_at_file(path: str) -> StepDirectory | None:
    """What stands under a file's name, with the time of its save as its step; None if there is nothing."""
    try:
        facts = os.lstat(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageUnreadable(f"{shown(path)} cannot be looked at ({os.strerror(error.errno or 0)})") from None
    step, name = facts.st_mtime_ns // 10**6, os.path.basename(path)
    if not stat.S_ISREG(facts.st_mode):
        what = "a symbolic link, which is not followed" if stat.S_ISLNK(facts.st_mode) else "not a regular file"
        return StepDirectory(step, name, path, Kind.UNKNOWN, False, f"it is {what}")
    return StepDirectory(step, name, path, Kind.FILE, True)


def strangers(directory: str, pattern: Naming) -> list[Entry]:
    """What else is there, for a sentence: every name that is no step directory's. [] if it cannot be listed."""
    if isinstance(pattern, OneFile):
        return []  # the user has said which file counts
    try:
        with os.scandir(directory) as names:
            listed = [Entry(item.name, item.is_dir()) for item in names if item.name != MACHINE_FOLDER]
    except OSError:
        return []
    others = [entry for entry in listed if not entry.is_directory or pattern.step_of(entry.name) is None]
    if not isinstance(pattern, FrameworkNaming):
        return others
    files = [one.file_names for one in pattern.frameworks if one.file_names is not None]
    others = [entry for entry in others if not any(names.fullmatch(entry.name) for names in files)]
    others = [entry for entry in others if not ((one := pattern.framework_of(entry.name)) and one.single_file)]
    there = [one for one in pattern.frameworks if any(one.is_named(entry.name) for entry in listed)]
    theirs = {name for one in there for name in (*one.leaves, *([one.tracker.name] if one.tracker else []))}
    marks = tuple(one.unfinished_suffix for one in there if one.unfinished_suffix)
    return [entry for entry in others if entry.name not in theirs and not entry.name.endswith(marks)]


def _framework_there(path: str, inside: list[str], naming: Naming) -> Framework | None:
    """Whose directory this is; a pattern tells only the name, so a marker there or beside it must tell the rest."""
    name = os.path.basename(path)
    if isinstance(naming, FrameworkNaming):
        named = naming.framework_of(name)
        if named is None or named.stores_dcp(name):
            return None
        return named if len(naming.frameworks) == 1 or named.may_hold(inside) else None
    framework = FrameworkNaming(frameworks_of(AUTO), step_pattern()).framework_of(name)
    if framework is not None and framework.stores_dcp(name):
        return None
    if framework is None or not any(item.endswith(framework.file_suffixes) for item in inside):
        return framework if framework is not None and framework.telling_file(inside) else None
    beside = os.path.dirname(path)
    names = [one for one in _names_in(beside) if framework.step_of(one) is not None]
    return framework if any(framework.is_in(_names_in(os.path.join(beside, one))) for one in names) else None


def _names_in(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []


def tracker_text(directory: str, framework: Framework) -> str | None:
    """What the framework's tracker file says; None if there is no such file. Raises ``StorageUnreadable``."""
    if framework.tracker is None:
        return None
    path = os.path.join(directory, framework.tracker.name)
    try:
        if framework.tracker.is_link:
            return os.readlink(path)
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            return os.read(descriptor, _TRACKER_MAX_BYTES).decode("utf-8", "replace")
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ELOOP, errno.ENXIO, errno.EISDIR, errno.EINVAL):
            return None
        raise StorageUnreadable(f"{shown(path)} cannot be read ({os.strerror(error.errno or 0)})") from None


def was_finished(found: StepDirectory) -> bool:
    """Was this save ever whole? Without a marker, a tracker that names it or a later one says so."""
    framework = found.framework
    if framework is None or framework.marker or framework.tracker is None:
        return True
    tracked = framework.tracker.step_of((tracker_text(os.path.dirname(found.path), framework) or "").strip())
    return tracked is not None and tracked >= found.step


def _file_of_framework(step: int, path: str, naming: Naming) -> StepDirectory | None:
    """A checkpoint that is one file, with its step in its name."""
    name = os.path.basename(path)
    framework = naming.framework_of(name) if isinstance(naming, FrameworkNaming) else None
    if framework is None or framework.file_names is None or not framework.file_names.fullmatch(name):
        return None
    return StepDirectory(step, name, path, Kind.FILE, True, framework=framework)


def look_at(step: int, path: str, naming: Naming, *, is_link: bool | None = None) -> StepDirectory | None:
    """What stands under one name; None for a plain file, or for what vanished meanwhile."""
    name = os.path.basename(path)
    if os.path.islink(path) if is_link is None else is_link:
        why = "it is a symbolic link, which is not followed"
        return StepDirectory(step, name, path, Kind.UNKNOWN, False, why)
    single = naming.framework_of(name) if isinstance(naming, FrameworkNaming) else None
    if single is not None and single.single_file and os.path.isfile(path):
        return StepDirectory(step, name, path, Kind.FRAMEWORK, True, framework=single)
    try:
        inside = os.listdir(path)
    except NotADirectoryError:
        return _file_of_framework(step, path, naming)
    except FileNotFoundError:
        return None
    except OSError as error:
        why = f"it cannot be read ({os.strerror(error.errno or 0)})"
        # It may well be a committed checkpoint: calling it uncommitted could end in a start from zero.
        return StepDirectory(step, name, path, Kind.UNKNOWN, True, why, True)
    if MANIFEST_NAME in inside:  # it comes last, so that whatever bears it was committed
        return StepDirectory(step, name, path, Kind.GANGRUN, True)
    if (framework := _framework_there(path, inside, naming)) is not None:
        mark = framework.unfinished_suffix
        is_marked = bool(mark) and os.path.lexists(path + mark)
        committed = not is_marked and (not framework.marker or framework.marker in inside)
        marked = f"unfinished (never committed): {shown(name + mark)} is there"
        why = "" if committed else marked if is_marked else unfinished_words(framework)
        return StepDirectory(step, name, path, Kind.FRAMEWORK, committed, why, framework=framework)
    if METADATA_NAME in inside:
        return StepDirectory(step, name, path, Kind.DCP, True)
    if not inside or _UNFINISHED_METADATA in inside or any(item.endswith(_DCP_SUFFIX) for item in inside):
        return StepDirectory(step, name, path, Kind.DCP, False, "unfinished (never committed): it has no .metadata")
    if any(item.endswith((SUFFIX, INDEX_SUFFIX)) for item in inside):
        return StepDirectory(step, name, path, Kind.SAFETENSORS, True)
    why = "its format is unknown (not a torch.distributed.checkpoint directory)"
    return StepDirectory(step, name, path, Kind.UNKNOWN, False, why)

"""What gangrun has to know of a framework to judge its checkpoints and to resume from them.

Each framework has one table of facts here, with small pure functions: a ``Framework`` in a file that it may share with
its kin. A name without a table is refused. Nothing here opens a checkpoint: ``checkpoint`` reads what a table asks for.
"""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path

from gangrun.core.evidence import StateFigures

AUTO = "auto"
FILE = "file"
_LAST = "dcp"  # its names are those of many others
_NOT_FRAMEWORKS = {"framework", "layouts"}

Facts = Mapping[str, object]  # by key: what a pickle in the checkpoint says; "" for a value of a kind not read here


def nothing(_names: Collection[str], _facts: Facts) -> str:
    """Nothing is to be said."""
    return ""


@dataclass(frozen=True, slots=True)
class Tracker:
    """A file beside the checkpoints that tells the framework which one to load.

    It is a hint only: the framework writes it before all ranks are done, or a kill leaves it empty.
    """

    name: str
    step_of: Callable[[str], int | None]  # the step that its text names
    text: Callable[[str, int], str]  # what it must hold to name this checkpoint: its name, its step
    is_link: bool = False  # a symbolic link to the checkpoint, not a file with a text


@dataclass(frozen=True, slots=True)
class Framework:
    """How one framework saves, and how its scripts are told what to load."""

    name: str  # of --framework
    title: str
    names: re.Pattern[str]  # of its checkpoint directories; the group is the step
    file_suffixes: tuple[str, ...] = ()  # files that hold state: each is judged as its kind allows
    flaw: Callable[[Collection[str], Facts], str] = nothing  # by relative paths: what is missing, "" if nothing is
    remark: Callable[[Collection[str], Facts], str] = nothing  # what a whole checkpoint lacks, "" if nothing
    marker: str = ""  # rank 0 writes this file last: without it, a checkpoint is unfinished; "": there is no such file
    step_of_marker: Callable[[bytes], int | None] | None = None  # the step that the marker file tells
    facts_file: re.Pattern[str] | None = None  # the first such path is a torch.save archive that tells ...
    facts_keys: tuple[str, ...] = ()  # ... these facts
    facts_needed: tuple[str, ...] = ()  # without these, nobody can tell whether a checkpoint is whole
    step_key: str = ""  # the fact that is the step, ...
    steps_ahead: int = 0  # ... or more than the step in the name by this
    counts_saves: bool = False  # the number in a name is no step, and may begin at 0 again after a resume
    signs: re.Pattern[str] | None = None  # a file in one, if other frameworks give such names too; None: any content
    dcp_names: re.Pattern[str] | None = None  # of those that are torch.distributed.checkpoint's, and judged as such
    file_names: re.Pattern[str] | None = None  # of those that are one file
    state_beside: str = ""  # a file beside all checkpoints, which belongs to one of them and tells the facts
    name_remark: Callable[[str], str] = lambda _name: ""  # what the framework does not do with one of this name
    state_files: tuple[str, ...] = ()  # globs, from the checkpoints' directory, of files that tell the progress ...
    figures_of_state: Callable[[bytes], StateFigures | None] | None = None  # ... as this reads them
    unfinished_suffix: str = ""  # with it, the name of a file beside a checkpoint that is not finished
    resume_argument: str = ""  # makes a script load the path that follows it, or what stands for {path} and {step}
    taken_if: tuple[str, ...] = ()  # a script that holds one of these words takes that argument
    modules: tuple[str, ...] = ()  # of ``python -m``, which take it too
    tracker: Tracker | None = None
    leaves: tuple[str, ...] = ()  # other files that it puts beside its checkpoints
    single_file: bool = False  # a checkpoint may be one archive of torch.save, which tells its own step
    loaded_as_newest: re.Pattern[str] | None = None  # a script that is told no path loads the newest of these, ...
    newest_name: str = ""  # ... by time; this one is such

    @property
    def tells_step(self) -> bool:
        """Does a checkpoint tell its step inside too?"""
        return bool(self.step_key) or self.step_of_marker is not None

    def is_named(self, name: str) -> bool:
        """Does the framework name its checkpoints so?"""
        return self.names.fullmatch(name) is not None

    def step_of(self, name: str) -> int | None:
        """The step in a name; None if the framework names none so, or the name tells no step."""
        match = self.names.fullmatch(name)
        return int(match[1]) if match and match[1] else None

    def stores_dcp(self, name: str) -> bool:
        """Is a directory of this name torch.distributed.checkpoint's?"""
        return self.dcp_names is not None and self.dcp_names.fullmatch(name) is not None

    def may_hold(self, names: Collection[str]) -> bool:
        """May a directory with these files be its checkpoint, if only its name was looked at before?"""
        if self.signs is not None and names:
            return any(self.signs.fullmatch(name) for name in names)
        return not (".metadata" in names and not self.telling_file(names))

    def takes_argument(self, script: str) -> bool:
        """Does this source text take the resume argument? gangrun does not run it to find out."""
        return any(word in script for word in self.taken_if)

    def telling_file(self, paths: Collection[str]) -> str:
        """The file whose change tells one save from another at the same place, "" if there is none."""
        if self.marker:
            return self.marker if self.marker in paths else ""
        return self.facts_path(paths)

    def is_in(self, names: Collection[str]) -> bool:
        """Do these files of a directory tell that the framework wrote it?"""
        return bool(self.telling_file(names) or self.facts_path(names))

    def facts_path(self, paths: Collection[str]) -> str:
        """The file that tells the facts, "" if there is none."""
        pattern = self.facts_file
        return "" if pattern is None else min((path for path in paths if pattern.fullmatch(path)), default="")


ONE_FILE = Framework(name=FILE, title="one file", names=re.compile(r"(?!)()"))  # --checkpoint-file names it


@cache
def _tables() -> Mapping[str, Framework]:
    """By name, ``dcp`` last."""
    modules = (
        one.name for one in pkgutil.iter_modules([str(Path(__file__).parent)]) if one.name not in _NOT_FRAMEWORKS
    )
    found = [ONE_FILE]
    for module in modules:
        found += (one for one in vars(import_module(f"{__package__}.{module}")).values() if isinstance(one, Framework))
    return {one.name: one for one in sorted(found, key=lambda one: (one.name == _LAST, one.name))}


def known_names() -> list[str]:
    """What ``--framework`` takes, without ``auto``."""
    return sorted(_tables())


@cache
def frameworks_of(name: str) -> tuple[Framework, ...]:
    """The framework of this name; for ``auto`` all, of which the first that knows a name counts; none for ""."""
    tables = _tables()
    return tuple(tables.values()) if name == AUTO else (tables[name],) if name else ()

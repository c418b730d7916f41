"""What gangrun has to know of a framework to judge its checkpoints and to resume from them.

Each framework has one file here. The file is named as ``--framework`` names it, and holds a ``FRAMEWORK``: a table of
facts with small pure functions. So a name whose file does not exist is refused. Nothing here opens a checkpoint:
``checkpoint`` reads what the table asks for.
"""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path

AUTO = "auto"
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
    step_key: str = ""  # the fact that is the step
    stores_dcp: bool = False  # its directories are torch.distributed.checkpoint's, and judged as such
    name_remark: Callable[[str], str] = lambda _name: ""  # what the framework does not do with one of this name
    unfinished_suffix: str = ""  # with it, the name of a file beside a checkpoint that is not finished
    resume_argument: str = ""  # makes a script load the path that follows it, or what stands for {path} and {step}
    taken_if: tuple[str, ...] = ()  # a script that holds one of these words takes that argument
    modules: tuple[str, ...] = ()  # of ``python -m``, which take it too
    tracker: Tracker | None = None
    leaves: tuple[str, ...] = ()  # other files that it puts beside its checkpoints

    def step_of(self, name: str) -> int | None:
        """The step in a directory's name; None if the framework names none so."""
        match = self.names.fullmatch(name)
        return int(match[1]) if match else None

    def takes_argument(self, script: str) -> bool:
        """Does this source text take the resume argument? gangrun does not run it to find out."""
        words = (self.resume_argument.lstrip("-").partition("=")[0], *self.taken_if)
        return bool(self.resume_argument) and any(word in script for word in words)

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


def known_names() -> list[str]:
    """What ``--framework`` takes, without ``auto``."""
    found = (module.name for module in pkgutil.iter_modules([str(Path(__file__).parent)]))
    return sorted(name for name in found if name not in _NOT_FRAMEWORKS)


@cache
def frameworks_of(name: str) -> tuple[Framework, ...]:
    """The framework of this name; for ``auto`` all, of which the first that knows a name counts; none for ""."""
    names = sorted(known_names(), key=lambda one: one == _LAST) if name == AUTO else [name] if name else []
    return tuple(import_module(f"{__package__}.{one}").FRAMEWORK for one in names)

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
_NOT_FRAMEWORKS = {"framework", "layouts"}

Facts = Mapping[str, object]  # by key: what a pickle in the checkpoint says


@dataclass(frozen=True, slots=True)
class Framework:
    """How one framework saves, and how its scripts are told what to load."""

    name: str  # of --framework
    title: str
    names: re.Pattern[str]  # of its checkpoint directories; the group is the step
    marker: str  # rank 0 writes this file last: without it, a checkpoint is unfinished
    file_suffixes: tuple[str, ...]  # files that hold state: each is judged as its kind allows
    facts_file: str  # a torch.save archive that tells ...
    facts_keys: tuple[str, ...]  # ... these facts
    flaw: Callable[[Collection[str], Facts], str]  # by names: what is missing, "" if nothing is
    remark: Callable[[Collection[str], Facts], str]  # what a whole checkpoint lacks, "" if nothing
    step_of_marker: Callable[[bytes], int | None]  # the step that the marker file tells
    resume_argument: str  # makes a script load the path that follows it
    taken_if: tuple[str, ...]  # a script that holds one of these words takes that argument

    def step_of(self, name: str) -> int | None:
        """The step in a directory's name; None if the framework names none so."""
        match = self.names.fullmatch(name)
        return int(match[1]) if match else None

    def takes_argument(self, script: str) -> bool:
        """Does this source text take the resume argument? gangrun does not run it to find out."""
        return any(word in script for word in (self.resume_argument.lstrip("-"), *self.taken_if))


def known_names() -> list[str]:
    """What ``--framework`` takes, without ``auto``."""
    found = (module.name for module in pkgutil.iter_modules([str(Path(__file__).parent)]))
    return sorted(name for name in found if name not in _NOT_FRAMEWORKS)


@cache
def frameworks_of(name: str) -> tuple[Framework, ...]:
    """The framework of this name; all for ``auto``, whose names do not overlap; none for ""."""
    names = known_names() if name == AUTO else [name] if name else []
    return tuple(import_module(f"{__package__}.{one}").FRAMEWORK for one in names)

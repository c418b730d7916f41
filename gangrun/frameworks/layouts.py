"""Whose checkpoints the entries of a directory are, by their names; and which option would make gangrun judge them.

A table and pure functions. What gangrun judges: directories of frameworks that have a file here, directories with DCP
files or safetensors, and one file that its script overwrites; anything else only by a command of the user's.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

NAMES_SHOWN_COUNT = 3


@dataclass(frozen=True, slots=True)
class Entry:
    """One name in a checkpoint directory."""

    name: str
    is_directory: bool


@dataclass(frozen=True, slots=True)
class Layout:
    """How one framework names what it saves. ``pattern``: for ``--checkpoint-pattern``; "" if no option helps."""

    framework: str
    names: re.Pattern[str]
    is_directory: bool
    pattern: str = ""
    named: str = ""  # of --framework
    overwritten: bool = False  # it may be one file that each save overwrites

    def holds(self, entry: Entry) -> bool:
        """Is this one of its checkpoints?"""
        return entry.is_directory is self.is_directory and self.names.fullmatch(entry.name) is not None

    @property
    def option(self) -> str:
        """What makes gangrun judge them."""
        if self.overwritten:
            return "--checkpoint-file FILE lets gangrun judge one that the script overwrites"
        if self.named:
            return f"--framework {self.named} lets gangrun judge them"
        if not self.pattern:
            return "gangrun judges only directories, one for each step"
        return f"--checkpoint-pattern '{self.pattern}' lets gangrun judge them"


def _directories(framework: str, names: str, pattern: str, *, named: str = "") -> Layout:
    return Layout(framework, re.compile(names), True, pattern, named)


def _files(framework: str, names: str, *, overwritten: bool = False, named: str = "") -> Layout:
    return Layout(framework, re.compile(names), False, overwritten=overwritten, named=named)


LAYOUTS = (
    _directories("Hugging Face Trainer", r"checkpoint-\d+", r"checkpoint-(\d+)", named="hf"),
    _directories("Accelerate", r"checkpoint_\d+", r"checkpoint_(\d+)", named="accelerate"),
    _directories("torchtitan", r"step-\d+", r"step-(\d+)", named="torchtitan"),
    _directories("DeepSpeed", r"global_step\d+", r"global_step(\d+)", named="deepspeed"),
    _directories("Megatron", r"iter_\d{7,}", r"iter_(\d+)", named="megatron"),
    _directories("NeMo", r".*step=\d+.*consumed_samples=.*", r".*step=(\d+).*", named="nemo"),
    _directories("Lightning", r".*\.ckpt", r".*step=(\d+).*\.ckpt", named="lightning"),
    _directories("torchtune", r"(?:dist_)?epoch_\d+", r"(?:dist_)?epoch_(\d+)", named="torchtune"),
    _directories("a script with Accelerate", r"(?:step|epoch)_\d+", r"(?:step|epoch)_(\d+)"),
    _directories("Composer", r"ep\d+-ba\d+", r"ep\d+-ba(\d+)", named="composer"),
    _files("DeepSpeed", r"latest", named="deepspeed"),
    _files("Megatron", r"latest_checkpointed_iteration\.txt", named="megatron"),
    _files("Composer", r"ep\d+-ba\d+-rank\d+(?:\.\w+)*|latest-rank\d+(?:\.\w+)*", named="composer"),
    _files("Lightning", r".*\.ckpt", overwritten=True),
    _files("torch.save", r".*\.(?:pt|pth|bin|pth\.tar)(?:\.\d+)?", overwritten=True),
    _files("safetensors", r".*\.safetensors", overwritten=True),
    _files("torch.distributed.checkpoint in this very directory", r"\.metadata|__\d+_\d+\.distcp"),
)


def layout_of(entry: Entry) -> Layout | None:
    """Whose checkpoint this is; None if no framework of the table names one so."""
    return next((layout for layout in LAYOUTS if layout.holds(entry)), None)


def told(entries: Collection[Entry]) -> str:
    """What gangrun cannot judge there, whose it looks like, and what would change that; "" if nothing is there."""
    by_layout: dict[Layout, list[str]] = {}
    strange = []
    for entry in sorted(entries, key=lambda one: one.name):
        layout = layout_of(entry)
        if layout is not None:
            by_layout.setdefault(layout, []).append(entry.name)
        elif not entry.name.startswith("."):
            strange.append(entry.name)
    if by_layout:
        found = (
            f"{_listed(names)} (looks like {layout.framework}; {layout.option})" for layout, names in by_layout.items()
        )
        return f"gangrun cannot judge {', nor '.join(found)}"
    return f"the directory holds {_listed(strange)}, and no checkpoint that gangrun knows" if strange else ""


def _listed(names: list[str]) -> str:
    shown = ", ".join(name if name.isprintable() else ascii(name) for name in names[:NAMES_SHOWN_COUNT])
    rest = len(names) - NAMES_SHOWN_COUNT
    return f"{shown} and {rest} more" if rest > 0 else shown

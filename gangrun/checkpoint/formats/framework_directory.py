"""Judges a directory that a framework saved: all that the framework writes is there, and each file is whole.

What makes it whole is the framework's own table of facts. Each file is judged as its kind allows, and the directories
in it as torch.distributed.checkpoint if they are that. Nothing is unpickled: the few facts that a pickle tells are read
from its bytes.
"""

from __future__ import annotations

import os
import re
import struct
import zipfile
from collections.abc import Iterator

from gangrun.checkpoint.formats import dcp
from gangrun.checkpoint.formats.dcp import (
    BadFile,
    FileMark,
    Judgement,
    UnreadableFile,
    content_of,
    judged,
    mark_of,
    told,
)
from gangrun.checkpoint.formats.dcp_metadata import METADATA_NAME
from gangrun.checkpoint.formats.one_file import JSON_INDEX_SUFFIX, judge_file, screen_file
from gangrun.checkpoint.verification import Tick
from gangrun.core.model import Level
from gangrun.frameworks.framework import Facts, Framework

_PICKLE_MAX_BYTES = 64 * 1024 * 1024
_MEMO = rb"(?:q.|r....|\x94)?"
_VALUE = rb"(?:(?P<truth>[\x88\x89])|K(?P<one>.)|M(?P<two>..)|J(?P<four>....))"


@judged
def judge_directory(directory: str, step: int, framework: Framework, tick: Tick | None = None) -> Judgement:
    """Judge it; without ``tick`` no data is read, as far as a structure can be told without it."""
    with told(os.path.basename(directory)):
        names = sorted(os.listdir(directory))
    if framework.marker not in names:
        raise BadFile(unfinished_words(framework))
    facts = facts_of(os.path.join(directory, framework.facts_file), framework.facts_keys)
    if flaw := framework.flaw(names, facts):
        raise BadFile(flaw)
    marks = {framework.marker: mark_of(directory, framework.marker)}  # first: it tells this save from another one
    found_step = framework.step_of_marker(content_of(directory, framework.marker))
    if found_step != step:
        tells = "is torn" if found_step is None else f"tells step {found_step}"
        raise BadFile(f"{framework.marker} {tells}, and the directory is named for step {step}")
    whys = [remark] if (remark := framework.remark(names, facts)) else []
    pieces = 0
    for prefix, one in _parts(directory, names, framework, marks, tick):
        if one.level is None and not one.unknown:
            raise UnreadableFile(one.why) if one.unreadable else BadFile(f"{prefix}{one.why}")
        marks.update((prefix + name, mark) for name, mark in one.marks)
        pieces += one.entry_count
        if one.why and one.why not in whys:
            whys.append(one.why)
    if mark_of(directory, framework.marker) != marks[framework.marker]:
        raise BadFile(f"{framework.marker} was written to while gangrun read the directory")
    level = Level.COMPLETE if whys or tick is None else Level.VERIFIED
    size = sum(mark[0] for mark in marks.values())
    return Judgement(level, "; ".join(whys), tick is not None, tuple(marks.items()), None, pieces, size)


def unfinished_words(framework: Framework) -> str:
    """Of a checkpoint without its marker."""
    return f"unfinished (never committed): it has no {framework.marker}, which {framework.title} writes last"


def _parts(
    directory: str, names: list[str], framework: Framework, seen: dict[str, FileMark], tick: Tick | None
) -> Iterator[tuple[str, Judgement]]:
    """Each file and directory that holds state: what its marks' names begin with, and its judgement."""
    for name in sorted(names, key=lambda one: (not one.endswith(JSON_INDEX_SUFFIX), one)):
        path = os.path.join(directory, name)
        if name.endswith(framework.file_suffixes):
            if name not in seen:  # an index judges its shards
                yield "", screen_file(path) if tick is None else judge_file(path, tick)
        elif os.path.isdir(path) and not os.path.islink(path):
            with told(name):
                inside = sorted(os.listdir(path))
            if METADATA_NAME in inside or any(one.endswith(".distcp") for one in inside):
                yield f"{name}/", dcp.screen(path) if tick is None else dcp.verify(path, tick)
                continue
            for prefix, one in _parts(path, inside, framework, {}, tick):
                yield f"{name}/{prefix}", one


def facts_of(path: str, keys: tuple[str, ...]) -> Facts:
    """The plain values that a torch.save archive holds under these keys, without unpickling; {} if it is none."""
    try:
        with zipfile.ZipFile(path) as archive:
            name = next(one for one in archive.namelist() if one.endswith("/data.pkl"))
            if archive.getinfo(name).file_size > _PICKLE_MAX_BYTES:
                return {}
            return _values(archive.read(name), keys)
    except (OSError, zipfile.BadZipFile, StopIteration, ValueError, NotImplementedError):
        return {}


def _values(pickled: bytes, keys: tuple[str, ...]) -> Facts:
    """Of each key the truth value or the number that follows it, as pickle's protocols from 2 up write them."""
    found: dict[str, object] = {}
    for key in keys:
        text = key.encode()
        named = b"(?:X%b|\x8c%b)%b" % tuple(map(re.escape, (struct.pack("<I", len(text)), bytes([len(text)]), text)))
        match = re.search(named + _MEMO + _VALUE, pickled, re.DOTALL)
        if match is not None:
            truth, number = match["truth"], match["one"] or match["two"] or match["four"]
            found[key] = truth == b"\x88" if truth else int.from_bytes(number, "little", signed=len(number) == 4)
    return found

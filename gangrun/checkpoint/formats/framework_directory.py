"""Judges a directory that a framework saved: all that the framework writes is there, and each file is whole.

What makes it whole is the framework's own table of facts. Each file is judged as its kind allows, and the directories
in it as torch.distributed.checkpoint if they are that. Nothing is unpickled: the few facts that a pickle tells are read
from its bytes.
"""

from __future__ import annotations

import os
import re
import stat
import struct
import zipfile
from collections.abc import Collection, Iterator
from dataclasses import replace
from functools import lru_cache

from gangrun.checkpoint.formats import dcp
from gangrun.checkpoint.formats.dcp import (
    BadFile,
    Judgement,
    UnknownFormat,
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
_DEPTH_MAX = 2
_MEMO = rb"(?:q.|r....|\x94)?"
_VALUE = rb"(?:(?P<none>N)|(?P<truth>[\x88\x89])|K(?P<one>.)|M(?P<two>..)|J(?P<four>....))?"


@judged
def judge_directory(directory: str, step: int, framework: Framework, tick: Tick | None = None) -> Judgement:
    """Judge it; without ``tick`` no data is read, as far as a structure can be told without it."""
    paths = frozenset(_paths_in(directory))
    if framework.marker and framework.marker not in paths:
        raise BadFile(unfinished_words(framework))
    facts_path = f"../{framework.state_beside}" if framework.state_beside else framework.facts_path(paths)
    facts = facts_of(os.path.join(directory, facts_path), framework.facts_keys) if facts_path else {}
    if flaw := framework.flaw(paths, facts):
        raise BadFile(flaw)
    telling = framework.telling_file(paths)
    marks = {telling: mark_of(directory, telling)} if telling else {}  # first: it tells this save from another one
    _demand_step(directory, step, framework, facts)
    whys = [remark] if (remark := framework.remark(paths, facts)) else []
    pieces, seen = 0, {framework.marker} if framework.step_of_marker is not None else set[str]()
    for prefix, one in _all_parts(directory, framework, seen, tick):
        if one.level is None and not one.unknown:
            raise UnreadableFile(one.why) if one.unreadable else BadFile(f"{prefix}{one.why}")
        for name, mark in one.marks:
            if marks.setdefault(prefix + name, mark) != mark:
                raise BadFile(f"{prefix + name} was written to while gangrun read the directory")
            seen.add(prefix + name)
        pieces += one.entry_count
        if one.why and one.why not in whys:
            whys.append(one.why)
    if telling and mark_of(directory, telling) != marks[telling]:
        raise BadFile(f"{telling} was written to while gangrun read the directory")
    if absent := next((key for key in framework.facts_needed if not isinstance(facts.get(key), int)), ""):
        where = facts_path or "no file of it"
        raise UnknownFormat(f"it cannot be judged: {where} does not tell {absent}")
    level = Level.COMPLETE if whys or tick is None else Level.VERIFIED
    size = sum(mark[0] for mark in marks.values())
    return Judgement(level, "; ".join(whys), tick is not None, tuple(marks.items()), None, pieces, size)


def judge_single(path: str, step: int, framework: Framework, tick: Tick | None = None) -> Judgement:
    """Judge a checkpoint that is one file; without ``tick`` its data is not read."""
    judged_file = screen_file(path) if tick is None else judge_file(path, tick)
    if judged_file.level is None:
        return judged_file
    facts = facts_of(path, framework.facts_keys)
    flaw = framework.flaw((), facts)
    told = facts.get(framework.step_key)
    if told is None:
        flaw = f"it holds no {framework.step_key}, as each checkpoint of {framework.title} does"
    elif told != step:
        flaw = f"it tells {framework.step_key} {told}, and not step {step}"
    return replace(judged_file, level=None, why=flaw) if flaw else judged_file


@lru_cache(maxsize=4096)
def _step_inside(path: str, framework: Framework, _identity: tuple[int, int, int]) -> int | None:
    step = facts_of(path, (framework.step_key,)).get(framework.step_key)
    return step if isinstance(step, int) else None


def step_of_single(path: str, framework: Framework) -> int | None:
    """The step that a checkpoint of one file tells; None if it is torn, or no file."""
    try:
        facts = os.lstat(path)
    except OSError:
        return None
    if not stat.S_ISREG(facts.st_mode):
        return None
    return _step_inside(path, framework, (facts.st_ino, facts.st_size, facts.st_mtime_ns))


def _demand_step(directory: str, step: int, framework: Framework, facts: Facts) -> None:
    """The step that the files tell must be the one of the directory's name."""
    where = framework.marker or framework.state_beside or framework.step_key
    found_step: int | None = step
    fact = facts.get(framework.step_key)
    if isinstance(fact, int):
        found_step = fact - framework.steps_ahead
    if framework.step_of_marker is not None:
        found_step = framework.step_of_marker(content_of(directory, framework.marker))
    if found_step != step:
        tells = "is torn" if found_step is None else f"tells step {found_step}"
        raise BadFile(f"{where} {tells}, and the directory is named for step {step}")


def _paths_in(directory: str, depth: int = 0) -> Iterator[str]:
    """Relative paths of all files and directories in it; symbolic links are seen and never followed."""
    with told(os.path.basename(directory)), os.scandir(directory) as items:
        listed = list(items)
    for item in listed:
        yield item.name
        if depth < _DEPTH_MAX and item.is_dir(follow_symlinks=False):
            yield from (f"{item.name}/{path}" for path in _paths_in(item.path, depth + 1))


def unfinished_words(framework: Framework) -> str:
    """Of a checkpoint without its marker."""
    return f"unfinished (never committed): it has no {framework.marker}, which {framework.title} writes last"


def _all_parts(
    directory: str, framework: Framework, seen: Collection[str], tick: Tick | None
) -> Iterator[tuple[str, Judgement]]:
    """What belongs to it and lies beside it, and then all that is in it."""
    if framework.state_beside:
        path = os.path.join(directory, "..", framework.state_beside)
        yield (
            f"../{os.path.dirname(framework.state_beside)}/",
            screen_file(path) if tick is None else judge_file(path, tick),
        )
    yield from _parts(directory, sorted(os.listdir(directory)), framework, seen, tick)


def _parts(
    directory: str, names: list[str], framework: Framework, seen: Collection[str], tick: Tick | None
) -> Iterator[tuple[str, Judgement]]:
    """Each file and directory that holds state: what its marks' names begin with, and its judgement."""
    if METADATA_NAME in names or any(one.endswith(".distcp") for one in names):
        yield "", dcp.screen(directory) if tick is None else dcp.verify(directory, tick)
    for name in sorted(names, key=lambda one: (not one.endswith(JSON_INDEX_SUFFIX), one)):
        path = os.path.join(directory, name)
        if name.endswith(framework.file_suffixes):
            if name not in seen:  # an index judges its shards
                yield "", screen_file(path) if tick is None else judge_file(path, tick)
        elif os.path.isdir(path) and not os.path.islink(path):
            with told(name):
                inside = sorted(os.listdir(path))
            for prefix, one in _parts(path, inside, framework, (), tick):
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
    """By key: the None, truth value or number that follows it, as pickle's protocols from 2 up write them; else ""."""
    found: dict[str, object] = {}
    for key in keys:
        text = key.encode()
        named = b"(?:X%b|\x8c%b)%b" % tuple(map(re.escape, (struct.pack("<I", len(text)), bytes([len(text)]), text)))
        match = re.search(named + _MEMO + _VALUE, pickled, re.DOTALL)
        if match is not None:
            truth, number = match["truth"], match["one"] or match["two"] or match["four"]
            if truth is not None:
                found[key] = truth == b"\x88"
            elif number is not None:
                found[key] = int.from_bytes(number, "little", signed=len(number) == 4)
            else:
                found[key] = None if match["none"] else ""
    return found

"""The room's door: what is there, which one to resume from, and making way for the next attempt.

Everything here reads files and may take as long as the storage likes: never call it from the supervisor's loop. Trouble
with one checkpoint becomes its reason; trouble with the whole directory is ``StorageUnreadable``: nobody can tell.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum
from threading import Lock

from gangrun.checkpoint import stand_in
from gangrun.checkpoint.formats import manifest, safetensors
from gangrun.checkpoint.formats.dcp import Judgement, keys_of, screen, verify
from gangrun.checkpoint.formats.framework_directory import judge_directory, judge_single
from gangrun.checkpoint.formats.one_file import judge_file, screen_file
from gangrun.checkpoint.kept_copies import KeptCopies
from gangrun.checkpoint.records import RequestRecord, VerifiedBefore, load_record, save_record
from gangrun.checkpoint.scan import (
    FrameworkNaming,
    Identity,
    Naming,
    OneFile,
    StepDirectory,
    StorageUnreadable,
    list_steps,
    look_at,
    look_at_file,
    machine_folder,
    step_pattern,
    step_there,
    strangers,
    was_finished,
)
from gangrun.checkpoint.set_aside import Moved, put_back, set_aside, to_move
from gangrun.checkpoint.tracker import Retold, name_checkpoint, take_away
from gangrun.checkpoint.validator_verdict import Validator, ValidatorVerdicts
from gangrun.checkpoint.verification import VerifyAll
from gangrun.core.checkpoints.resume import (
    Candidate,
    Choice,
    Chosen,
    FromZero,
    Kind,
    NothingValid,
    ResumeKind,
    ResumeRequest,
    choose,
    is_listed,
    shown,
)
from gangrun.core.model import CheckpointRef, Poisoned
from gangrun.core.text import step_words
from gangrun.frameworks import layouts
from gangrun.frameworks.framework import AUTO, Framework, frameworks_of

LINK_NAME = "resume"
_DIGITS = re.compile(r"\d+")
_STATE_SUFFIXES = (safetensors.SUFFIX, ".bin", ".ckpt", ".distcp", ".pt", ".pth")
_TOLD_EVERY_BYTES = 64 * 1024 * 1024
_NOT_LOOKED_AT = "not looked at: a newer one is valid"
_NOT_READ = "whole by its structure; its bytes were not checked"


class Depth(Enum):
    """How far a survey goes."""

    STRUCTURE = "structure"  # reads no data
    NEWEST = "newest"  # reads data, newest first, up to the first valid checkpoint
    ALL = "all"  # reads everything that is not remembered


@dataclass(frozen=True, slots=True)
class VerifyProgress:
    """How far the reading of one checkpoint is."""

    step: int
    path: str
    done_bytes: int
    total_bytes: int


@dataclass(frozen=True, slots=True)
class Resume:
    """What was chosen and done. ``notes``: sentences for the log that change nothing."""

    choice: Choice
    moved: tuple[Moved, ...] = ()
    notes: tuple[str, ...] = ()
    retold: tuple[Retold, ...] = ()  # tracker files that name another checkpoint now


class CheckpointRoom:
    """One checkpoint directory as one run uses it; not shared between threads."""

    def __init__(
        self,
        directory: str,
        pattern: Naming | None = None,
        *,
        run_directory: str | None = None,
        threads_count: int = 4,
        progress: Callable[[VerifyProgress], None] | None = None,
        validator: Validator | None = None,
        verify_all: VerifyAll | None = None,
        copies: KeptCopies | None = None,
    ) -> None:
        """``run_directory`` keeps explicit resume requests. Reading threads call ``progress``, one at a time.
        ``validator`` judges checkpoints that were found valid, and those of an unknown format. ``verify_all`` shares
        the reading with other nodes or ranks. ``copies``: where the pattern is one file, who copies it.
        """
        self._prove_all = verify_all
        self.directory = os.path.abspath(directory)
        self._pattern = pattern or step_pattern()
        self._copies = copies
        if copies is None and isinstance(self._pattern, OneFile):
            self._copies = KeptCopies(self.directory, self._pattern)
        self._run_directory = run_directory
        self._threads_count = threads_count
        self._progress = progress
        self._machine_folder = machine_folder(self.directory, self._pattern)
        self._memory = VerifiedBefore(self._machine_folder)
        self._opinions = ValidatorVerdicts(validator, self._memory)
        self._unmarked: set[str] = set()  # paths of what a framework saves without a mark of the end
        self._seen_damaged: set[tuple[str, str | None]] = set()
        self._notes: list[str] = []
        self._judged: dict[str, Identity] = {}  # by path: what was there when it was judged
        self._resumed: StepDirectory | None = None  # of the attempt whose first save tells whether its script resumed
        self._saved_before_ns = 0  # the newest that is not that attempt's

    def survey(self, depth: Depth = Depth.NEWEST) -> list[Candidate]:
        """Every step directory, newest first, judged to this depth. Raises ``StorageUnreadable``."""
        self._notes = []
        return self._judge_all(depth, lambda candidate: True)

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences for the log, of the newest look."""
        return tuple(self._notes)

    def unjudged(self) -> str:
        """What is there that gangrun cannot judge, in words; "" if there is nothing."""
        return layouts.told(strangers(self.directory, self._pattern))

    def put_back(self, run: str, paths: Sequence[str]) -> tuple[str, ...]:
        """Bring back what this run set aside from these paths; which came back. Raises ``StorageUnreadable``."""
        return put_back(self.directory, run, paths, self._machine_folder)

    def commits(self, of: Collection[str] | None = None) -> tuple[tuple[int, str], ...]:
        """(step, nonce) of every commit of gangrun's own that stands, by its manifest; or of these paths only. Raises
        ``StorageUnreadable``.
        """
        if of is not None and not of:
            return ()
        there = list_steps(self.directory, self._pattern)
        ours = (one for one in there if one.kind is Kind.GANGRUN and (of is None or one.path in of))
        named = ((found.step, _screen(found).nonce) for found in ours)
        return tuple((step, nonce) for step, nonce in named if nonce is not None)

    def newest_valid_above(self, step: int) -> Candidate | None:
        """The newest valid checkpoint above a step, if there is one; what is older is not looked at.

        Made to be asked again and again while ranks run: a save that was found damaged is not read a second time.
        """
        self._notes = []
        self._keep_copy()
        ignored = self._record().ignored
        for found in list_steps(self.directory, self._pattern):
            if found.step <= step:
                break
            read: list[str | None] = []

            def worth_reading(c: Candidate, read: list[str | None] = read) -> bool:
                worth = (c.step, c.nonce) not in ignored and (c.path, c.nonce) not in self._seen_damaged
                if worth:
                    read.append(c.nonce)
                return worth

            candidate = self._judge(found, worth_reading)
            if candidate.valid and (candidate.step, candidate.nonce) not in ignored:
                self._save_memory()
                return candidate
            if candidate.level is None and not candidate.unreadable:
                self._seen_damaged.update((found.path, nonce) for nonce in read)
        return None

    def expect_above(self, resumed: CheckpointRef | None) -> str:
        """An attempt starts that is to resume from this one (None: from nothing), and what is here is not its own.

        Returns why ``began_anew`` will not be able to tell, "" if it will, or need not. Raises ``StorageUnreadable``.
        """
        self._resumed = None
        if resumed is None or isinstance(self._pattern, OneFile):
            return ""
        there = [(_saved_at(found.path), found) for found in list_steps(self.directory, self._pattern)]
        chosen = next(((at, found) for at, found in there if found.path == resumed.path), None)
        if chosen is None or chosen[1].kind is Kind.GANGRUN:  # elsewhere, or the script reports its steps
            return ""
        saved_at, whole = chosen
        later = [one for at, one in there if at > saved_at and one.step < whole.step and _counts_as(whole, one)]
        if later:  # of another stage of the training, or a copy
            return f"{shown(later[0].name)} was saved after it, so steps here do not tell whether the script resumes"
        tells_step = whole.framework is not None and whole.framework.tells_step  # else only its name does
        if not tells_step and whole.step <= sum(_counts_as(whole, one) for _, one in there):
            name = shown(whole.name)
            return f"{name} may be one of several names that the script writes in turn, so its number tells no step"
        self._resumed, self._saved_before_ns = whole, max(at for at, _ in there)
        return ""

    @property
    def expects_save(self) -> bool:
        """Will ``began_anew`` have something to tell?"""
        return self._resumed is not None

    def began_anew(self) -> int | None:
        """The step of the first whole checkpoint that this attempt saved, if it is lower than that of the one to
        resume from. It is told once. Raises ``StorageUnreadable``.
        """
        if (resumed := self._resumed) is None:
            return None
        there = [(_saved_at(found.path), found) for found in list_steps(self.directory, self._pattern)]
        new = [(at, found) for at, found in there if at > self._saved_before_ns and _counts_as(resumed, found)]
        for _, found in sorted(new, key=lambda one: one[0]):
            if self._judge(found, lambda candidate: False).level is not None:
                self._resumed = None
                return found.step if found.step < resumed.step else None
        return None

    def choose_and_set_aside(
        self,
        request: ResumeRequest,
        attempt: str,
        journal_best_step: int = -1,
        sealed: frozenset[tuple[int, str]] | None = None,
        condemned: Poisoned | None = None,
        *,
        first: bool = True,
    ) -> Resume:
        """Choose the resume point of an attempt and move what is unfinished or invalid above it out of the way.

        ``condemned`` is not chosen, and moved too. ``first``: no rank of this run has written here. Nothing is moved
        when the run has to stop. Raises ``StorageUnreadable`` where nobody can tell, or nothing moves.
        """
        self._notes = []
        record = self._record() if request.kind is ResumeKind.AUTO else RequestRecord()
        if journal_best_step <= record.forgotten_best_step:
            journal_best_step = -1
        if condemned is not None and condemned.path and os.path.dirname(condemned.path) != self.directory:
            why = f"{shown(condemned.path)} is not in the checkpoint directory, where another could be taken instead"
            return Resume(NothingValid(why), notes=tuple(self._notes))
        request, candidates = self._gather(request, record, sealed, condemned)
        if journal_best_step < 0 and not first:  # the run was killed in the middle of its first save
            candidates = [replace(c, committed=False) if self._may_be_half(c) else c for c in candidates]
        if self._copies is not None:
            candidates = _of_one_file(candidates, self._copies.path)
            self._copies.forget()
        if sealed is not None:  # what lies elsewhere is no commit of this run, so no list of commits can name it
            sealed |= {(c.step, c.nonce or "") for c in candidates if os.path.dirname(c.path) != self.directory}
        choice = choose(
            candidates, request, journal_best_step=journal_best_step, sealed=sealed, ignored=record.ignored,
            unjudged=self.unjudged(),
        )  # fmt: skip
        if isinstance(choice, NothingValid):
            self._demand_readable(choice, candidates)
            return Resume(_with_hint(choice, self._copies), notes=tuple(self._notes))
        if request.kind is not ResumeKind.AUTO and self._run_directory is not None:
            save_record(self._run_directory, _record_of(choice, candidates, journal_best_step))
        resume_step = choice.checkpoint.step if isinstance(choice, Chosen) else -1
        ours = [c for c in candidates if os.path.dirname(c.path) == self.directory]
        moving = to_move(ours, resume_step)
        if isinstance(choice, Chosen) and self._copies is not None and choice.checkpoint.path != self._copies.path:
            return self._step_back(
                choice, self._copies, [c for c in ours if c in moving or c.path == self._copies.path], attempt
            )
        stands = self._loading_framework(choice)
        if isinstance(choice, Chosen):
            choice = _taken_for(choice, candidates, self._pattern)
        retold = self._retold(choice, ours, attempt)  # first: a tracker never names what was moved
        if stands is None or not isinstance(choice, Chosen):
            moved = set_aside(self.directory, moving, attempt, self._judged, self._machine_folder)
            return Resume(choice, moved, tuple(self._notes), retold)
        path = choice.checkpoint.path
        needed = stand_in.is_needed(stands, path, ours, self._machine_folder)
        moving += [self._superseded(c, choice) for c in stand_in.loaded_instead(stands, path, ours) if c not in moving]
        moved = set_aside(self.directory, moving, attempt, self._judged, self._machine_folder)
        if needed:
            copied = stand_in.put(path, self._judged.get(path), self._machine_folder, stands.newest_name)
            retold = (*retold, copied)
        return Resume(choice, moved, tuple(self._notes), retold)

    def _loading_framework(self, choice: Chosen | FromZero) -> Framework | None:
        """Whose scripts load a file by a fixed name, if the choice is its checkpoint here."""
        if not isinstance(choice, Chosen) or not isinstance(self._pattern, FrameworkNaming):
            return None
        folder, name = os.path.split(choice.checkpoint.path)
        framework = self._pattern.framework_of(name) if folder == self.directory else None
        return framework if framework is not None and framework.loaded_as_newest is not None else None

    def _superseded(self, whole: Candidate, choice: Chosen) -> Candidate:
        with suppress(OSError):  # what is older than the choice was not looked at
            self._judged.setdefault(whole.path, Identity.of(whole.path))
        why = f"the script would load it instead of {step_words(choice.checkpoint.step)}"
        return replace(whole, why_not=whole.why_not if whole.judged and not whole.valid else why)

    def _retold(self, choice: Chosen | FromZero, ours: list[Candidate], attempt: str) -> tuple[Retold, ...]:
        """Let the trackers of the frameworks that saved here name the choice, if it is here."""
        naming, done = self._pattern, list[Retold | None]()
        if not isinstance(naming, FrameworkNaming):
            return ()
        place = self.directory, self._machine_folder, attempt
        if isinstance(choice, Chosen):
            ref = choice.checkpoint
            framework = naming.framework_of(os.path.basename(ref.path))
            if framework is not None and os.path.dirname(ref.path) == self.directory:
                done.append(name_checkpoint(*place, framework, ref.path, ref.step))
        else:
            there = {naming.framework_of(os.path.basename(one.path)) for one in ours}
            done.extend(take_away(*place, one) for one in naming.frameworks if one in there)
        return tuple(one for one in done if one is not None)

    def _step_back(self, choice: Chosen, copies: KeptCopies, moving: list[Candidate], attempt: str) -> Resume:
        """Give the script a copy of that copy under the name that it loads; what bore the name is set aside."""
        ref = choice.checkpoint
        try:
            put_in_place = copies.put_in_place(ref.path)
            moved = set_aside(self.directory, moving, attempt, self._judged, self._machine_folder)
            put_in_place()
        except OSError as error:
            why = f"{shown(ref.path)} cannot be put back as {shown(copies.file.name)} ({error.strerror})"
            raise StorageUnreadable(why) from None
        reason = f"{choice.reason}; gangrun put {shown(os.path.basename(ref.path))} back as {shown(copies.file.name)}"
        chosen = replace(choice, checkpoint=replace(ref, path=copies.path), reason=reason)
        return Resume(chosen, moved, tuple(self._notes))

    def _may_be_half(self, candidate: Candidate) -> bool:
        """Is it torn, and in a format that no file marks as finished?"""
        torn = candidate.level is None and candidate.judged and not candidate.unreadable
        return torn and (self._copies is not None or candidate.path in self._unmarked)

    def _keep_copy(self) -> None:
        """Copy the file, if it is whole and there is no copy of it yet."""
        if self._copies is None or not self._copies.file.copies_count:
            return
        found = look_at_file(self._copies.path)
        if found is None or not self._judge(found, lambda c: (c.path, c.nonce) not in self._seen_damaged).valid:
            return
        if trouble := self._copies.keep(self._judged[found.path]):
            self._notes.append(trouble)
        self._save_memory()

    def _record(self) -> RequestRecord:
        return RequestRecord() if self._run_directory is None else load_record(self._run_directory)

    def _gather(
        self,
        request: ResumeRequest,
        record: RequestRecord,
        sealed: frozenset[tuple[int, str]] | None,
        condemned: Poisoned | None,
    ) -> tuple[ResumeRequest, list[Candidate]]:
        """Judge what the request needs judged; a path is replaced by the one the candidates bear."""
        match request.kind:
            case ResumeKind.NONE:
                return request, self._judge_all(Depth.STRUCTURE, lambda candidate: False)
            case ResumeKind.STEP:
                return request, self._judge_all(Depth.ALL, lambda candidate: candidate.step == request.step)
            case ResumeKind.PATH:
                path = self._true_path(request.path)
                candidates = self._judge_all(Depth.ALL, lambda candidate: candidate.path == path)
                return replace(request, path=path), candidates + self._elsewhere(path, candidates)
            case ResumeKind.AUTO:

                def in_use(c: Candidate) -> bool:
                    return (c.step, c.nonce) not in record.ignored and is_listed(c, sealed)

                usable = self._judge_all(Depth.NEWEST, lambda c: in_use(c) and not _is_poisoned(c, condemned))
                if condemned is not None:
                    bad = [c for c in usable if in_use(c) and _is_poisoned(c, condemned)]
                    usable = [_refused(c, condemned.why) if c in bad else c for c in usable]
                return request, usable + (self._elsewhere(record.base_path, usable) if record.base_path else [])

    def _true_path(self, path: str) -> str:
        """The user's path, links resolved, spelt as the survey spells it if it is one of this directory's."""
        true = os.path.realpath(path)
        parent, name = os.path.split(true)
        return os.path.join(self.directory, name) if parent == os.path.realpath(self.directory) else true

    def _elsewhere(self, path: str, known: list[Candidate]) -> list[Candidate]:
        """A requested checkpoint that the survey did not meet: judged, or refused with a reason."""
        if any(candidate.path == path for candidate in known):
            return []
        step = step_there(path, self._pattern)
        found = None if step is None else look_at(step, path, self._pattern)
        if found is not None:
            return [self._judge(found, lambda candidate: True, remembered=False)]
        if isinstance(self._pattern, OneFile):
            why = f"it is neither {shown(self._pattern.name)} nor one of the copies that --keep-copies allows"
        elif not os.path.isdir(path):
            why = "it is missing, or is not a directory"
        else:
            why = f"its name does not tell its step (checkpoint pattern {shown(self._pattern.text)})"
        # committed: the run may rest on it, so that its absence must never read as "there was none"
        return [Candidate(-1 if step is None else step, path, None, False, why, Kind.UNKNOWN)]

    def _judge_all(self, depth: Depth, deep: Callable[[Candidate], bool]) -> list[Candidate]:
        candidates = []
        reading = depth is not Depth.STRUCTURE
        listed = list_steps(self.directory, self._pattern)
        for found in listed:
            if depth is Depth.NEWEST and not reading:
                candidates.append(_passed(found))
                continue
            candidate = self._judge(found, deep if reading else lambda candidate: False)
            candidates.append(candidate)
            if depth is Depth.NEWEST and candidate.valid and deep(candidate):
                reading = False
        self._memory.keep_only(found.name for found in listed)
        self._save_memory()
        return candidates

    def _judge(self, found: StepDirectory, deep: Callable[[Candidate], bool], *, remembered: bool = True) -> Candidate:
        self._judged.pop(found.path, None)
        if found.framework is not None and not found.framework.marker:
            self._unmarked.add(found.path)
        with suppress(OSError):  # what cannot be seen is not moved
            self._judged[found.path] = Identity.of(found.path)
        if not found.committed:  # by a look before that one
            found = look_at(found.step, found.path, self._pattern) or found
        if found.kind is Kind.UNKNOWN or not found.committed:
            strange = _unjudged(found)
            return self._opinions.of_unknown(found, strange) if deep(strange) else strange
        place = os.path.dirname(found.path) if os.path.isfile(found.path) else found.path
        judged = self._memory.recall(found.name, place) if remembered else None
        if judged is None:
            judged = _screen(found)
        if judged.unknown:
            found = replace(found, kind=Kind.UNKNOWN, committed=False, why=judged.why)
            strange = _unjudged(found)
            return self._opinions.of_unknown(found, strange) if deep(strange) else strange
        if judged.level is not None and not judged.deep and deep(_candidate(found, judged)):
            total = judged.data_bytes
            judged = self._verify(found, self._ticker(found, judged))
            if self._progress is not None:
                self._progress(VerifyProgress(found.step, found.path, total, total))
        if remembered:
            self._memory.remember(found.name, judged)
        candidate = _candidate(found, judged)
        if judged.level is None and not judged.unreadable and not was_finished(found):
            candidate = replace(candidate, committed=False)
        return self._opinions.of(candidate, ask=deep(candidate), name=found.name if remembered else "")

    def _verify(self, found: StepDirectory, tick: Callable[[int], None] | None) -> Judgement:
        if found.kind is Kind.GANGRUN:
            return manifest.verify(found.path, found.step, tick, self._threads_count, self._prove_all)
        if found.kind is Kind.FILE:
            return judge_file(found.path, tick or (lambda count: None))
        if found.framework is not None:
            judge = judge_single if os.path.isfile(found.path) else judge_directory
            return judge(found.path, found.step, found.framework, tick or (lambda count: None))
        if found.kind is Kind.SAFETENSORS:
            return safetensors.verify(found.path)
        return verify(found.path, tick, self._threads_count, self._prove_all)

    def _ticker(self, found: StepDirectory, judged: Judgement) -> Callable[[int], None] | None:
        progress = self._progress
        if progress is None:
            return None
        lock, done, told = Lock(), 0, 0

        def tick(count: int) -> None:
            nonlocal done, told
            with lock:
                done += count
                if done - told >= _TOLD_EVERY_BYTES:
                    told = done
                    progress(VerifyProgress(found.step, found.path, done, judged.data_bytes))

        progress(VerifyProgress(found.step, found.path, 0, judged.data_bytes))
        return tick

    def _save_memory(self) -> None:
        trouble = self._memory.save()
        if trouble:
            self._notes.append(trouble)

    def _demand_readable(self, choice: NothingValid, candidates: list[Candidate]) -> None:
        """That none is valid must not be concluded from a storage that would not show them."""
        hidden = [c for c in candidates if c.unreadable and any(c.path == p.path for p in choice.passed_over)]
        if hidden:
            raise StorageUnreadable(
                f"gangrun cannot choose a checkpoint: {len(hidden)} of {len(candidates)} step directories "
                f"cannot be read; step {hidden[0].step}: {hidden[0].why_not}"
            )


def _screen(found: StepDirectory) -> Judgement:
    if found.kind is Kind.GANGRUN:
        return manifest.screen(found.path, found.step)
    if found.kind is Kind.FILE:
        return screen_file(found.path)
    if found.framework is not None:
        judge = judge_single if os.path.isfile(found.path) else judge_directory
        return judge(found.path, found.step, found.framework)
    if found.kind is Kind.SAFETENSORS:
        return safetensors.verify(found.path)
    return screen(found.path)


def _counts_as(whole: StepDirectory, found: StepDirectory) -> bool:
    """Is it named by the same count? ``epoch_2`` may come after ``step-1000``, and a file with a name of the user's may
    be a copy of an older one.
    """
    framework = found.framework
    if framework is not whole.framework or (framework is not None and framework.counts_saves):
        return False
    if framework is None or not framework.tells_step:
        return _DIGITS.sub("", found.name) == _DIGITS.sub("", whole.name)
    last = framework.loaded_as_newest is not None and framework.loaded_as_newest.fullmatch(found.name) is not None
    return last or framework.step_of(found.name) is not None


def _saved_at(path: str) -> int:
    """When the file was written that makes it a checkpoint, or else the newest file of its state, in ns by the file
    server's clock; 0: nobody can tell. People and evaluations write files of other kinds there later.
    """
    with suppress(OSError):
        marker = Identity.of(path).marker
        if marker is not None:
            return marker[2]
        return max(map(_state_written_at, [path, *(entry.path for entry in _entries(path) if entry.is_dir())]))
    return 0


def _state_written_at(folder: str) -> int:
    states = (entry for entry in _entries(folder) if entry.name.endswith(_STATE_SUFFIXES))
    return max((entry.stat(follow_symlinks=False).st_mtime_ns for entry in states), default=0)


def _entries(folder: str) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        return list(entries)


def _unjudged(found: StepDirectory) -> Candidate:
    return Candidate(
        found.step, found.path, None, False, found.why, found.kind, found.committed, unreadable=found.unreadable
    )


def _passed(found: StepDirectory) -> Candidate:
    """Older than the newest valid one: not one of its files is asked for, on whatever file system they are."""
    candidate = _unjudged(found)
    whole = found.kind is not Kind.UNKNOWN and found.committed
    return replace(candidate, why_not=_NOT_LOOKED_AT, judged=False) if whole else candidate


def _candidate(found: StepDirectory, judged: Judgement) -> Candidate:
    unread = judged.level is not None and not judged.deep
    return Candidate(
        step=found.step,
        path=found.path,
        level=judged.level,
        valid=judged.valid,
        why_not=_NOT_READ if unread else judged.why,
        kind=found.kind,
        nonce=judged.nonce,
        judged=not unread,
        unreadable=judged.unreadable,
    )


def _of_one_file(candidates: list[Candidate], path: str) -> list[Candidate]:
    """A file that nobody can judge hides its copies."""
    is_unknown = any(c.path == path and c.kind is Kind.UNKNOWN for c in candidates)
    return [c for c in candidates if c.path == path or not is_unknown]


def _with_hint(choice: NothingValid, copies: KeptCopies | None) -> NothingValid:
    """What a person can do where only a torn file is left."""
    if copies is None:
        return choice
    first = copies.file.copy_name(1)
    if not copies.file.copies_count and os.path.lexists(os.path.join(copies.directory, first)):
        hint = f"{shown(first)} is there: --keep-copies 1 lets gangrun step back to it"
    else:
        hint = f"to begin anew, move {shown(copies.file.name)} away"
    return replace(choice, reason=f"{choice.reason}; {hint}")


def _taken_for(choice: Chosen, candidates: list[Candidate], naming: Naming) -> Chosen:
    """Say whose checkpoint gangrun takes it for, if it is a framework's; and what it lacks, if only its keys tell."""
    path, asked = choice.checkpoint.path, isinstance(naming, FrameworkNaming)
    kind = next((c.kind for c in candidates if c.path == path), Kind.UNKNOWN)
    if kind is not Kind.FRAMEWORK and not (asked and kind in (Kind.DCP, Kind.SAFETENSORS, Kind.FILE)):
        return choice
    known = naming if isinstance(naming, FrameworkNaming) else FrameworkNaming(frameworks_of(AUTO), step_pattern())
    framework = known.framework_of(os.path.basename(path))
    if framework is None:
        return choice
    words = f"; taken for a checkpoint of {framework.title}"
    remarks = [framework.name_remark(os.path.basename(path))]
    if kind is Kind.DCP:
        remarks.append(framework.remark(keys_of(path), {}))
    return replace(choice, reason="; ".join(filter(None, (choice.reason + words, *remarks))))


def _is_poisoned(candidate: Candidate, condemned: Poisoned | None) -> bool:
    """It, and what whoever had loaded it saved before failing."""
    return condemned is not None and candidate.committed and candidate.step >= condemned.first_step


def _refused(candidate: Candidate, why: str) -> Candidate:
    """Whole or not, it is not to be loaded again."""
    return replace(candidate, valid=False, judged=True, why_not=why)


def _record_of(choice: Chosen | FromZero, candidates: list[Candidate], journal_best_step: int) -> RequestRecord:
    """What an explicit request puts out of use: every other whole checkpoint at or above the step it asked for."""
    step, path = (choice.checkpoint.step, choice.checkpoint.path) if isinstance(choice, Chosen) else (-1, "")
    out_of_use = (c for c in candidates if c.level is not None and c.step >= step and c.path != path)
    ignored = frozenset((c.step, c.nonce) for c in out_of_use)
    return RequestRecord(ignored, path, journal_best_step if isinstance(choice, FromZero) else -1)


def point_resume_link(run_directory: str, path: str | None) -> None:
    """Let ``<run>/resume`` point at the checkpoint, in one step; None takes it away. Raises OSError."""
    link = os.path.join(run_directory, LINK_NAME)
    if path is None:
        try:
            os.unlink(link)
        except FileNotFoundError:
            pass
        return
    temporary = f"{link}.{os.getpid()}"
    try:
        os.unlink(temporary)
    except FileNotFoundError:
        pass
    os.symlink(path, temporary)
    try:
        os.replace(temporary, link)
    except OSError:
        os.unlink(temporary)
        raise

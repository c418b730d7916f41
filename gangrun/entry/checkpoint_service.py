"""The checkpoint file system behind a thread.

``ports.Checkpoints`` for the real world: each question is answered later, as a core event. A directory that hangs
keeps this thread waiting and nobody else; questions are answered in order, and a look that was overtaken is skipped.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gangrun.checkpoint.commit import seal_staging
from gangrun.checkpoint.memory_tier.recover_from_memory import adopt, discard, open_staging
from gangrun.checkpoint.scan import StorageUnreadable, step_pattern
from gangrun.checkpoint.store import CheckpointRoom, point_resume_link
from gangrun.checkpoint.validator_verdict import Validator
from gangrun.core.actions import ChooseResume
from gangrun.core.checkpoints.resume import Chosen, parse_resume
from gangrun.core.checkpoints.resume import NoneValid as NoChoice
from gangrun.core.events import AttemptSealed, CheckpointSeen, Event, NoneValid, ResumeChosen, Stamped, StepBrought
from gangrun.core.model import CheckpointRef
from gangrun.core.nodeset import fold
from gangrun.entry.shared_verification import SharedReading
from gangrun.entry.wiring import tell
from gangrun.runs.times import steady_now, wall_now

CLOCKS_DIFFER_S = 0.5
NO_DIRECTORY = "no checkpoint directory is known (--checkpoint-dir), so the script finds its own way"


@dataclass(frozen=True, slots=True)
class _Question:
    what: str
    attempt: int = -1
    step: int = -1
    asked: ChooseResume | None = None
    sealed: frozenset[tuple[int, str]] = frozenset()
    path: str = ""
    nonce: str = ""
    nodes: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    rebuilt_count: int = 0
    more: bool = False


class CheckpointService:
    """Answers through ``post``, which must not block."""

    def __init__(
        self,
        directory: str,
        pattern: str,
        run: str,
        run_directory: str,
        post: Callable[[Stamped], None],
        validator: Validator | None = None,
        reading: SharedReading | None = None,
    ) -> None:
        """``reading``: how other nodes read with this one; None: they do not."""
        self._directory, self._run, self._run_directory, self._post = directory, run, run_directory, post
        self._reading = reading or SharedReading(lambda asked: None, 0, steady_now)
        # one room for all questions: it remembers which damaged save it has read already
        self._room = CheckpointRoom(
            directory, step_pattern(pattern), run_directory=run_directory, validator=validator,
            verify_all=self._reading.verify_all,
        )  # fmt: skip
        self._questions: queue.Queue[_Question | None] = queue.Queue()
        self._looks = 0
        self._prepared: set[str] = set()
        self._adopted: dict[int, str] = {}  # step -> where it was before it came to the disk
        self._told_at: float | None = None  # wall time at which ranks were told to save
        self._thread = threading.Thread(target=self._main, name="checkpoints", daemon=True)
        self._thread.start()

    def prepare(self, staging: str) -> None:
        """No answer, but ``prepared``."""
        self._prepared.discard(staging)
        self._questions.put(_Question("prepare", path=staging))

    def prepared(self, staging: str) -> bool:
        """Where it could not be made, whoever is to write there says why."""
        return staging in self._prepared

    def discard(self, path: str, *, more: bool = False) -> None:
        """No answer."""
        self._questions.put(_Question("discard", path=path, more=more))

    def adopt(self, path: str, attempt: int, step: int, nonce: str, nodes: Sequence[str], rebuilt_count: int) -> None:
        """Answer with ``StepBrought``; what it says is said again by the choice that follows, if one does."""
        self._questions.put(
            _Question("adopt", attempt, step, path=path, nonce=nonce, nodes=tuple(nodes), rebuilt_count=rebuilt_count)
        )

    def seal(self, attempt: int) -> None:
        """Answer with ``AttemptSealed``."""
        self._questions.put(_Question("seal", attempt))

    def choose(self, asked: ChooseResume, sealed: Sequence[tuple[int, str]]) -> None:
        """Answer with ``ResumeChosen`` or ``NoneValid``."""
        self._questions.put(_Question("choose", asked.attempt, asked=asked, sealed=frozenset(sealed)))

    def dealt(self, number: int, share: int, readers_count: int) -> None:
        """To whoever reads."""
        self._reading.dealt(number, share, readers_count)

    def proven(self, number: int, unread: Mapping[int, str]) -> None:
        """To whoever reads."""
        self._reading.proven(number, unread)

    def put_back(self, paths: Sequence[str]) -> None:
        """What was set aside from there goes back; where it cannot, the next choice sees to it again."""
        if paths and self._directory:
            self._questions.put(_Question("put back", paths=tuple(paths)))

    def look(self, above_step: int) -> None:
        """Answer with ``CheckpointSeen`` if a newer valid one is there."""
        if self._directory and self._looks == 0:
            self._looks += 1
            self._questions.put(_Question("look", step=above_step))

    def await_save(self) -> None:
        """By the clocks of hosts: where they differ a save from just before may count, or one from just after not."""
        self._told_at = wall_now()

    def close(self, within_s: float) -> None:
        """Take no more questions; those that were asked are given so long."""
        self._questions.put(None)
        self._thread.join(within_s)

    def _main(self) -> None:
        while (question := self._questions.get()) is not None:
            event = self._answer(question)
            if event is not None:
                self._post(Stamped(event))

    def _answer(self, question: _Question) -> Event | None:
        match question.what:
            case "prepare":
                open_staging(question.path)
                self._prepared.add(question.path)
                return None
            case "discard":
                discard(question.path, more=question.more)
                return None
            case "adopt":
                why = adopt(question.path, self._directory, question.step, question.nonce)
                where = fold(question.nodes) + _again(question.rebuilt_count)
                discard(question.path)
                self._adopted.clear()  # only the newest may be what the next attempt finds
                self._adopted[question.step] = (
                    f"; step {question.step} was in the memory of {where} and could not be brought to the disk: {why}"
                    if why
                    else f"; brought to the disk from the memory of {where}"
                )
                return StepBrought(question.attempt, question.step, question.nodes, why)
            case "seal":
                return self._seal(question.attempt)
            case "choose":
                assert question.asked is not None
                with self._reading.shared():
                    return self._choose(question.asked, question.sealed)
            case "put back":
                self._put_back(question.paths)
                return None
            case _:
                return self._look(question.step)

    def _seal(self, attempt: int) -> Event:
        try:
            if not self._directory:
                return AttemptSealed(attempt)
            seal_staging(self._directory, self._run, attempt)
            return AttemptSealed(attempt, self._room.commits())
        except StorageUnreadable as error:
            return NoneValid(attempt, str(error), storage=True)

    def _put_back(self, paths: tuple[str, ...]) -> None:
        try:
            self._room.put_back(self._run, paths)
        except StorageUnreadable as error:
            tell("supervisor", str(error))

    def _choose(self, asked: ChooseResume, sealed: frozenset[tuple[int, str]]) -> Event:
        self._told_at = None
        if not self._directory:
            return ResumeChosen(asked.attempt, None, NO_DIRECTORY)
        try:
            back = self._room.put_back(self._run, asked.put_back)
            found = self._room.choose_and_set_aside(
                parse_resume(asked.request),
                f"{self._run}-{asked.attempt}",
                asked.best_step,
                sealed | set(self._room.commits(back)),
                asked.condemned,
            )
        except StorageUnreadable as error:
            return NoneValid(asked.attempt, str(error), storage=True)
        choice = found.choice
        passed = tuple((one.step, one.why) for one in choice.passed_over)
        undo = "".join(
            f"; moved aside: step {moved.step} ({moved.why}), undo with: {moved.undo}" for moved in found.moved
        )
        if isinstance(choice, NoChoice):
            return NoneValid(asked.attempt, choice.reason)
        ref = choice.checkpoint if isinstance(choice, Chosen) else None
        self._link(ref)
        told, self._adopted = self._adopted, {}
        rescued = told[ref.step] if ref and ref.step in told else "".join(told.values())
        read = self._reading.words_of(ref.path) if ref else ""
        return ResumeChosen(asked.attempt, ref, choice.reason + read + rescued + undo, passed)

    def _link(self, ref: CheckpointRef | None) -> None:
        try:
            point_resume_link(self._run_directory, ref.path if ref else None)
        except OSError:
            return  # a convenience for people: the ranks are told by their environment

    def _look(self, above_step: int) -> Event | None:
        self._looks = 0
        try:
            candidate = self._room.newest_valid_above(above_step)
        except StorageUnreadable:
            return None
        if candidate is None or candidate.level is None:
            return None
        told = self._told_at is not None and _finished_at(candidate.path) >= self._told_at - CLOCKS_DIFFER_S
        return CheckpointSeen(CheckpointRef(candidate.step, candidate.path, candidate.level), told)


def _finished_at(path: str) -> float:
    """When the last of it was written or renamed; not st_mtime, which a copy keeps."""
    try:
        with os.scandir(path) as entries:
            return max([os.stat(path).st_ctime, *(entry.stat(follow_symlinks=False).st_ctime for entry in entries)])
    except OSError:
        return 0.0


def _again(files_count: int) -> str:
    many = f"{files_count} {'file' if files_count == 1 else 'files'}"
    return f"; {many} of lost nodes made again of parity" if files_count else ""

"""The checkpoint file system behind a thread.

``ports.Checkpoints`` for the real world: each question is answered later, as a core event. A directory that hangs
keeps this thread waiting and nothing else; questions are answered in order, and a look that was overtaken is skipped.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import TypeVar

from gangrun.checkpoint.commit import seal_staging
from gangrun.checkpoint.kept_copies import KeptCopies
from gangrun.checkpoint.memory_tier.recover_from_memory import adopt, discard, open_staging
from gangrun.checkpoint.scan import Naming, OneFile, StorageUnreadable
from gangrun.checkpoint.state_files import StateFiles
from gangrun.checkpoint.store import CheckpointRoom, point_resume_link
from gangrun.checkpoint.validator_verdict import Validator
from gangrun.checkpoint.verification import Tick, Verification, verify_share
from gangrun.core.actions import ChooseResume
from gangrun.core.checkpoints.resume import Chosen, NothingValid, parse_resume, patience_s, readers_max_count, ref_of
from gangrun.core.events import (
    AttemptSealed,
    CheckpointSeen,
    Event,
    FirstStepSeen,
    NoneValid,
    ResumeChosen,
    Stamped,
    StepBrought,
)
from gangrun.core.evidence import StateFigures
from gangrun.core.model import CheckpointRef
from gangrun.core.nodeset import fold
from gangrun.core.text import step_words
from gangrun.display.text import size_words
from gangrun.entry.wiring import tell
from gangrun.ports import VerifyAsked
from gangrun.runs.times import steady_now, wall_now

CLOCKS_DIFFER_S = 0.5
EAGER_EVERY_S, EAGER_SHARE, EAGER_FOR_S = 1.0, 0.1, 100.0  # ever more seldom as the attempt grows old
LOOP_WITHIN_S = 10.0  # the time in which the loop must have asked the agents
T = TypeVar("T")
NO_DIRECTORY = "no checkpoint directory is known (--checkpoint-dir), so the script itself decides what to load"


class NodesVerification:
    """How the checkpoint thread has other nodes read with this host; one reading at a time.

    The thread posts ``VerifyAsked`` to the supervisor's loop, which asks the agents and answers through its callbacks.
    Only what this host finds damaged itself is damaged: what another node could not read, or found wrong or could not
    check, is read again here. Whatever the loop does, the thread waits for a bounded time.
    """

    def __init__(self, post: Callable[[VerifyAsked], None], share_bytes: int, now: Callable[[], float]) -> None:
        """``share_bytes``: the least that each node reads; 0: nothing is shared."""
        self._post, self._share_bytes, self._now = post, share_bytes, now
        self._wanted = False
        self._words: dict[str, str] = {}
        self._ready_at = 0.0  # then this host began to look at what there is to read: others do that first too

    def words_of(self, path: str) -> str:
        """Which nodes read it, if that was shared this time."""
        return self._words.get(path, "")

    @contextmanager
    def shared(self) -> Iterator[None]:
        """No rank trains now, so other nodes have time to read; at all other times this host reads alone."""
        self._wanted, self._words, self._ready_at = True, {}, self._now()
        try:
            yield
        finally:
            self._wanted = False

    def verify_all(self, verification: Verification, tick: Tick, threads_count: int) -> Sequence[str]:
        """What ``verify_share`` does for the whole, and raises."""
        most = readers_max_count(verification.data_bytes, self._share_bytes) if self._wanted else 1
        if most == 1:
            return verify_share(verification, tick, threads_count)
        try:
            return self._verify_together(verification, tick, threads_count, most)
        finally:
            self._ready_at = self._now()

    def _verify_together(self, verification: Verification, tick: Tick, threads_count: int, most: int) -> Sequence[str]:
        began = self._now()
        dealt: SimpleQueue[tuple[int, Mapping[int, str]]] = SimpleQueue()
        answers: SimpleQueue[tuple[int, str]] = SimpleQueue()
        over = threading.Event()
        self._post(
            VerifyAsked(
                verification.directory, verification.save, most, lambda own, others: dealt.put((own, others)),
                lambda share, why: answers.put((share, why)), over.is_set,
            )
        )  # fmt: skip
        own, others = self._next(dealt, LOOP_WITHIN_S) or (0, dict[int, str]())
        count = len(others) + 1
        try:
            unverified = verify_share(verification, tick, threads_count, own, count)
            unread = self._wait(others, answers, patience_s(self._now() - self._ready_at))
        finally:
            over.set()
        for share in sorted(unread):
            unverified += verify_share(verification, tick, threads_count, share, count)
        nodes = f"{count - len(unread)} node{'' if count - len(unread) == 1 else 's'}"
        words = f"; read by {nodes}, {size_words(verification.data_bytes)} in {self._now() - began:.1f} s"
        again = "; ".join(sorted(set(unread.values())))
        self._words[verification.directory] = words + (
            f"; this host read the other shares again ({again})" if again else ""
        )
        return unverified

    def _wait(
        self, others: Mapping[int, str], answers: SimpleQueue[tuple[int, str]], within_s: float
    ) -> dict[int, str]:
        """The shares that other nodes did not find whole in time, and why."""
        unread = {share: f"{node}: no answer" for share, node in others.items()}
        left, until = set(others), self._now() + within_s
        while left and (answer := self._next(answers, until - self._now())) is not None:
            share, why = answer
            left.discard(share)
            unread[share] = why
        return {share: why for share, why in unread.items() if why}

    def _next(self, answers: SimpleQueue[T], within_s: float) -> T | None:
        try:
            return answers.get(timeout=max(0.0, within_s))
        except Empty:
            return None


class CheckpointService:
    """Answers through ``post``, which must not block."""

    def __init__(
        self,
        directory: str,
        naming: Naming,
        run: str,
        run_directory: str,
        post: Callable[[Stamped], None],
        validator: Validator | None = None,
        reading: NodesVerification | None = None,
        holds_term: Callable[[], bool] = lambda: True,
    ) -> None:
        """``reading``: how other nodes read with this one; None: they do not. ``holds_term``: has no other supervisor
        taken over?
        """
        self._directory, self._run, self._run_directory, self._post = directory, run, run_directory, post
        self._reading = reading or NodesVerification(lambda asked: None, 0, steady_now)
        self._questions: SimpleQueue[Callable[[], Event | None] | None] = SimpleQueue()
        copies = None
        if isinstance(naming, OneFile):
            copies = KeptCopies(directory, naming, holds_term, lambda: not self._questions.empty())
        # one room for all questions: it remembers which damaged save it has read already
        self._room = CheckpointRoom(
            directory, naming, run_directory=run_directory, validator=validator,
            verify_all=self._reading.verify_all, copies=copies,
        )  # fmt: skip
        self._state_files = StateFiles(directory)
        self._figures: StateFigures | None = None
        self._attempt, self._chose_at = -1, 0.0  # the one that chose last
        self._told: set[str] = set()
        self._looks = 0
        self._prepared: set[str] = set()
        self._adopted: dict[int, str] = {}  # step -> where it was before it came to the disk
        self._told_at: float | None = None  # by the file server: when ranks were told to save
        self._thread = threading.Thread(target=self._main, name="checkpoints", daemon=True)
        self._thread.start()

    def prepare(self, staging: str) -> None:
        """No answer, but ``prepared``."""
        self._prepared.discard(staging)
        self._questions.put(partial(self._prepare, staging))

    def prepared(self, staging: str) -> bool:
        """If it could not be made, the node that is to write there says why."""
        return staging in self._prepared

    def discard(self, path: str, *, more: bool = False) -> None:
        """No answer."""
        self._questions.put(partial(discard, path, more=more))

    def adopt(self, path: str, attempt: int, step: int, nonce: str, nodes: Sequence[str], rebuilt_count: int) -> None:
        """Answer with ``StepBrought``; what it says is said again by the choice that follows, if one does."""
        self._questions.put(partial(self._adopt, path, attempt, step, nonce, tuple(nodes), rebuilt_count))

    def seal(self, attempt: int) -> None:
        """Answer with ``AttemptSealed``."""
        self._questions.put(partial(self._seal, attempt))

    def choose(self, asked: ChooseResume, sealed: Sequence[tuple[int, str]]) -> None:
        """Answer with ``ResumeChosen`` or ``NoneValid``."""
        self._questions.put(partial(self._choose, asked, frozenset(sealed)))

    def put_back(self, paths: Sequence[str]) -> None:
        """What was set aside from there goes back; if it cannot, the next choice sees to it again."""
        if paths and self._directory:
            self._questions.put(partial(self._put_back, tuple(paths)))

    def look(self, above_step: int) -> None:
        """Answer with ``CheckpointSeen`` if a newer valid one is there."""
        if self._directory and self._looks == 0:
            self._looks += 1
            self._questions.put(partial(self._look, above_step))

    def figures(self) -> StateFigures | None:
        """As of the newest look."""
        return self._figures

    def await_save(self) -> None:
        """A save from just before may count."""
        if self._directory:
            self._questions.put(partial(self._await_save, steady_now()))

    def close(self, within_s: float) -> None:
        """Take no more questions; those that were asked are answered within this time."""
        self._questions.put(None)
        self._thread.join(within_s)

    def _main(self) -> None:
        while (question := self._next_question()) is not None:
            event = question()
            if event is not None:
                self._post(Stamped(event))

    def _next_question(self) -> Callable[[], Event | None] | None:
        """Meanwhile the first save is looked for: a small script may save each second, and delete what was there."""
        while True:
            since_s = steady_now() - self._chose_at
            soon = self._room.expects_save and since_s < EAGER_FOR_S
            try:
                return self._questions.get(timeout=max(EAGER_EVERY_S, since_s * EAGER_SHARE) if soon else None)
            except Empty:
                with suppress(StorageUnreadable):
                    self._tell_if_it_began_anew()

    def _tell_if_it_began_anew(self) -> None:
        if (step := self._room.began_anew()) is not None:
            self._post(Stamped(FirstStepSeen(self._attempt, step, written=True)))

    def _prepare(self, staging: str) -> None:
        open_staging(staging)
        self._prepared.add(staging)

    def _adopt(
        self, path: str, attempt: int, step: int, nonce: str, nodes: tuple[str, ...], rebuilt_count: int
    ) -> Event:
        why = adopt(path, self._directory, step, nonce)
        where = fold(nodes) + _again(rebuilt_count)
        discard(path)
        self._adopted.clear()  # only the newest may be what the next attempt finds
        self._adopted[step] = (
            f"; step {step} was in the memory of {where} and could not be written to disk: {why}"
            if why
            else f"; written to disk from the memory of {where}"
        )
        return StepBrought(attempt, step, nodes, why)

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
        self._told_at = self._figures = None
        self._attempt, self._chose_at = asked.attempt, steady_now()
        if not self._directory:
            return ResumeChosen(asked.attempt, None, NO_DIRECTORY)
        self._state_files.note()
        try:
            back = self._room.put_back(self._run, asked.put_back)
            known = sealed | set(self._room.commits(back))
            with self._reading.shared():
                found = self._room.choose_and_set_aside(
                    parse_resume(asked.request), f"{self._run}-{asked.attempt}", asked.best_step, known,
                    asked.condemned, first=asked.attempt == 0,
                )  # fmt: skip
        except StorageUnreadable as error:
            return NoneValid(asked.attempt, str(error), storage=True)
        choice = found.choice
        passed = tuple((one.step, one.why) for one in choice.passed_over)
        undo = "".join(
            f"; set aside {step_words(moved.step)} ({moved.why}), undo with: {moved.undo}" for moved in found.moved
        )
        undo += "".join(f"; {one.words}, undo with: {one.undo}" for one in found.retold)
        if isinstance(choice, NothingValid):
            return NoneValid(asked.attempt, choice.reason)
        ref = choice.checkpoint if isinstance(choice, Chosen) else None
        self._link(ref)
        told, self._adopted = self._adopted, {}
        rescued = told[ref.step] if ref and ref.step in told else "".join(told.values())
        read = self._reading.words_of(ref.path) if ref else ""
        doubt = self._expect_above(ref)
        return ResumeChosen(asked.attempt, ref, choice.reason + read + rescued + undo + doubt, passed)

    def _expect_above(self, ref: CheckpointRef | None) -> str:
        try:
            doubt = self._room.expect_above(ref)
        except StorageUnreadable:
            return ""
        return f"; {doubt}" if doubt else ""

    def _link(self, ref: CheckpointRef | None) -> None:
        try:
            point_resume_link(self._run_directory, ref.path if ref else None)
        except OSError:
            return  # a convenience for people: the ranks are told by their environment

    def _await_save(self, asked_at: float) -> None:
        """This host's clock may be hours wrong, so the stamp of a new file tells the file server's time."""
        try:
            with tempfile.TemporaryFile(dir=self._directory) as file:
                now = os.fstat(file.fileno()).st_ctime
        except OSError:
            now = wall_now()
        self._told_at = now - (steady_now() - asked_at)

    def _look(self, above_step: int) -> Event | None:
        self._looks = 0
        self._figures = self._state_files.newest()
        try:
            self._tell_if_it_began_anew()
            candidate = self._room.newest_valid_above(above_step)
        except StorageUnreadable:
            return None
        for note in set(self._room.notes) - self._told:
            tell("supervisor", note)
            self._told.add(note)
        if candidate is None or candidate.level is None:
            return None
        told = self._told_at is not None and _finished_at(candidate.path) >= self._told_at - CLOCKS_DIFFER_S
        return CheckpointSeen(ref_of(candidate), told)


def _finished_at(path: str) -> float:
    """When the last of it was written or renamed; not st_mtime, which a copy keeps."""
    try:
        if not os.path.isdir(path):
            return os.stat(path).st_ctime
        with os.scandir(path) as entries:
            return max([os.stat(path).st_ctime, *(entry.stat(follow_symlinks=False).st_ctime for entry in entries)])
    except OSError:
        return 0.0


def _again(files_count: int) -> str:
    many = f"{files_count} {'file' if files_count == 1 else 'files'}"
    return f"; {many} of lost nodes rebuilt from parity" if files_count else ""

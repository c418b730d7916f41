"""The checkpoint file system, as values.

``CheckpointFs`` is the truth: committed directories, staging of every attempt, what was set aside. A trainer commits by
writing in its attempt's staging and renaming out of it; sealed staging refuses both. A foreign saver writes under the
final name, so a kill leaves half a checkpoint there. ``SimCheckpoints`` is the port over it, with the real
``core.selection``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gangrun.core.actions import ChooseResume
from gangrun.core.checkpoints.resume import Candidate, Chosen, FromZero, Kind, choose, parse_resume, patience_s, ref_of
from gangrun.core.events import AttemptSealed, CheckpointSeen, NoneValid, ResumeChosen, Stamped, StepBrought
from gangrun.core.model import Level, Poisoned
from gangrun.ports import Item, VerifyAsked
from gangrun.sim.engine.clock import Timeline
from gangrun.sim.engine.disk import Mount
from gangrun.sim.engine.process import SimProcess

ALL_NODES_COUNT = 1_000_000
Name = tuple[int, int]  # (term, attempt)


@dataclass(slots=True)
class Saved:
    """A directory under its final name."""

    step: int
    nonce: str
    name: Name
    at: float
    whole: bool = True  # False: a foreign saver died in the middle of it
    valid: bool = True  # False: torn or flipped since
    staged_for: int = -1  # the attempt whose staging it came from, if not its own: it was in memory meanwhile

    @property
    def counts_for(self) -> int:
        """The attempt whose seal keeps it out."""
        return max(self.name[1], self.staged_for)


@dataclass(slots=True)
class SimStaging:
    """``.gangrun/<run>/<term>/<attempt>-<nonce>/``."""

    sealed: bool = False
    unfinished: set[int] = field(default_factory=set)


@dataclass(slots=True)
class Brought:
    """``.gangrun/<run>/<term>/<attempt>-memory/``: files by step, as nodes wrote them from their memory."""

    attempt: int
    sealed: bool = False
    files: dict[str, set[str]] = field(default_factory=dict)


class CheckpointFs:
    """What is really there, and the rules of the file server: no rename out of a sealed folder, nor onto a name."""

    def __init__(self, timeline: Timeline, *, foreign: bool = False) -> None:
        """Empty. ``foreign``: the script saves under the final name by itself."""
        self.timeline = timeline
        self.foreign = foreign
        self.saved: dict[int, Saved] = {}
        self.staging: dict[Name, SimStaging] = {}
        self.brought: dict[str, Brought] = {}
        self.set_aside: list[Saved] = []
        self.poisoned: set[str] = set()  # nonces that may not come into use again, be they on disk or in memory
        self.ever_valid = False
        self.overwrites = False
        self.modes_bind = True  # False: as root, or on a mount of an object store, chmod keeps nobody out
        self.seals = True  # False: nor does renaming staging away, and only the journal counts
        self.on_commit: Callable[[Saved], None] = lambda saved: None
        self.on_replaced: Callable[[Saved], None] = lambda saved: None
        self.on_moved: Callable[[Name, Saved], None] = lambda name, saved: None
        self.before_move: Callable[[SimProcess], None] = lambda process: None  # a fault may stop the process here
        self._nonces = 0
        self._listed: set[str] = set()
        self._listed_for = self._listed_since = 0

    def open_staging(self, name: Name) -> None:
        """Made by whoever starts the attempt; its ranks never make it."""
        self.staging.setdefault(name, SimStaging())

    def begin(self, name: Name, step: int) -> bool:
        """Begin to write a checkpoint; False where the server refuses."""
        if self.foreign:
            if step in self.saved:
                return False
            self._nonces += 1
            self.saved[step] = Saved(step, f"f{self._nonces}", name, self.timeline.now, whole=False)
            return True
        staging = self.staging.get(name)
        if staging is None or staging.sealed:
            return False
        staging.unfinished.add(step)
        return True

    def commit(self, name: Name, step: int) -> bool:
        """Rename out of staging (or, foreign, close the last file); False where the server refuses."""
        if self.foreign:
            saved = self.saved.get(step)
            if saved is None or saved.name != name or saved.whole:
                return False  # set aside meanwhile: the write hits an inode that nobody reads
            saved.whole = True
        else:
            staging = self.staging[name]
            if staging.sealed or step not in staging.unfinished or (step in self.saved and not self.overwrites):
                return False
            if step in self.saved:
                self.on_replaced(self.saved[step])
            staging.unfinished.discard(step)
            self._nonces += 1
            saved = self.saved[step] = Saved(step, f"n{self._nonces}", name, self.timeline.now)
        self.ever_valid = True
        self.on_commit(saved)
        return True

    def seal(self, name: Name) -> None:
        """Seal staging of every earlier (term, attempt)."""
        older: list[SimStaging | Brought] = [staging for other, staging in self.staging.items() if other < name]
        older += [brought for brought in self.brought.values() if brought.attempt < name[1]]
        for staging in older:
            staging.sealed = staging.sealed or (self.seals and self.modes_bind)
            if not self.keeps_out(staging):
                staging.sealed = self.seals  # renamed away: a late rename finds nothing

    def keeps_out(self, staging: SimStaging | Brought) -> bool:
        """What a trial shows: can nothing be made in there any more?"""
        return staging.sealed

    def bring(self, path: str, files: Collection[str]) -> str:
        """A node writes its part of a step; "" or why not."""
        base, _, step = path.rpartition("/")
        if base not in self.brought or self.brought[base].sealed:
            return "No such file or directory"
        self.brought[base].files.setdefault(step, set()).update(files)
        return ""

    def adopt(self, path: str, step: int, nonce: str, name: Name, files_count: int) -> str:
        """Rename out of there what is whole; "" or why not."""
        base, _, own = path.rpartition("/")
        staging = self.brought.get(base)
        if staging is None:
            return "No such file or directory"
        if staging.sealed:
            return "Permission denied"
        if step in self.saved:
            return f"step {step} stands on disk already"
        if len(staging.files.pop(own, ())) != files_count:
            return "a file is missing"
        saved = self.saved[step] = Saved(step, nonce, name, self.timeline.now, staged_for=staging.attempt)
        self.ever_valid = True
        self.on_commit(saved)
        return ""

    def discard(self, path: str, *, more: bool = False) -> None:
        """What was brought there goes, and the staging with the last of it; never out of a sealed one."""
        base, _, own = path.rpartition("/")
        staging = self.brought.get(base)
        if staging is None or staging.sealed:
            return
        staging.files.pop(own, None)
        if not more and not staging.files:
            del self.brought[base]

    def list_commits(self, attempt: int) -> list[Saved]:
        """What stands as ``attempt`` begins: all that was listed before, and the commits of attempts since then.

        What an older attempt commits after its own list was made is in no list. (The lists are the journal's.) A new
        supervisor lists for the same attempt once more, after what it has brought.
        """
        if attempt > self._listed_for:
            self._listed_since, self._listed_for = self._listed_for, attempt
        found = [s for s in self.saved.values() if s.nonce in self._listed or s.counts_for >= self._listed_since]
        self._listed |= {saved.nonce for saved in found}
        return found

    def newest_valid(self, but: Collection[str] = ()) -> Saved | None:
        """What an all-knowing reader would resume from; ``but`` are nonces that do not count."""
        good = [saved for saved in self.saved.values() if saved.whole and saved.valid and saved.nonce not in but]
        return max(good, key=lambda saved: saved.step, default=None)

    def damage_of(self, path: str, nonce: str) -> str:
        """What a reader finds wrong with that save; "": nothing."""
        saved = self.saved.get(int(path.rpartition("-")[2]))
        if saved is None or saved.nonce != nonce:
            return "another save is there"
        return "" if saved.whole and saved.valid else "a checksum does not hold"

    def damage(self) -> None:
        """The newest one is no longer what was written."""
        newest = self.newest_valid()
        if newest is not None:
            newest.valid = False


class SharedRead:
    """One save that is read by all nodes: what others did not read takes this host as long again."""

    def __init__(self, checkpoints: SimCheckpoints, then: Callable[[], None]) -> None:
        """``then``: all of it was read."""
        self._checkpoints, self._then = checkpoints, then
        self._left: set[int] = set()
        self._unread_count = 0
        self._own_read = self._over = False

    def dealt(self, share: int, others: Mapping[int, str]) -> None:
        """This host reads its share too."""
        del share
        self._left = set(others)
        self._checkpoints.later(self._has_read, self._checkpoints.verify_s)

    def _has_read(self) -> None:
        self._own_read = True
        self._checkpoints.later(self._end, patience_s(self._checkpoints.verify_s))
        self._end_if_read()

    def read(self, share: int, why: str) -> None:
        """Another node's share."""
        self._left.discard(share)
        self._unread_count += bool(why)
        self._end_if_read()

    def _end_if_read(self) -> None:
        if self._own_read and not self._left:
            self._end()

    def _end(self) -> None:
        if self._over or not self._checkpoints.reads(self):
            return
        self._over = True
        self._checkpoints.later(self._then, self._checkpoints.verify_s * (self._unread_count + len(self._left)))

    def is_over(self) -> bool:
        """No other node is waited for."""
        return self._over


class SimCheckpoints:
    """The ``Checkpoints`` port of one supervisor."""

    verify_s = 0.05

    def __init__(
        self, fs: CheckpointFs, mount: Mount, process: SimProcess, term: int, post: Callable[[Item], None]
    ) -> None:
        """``post`` puts an item into the loop's mailbox."""
        self.fs = fs
        self.mount = mount
        self.process = process
        self.term = term
        self.post = post
        self.timeline = mount.timeline
        self._told_at: float | None = None
        self._made: set[str] = set()
        self.reads_together = False  # all nodes read the newest one before one is chosen
        self._reading: SharedRead | None = None
        self.names: Mapping[str, tuple[Name, int]] = {}  # of steps in memory, by nonce: whose, and of how many files
        self.on_act: Callable[[str, int], None] = lambda what, attempt: None
        self.on_choice: Callable[[Name, Saved | None, bool, bool], None] = lambda name, saved, told_so, back: None

    def reads(self, reading: SharedRead) -> bool:
        """Is this the newest reading? Nothing follows from the end of an older one."""
        return reading is self._reading

    def later(self, work: Callable[[], None], extra_s: float = 0.0) -> None:
        """Off the loop, after the storage answers, if the process lives and is awake then."""
        self.timeline.at(self.mount.ready_at() + extra_s, lambda: self.process.when_awake(work))

    def _mail(self, event: AttemptSealed | ResumeChosen | NoneValid | CheckpointSeen | StepBrought) -> None:
        self.post(Stamped(event))

    def prepare(self, staging: str) -> None:
        """Made by the supervisor alone, and empty: ``TERM/ATTEMPT``."""
        self._made.discard(staging)

        def work() -> None:
            old = self.fs.brought.get(staging)
            if old is None or not old.sealed:
                self.fs.brought[staging] = Brought(int(staging.partition("/")[2]))
            self._made.add(staging)

        self.later(work)

    def prepared(self, staging: str) -> bool:
        """Is it there?"""
        return staging in self._made

    def discard(self, path: str, *, more: bool = False) -> None:
        """When the storage answers, while nodes write on."""
        self.later(lambda: self.fs.discard(path, more=more))

    def adopt(self, path: str, attempt: int, step: int, nonce: str, nodes: Sequence[str], rebuilt_count: int) -> None:
        """If it is whole and nobody has sealed it."""
        del rebuilt_count

        def work() -> None:
            name, files_count = self.names[nonce]
            why = self.fs.adopt(path, step, nonce, name, files_count)
            self.fs.discard(path)
            self._mail(StepBrought(attempt, step, tuple(nodes), why))

        self.later(work)

    def seal(self, attempt: int) -> None:
        """Seal, then list what stands."""
        self.process.boundary(f"before seal of {attempt}")
        self.on_act("seal", attempt)

        def work() -> None:
            self.fs.seal((self.term, attempt))
            commits = tuple((s.step, s.nonce) for s in sorted(self.fs.list_commits(attempt), key=lambda s: s.step))
            self._mail(AttemptSealed(attempt, commits))

        self.later(work)

    def choose(self, asked: ChooseResume, sealed: Sequence[tuple[int, str]]) -> None:
        """Judge, choose with the real rule, set aside what is in the way."""
        attempt, request, best_step = asked.attempt, asked.request, asked.best_step
        self.process.boundary(f"before choice of {attempt}")
        self._told_at = None
        self.on_act("choose", attempt)
        known = frozenset(sealed)

        def work() -> None:
            back = self._put_back(asked.put_back)
            bad = self._condemned(asked.condemned) if asked.condemned else set()
            found = [replace(one, valid=one.valid and one.nonce not in bad) for one in self.candidates()]
            choice = choose(found, parse_resume(request), journal_best_step=best_step, sealed=known | back)
            saved = self.fs.saved.get(choice.checkpoint.step) if isinstance(choice, Chosen) else None
            if not isinstance(choice, (Chosen, FromZero)):
                self._mail(NoneValid(attempt, choice.reason))
                return
            self.fs.poisoned |= bad
            above_step = saved.step if saved else -1
            judged = [replace(one) for one in self.fs.saved.values() if one.step > above_step]

            def make_way() -> None:
                if why := self._make_way(attempt, judged):
                    self._mail(NoneValid(attempt, why, storage=True))
                    return
                self.fs.open_staging((self.term, attempt))
                self.on_choice((self.term, attempt), saved, request != "auto", asked.condemned is not None)
                passed = tuple((p.step, p.why) for p in choice.passed_over)
                checkpoint = choice.checkpoint if isinstance(choice, Chosen) else None
                self._mail(ResumeChosen(attempt, checkpoint, choice.reason, passed))

            if judged:
                self.fs.before_move(self.process)
            self.process.when_awake(make_way)

        newest = max(self.fs.saved.values(), key=lambda saved: saved.step, default=None)
        if self.reads_together and newest is not None:
            self._reading = SharedRead(self, lambda: self.later(work, self.verify_s))
            path = f"/ckpt/step-{newest.step}"
            reading = self._reading
            self.post(VerifyAsked(path, newest.nonce, ALL_NODES_COUNT, reading.dealt, reading.read, reading.is_over))
        else:
            self.later(work, self.verify_s)

    def candidates(self) -> list[Candidate]:
        """What a survey finds."""
        kind = Kind.CUSTOM if self.fs.foreign else Kind.GANGRUN
        found = []
        for saved in self.fs.saved.values():
            valid = saved.whole and saved.valid
            found.append(
                Candidate(
                    step=saved.step,
                    path=f"/ckpt/step-{saved.step}",
                    level=Level.VERIFIED if valid else None,
                    valid=valid,
                    why_not="" if valid else "a checksum does not hold",
                    kind=kind,
                    committed=saved.whole,
                    nonce=saved.nonce,
                )
            )
        return found

    def _condemned(self, poison: Poisoned) -> set[str]:
        """What is on disk of that state, and what whoever loaded it last has in memory."""
        kept = {nonce for nonce, ((_, attempt), _) in self.names.items() if attempt == poison.attempt}
        return kept | {saved.nonce for saved in self.fs.saved.values() if saved.step >= poison.first_step}

    def put_back(self, paths: Sequence[str]) -> None:
        """Off the loop, as all is done."""

        def work() -> None:
            self._put_back(paths)

        if paths:
            self.later(work)

    def _put_back(self, paths: Sequence[str]) -> set[tuple[int, str]]:
        back = set()
        for step in (int(path.rpartition("-")[2]) for path in paths):
            saved = next((one for one in reversed(self.fs.set_aside) if one.step == step), None)
            if saved is not None and step not in self.fs.saved:
                self.fs.set_aside.remove(saved)
                self.fs.saved[step] = saved
                self.fs.poisoned.discard(saved.nonce)
                back.add((step, saved.nonce))
        return back

    def _make_way(self, attempt: int, judged: Sequence[Saved]) -> str:
        """Move what was judged, and nothing that has taken its name since; "" or what is wrong."""
        for one in judged:
            found = self.fs.saved.get(one.step)
            if found is None:
                continue
            if not self.is_as_judged(found, one):
                return f"/ckpt/step-{one.step} was replaced by another save after gangrun had judged it"
            self.fs.on_moved((self.term, attempt), found)
            self.fs.set_aside.append(self.fs.saved.pop(one.step))
        return ""

    def is_as_judged(self, found: Saved, judged: Saved) -> bool:
        """The same directory, and as far written."""
        return (found.nonce, found.whole) == (judged.nonce, judged.whole)

    def await_save(self) -> None:
        """What is whole by now was not saved because ranks were told to."""
        self._told_at = self.timeline.now

    def figures(self) -> None:
        """Ranks report their steps."""

    def look(self, above_step: int) -> None:
        """Is there a newer valid one?"""

        def work() -> None:
            newest = self.fs.newest_valid()
            if newest is not None and newest.step > above_step:
                told = self._told_at is not None and newest.at >= self._told_at
                found = next(one for one in self.candidates() if one.step == newest.step)
                self._mail(CheckpointSeen(ref_of(found), told))

        self.later(work)

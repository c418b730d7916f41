"""Which checkpoint the next attempt resumes from.

Values in, a choice and a sentence out: no files, no clock. ``checkpoint.store`` gathers the candidates and acts on the
choice. The one rule above all: a run that ever committed a checkpoint never starts again from zero by itself.

Also here: how several readers share the verification of one checkpoint. Each reader works out its own share from the
same list, so only the list has to be agreed on. Shares are runs of neighbours, since storage likes to be read in order.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from gangrun.core.model import CheckpointRef, Level, Savers
from gangrun.core.text import is_save_time, known_step, step_words

SENTENCE_NAMES_COUNT = 3  # a reason names this many passed-over steps; ``passed_over`` has all of them
SHOWN_MAX_COUNT = 500


class Kind(Enum):
    """In which format a step directory is written."""

    DCP = "dcp"  # torch.distributed.checkpoint, plain
    GANGRUN = "gangrun"  # the same with gangrun's manifest; counts only if its commit was sealed
    FILE = "file"  # one that the script overwrites with each save
    FRAMEWORK = "framework"  # a directory that a framework fills, as a table of facts about it tells
    SAFETENSORS = "safetensors"  # Hugging Face's; has no checksums
    CUSTOM = "custom"  # gangrun does not know it; the user's own validator vouches for it
    UNKNOWN = "unknown"  # never touched, never chosen, always mentioned


_SAVERS = {
    **dict.fromkeys((Kind.DCP, Kind.FRAMEWORK), Savers.ALL),
    **dict.fromkeys((Kind.FILE, Kind.SAFETENSORS, Kind.CUSTOM), Savers.RANK0),
    Kind.GANGRUN: Savers.CHECKPOINTER,
}


@dataclass(frozen=True, slots=True)
class Candidate:
    """One step directory as it was found."""

    step: int
    path: str
    level: Level | None  # None: nothing is proven
    valid: bool  # may be resumed from
    why_not: str = ""  # why it is not valid; of a valid one, why it is not verified
    kind: Kind = Kind.DCP
    committed: bool = True  # False: unfinished, which is not a checkpoint
    nonce: str | None = None  # tells two saves of the same step apart
    judged: bool = True  # False: whole by its structure, its bytes were not read because nobody needed to know
    unreadable: bool = False  # the storage refused to show it: nothing can be told about its content


class ResumeKind(Enum):
    """The four things a user may ask for."""

    AUTO = "auto"
    NONE = "none"
    STEP = "step"
    PATH = "path"


@dataclass(frozen=True, slots=True)
class ResumeRequest:
    """What the user wants: ``--resume auto|none|STEP|PATH``."""

    kind: ResumeKind = ResumeKind.AUTO
    step: int = -1
    path: str = ""


@dataclass(frozen=True, slots=True)
class PassedOver:
    """One that was not chosen, and why not."""

    step: int
    path: str
    why: str


@dataclass(frozen=True, slots=True)
class Chosen:
    """Resume from this one."""

    checkpoint: CheckpointRef
    reason: str
    passed_over: tuple[PassedOver, ...] = ()
    nonce: str | None = None


@dataclass(frozen=True, slots=True)
class FromZero:
    """Give the script no checkpoint: the user said so, or gangrun knows of none that was ever committed."""

    reason: str
    passed_over: tuple[PassedOver, ...] = ()


@dataclass(frozen=True, slots=True)
class NothingValid:
    """Stop the run: there is, or was, something to resume from, and none of it may be used."""

    reason: str
    passed_over: tuple[PassedOver, ...] = ()


Choice = Chosen | FromZero | NothingValid


def parse_resume(text: str) -> ResumeRequest:
    """Read ``auto``, ``none``, a step in ASCII digits, or a path; raises ValueError with words for an empty one."""
    if text in ("auto", "none"):
        return ResumeRequest(ResumeKind(text))
    if re.fullmatch("[0-9]+", text):
        return ResumeRequest(ResumeKind.STEP, step=int(text))
    if not text or "\0" in text:
        raise ValueError("resume wants auto, none, a step number or the path of a checkpoint directory")
    return ResumeRequest(ResumeKind.PATH, path=text)


def choose(
    candidates: Iterable[Candidate],
    wanted: ResumeRequest,
    *,
    journal_best_step: int = -1,
    sealed: frozenset[tuple[int, str]] | None = None,
    ignored: frozenset[tuple[int, str | None]] = frozenset(),
    unjudged: str = "",
) -> Choice:
    """Pick the resume point.

    ``journal_best_step``: the highest step the run's journal knows as valid, -1 for none. ``sealed``: the (step, nonce)
    commits known to the journal, outside of which no gangrun checkpoint counts; None where that is not kept.
    ``ignored``: (step, nonce) of checkpoints that an earlier explicit request of this run put out of use.
    ``unjudged``: what else is in the directory, in words, if anything is.
    """
    newest_first = sorted(candidates, key=lambda c: (c.step, -len(c.path), c.path), reverse=True)
    match wanted.kind:
        case ResumeKind.NONE:
            return _asked_for_zero(newest_first)
        case ResumeKind.STEP | ResumeKind.PATH:
            return _requested(newest_first, wanted, sealed, unjudged)
        case ResumeKind.AUTO:  # pragma: no branch - the enum has no other member
            return _newest_valid(newest_first, journal_best_step, sealed, ignored, unjudged)


def _asked_for_zero(newest_first: list[Candidate]) -> FromZero:
    passed = tuple(PassedOver(c.step, c.path, "the user asked to start from the beginning") for c in newest_first)
    committed = sum(c.committed for c in newest_first)
    left = f"; {_count(committed, 'checkpoint')} found and left alone" if committed else ""
    return FromZero(f"starting from the beginning, as asked (resume none){left}", passed)


def _requested(
    newest_first: list[Candidate],
    wanted: ResumeRequest,
    sealed: frozenset[tuple[int, str]] | None,
    unjudged: str,
) -> Chosen | NothingValid:
    by_step = wanted.kind is ResumeKind.STEP
    named = f"step {wanted.step}" if by_step else shown(wanted.path)
    found = [c for c in newest_first if (c.step == wanted.step if by_step else c.path == wanted.path)]
    refused: list[PassedOver] = []
    for candidate in found:
        why = _refusal(candidate, sealed)
        if not why:
            level = _level_words(candidate)
            reason = f"resuming from {_origin_words(candidate.step)}, as asked: {level}"
            return Chosen(ref_of(candidate), reason, (), candidate.nonce)
        refused.append(PassedOver(candidate.step, candidate.path, why))
    if refused:
        return NothingValid(f"cannot resume from {named}, as asked: {refused[0].why}", tuple(refused))
    steps = [c.step for c in newest_first if c.committed]
    there = f"the committed steps are {_steps(steps)}" if steps else "no committed checkpoint exists"
    return NothingValid(f"cannot resume from {named}, as asked: it does not exist; {there}{_besides(unjudged)}")


def _newest_valid(
    newest_first: list[Candidate],
    journal_best_step: int,
    sealed: frozenset[tuple[int, str]] | None,
    ignored: frozenset[tuple[int, str | None]],
    unjudged: str,
) -> Choice:
    passed: list[PassedOver] = []
    in_use = []
    for candidate in newest_first:
        if (candidate.step, candidate.nonce) in ignored:
            why = "ruled out by an earlier resume request of this run"
        else:
            in_use.append(candidate)
            why = _refusal(candidate, sealed)
        if not why:
            origin = _origin_words(candidate.step)
            reason = f"resuming from {origin}: {_level_words(candidate)}{_passed_words(passed)}"
            return Chosen(ref_of(candidate), reason, tuple(passed), candidate.nonce)
        passed.append(PassedOver(candidate.step, candidate.path, why))
    return _nothing_valid(in_use, passed, journal_best_step, unjudged)


def _nothing_valid(
    in_use: list[Candidate], passed: list[PassedOver], best_step: int, unjudged: str
) -> FromZero | NothingValid:
    committed = [c for c in in_use if c.committed]
    if committed:
        of_these = [p for p in passed if any(p.path == c.path for c in committed)]
        head = f"none of {len(committed)} committed checkpoints may be resumed from"
        head = head if len(committed) > 1 else "the only committed checkpoint may not be resumed from"
        return NothingValid(f"{head}{_passed_words(of_these)}; not starting again from zero", tuple(passed))
    if best_step >= 0:
        head = f"{step_words(best_step)} was committed according to the journal but no committed checkpoint exists now"
        words = f"{head}{_passed_words(passed)}{_besides(unjudged)}; not starting again from zero"
        return NothingValid(words, tuple(passed))
    if unjudged or any(c.kind is Kind.UNKNOWN for c in in_use):
        strange = f": {unjudged}" if unjudged else ", whose format gangrun does not know"
        reason = f"the script itself decides what to load{strange}{_passed_words(passed)}"
        return FromZero(reason, tuple(passed))
    return FromZero(
        f"starting from the beginning: no checkpoint was ever committed{_passed_words(passed)}", tuple(passed)
    )


def _besides(unjudged: str) -> str:
    return f"; {unjudged}" if unjudged else ""


def _refusal(candidate: Candidate, sealed: frozenset[tuple[int, str]] | None) -> str:
    """Why it may not be resumed from; "" when it may."""
    if candidate.kind is Kind.UNKNOWN:
        return candidate.why_not or "its format is unknown"
    if not candidate.committed:
        return candidate.why_not or "unfinished (never committed)"
    nameless = candidate.nonce is None and not candidate.valid  # so damaged that nobody can tell which commit it was
    if not nameless and not is_listed(candidate, sealed):
        return "its commit is not in the journal: a late write of an attempt that was already over"
    if not candidate.valid:
        return candidate.why_not or "it was not found valid"
    return ""


def is_listed(candidate: Candidate, sealed: frozenset[tuple[int, str]] | None) -> bool:
    """Whether its commit stood when older attempts were sealed; asked of gangrun's own only. None: there is no list."""
    return candidate.kind is not Kind.GANGRUN or sealed is None or (candidate.step, candidate.nonce or "") in sealed


def ref_of(candidate: Candidate) -> CheckpointRef:
    """What the run's state keeps of it."""
    level = candidate.level or Level.COMPLETE
    return CheckpointRef(candidate.step, candidate.path, level, _SAVERS.get(candidate.kind))


def _origin_words(step: int) -> str:
    return f"{step_words(step)}{' (step not known)' if is_save_time(step) else ''}"


def _level_words(candidate: Candidate) -> str:
    if candidate.level is Level.VERIFIED:
        return "; ".join(filter(None, ("verified, every checksum holds", candidate.why_not)))
    return f"complete but not verified ({candidate.why_not or 'its format has no checksums'})"


def _passed_words(passed: list[PassedOver]) -> str:
    if not passed:
        return ""
    told = "; ".join(f"{step_words(p.step)}: {p.why}" for p in passed[:SENTENCE_NAMES_COUNT])
    rest = len(passed) - SENTENCE_NAMES_COUNT
    return f" (passed over: {told}{f'; and {rest} more' if rest > 0 else ''})"


def _steps(steps: list[int]) -> str:
    told = ", ".join(str(s) if known_step(s) == s else step_words(s) for s in steps[:SENTENCE_NAMES_COUNT])
    rest = len(steps) - SENTENCE_NAMES_COUNT
    return f"{told} and {rest} more" if rest > 0 else told


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def shown(text: str) -> str:
    """A name from disk or from a user as it may stand in a sentence: one line, printable, of bounded length."""
    if len(text) > SHOWN_MAX_COUNT:
        text = text[:SHOWN_MAX_COUNT] + "..."
    return text if text.isprintable() else ascii(text)


PATIENCE_TIMES = 2.0  # of what the first reader took for its own share
PATIENCE_MIN_S = 10.0


def readers_max_count(total_bytes: int, share_bytes: int) -> int:
    """So many at most are worth asking: each reads at least a share. 0: it is not to be shared."""
    return max(1, total_bytes // share_bytes) if share_bytes else 1


def far_share(place: int, readers_count: int) -> int:
    """Which share the reader at this place takes: from half way round, so that it is not what this one wrote itself.

    That may still be in its own cache, which would prove nothing about what the storage has.
    """
    return (place + readers_count // 2) % readers_count


def patience_s(own_s: float) -> float:
    """How much longer the others are waited for by one who took so long for its own share."""
    return max(PATIENCE_MIN_S, PATIENCE_TIMES * own_s)


def share_of(sizes: Sequence[int], reader: int, readers_count: int) -> range:
    """Which of the pieces of these sizes (bytes) this reader reads: all shares together are all pieces, each once.

    No share is larger than its part of the whole by more than one piece.
    """
    total = sum(sizes)
    first = _cut(sizes, total * reader, readers_count)
    return range(first, _cut(sizes, total * (reader + 1), readers_count) if reader + 1 < readers_count else len(sizes))


def _cut(sizes: Sequence[int], wanted: int, readers_count: int) -> int:
    """The first piece that begins at or after ``wanted / readers_count`` bytes."""
    before = 0
    for number, size in enumerate(sizes):
        if before * readers_count >= wanted:
            return number
        before += size
    return len(sizes)

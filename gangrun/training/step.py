"""``gangrun.step()``: a training script says where it is and hears what is asked of it.

No system call, no torch, no lock: a few words in mapped memory, under a microsecond. Outside gangrun, in forked or
spawned children (DataLoader workers) and where the slot cannot be had, every function here does nothing.

    for step in range(first, last):
        loss = train(step)
        asked = gangrun.step(step, loss)
        if asked.checkpoint:
            save(step)
        if asked.stop:
            break
"""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic_ns, sleep  # the clock is what a slot holds; a port would cost half of the microsecond
from typing import Any, SupportsFloat, SupportsIndex

from gangrun.training.environment import attempt, follows_rank_of_node, slot_path
from gangrun.training.integrations import mark_restart
from gangrun.wire import progress
from gangrun.wire.progress import StepRequest, TrainingPhase

HOLD_LOOKS_S = 0.001
_STOPS = StepRequest.STOP_AFTER_STEP | StepRequest.STOP
PHASES: dict[object, int] = {
    **{phase: int(phase) for phase in TrainingPhase},
    **{phase.name.lower(): int(phase) for phase in TrainingPhase},
}


@dataclass(frozen=True, slots=True)
class Requests:
    """What gangrun asks for after this step: ``stop`` and ``checkpoint``."""

    stop: bool = False
    save: bool = False

    @property
    def checkpoint(self) -> bool:
        """Whether to save now; true once for each request, on all ranks at the same step.

        A script that reads it saves when asked: from then on a stop that leaves time waits for that save.
        """
        if _state is not None and not _state.reads:
            save_on_stop()
        return self.save

    def __bool__(self) -> bool:
        return self.stop or self.checkpoint


_LOSSES = ("loss", "train_loss", "train/loss", "training_loss")
_GRAD_NORMS = ("grad_norm", "train/grad_norm", "gradient_norm")
NOTHING = Requests()
Report = Callable[[SupportsIndex, "SupportsFloat | None", "SupportsFloat | None", object], Requests]


def _report_nothing(*_: object) -> Requests:
    return NOTHING


class _State:
    """This process's end of its slot; ``words`` None means that there is none."""

    def __init__(self, words: progress.Words | None) -> None:
        self.words = words
        self.told = 0  # newest generation of a checkpoint request that the script was told of
        self.told_at = -1  # at this step
        self.pending = False  # told, and not yet known to be done
        self.held = False  # a Checkpointer says itself when it is done, which the next step does not say
        self.findings: dict[str, bytes] = {}  # of checks in this script
        self.reads = False  # the script reads requests to save, and the agent was told so
        self.report: Report = _report_nothing if words is None else _first_reporter(words, self)

    def handled(self) -> None:
        """What the script was told of is done."""
        if self.words is not None and self.pending:
            saved = self.words.ints[progress.W_STEP] if self.held else self.told_at
            self.words.ints[progress.W_SAVED] = saved + 1
            self.words.ints[progress.W_HANDLED] = self.told
            self.pending = False

    def tell(self, generation: int) -> bool:
        """Note that the script is told of this request; False if it was before."""
        if generation <= self.told or self.words is None:
            return False
        if not self.told:
            atexit.register(self._left)
        self.told, self.told_at, self.pending = generation, self.words.ints[progress.W_STEP], True
        return True

    def _left(self) -> None:
        """A script that leaves its loop after the save makes no next step; one that failed may have failed to save."""
        if not self.held and getattr(sys, "last_value", None) is None:
            self.handled()


def _number(value: SupportsFloat) -> float:
    """As a float; a tensor is detached first, since torch warns of one that requires a gradient."""
    detach = getattr(value, "detach", None)
    return float(value if detach is None else detach())


def _first_reporter(words: progress.Words, state: _State) -> Report:
    """Serves one call: a run that was to resume and began again is known by the very first step, which a beat of once a
    second would miss.
    """
    report = _reporter(words, state)

    def first(
        step: SupportsIndex, loss: SupportsFloat | None, grad_norm: SupportsFloat | None, phase: object
    ) -> Requests:
        if words.ints[progress.W_FIRST_STEP] < 0:
            words.ints[progress.W_FIRST_STEP] = step  # type: ignore[call-overload]  # anything with __index__
            if (restarts_count := attempt()) > 0:
                mark_restart(restarts_count, words.ints[progress.W_FIRST_STEP])
        requests = report(step, loss, grad_norm, phase)
        state.report = report
        return requests

    return first


def _reporter(words: progress.Words, state: _State) -> Report:
    """The hot path, with everything it needs in a closure: attribute look-ups would cost a third of it."""
    ints, floats = words.ints, words.floats
    seq = (ints[progress.W_SEQ] + 1) & ~1
    asked_before, again = 0, NOTHING
    w_seq, w_step, w_phase, w_at = progress.W_SEQ, progress.W_STEP, progress.W_PHASE, progress.W_AT
    w_requests, w_loss, w_grad_norm = progress.W_REQUESTS, progress.W_LOSS, progress.W_GRAD_NORM

    def report(
        step: SupportsIndex, loss: SupportsFloat | None, grad_norm: SupportsFloat | None, phase: object
    ) -> Requests:
        nonlocal seq, asked_before, again
        code = PHASES[phase]
        ints[w_seq] = seq + 1
        ints[w_step] = step  # type: ignore[call-overload]  # anything with __index__
        ints[w_phase] = code
        ints[w_at] = monotonic_ns()
        if loss is not None or grad_norm is not None:
            told_loss = told_norm = None
            if loss is not None:  # a float, as it nearly always is, costs one comparison
                floats[w_loss] = told_loss = loss if loss.__class__ is float else _number(loss)
            if grad_norm is not None:
                floats[w_grad_norm] = told_norm = grad_norm if grad_norm.__class__ is float else _number(grad_norm)
            words.report(ints[w_step], told_loss, told_norm)
        seq += 2
        ints[w_seq] = seq
        asked = ints[w_requests]
        if state.pending and not state.held:
            state.handled()
        if asked == asked_before:
            return again
        if asked & StepRequest.HOLD:
            asked = _wait_for_next(ints, asked)
        if ints[w_step] < ints[progress.W_SAVE_STEP] and not asked & StepRequest.STOP:
            return again  # ranks may hear of it at different steps, and all of them have to save the same one
        asked_before = asked
        again = Requests(stop=bool(asked & _STOPS))
        save = bool(asked & StepRequest.CHECKPOINT_NOW) and state.tell(asked >> progress.GENERATION_SHIFT)
        return Requests(stop=again.stop, save=True) if save else again

    return report


def _wait_for_next(ints: Any, asked: int) -> int:
    """The request after this one, or this one if none comes in time: whoever was to choose a step is gone."""
    until = monotonic_ns() + int(progress.HOLD_MAX_S * 1e9)
    while ints[progress.W_REQUESTS] == asked and monotonic_ns() < until:
        sleep(HOLD_LOOKS_S)
    return int(ints[progress.W_REQUESTS])


_state: _State | None = None


def _attach() -> _State:
    """Find out once whether there is a slot and whether it is ours."""
    global _state  # noqa: PLW0603 - one per process, as a slot is
    _state = _State(_open_slot())
    return _state


def _open_slot() -> progress.Words | None:
    path = slot_path()
    if not path or _is_worker():
        return None
    try:
        words = progress.attach(path)
    except (OSError, ValueError):
        return None
    if follows_rank_of_node():
        return progress.FollowerWords(words)
    owner = words.ints[progress.W_OWNER]
    if owner not in (0, os.getpid()) and Path(f"/proc/{owner}").exists():
        words.close()  # another process of this rank reports
        return None
    words.ints[progress.W_OWNER] = os.getpid()
    return words


def _is_worker() -> bool:
    """Whether multiprocessing started this process: the slot is its parent's."""
    process = sys.modules.get("multiprocessing.process")
    return process is not None and process.parent_process() is not None


def _after_fork_in_child() -> None:
    global _state  # noqa: PLW0603
    _state = _State(None)


os.register_at_fork(after_in_child=_after_fork_in_child)


def step(
    step: SupportsIndex,
    loss: SupportsFloat | None = None,
    grad_norm: SupportsFloat | None = None,
    phase: TrainingPhase | str = TrainingPhase.TRAIN,
    tokens: int | None = None,
) -> Requests:
    """Report that a step is done, and learn whether to save or stop. Costs under a microsecond.

    Each rank calls it after each step, from one thread. Outside gangrun it does nothing.

    Args:
        step: Number of the step, counted over the whole run.
        loss: Shown by ``gangrun status``, and watched for NaN and other anomalies; default None. A
            tensor may require a gradient: its graph is not kept. A tensor on a GPU makes this
            call wait for the GPU, so give a number that you have anyway.
        grad_norm: As ``loss``.
        phase: "train" (the default), "eval", "checkpoint" or "startup". A long evaluation that calls
            ``step(n, phase="eval")`` is not taken for a hang.
        tokens: That the whole run has trained on; default None: not told.

    Returns:
        ``stop`` (leave the loop; stays true) and ``checkpoint`` (save now; true once for each request). Both become
        true on all ranks at the same step.

    Raises:
        KeyError: ``phase`` is none of these.
        TypeError: ``step`` or ``loss`` is no number.
    """
    state = _state or _attach()
    if tokens is not None and state.words is not None:
        state.words.ints[progress.W_TOKENS] = max(0, tokens)
    return state.report(step, loss, grad_norm, phase)


def report_figures(
    *,
    loss: float | None = None,
    grad_norm: float | None = None,
    total_steps: int | None = None,
    tokens: int | None = None,
) -> None:
    """Tell figures apart from a step; None says nothing. Totals are of the whole run."""
    words = (_state or _attach()).words
    if words is None:
        return
    for word, number in ((progress.W_LOSS, loss), (progress.W_GRAD_NORM, grad_norm)):
        if number is not None:
            words.floats[word] = number
    if loss is not None or grad_norm is not None:
        words.report(words.ints[progress.W_STEP], loss, grad_norm)
    for word, count in ((progress.W_TOTAL_STEPS, total_steps), (progress.W_TOKENS, tokens)):
        if count is not None:
            words.ints[word] = max(0, count)


def report_logged(values: Mapping[str, Any], tokens: int | None = None) -> None:
    """Tell gangrun of the loss and the gradient norm among what a script logs, by their usual names."""
    report_figures(loss=_first(values, _LOSSES), grad_norm=_first(values, _GRAD_NORMS), tokens=tokens)


def _first(values: Mapping[str, Any], names: tuple[str, ...]) -> float | None:
    for name in names:
        try:
            return float(values[name])
        except (KeyError, TypeError, ValueError, RuntimeError):
            continue  # missing, or no single number
    return None


def mark_phase(phase: TrainingPhase | str) -> None:
    """Say what begins now, without a step: ``mark_phase("eval")`` before a long evaluation."""
    words = (_state or _attach()).words
    if words is not None:
        words.ints[progress.W_PHASE] = PHASES[phase]


@contextmanager
def phase(name: TrainingPhase | str) -> Iterator[None]:
    """Say what the script does in this block; afterwards it is what it was before. Costs about a microsecond.

        with gangrun.phase("eval"):
            evaluate(model)

    ``gangrun status`` shows the phase, and the hang watch does not take a long evaluation or save for a hang. A call of
    ``gangrun.step`` in the block says its own phase. Outside gangrun it does nothing.

    Args:
        name: "train", "eval", "checkpoint" or "startup".

    Raises:
        KeyError: ``name`` is none of these.
    """
    code, words = PHASES[name], (_state or _attach()).words
    if words is None:
        yield
        return
    before = words.ints[progress.W_PHASE]
    words.ints[progress.W_PHASE] = code
    try:
        yield
    finally:
        words.ints[progress.W_PHASE] = before


def should_stop() -> bool:
    """Whether to leave the loop now; stays true."""
    words = (_state or _attach()).words
    return words is not None and bool(words.ints[progress.W_REQUESTS] & _STOPS)


def should_checkpoint() -> bool:
    """Whether a checkpoint is asked for; true until the next ``step()`` or ``checkpoint_saved()``."""
    state = _state or _attach()
    if state.words is None:
        return False
    asked = state.words.ints[progress.W_REQUESTS]
    generation = asked >> progress.GENERATION_SHIFT
    if not asked & StepRequest.CHECKPOINT_NOW or generation <= state.words.ints[progress.W_HANDLED]:
        return False
    state.tell(generation)
    return True


def checkpoint_saved() -> None:
    """Say that the checkpoint asked for is written; the next ``step()`` says it too."""
    (_state or _attach()).handled()


def step_in_memory(step: int, losses_count: int) -> None:
    """Say that this step is whole in the nodes' memory, and stays so when that many nodes are lost."""
    words = (_state or _attach()).words
    if words is not None:
        words.ints[progress.W_KEPT_LOSSES] = losses_count
        words.ints[progress.W_KEPT] = step + 1


def report_finding(name: str, finding: bytes) -> None:
    """Tell gangrun what a check in this script found: a field of ``evidence.SelfChecks``, and its value as JSON."""
    state = _state or _attach()
    if state.words is not None and not follows_rank_of_node():
        state.findings[name] = finding
        found = b",".join(b'"%b":%b' % (field.encode(), value) for field, value in state.findings.items())
        with suppress(OSError):  # what cannot be told is not told
            progress.write_findings(slot_path(), state.words, b"{%b}" % found)


def hold_requests() -> None:
    """From now on only ``checkpoint_saved()`` says that a request is done."""
    (_state or _attach()).held = True


def save_on_stop(*, wanted: bool = True) -> None:
    """Say, once, that this script saves when asked: then a first Ctrl-C, a preemption or a planned stop asks for a
    checkpoint through ``step()`` and waits for it, instead of stopping at once. Reading ``checkpoint`` says it too.
    """
    state = _state or _attach()
    state.reads = True
    if state.words is not None:
        state.words.ints[progress.W_SAVES_ON_STOP] = int(wanted)

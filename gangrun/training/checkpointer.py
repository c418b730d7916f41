"""``gangrun.Checkpointer``: saves everything a run needs, without training waiting for the disk.

    with gangrun.Checkpointer(directory, model=model, optimizer=optimizer, data=sampler) as ckpt:
        for step in range(ckpt.resume(), steps):
            train(step)
            if ckpt.step(step).stop:
                break

Works under gangrun, under plain torchrun and in one process.
"""

from __future__ import annotations

import atexit
import os
import secrets
import warnings
import weakref
from collections.abc import Mapping
from functools import partial
from types import TracebackType
from typing import Any, Literal, SupportsFloat

from torch import nn

from gangrun.checkpoint.commit import Staging
from gangrun.core.checkpoints.retention import Keep
from gangrun.ports import Clock
from gangrun.training import arguments, environment, load
from gangrun.training import step as progress
from gangrun.training.environment import RealClock
from gangrun.training.memory import saving as memory_saving
from gangrun.training.memory.loading import files_of
from gangrun.training.ranks import RankGroup, ScriptCall
from gangrun.training.save import delta
from gangrun.training.save.plan import Grouping, Planning
from gangrun.training.save.replicas import Comparison, copies_of
from gangrun.training.save.saver import Retention, Save, Saver, SaveStatus, refused_directory, take_directory
from gangrun.training.save.schedule import Every, FailuresSeen, LastSave, Schedule, Steps
from gangrun.training.save.snapshot import HostBuffer, Snapshot
from gangrun.training.state import (
    RANDOM_KEY,
    STATE_KEY,
    CheckpointError,
    Parts,
    demand_readable,
    frozen_storages,
    random_numbers,
    small_state,
    tensors_of,
)
from gangrun.training.step import Requests

EXIT_WITHIN_S = 30.0


class CheckpointWarning(UserWarning):
    """A save in the background failed. Training goes on, and earlier checkpoints are unharmed."""


class Checkpointer:
    """Saves the whole state of a training, in the background, and loads the newest valid checkpoint.

    All ranks make one, after their process group, and call the same methods in the same order. Needs per rank: host
    memory for a copy of its part of the state, and for a second copy once two saves overlap.

    Args:
        directory: Where ``step-N`` directories appear; the same file system for all ranks.
        model: A ``torch.nn.Module``: plain, DDP or FSDP2.
        optimizer: One or several of ``torch.optim``; default none.
        scheduler: An object with ``state_dict`` and ``load_state_dict``; default none. Rank 0's state is saved and
            given back to all ranks, so it must be the same on all ranks.
        data: The position in the data, with the same methods and the same rule: it counts samples of all ranks, as
            ``gangrun.GlobalBatchSampler`` does; default none.
        extra: More objects by name; default none. Modules are saved like the model, all others like ``scheduler``.
        every_steps: Save to disk after this many steps; default None.
        every_s: Save to disk after this many seconds. "auto" (the default) weighs the measured stall against the time
            between failures, and saves a run that does not resume after its first step too. None, without
            ``every_steps``: ranks save to the nodes' memory alone, and gangrun writes a step to the disk every
            ``--flush-every``; if nothing does that, None means "auto".
        keep: How many of the newest checkpoints stay (at least 2), or a ``gangrun.Keep``; default None: all of them.
        mtbf_s: Known time between failures of the whole job in seconds, for "auto"; default None: it is learnt.
        full_every: Files whose tensors did not change are shared with the last checkpoint (hard links) by at most this
            many checkpoints, and then written again; 1: never shared. Default 10, and at most ``keep`` - 1, so that one
            of the checkpoints that stay shares nothing with the newest.
        memory_every_steps: Save to the nodes' memory after this many steps, if the run has ``--memory-checkpoints``;
            default None.
        memory_every_s: Save to the nodes' memory after this many seconds, or "auto" (the default).
        clock: For tests.

    Raises:
        TypeError: An argument has the wrong type or has no state to save.
        ValueError: A number that is impossible, both ``every_steps`` and ``every_s``, an optimizer of another model, or
            a directory that another Checkpointer of this process saves to.
        OSError: The directory cannot be made or written.

    The last step is saved to disk at the end, by ``close()`` or the ``with`` block, with the state as it is then:
    restore weights that an evaluation changed (an EMA's) before.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        model: nn.Module,
        optimizer: Any = None,
        scheduler: Any = None,
        data: Any = None,
        extra: Mapping[str, Any] | None = None,
        every_steps: int | None = None,
        every_s: float | Literal["auto"] | None = "auto",
        keep: int | Keep | None = None,
        mtbf_s: float | None = None,
        full_every: int | None = None,
        memory_every_steps: int | None = None,
        memory_every_s: float | Literal["auto"] = "auto",
        clock: Clock | None = None,
    ) -> None:
        """Makes process groups of its own, so that it never shares one with training."""
        where, kept_ones = arguments.directory(directory), arguments.keep(keep)
        shared_by = delta.full_every(kept_ones, arguments.full_every(full_every))
        mtbf_s = arguments.mtbf_s(mtbf_s)
        every = arguments.every(every_steps, every_s)
        memory_every = arguments.every(memory_every_steps, memory_every_s, "memory_")
        if memory_every is None:
            raise TypeError("give memory_every_steps or memory_every_s")
        self._parts = Parts.of(arguments.model(model), optimizer, scheduler, data, arguments.named(extra))
        arguments.optimized(self._parts.optimizers, model)
        self._data = data
        self._clock = clock or RealClock()
        self._ranks = RankGroup()
        run = environment.run_id()
        run, attempt = (run, environment.attempt()) if run else environment.launch_name()
        seen = FailuresSeen(environment.failures() if environment.run_id() else attempt, environment.nodes_count())
        keeping = Retention(kept_ones)
        self._staging = self._made(where, run.replace("/", "_"), attempt)
        grouping = Grouping()
        frozen = partial(frozen_storages, self._parts) if shared_by > 1 else None
        self._planning = Planning(self._ranks, grouping, frozen)
        self._keeping = keeping
        writing = delta.Delta(self._staging.directory, shared_by, grouping)
        kept = memory_saving.keeper_of(self._ranks, self._staging.directory)
        if every is None and (kept is None or environment.flush_every_s() <= 0):
            every = Every()
        self._schedule = Schedule(every, self._ranks, self._clock, seen, mtbf_s=mtbf_s)
        memory = None if kept is None else memory_saving.MemorySaving(kept, self._staging, self._clock)
        self._memory_schedule = Schedule(
            memory_every, self._ranks, self._clock, seen, mtbf_s=mtbf_s, early=every is None
        )  # fmt: skip
        self._memory, self._memory_failure = memory, ""
        background = RankGroup()
        self._comparison = Comparison(background) if environment.compares_saves() else None
        self._saver = Saver(
            background, self._staging, self._clock, writing, keeping, memory, self._save_status(), self._comparison
        )
        self._saves: list[Save] = []
        self._steps = Steps()
        self._proven_readable = self._closed = False
        self._ending = LastSave(self._ranks, self._staging.nonce)
        take_directory(where, self, self._saver)
        progress.hold_requests()
        progress.save_on_stop()
        atexit.register(_finish, weakref.ref(self))

    def _made(self, directory: str, run: str, attempt: int) -> Staging:
        """Rank 0 makes the staging, the others are told of it; all raise where it could not be made."""
        staging = Staging(directory, run, environment.term(), attempt, secrets.token_hex(8))
        trouble: Exception | None = None
        if self._ranks.rank == 0:
            trouble = _opened(staging)
        staging, trouble = self._ranks.from_first((staging, trouble))
        if trouble is not None:
            raise trouble
        return staging

    def _save_status(self) -> SaveStatus | None:
        schedule, in_memory = self._schedule, self._memory_schedule  # self would be held as long as the saver's thread
        shown = self._ranks.rank == 0 and environment.run_id()
        if not shown:
            return None

        def stalled_s() -> float:
            return schedule.stalled_s + in_memory.stalled_s

        return SaveStatus(self._staging, self._clock, lambda: schedule.plan, stalled_s)

    @property
    def interval_reason(self) -> str:
        """How often the Checkpointer saves at present, and why, in one sentence."""
        return self._schedule.plan.reason

    @property
    def saving(self) -> int:
        """How many saves are being written, 0 to 2."""
        return sum(not save.done.is_set() for save in self._saves)

    def resume(self) -> int:
        """Load the newest valid checkpoint into everything given. All ranks call it.

        The checkpoint is verified before a byte reaches the model.

        Returns:
            The next step to train; 0 if there is no checkpoint.

        Raises:
            CheckpointError: Checkpoints exist and none may be used, or the checkpoint has other names, shapes or types
                than the model and the optimizer. Nothing has reached the model then.
        """
        if self._memory is not None:
            self._memory.loads = True
        point = load.find(self._staging.directory, self._ranks, self._staging.nonce)
        if point is None:
            return 0
        with files_of(point.path, self._ranks) as files:
            step, trained_s = load.load(point, self._parts, self._data, self._ranks, files)
        self._schedule.resumed(trained_s)
        self._steps.resumed_from(step)
        self._keeping.resumed_from(step)
        if self._comparison is not None:
            self._comparison.agreed_step = step  # all ranks have loaded the same
        return step + 1

    def step(self, step: int, loss: SupportsFloat | None = None, grad_norm: SupportsFloat | None = None) -> Requests:
        """Report that a step is done, and save if it is time or if gangrun asks for it. All ranks call it.

        Warns with ``CheckpointWarning`` if a save in the background has failed.

        Args:
            step: Number of the step; numbers count up over the whole run.
            loss: Shown by ``gangrun status``; default None.
            grad_norm: As ``loss``.

        Returns:
            ``stop`` is true on all ranks at the same step: leave the loop; the checkpoint is saved.

        Raises:
            TypeError: ``step`` is no whole number.
            ValueError: ``step`` does not come after the last one, or ranks are at different steps.
            RuntimeError: Another rank is gone or does not answer.
            CheckpointError: The Checkpointer is closed.
        """
        self._demand_open()
        step = arguments.later_step(step, self._steps.last, self._steps.resumed)
        progress.step(step, loss, grad_norm)
        self._steps.last = step
        self._ranks.called(ScriptCall.STEP, step)
        if self._data is not None and hasattr(self._data, "trained"):
            self._data.trained()
        self._tell_failures()
        asked = progress.should_checkpoint()
        agreed = self._schedule.after(step, asked=asked, stop=progress.should_stop())
        if agreed.save or agreed.stop:
            if agreed.asked or agreed.stop:
                self._save_as_asked(step)
            elif not self._schedule_is_behind():
                self.save(step)
        if self._memory is not None and self._memory_schedule.after(step, asked=False, stop=False).save:
            self._keep(step)
        return Requests(stop=agreed.stop)

    def _schedule_is_behind(self) -> bool:
        """Both buffers are being written: this save would make training wait for a disk that is slower than it."""
        return bool(self._ranks.largest(int(self._saver.behind))[0])

    def _save_as_asked(self, step: int) -> None:
        try:
            self.save(step, wait=True)
        except CheckpointError as error:
            warnings.warn(str(error), CheckpointWarning, stacklevel=3)
        progress.checkpoint_saved()

    def save(self, step: int, *, wait: bool = False) -> None:
        """Save to disk now. All ranks call it. The same step is not saved twice.

        Args:
            step: The step that was done last.
            wait: Return when the checkpoint is committed; default False: return when the state is copied.

        Raises:
            CheckpointError: With ``wait``, if the checkpoint could not be written; always, if this is closed.
            ValueError: The ranks' states do not fit together.
            TypeError: The state could not be read back without executing code.
        """
        self._demand_open()
        step = arguments.step(step)
        if not self._steps.is_saved(step):
            self._ranks.called(ScriptCall.SAVE, step)
            self._steps.save_called(step)
            self._begin(step, in_memory=False)
            self._steps.save_begun(step)
        if wait:
            self._wait_for_all()

    def _keep(self, step: int) -> None:
        """Save to the nodes' memory, unless the disk has or gets this step anyway, or both buffers are busy."""
        if not self._steps.is_saved(step) and not self._schedule_is_behind():
            self._begin(step, in_memory=True)

    def _begin(self, step: int, *, in_memory: bool) -> None:
        began = self._clock.now()
        buffer = self._saver.free_buffer()
        try:
            snapshot = self._taken(buffer, step)
        except BaseException:
            self._saver.give_back(buffer)
            raise
        save = Save(step, snapshot, buffer, in_memory=in_memory)
        if self._comparison is not None and not self._comparison.stopped and not in_memory:
            save.copies = copies_of(self._parts)
        self._saver.write(save)
        self._saves.append(save)
        (self._memory_schedule if in_memory else self._schedule).saved(self._clock.now() - began)

    def _taken(self, buffer: HostBuffer, step: int) -> Snapshot:
        rank = self._ranks.rank
        small = small_state(self._parts, step, self._ranks.world_size, self._schedule.trained_s)
        own = {f"{RANDOM_KEY}{rank}": random_numbers(), **({STATE_KEY: small} if rank == 0 else {})}
        if not self._proven_readable:
            demand_readable(small)
            self._proven_readable = True
        planner, plan = self._planning.of({**tensors_of(self._parts), **dict.fromkeys(own, b"")})

        def object_of(index: Any) -> Any:
            return own[index.fqn] if index.fqn in own else planner.lookup_object(index)

        return buffer.take(plan, planner.lookup_object, object_of)

    def _demand_open(self) -> None:
        if self._closed:
            raise CheckpointError(
                f"this Checkpointer of {self._staging.directory} is closed: nothing is saved any more"
            )

    def _wait_for_all(self) -> None:
        if failures := self._settled():
            raise CheckpointError("; ".join(failures))

    def _settled(self) -> list[str]:
        """As ``_ended``, once nothing is under way: all ranks know alike then what is saved."""
        with progress.phase("checkpoint"):
            for save in self._saves:
                save.done.wait()
        return self._ended()

    def _ended(self) -> list[str]:
        """The sentences of the saves that failed since the last look."""
        ended = [save for save in self._saves if save.done.is_set()]
        self._saves = [save for save in self._saves if save not in ended]
        for save in ended:
            if save.in_memory:
                self._memory_schedule.persist_s = save.persist_s
                if not save.failure:
                    progress.step_in_memory(save.step, save.losses_count)
                continue
            self._schedule.persist_s = save.persist_s
            self._steps.save_ended(save.step, committed=not save.failure)
        kept = [save.failure or save.warning for save in ended if save.in_memory]
        for failure in dict.fromkeys(filter(None, kept)):
            if failure != self._memory_failure:
                warnings.warn(failure, CheckpointWarning, stacklevel=4)  # once: each save may fail alike
            self._memory_failure = failure
        where = f" (checkpoints go to {self._staging.directory})"
        return [save.failure + where for save in ended if save.failure and not save.in_memory]

    def _tell_failures(self) -> None:
        for failure in self._ended():
            warnings.warn(failure, CheckpointWarning, stacklevel=3)

    def close(self) -> None:
        """Save the last step if it is not saved, with the state as it is now, and finish the saves under way.

        All ranks call it, before ``dist.destroy_process_group()``; calling it again does nothing. While an error is
        under way, as in a ``finally``, or is being handled, the last step is not saved and a ``CheckpointWarning`` says
        so: call it after the ``except`` block that ends a training.

        Raises:
            CheckpointError: The last step, or a save under way, could not be saved.
        """
        if self._closed:
            return
        try:
            told = self._save_the_end()
        finally:
            self._closed = True
            with progress.phase("checkpoint"):
                self._saver.close()
            if self._ranks.rank == 0:
                self._staging.close()
        failures = [*told, *self._ended()]
        if failures:
            raise CheckpointError("; ".join(failures))

    def _save_the_end(self) -> list[str]:
        """Begin to save the last step, if it is not saved; why it is not, and what failed before where it is not."""
        step = self._steps.last
        if why := self._ending.hindered(step):
            if self._steps.last_is_unsaved:
                warnings.warn(why, CheckpointWarning, stacklevel=3)
            return []
        failures = self._settled()
        save_it, why_not = self._ending.agreed(step, unsaved=self._steps.last_is_unsaved)
        if not save_it:
            return [*failures, why_not] if why_not else failures
        for failure in failures:
            warnings.warn(failure, CheckpointWarning, stacklevel=4)  # of a step that this one replaces
        self.save(step)
        return []

    def finish(self, within_s: float) -> None:
        """Wait for the saves under way, and save nothing more.

        Args:
            within_s: Seconds to wait. Saves that are not done by then are never committed.
        """
        if not self._closed:
            self._closed = True
            if not self._saver.close(within_s):
                warnings.warn(
                    f"a save was given up after {within_s:.0f} s; it was never committed",
                    CheckpointWarning,
                    stacklevel=3,
                )
            self._tell_failures()

    def __enter__(self) -> Checkpointer:  # noqa: PYI034 - Self is of Python 3.11
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
            return
        self.finish(EXIT_WITHIN_S)  # what went wrong in the body is what has to be seen


def _opened(staging: Staging) -> Exception | None:
    """Make it; why that cannot be."""
    refused = refused_directory(staging.directory)
    if refused is not None:
        return refused
    try:
        staging.open()
    except OSError as error:
        why = f"{error.strerror}; give a directory that this user can make, or write to"
        return OSError(error.errno, f"checkpoints cannot be saved to {staging.directory}: {why}", error.filename)
    return None


def _finish(one: weakref.ref[Checkpointer]) -> None:
    """At the process's end, if the script forgot to close."""
    checkpointer = one()
    if checkpointer is not None:
        checkpointer.finish(EXIT_WITHIN_S)

"""The ranks of one node: started, watched, stopped; facts come out of a queue.

``launch`` must be called from the agent's main thread: the death signal fires when the *thread* that forked ends.
Nothing here decides: the brain's effects come in, ``facts`` go out through ``fileno`` and ``take``. Slow things (a
stop, stacks, the cleanup) run in threads of their own.
"""

from __future__ import annotations

import math
import os
import random
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import msgspec

from gangrun.agent.brain import facts
from gangrun.agent.ranks.environment import (
    AttemptFiles,
    GangSpec,
    RankFiles,
    RankPlace,
    rank_environment,
    tag_prefix,
)
from gangrun.agent.ranks.exits import READ_WITHIN_S, OomCounter, WatchedRank, memory_words, watch
from gangrun.agent.ranks.flight_dumps import WatchdogDump
from gangrun.agent.ranks.logs import RankLogs
from gangrun.agent.ranks.observe import (
    CpuDemand,
    NodeRoom,
    ScriptReports,
    look_at,
    memory_bytes,
    new_children,
    reading,
    take_stacks,
    use_of_node,
)
from gangrun.agent.ranks.standby import Child, ImportList, SharedImports, Standbys, WarmRank
from gangrun.agent.ranks.stop import (
    POLL_S,
    OwnProcesses,
    StopLadder,
    ask_to_save,
    build_locks,
    describe,
    free_port,
    has_saved,
    hold_steps,
    job_of,
    listens,
)
from gangrun.core.events import StacksTaken
from gangrun.core.recovery.fill_rules import FillTrend, NodeFill
from gangrun.core.recovery.gpu_rules import GpuUse
from gangrun.core.recovery.hang import LONG_PHASES
from gangrun.core.recovery.pace_rules import RankPaces
from gangrun.core.recovery.standing import SUSPECT_S, Look, NodeStands, without_repeated_places
from gangrun.core.text import known_step
from gangrun.node.boot_standby import IMPORTS_FILE
from gangrun.node.place_page import PlacePage, now_ns
from gangrun.node.processes import Proc, kill, kill_until_none, read_proc
from gangrun.wire.messages import AskSave, Launch, LiveRank, Prepare, RankSample, SaveAnswer, Stacks, Stop
from gangrun.wire.progress import ProgressPage, StepRequest

STEPS_MIN_COUNT = 5  # or collectives, from which on a rank trains
STARTS_WITHIN_S = 1800.0  # by then a script trains, whether it tells of steps or not
MEMORY_EVERY_S = 5.0  # who held how much is told of a rank that the kernel kills for memory
SLATE_WITHIN_S = 5.0
LISTENS_WITHIN_S = 0.1  # a script that opens the store later than this after its start is not waited for
LISTENS_LOOK_S = 0.001
LOOKS_CLOSELY_COUNT, LOOKS_EVERY_COUNT = 120, 10
SPARE_AFTER_S = 10.0  # a node without ranks for so long holds none, for all it knows: no start is under way
LOGS_CLOSE_WITHIN_S = 2.0  # between two attempts, when the agent has to beat
LOGS_CLOSE_AT_END_S = 3.0  # whoever owns the run kills what is left of it 5 s after its end is known
ENDED_WITHIN_S = 1.0
HELD = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)  # from every process of a job step, by the scheduler


class LaunchError(RuntimeError):
    """A rank could not be started; none is left. The message says which and why."""


@dataclass(frozen=True, slots=True)
class People:
    """Who is told what the disk does not take: a line of a rank that is shown to them, that it does not, and of an
    attempt's log how much is missing.

    ``stamp``: the time of day as people read it, for each line that a rank prints; "" is none.
    """

    show: Callable[[bytes], None] = lambda line: None
    say: Callable[[str], None] = lambda sentence: None
    lost: Callable[[int, str], None] = lambda attempt, words: None
    stamp: Callable[[], str] = lambda: ""


class _Gang:
    """The ranks of one attempt."""

    def __init__(self, spec: GangSpec, order: Launch, now: Callable[[], float], people: People) -> None:
        attempt = self.attempt = order.attempt
        self.files = AttemptFiles(spec.local_root, spec.run, spec.node, attempt)
        self.logs = RankLogs(
            spec.node, spec.run_directory / "logs" / str(attempt), spec.log, now,
            shown={0, order.world_size - 1}, show=people.show, say=people.say,
            lost=partial(people.lost, attempt), stamp=people.stamp,
        )  # fmt: skip
        self.oom = OomCounter()
        self.ranks: dict[int, WatchedRank] = {}
        self.told: dict[int, ScriptReports] = {}
        self.began_at = now()
        self.memory_at, self.memory = 0.0, dict[int, int]()  # when it was looked at, and bytes by rank
        self.memory_limit_bytes = self.standbys_bytes = 0  # likewise
        self.seen: dict[int, Proc] = {}  # children that ranks were seen to have, by pid
        self.locks: dict[str, tuple[int, int]] = {}  # of builds, that ranks were seen to hold
        self.looks_count = 0
        self.orphan_pids: set[int] = set()  # what the warden had just inherited when a rank died
        self.wanted: dict[int, WarmRank] = {}  # standbys, by local rank
        # rank 0 often imports what others do not, so another node than its own tells what they import
        self.tells_imports = order.node_rank == min(1, order.nodes_count - 1)
        self.stopped_at = math.inf  # from then on ranks fall because of us
        # As torch.cuda.set_device(LOCAL_RANK) has it. What the processes of a launcher use, only the launcher knows.
        numbers = order.slots if spec.slots_count else range(0 if spec.per_node else len(order.ranks))
        self.gpu_numbers = dict(zip(numbers, order.ranks, strict=False))
        self._standing: set[int] = set()  # ranks whose flight recorder was asked for since they stand

    def ask_dumps(self, standing: set[int]) -> None:
        """Have each rank's sampler write its flight recorder once while it stands: before anything ends it."""
        for rank in self._standing - standing:  # it moves again: that dump says nothing of a later hang
            Path(f"{self.files.of(rank).place}.dump").unlink(missing_ok=True)
        for rank in standing - self._standing:
            page = self.ranks[rank].place
            if page is not None:
                page.ask_dump()
        self._standing = standing

    def alive(self) -> list[WatchedRank]:
        """Those whose process has not ended."""
        return [rank for rank in self.ranks.values() if not rank.ended.is_set()]

    def look_for_locks(self) -> None:
        """Native code is built before the first step, which not every rank tells: later on looks are seldom."""
        self.looks_count += 1
        builds = any(rank.slot.read().step < 0 and self.logs.step(rank.rank) < 0 for rank in self.alive())
        if builds and (self.looks_count <= LOOKS_CLOSELY_COUNT or self.looks_count % LOOKS_EVERY_COUNT == 0):
            self.locks |= build_locks([*(rank.proc.pid for rank in self.alive()), *self.seen])


class RankGang:
    """All that this node runs for the gang."""

    def __init__(
        self, spec: GangSpec, now: Callable[[], float], spared: Callable[[], Collection[int]] = tuple,
        people: People = People(),
    ) -> None:  # fmt: skip
        """``spared``: pids below the warden that are not of ranks (the supervisor); the agent itself is known."""
        self._spec = spec
        self._now = now
        self._people = people
        self._standbys = Standbys(spec.node, self._spawn, now, people.say)
        self._shared = SharedImports(spec.shared_imports) if spec.shared_imports is not None else None
        self._taught: list[ImportList] = []
        self._may_come: dict[int, WarmRank] = {}  # to this node, while it has no ranks
        self._idle_since = now()
        self._family = OwnProcesses(
            tag_prefix(spec.run, spec.node),
            job_of(spec.inherited),
            spec.warden_pid,
            spared,
            lambda: self._standbys.pids,
        )
        self._gang: _Gang | None = None  # of the newest attempt, also once it has ended: its slots may still be asked
        self._stands = NodeStands()
        self._paces, self._growth = RankPaces(spec.trends), NodeFill(spec.trends)
        self._room, self._demand = NodeRoom(), CpuDemand()
        self._use_at, self._growths = -math.inf, dict[int, tuple[FillTrend, ...]]()
        self._issued: dict[int, int] = {}  # collectives of each rank, as they were counted last
        self._gpu_memory: dict[int, tuple[int, int]] = {}  # used of each rank's, and all, read since the last look
        self._ladder: StopLadder | None = None
        self._ports_used: deque[int] = deque(maxlen=64)
        self._facts: deque[facts.Fact] = deque()
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    # ---- facts -----------------------------------------------------------------------------------------------------

    def fileno(self) -> int:
        """Readable when ``take`` has something."""
        return self._bell

    def take(self) -> list[facts.Fact]:
        """Everything that happened since, in order."""
        try:
            os.eventfd_read(self._bell)
        except BlockingIOError:
            pass
        taken: list[facts.Fact] = []
        while self._facts:
            taken.append(self._facts.popleft())
        return taken

    def _tell(self, fact: facts.Fact) -> None:
        self._facts.append(fact)
        os.eventfd_write(self._bell, 1)

    # ---- launching -------------------------------------------------------------------------------------------------

    def launch(
        self, order: Launch, may: Callable[[], bool] = lambda: True, memory: Mapping[str, str] | None = None
    ) -> tuple[LiveRank, ...]:
        """Start all ranks of this node or none; ``LaunchError``. From the main thread only.

        ``may``: asked before each fork and after the last, since any of them can take as long as a file system stalls.
        ``memory``: where the files are, by name, of a step in memory that ranks resume from.
        """
        assert threading.current_thread() is threading.main_thread(), "ranks would die with the thread that forked them"
        assert self._gang is None or not self._gang.alive(), "the ranks of an earlier attempt are alive"
        before = self._gang.told if self._gang is not None else {}
        self._forget()
        self._stands.begin()
        self._paces.begin()
        self._growth.begin()
        self._growths, self._gpu_memory, self._issued = {}, {}, {}
        spec = self._spec
        try:
            gang = self._gang = _Gang(spec, order, self._now, self._people)
            if memory is not None:
                order = msgspec.structs.replace(order, resume_path=str(gang.files.show(memory)))
        except OSError as error:
            raise LaunchError(f"no room for the ranks' small files in {spec.local_root}: {error.strerror}") from error
        for local_rank, rank in enumerate(order.ranks):
            self._still(may, gang)
            try:
                was_ready = self._start(gang, RankPlace(spec, order, local_rank), before)
            except OSError as error:
                self._undo(gang)
                raise LaunchError(f"rank {rank} could not be started: {error}") from error
            if was_ready and rank == 0 and order.world_size > 1:
                self._let_listen(order.master_port)
        self._still(may, gang)
        for started in gang.ranks.values():  # only now: a fact of a gang that was never whole would mislead
            watch(
                started,
                gang.logs,
                gang.oom,
                lambda: gang.stopped_at,
                self._now,
                lambda how: self._tell(facts.RankEnded(gang.attempt, how)),
                lambda: gang.orphan_pids.update(new_children(spec.warden_pid, {}) if spec.warden_pid else ()),
                gang.told[started.rank],
                lambda: memory_words(
                    gang.memory, self._now() - gang.memory_at, gang.memory_limit_bytes, gang.standbys_bytes
                ),
            )
        return tuple(rank.live for rank in gang.ranks.values())

    def _still(self, may: Callable[[], bool], gang: _Gang) -> None:
        if not may():
            self._undo(gang)
            raise LaunchError("the lease ended while ranks were being started")

    def _let_listen(self, port: int) -> None:
        """Give rank 0 a moment to open its store. A rank that asks it sooner is refused, and torch asks again only
        after 0.25 to 0.75 s, which is most of a restart with standbys.
        """
        until, pause = self._now() + LISTENS_WITHIN_S, threading.Event()
        while self._now() < until and not listens(port):
            pause.wait(LISTENS_LOOK_S)

    def _start(self, gang: _Gang, place: RankPlace, before: Mapping[int, ScriptReports]) -> bool:
        """Start one rank; was a standby ready for it? ``before``: what this node's ranks told in an earlier attempt."""
        spec, rank = self._spec, place.rank
        files = gang.files.of(rank)
        slot = ProgressPage(str(files.slot), rank)
        page = PlacePage(str(files.place), create=True) if place.is_sampled else None
        environment = rank_environment(place, files, os.getpid())
        debugged = spec.terminal if rank == spec.debug_rank else ""
        # without O_NOCTTY an agent, which leads a session, would get its Ctrl-C
        terminal = os.open(debugged, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC) if debugged else None
        try:
            argv = place.argv
            child = None if debugged else self._from_standby(place.local_rank, argv, environment)
            was_ready = child is not None
            if child is None:
                child = self._spawn(argv, environment, terminal=terminal)
        finally:
            if terminal is not None:
                os.close(terminal)
        proc = read_proc(child.pid)
        assert proc is not None, "a child that nobody has waited for is in the table"
        if child.stdout is not None and child.stderr is not None:
            gang.logs.add(rank, os.dup(child.stdout.fileno()), os.dup(child.stderr.fileno()))
            child.stdout.close()
            child.stderr.close()
        else:
            gang.logs.say(f"rank {rank} is debugged: what it prints went to {debugged} and is not here")
        told_before = before.get(rank) or next(iter(before.values()), None)  # their losses are alike
        gang.told[rank] = ScriptReports(rank, slot, gang.logs, told_before, known_step(place.order.resume_step))
        dump = None if spec.per_node else WatchdogDump.of(environment, rank)
        gang.ranks[rank] = WatchedRank(rank, spec.node, child, proc, slot, files, spec.through_boot, page, dump)
        if IMPORTS_FILE in environment and not debugged:
            gang.wanted[place.local_rank] = WarmRank(argv, environment, files.imports, self._standby_tag(place))
        return was_ready

    def _standby_tag(self, place: RankPlace) -> str:
        return f"{tag_prefix(self._spec.run, self._spec.node)}standby:{place.local_rank}"

    def _from_standby(self, local_rank: int, argv: list[str], environment: Mapping[str, str]) -> Child | None:
        os.stat(self._spec.working_directory)  # a cold start would fail without it
        return self._standbys.take(local_rank, argv, environment, self._spec.working_directory)

    def _spawn(
        self, argv: list[str], environment: Mapping[str, str], fds: tuple[int, ...] = (), terminal: int | None = None
    ) -> Child:
        # inherited: until node/boot.py is ready these signals would kill it
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, HELD)
        try:
            return subprocess.Popen(
                argv,
                env=environment,
                cwd=self._spec.working_directory,
                stdin=subprocess.DEVNULL if terminal is None else terminal,
                stdout=subprocess.PIPE if terminal is None else terminal,
                stderr=subprocess.PIPE if terminal is None else terminal,
                start_new_session=True,
                pass_fds=fds,
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def tend_standbys(self, may: bool) -> None:
        """Once a second; from the main thread only. ``may``: the lease holds, and no stop is under way."""
        gang, now = self._gang, self._now()
        alive = gang.alive() if gang is not None else []
        if alive or self._ladder is not None:
            self._idle_since = now
        if not may or not self._spec.is_warm or self._ladder is not None:
            self._standbys.tend({})
        elif gang is not None and alive:
            self._standbys.tend(gang.wanted if len(alive) == len(gang.ranks) else {})
            if self._shared is not None and gang.tells_imports and (news := self._standbys.news()):
                self._shared.publish(news)
        elif now - self._idle_since >= SPARE_AFTER_S:
            self._standbys.tend(gang.wanted if gang is not None else self._wanted_of_a_spare(now))
        else:
            self._standbys.tend({})

    def standbys(self) -> tuple[int, int]:
        """How many wait here, and the bytes of memory that are theirs alone."""
        sizes = self._standbys.sizes_bytes()
        return len(sizes), sum(sizes.values())

    def _wanted_of_a_spare(self, now: float) -> dict[int, WarmRank]:
        """Ranks that may come to this node, as far as they can be known: the rest is told when they come."""
        if self._shared is None:
            return {}
        self._shared.fetch(now)
        if self._shared.lists is not self._taught:
            self._taught = self._shared.lists
            self._standbys.teach(self._taught)
            self._may_come = self._spare_ranks(len(self._taught))
        return self._may_come

    def _spare_ranks(self, count: int) -> dict[int, WarmRank]:
        spec, ranks = self._spec, tuple(range(count))
        order = Launch(
            term=0, act=(0, 0), attempt=0, world_size=spec.full_world_size, node_rank=0, nodes_count=1, ranks=ranks,
            slots=ranks, master_addr="", master_port=0, nodes=(),
        )  # fmt: skip
        wanted = {}
        for place in (RankPlace(spec, order, n) for n in ranks):
            files = RankFiles.below(spec.local_root, place.rank)
            environment = rank_environment(place, files, os.getpid())
            wanted[place.local_rank] = WarmRank(place.argv, environment, None, self._standby_tag(place))
        return wanted

    def _undo(self, gang: _Gang) -> None:
        """A launch failed half way: none of its ranks may be left."""
        gang.stopped_at = 0.0
        started = list(gang.ranks.values())
        kill_until_none(lambda: self._family.find([rank.proc for rank in started]), SLATE_WITHIN_S, _nothing)
        for rank in started:
            rank.child.wait()
            rank.ended.set()
            rank.told.set()

    def _forget(self, within_s: float = LOGS_CLOSE_WITHIN_S) -> bool:
        """Let go of a gang that has ended; False if the disk did not take in time all that it printed."""
        gang, self._gang = self._gang, None
        if gang is None:
            return True
        for rank in gang.ranks.values():
            if rank.told.wait(ENDED_WITHIN_S):  # until then its watcher may still read the slot
                rank.slot.close()
                if rank.place is not None:
                    rank.place.close()
        written = gang.logs.close(within_s)
        gang.files.remove()
        return written

    # ---- looking ---------------------------------------------------------------------------------------------------

    def live(self) -> tuple[LiveRank, ...]:
        """The ranks whose process has not ended."""
        return tuple(rank.live for rank in self._gang.alive()) if self._gang else ()

    def readings(self) -> tuple[RankSample, ...]:
        """A sample of every live rank."""
        gang = self._gang
        if gang is None:
            return ()
        wrapped = not self._spec.through_boot
        if self._now() - gang.memory_at >= MEMORY_EVERY_S:
            gang.memory_at = self._now()
            gang.memory = {rank.rank: memory_bytes(rank.proc.pid) for rank in gang.alive()}
            gang.memory_limit_bytes = self._room.limit_bytes()
            gang.standbys_bytes = sum(self._standbys.sizes_bytes().values())
            self._demand.forget(now_ns() / 1e9)
        for rank in gang.alive():
            gang.seen |= new_children(rank.proc.pid, gang.seen)
        gang.look_for_locks()
        now = now_ns()
        taken = {
            n: reading(
                n, rank.proc.pid, rank.slot.read(), gang.logs, gang.told[n], self._demand, now / 1e9, wrapped=wrapped
            )
            for n, rank in gang.ranks.items()
            if not rank.ended.is_set()
        }
        now = now_ns()
        seen = {n: look_at(gang.ranks[n], sample, self._demand, now) for n, sample in taken.items()}
        looks = {n: look for n, look in seen.items() if look is not None}
        stands = without_repeated_places(self._stands.look(looks, now / 1e9))
        gang.ask_dumps({n for n, stand in stands.items() if stand.stood_s >= SUSPECT_S})
        before, self._issued = self._issued, {n: _issued(look) for n, look in looks.items()}
        issued = self._issued
        steps = {n: one.step if one.step >= 0 else issued.get(n, 0) for n, one in taken.items()}
        for n, look in looks.items():
            self._paces.look(n, look.looks, now / 1e9, trains=taken[n].phase not in LONG_PHASES)
        gpus = self._gpu_use(gang)
        paces, growths = self._paces.take(steps, now / 1e9), self._use(gang, steps, taken)
        return tuple(
            msgspec.structs.replace(
                sample,
                is_sampled=n in looks,
                stand=stands.get(n),
                moves=issued.get(n, 0) > before.get(n, 0),
                pace=paces.get(n),
                growths=growths.get(n, ()),
                gpu=gpus.get(n),
            )
            for n, sample in taken.items()
        )

    def _gpu_use(self, gang: _Gang) -> dict[int, GpuUse]:
        """How ranks use their GPUs, each time that it was read."""
        read = self._spec.gpu_use()
        found = {gang.gpu_numbers[n]: use for n, use in read.items() if n in gang.gpu_numbers}
        for rank, use in found.items():
            if use.memory_used_mib >= 0 and use.memory_mib > 0:
                self._gpu_memory[rank] = use.memory_used_mib << 20, use.memory_mib << 20
        return found

    def _use(
        self, gang: _Gang, steps: Mapping[int, int], taken: Mapping[int, RankSample]
    ) -> dict[int, tuple[FillTrend, ...]]:
        """What ranks will run out of. What they load before they train does not count as growth."""
        now = self._now()
        if now - self._use_at >= self._growth.look_every_s:
            self._use_at = now
            late = now - gang.began_at >= STARTS_WITHIN_S
            trains = [n for n, one in taken.items() if late or steps[n] >= STEPS_MIN_COUNT or one.log_step >= 0]
            if trains:
                use = use_of_node({n: gang.ranks[n].proc.pid for n in trains}, self._room)
                memory, self._gpu_memory = {n: self._gpu_memory[n] for n in trains if n in self._gpu_memory}, {}
                self._growths = self._growth.look(replace(use, gpu=memory), now)
        return self._growths

    def take_stacks(self, command: Stacks, within_s: float) -> None:
        """Ask all live ranks where they stand; ``StacksTaken``."""
        gang = self._gang
        alive = gang.alive() if gang else []
        keep_in = self._spec.run_directory / "stacks" / str(command.attempt)

        def ask() -> None:
            stacks = take_stacks(alive, keep_in, within_s, self._now)
            self._tell(StacksTaken(command.attempt, stacks))

        threading.Thread(target=ask, name="stacks", daemon=True).start()

    def _asked(self, command: AskSave) -> list[WatchedRank]:
        gang = self._gang
        return gang.alive() if gang is not None and gang.attempt == command.attempt else []

    def hold(self, command: AskSave) -> facts.DiskTaskDone:
        """Have all ranks wait for the step that all nodes' ranks save."""
        return facts.DiskTaskDone(command, True, answer=SaveAnswer(hold_steps(self._asked(command))))

    def save(self, command: AskSave) -> facts.DiskTaskDone:
        """Have all ranks save while they train on; waits for it, in a thread of the caller's."""
        alive, pause = self._asked(command), threading.Event()
        asked = ask_to_save(alive, command.save_step, StepRequest.NOTHING)
        if not asked:
            why = "the script reads no request to save (asked.checkpoint of gangrun.step, or gangrun.Checkpointer)"
            return facts.DiskTaskDone(command, False, why)
        while not all(has_saved(rank, asked[rank.rank]) for rank in alive):
            gone = next((rank for rank in alive if rank.ended.wait(POLL_S)), None)
            if gone is not None:
                return facts.DiskTaskDone(command, False, f"rank {gone.rank} ended before all ranks had saved")
            pause.wait(POLL_S)
        return facts.DiskTaskDone(command, True, answer=SaveAnswer(max(rank.slot.read().saved_step for rank in alive)))

    # ---- stopping --------------------------------------------------------------------------------------------------

    def stop(self, command: Stop) -> None:
        """Stop all ranks of every attempt; ``facts.RanksStopped``. A second call while one runs means: sooner."""
        if self._ladder is not None:
            if self._gang is not None:
                self._gang.stopped_at = min(self._gang.stopped_at, self._now())
            if command.grace_s > 0:
                self._ladder.saved()
            else:
                self._ladder.hurry()
            return
        gang = self._gang
        ranks = list(gang.ranks.values()) if gang else []
        if gang is not None:
            gang.stopped_at = min(gang.stopped_at, self._now() + command.settle_s)
        known = tuple(gang.seen.values()) if gang else ()
        orphan_pids = tuple(gang.orphan_pids) if gang else ()
        ladder = self._ladder = StopLadder(
            ranks, self._family, known, self._now, orphan_pids, self._spec.save_signal,
            commits_are_seen=self._spec.checkpoint.looks_every_s > 0, locks=gang.locks if gang else {},
            stderr=gang.logs.stderr_tail if gang else lambda _: (),
        )  # fmt: skip

        def stop() -> None:
            leftovers = ladder.run(command)
            for path in ladder.unlocked:
                self._people.say(f"removed {path}: the rank that was building native code there is dead")
            until = self._now() + READ_WITHIN_S
            for rank in ranks:  # how they ended is evidence, and must not come after the word that all did
                rank.told.wait(max(0.0, until - self._now()) if rank.ended.is_set() else 0.0)
            self._ladder = None
            alive = self._family.find([rank.proc for rank in ranks]) if ladder.left else []
            overdue = tuple(sorted(ladder.overdue))
            told = facts.RanksStopped(command.attempt, not alive, leftovers, overdue, ladder.grace_s, ladder.saved_step)
            self._tell(told)

        threading.Thread(target=stop, name="stop ranks", daemon=True).start()

    def prepare(self, command: Prepare) -> None:
        """Prove that nothing of ours is left, killing what is; ``facts.NodePrepared``, with a port for rank 0."""

        def look() -> None:
            left = kill_until_none(lambda: self._family.find(()), SLATE_WITHIN_S, _nothing)
            port = 0
            if command.rank_zero and not left:
                port = free_port(self._ports_used, random.Random())  # noqa: S311 - only to differ from others
                self._ports_used.append(port)
            why = ", ".join(describe(left))
            if command.rank_zero and not left and not port:
                why = "no port outside the ephemeral range is free"
            self._tell(facts.NodePrepared(command.attempt, not why, why, port))

        threading.Thread(target=look, name="cleanup", daemon=True).start()

    def kill_now(self) -> None:
        """SIGKILL to every rank, without asking; the rest is ``stop``'s."""
        self._standbys.close()
        if self._gang is not None:
            self._gang.stopped_at = min(self._gang.stopped_at, self._now())
            for rank in self._gang.alive():
                kill(rank.proc)

    def close(self) -> bool:
        """Let go of files and threads; the ranks must have ended. False: not all that they printed is in the logs."""
        self._standbys.close()
        return self._forget(LOGS_CLOSE_AT_END_S)


def _issued(look: Look) -> int:
    """How many collectives the rank has issued."""
    return sum(count for _, count in look.counts)


def _nothing() -> None:
    """The watch threads reap what is ours, the warden the rest."""

"""The agent's one loop: hear, let the brain decide, perform.

It must run in the process's main thread: ranks are forked here and die with the thread that forked them. It waits in
one place (``Net.wait``); whatever may take long is a background task or a thread of ``ranks``.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, final

from gangrun.agent.background_tasks import BackgroundTasks, MemoryTasks, VerifyTask
from gangrun.agent.brain import effects, facts
from gangrun.agent.brain.decide import AgentBrain
from gangrun.agent.brain.effects import Effect
from gangrun.agent.brain.line import ClockSkew
from gangrun.agent.ranks.gang_part import RankGang
from gangrun.agent.ranks.standby import TEND_EVERY_S
from gangrun.agent.surroundings import AgentEnd, Health, Net
from gangrun.node.processes import Askings
from gangrun.ports import Clock
from gangrun.wire.messages import (
    Ack,
    AskSave,
    CheckNode,
    Command,
    Launch,
    MeetPeer,
    MemoryAnswer,
    Prepare,
    Recover,
    Stacks,
    Stop,
    VerifyShare,
)

TURN_MAX_S = 1.0  # the warden kills an agent that gives no sign of life
FAREWELL_S = 0.5  # for the last words to leave
EXIT_ORPHANED = 71
SIGNALS = (signal.SIGTERM, signal.SIGINT)
NOTICES = (signal.SIGUSR1, signal.SIGUSR2)  # survived by a handler: what is ignored, ranks would inherit


class AgentLoop:
    """One incarnation, from its first look for a term to its goodbye."""

    def __init__(
        self,
        *,
        brain: AgentBrain,
        clock: Clock,
        net: Net,
        warden: AgentEnd,
        ranks: RankGang,
        find_term: Callable[[], facts.TermFound],
        check: Callable[[str, tuple[MeetPeer, ...]], facts.Checked],
        say: Callable[[str], None],
        health: Health | None = None,
        skew: ClockSkew | None = None,
        memory: MemoryTasks | None = None,
        stacks_within_s: float = 8.0,
    ) -> None:
        """``find_term`` and ``check`` may block: they run as background tasks. ``say``: one line for people."""
        self.supervisor_pids: set[int] = set()
        self.own_pids: tuple[int, ...] = ()  # the warden's other children that are no rank's
        self._brain = brain
        self._clock = clock
        self._net = net
        self._warden = warden
        self._ranks = ranks
        self._health = health
        self._skew = skew
        self._gang = (-1, False)  # as health was told
        self._tend_at = 0.0
        self._find_term = find_term
        self._check = check
        self._memory = memory
        self._say = say
        self._stacks_within_s = stacks_within_s
        self._tasks = BackgroundTasks()
        self._verify = VerifyTask()
        self._left: effects.Leave | None = None
        self._askings = Askings()
        self._asked_to_end = {"signal": 0, "warden": 0}
        self._parent = os.getppid()

    def run(self) -> int:
        """Until the end; the exit code."""
        assert threading.current_thread() is threading.main_thread(), "ranks would die with the thread that forked them"
        with _Waker(self._askings) as wake:
            for fd in (wake.fileno(), self._warden.fileno(), self._ranks.fileno(), self._tasks.fileno()):
                self._net.watch(fd)
            if self._health is not None:
                self._net.watch(self._health.fileno())
            self._perform(self._brain.start(self._clock.now()))
            while self._left is None:
                self._turn(wake)
                if os.getppid() != self._parent:
                    return self._orphaned()
        return self._leave(self._left)

    def _turn(self, wake: _Waker) -> None:
        """Wait for something, then take in all that came before anything is judged by the clock."""
        self._net.wait(min(TURN_MAX_S, max(0.0, self._brain.next_wake() - self._clock.now())))
        self._warden.lease.touch()
        wake.clear()
        for signum in self._askings.signals[self._asked_to_end["signal"] :]:
            self._asked("signal", signum)
        for told in self._warden.receive():
            self._from_warden(told)
        answers = self._tasks.take()  # before what was found, which a check's answer must not overtake
        found = self._health.take() if self._health is not None else ()
        for fact in (*self._ranks.take(), *found, *answers):
            self._local(fact)
        for message in self._net.from_supervisor():
            if self._skew is not None and isinstance(message, Ack):
                self._tell_skew(message, self._skew)
            self._perform(self._brain.from_supervisor(message, self._clock.now()))
        for node in self._net.hosts_answered():
            self._local(facts.HostAnswered(node))
        for said, route in self._net.from_peers():
            self._perform(self._brain.from_peer(said, self._clock.now(), route))
        now = self._clock.now()
        if now >= self._brain.next_beat_at and self._brain.orders.alive:
            self._local(facts.ReadingsTaken(self._brain.orders.attempt, self._ranks.readings()))
        self._perform(self._brain.tick(now))
        if now >= self._tend_at:
            self._tend_at = now + TEND_EVERY_S
            self._ranks.tend_standbys(self._brain.lease.live(now) and not self._brain.orders.stopping)
            self._local(facts.StandbysKept(*self._ranks.standbys()))
        gang = (self._brain.orders.attempt, self._brain.orders.stopping)
        if self._health is not None and gang != self._gang:
            self._gang = gang
            self._health.gang(*gang)

    # ---- what comes in -----------------------------------------------------------------------------------------

    def _local(self, fact: facts.Fact) -> None:
        self._perform(self._brain.local(fact, self._clock.now()))

    def _tell_skew(self, ack: Ack, skew: ClockSkew) -> None:
        found = skew.heard(ack, self._clock.now(), self._clock.wall())
        if found is not None:
            self._local(facts.FindingReported(found))

    def _asked(self, source: str, signum: int) -> None:
        """A signal may reach us and our warden both (scancel signals all): that is one asking, not two."""
        told_count = max(self._asked_to_end.values())
        self._asked_to_end[source] += 1
        if self._asked_to_end[source] > told_count:
            self._local(facts.TerminateAsked(signum))

    def _from_warden(self, told: dict[str, Any]) -> None:
        match told.get("op"):
            case "terminate":
                self._asked("warden", int(told.get("signal", signal.SIGTERM)))
            case "supervisor_started":
                self.supervisor_pids.add(int(told.get("pid", 0)))
            case "supervisor_exited":
                self.supervisor_pids.discard(int(told.get("pid", 0)))
                self._local(facts.SupervisorExited(int(told.get("code", 0)), int(told.get("term", 0))))
            case "supervisor_refused":
                self._say(f"the warden started no supervisor: {told.get('why', '')}")
                self._local(facts.SupervisorRefused(str(told.get("why", ""))))
            case "hello":
                self.supervisor_pids.update(told.get("supervisor_pids", ()))
                self.own_pids = tuple(told.get("own_pids", ()))
            case "own_pids":
                self.own_pids = tuple(told.get("pids", ()))
            case "notice":
                self._say(
                    f"{signal.Signals(told['signal']).name} came to this node: without a decision it means nothing"
                )
            case op:
                self._say(f"the warden says {op}: {told}")

    # ---- what goes out -----------------------------------------------------------------------------------------

    def _perform(self, wanted: Sequence[Effect]) -> None:
        for effect in wanted:
            if self._left is None:
                self._do(effect)

    def _do(self, effect: Effect) -> None:
        match effect:
            case effects.SendSupervisor():
                self._net.say(effect.message)
            case effects.SendPeer():
                self._net.say_peer(effect.peer, effect.message, self._clock.now())
            case effects.Knock():
                self._net.knock(effect.peer, self._clock.now())
            case effects.ReplyPeer():
                self._net.reply_peer(effect.route, effect.message)
            case effects.DialTerm():
                self._net.dial(effect.endpoint, effect.server_key)
            case effects.FindTerm():
                self._tasks.ask("find term", self._find_term, lambda _: facts.TermFound(None))
            case effects.WriteLease():
                self._warden.lease.renew(int(effect.deadline * 1e9))
            case effects.SpawnSupervisor():
                self._spawn(effect)
            case effects.Leave():
                self._left = effect
            case command:
                self._obey(command)

    def _obey(self, command: Command) -> None:
        match command:
            case Prepare():
                self._prepare(command)
            case Launch():
                self._launch(command)
            case Stop():
                self._ranks.stop(command)
            case Stacks():
                self._ranks.take_stacks(command, self._stacks_within_s)
            case AskSave() if command.hold:
                self._local(self._ranks.hold(command))
            case AskSave():
                self._disk_task(command, partial(self._ranks.save, command))
            case CheckNode():
                self._run_check(command)
            case VerifyShare():
                self._disk_task(command, partial(self._verify.answer, command))
            case Recover():
                if self._memory is None:
                    self._local(facts.DiskTaskDone(command, True, answer=MemoryAnswer(())))
                else:
                    self._disk_task(command, partial(self._memory.answer, command))

    def _spawn(self, wish: effects.SpawnSupervisor) -> None:
        self._say(f"asking for a supervisor of term {wish.term_min} or later, promised by {len(wish.promises)}")
        self._tell_warden(
            {
                "op": "spawn_supervisor",
                "term_min": wish.term_min,
                "promises": list(wish.promises),
                "promised_at": wish.promised_at,
            }
        )

    def _prepare(self, command: Prepare) -> None:
        self._verify.give_up()  # who waited for it has chosen
        if self._memory is not None:
            self._memory.give_up(command.act)
        self._ranks.prepare(command)

    def _launch(self, command: Launch) -> None:
        attempt, step = command.attempt, command.resume_memory
        files: Mapping[str, str] | None = None
        try:
            if self._memory is not None and step is not None:
                files = {} if command.lacks_step else self._memory.paths(step, attempt)
        except OSError as error:
            self._local(facts.RanksLaunched(attempt, False, error.strerror or str(error), retry_free=True))
            return
        try:
            ranks = self._ranks.launch(command, lambda: self._brain.lease.live(self._clock.now()), files)
        except RuntimeError as error:
            self._local(facts.RanksLaunched(attempt, False, str(error)))
            return
        self._local(facts.RanksLaunched(attempt, True, ranks=ranks))

    def _run_check(self, command: CheckNode) -> None:
        tests, meetings = command.tests, command.meetings
        self._tasks.ask(
            f"check {tests} {meetings}",
            lambda: replace(self._check(tests, meetings), tests=tests, meetings=meetings),
            lambda error: facts.Checked(False, str(error), tests=tests, meetings=meetings),
        )

    def _tell_warden(self, message: dict[str, Any]) -> None:
        try:
            self._warden.send(message)
        except OSError as error:
            self._say(f"the warden does not hear: {error}")

    def _disk_task(self, command: AskSave | Recover | VerifyShare, answer: Callable[[], facts.Fact]) -> None:
        kind = f"{type(command).__name__} {command.term}.{command.act}"
        self._tasks.ask(kind, answer, lambda error: facts.DiskTaskDone(command, False, str(error)))

    # ---- the end -----------------------------------------------------------------------------------------------

    def _leave(self, left: effects.Leave) -> int:
        self._say(f"leaving with {left.code}: {left.reason}")
        self._net.close(FAREWELL_S)
        self._tell_warden({"op": "goodbye", "code": left.code})
        if not self._ranks.close():
            self._say("the disk did not take in time all that ranks printed: the last lines are missing in the logs")
        if self._health is not None:
            self._health.close()
        return left.code

    def _orphaned(self) -> int:
        """Without a warden nobody would end the lease: no rank may live on."""
        self._ranks.kill_now()
        self._say("the warden is gone: all ranks were killed")
        return EXIT_ORPHANED


@final
class _Waker:
    """Turns signals into a readable file descriptor."""

    def __init__(self, askings: Askings) -> None:
        self._askings = askings
        self._read, self._write = socket.socketpair()
        self._read.setblocking(False)
        self._write.setblocking(False)

    def __enter__(self) -> _Waker:
        self._old_fd = signal.set_wakeup_fd(self._write.fileno(), warn_on_full_buffer=False)
        self._old = {signum: signal.signal(signum, self._askings.note) for signum in SIGNALS}
        self._old |= {signum: signal.signal(signum, lambda _number, _frame: None) for signum in NOTICES}
        return self

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(self._old_fd)
        for signum, handler in self._old.items():
            signal.signal(signum, handler)
        self._read.close()
        self._write.close()

    def fileno(self) -> int:
        return self._read.fileno()

    def clear(self) -> None:
        """Forget what woke us; the signals themselves are in the list."""
        try:
            self._read.recv(4096)
        except BlockingIOError:
            pass

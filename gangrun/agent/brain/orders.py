"""What the supervisor told this agent to do, and what became of it.

Commands are said again until answered, so each is known by (kind, term, act): in hand, or its answer is repeated from
memory. What keeps two gangs apart on one node:

- an attempt is launched only if this very incarnation proved for it that nothing is left on the node, in the same term;
- never an attempt <= ``floor``, the newest one that was launched or stopped here, whatever the term says;
- never while a rank of any attempt, or a descendant of one, may be left (nor, says ``brain``, without a live lease).
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import replace
from typing import Any

from gangrun.agent.brain import effects, facts
from gangrun.agent.brain.effects import Effect
from gangrun.core.events import StacksTaken
from gangrun.core.evidence import RankExit
from gangrun.wire.messages import (
    Answer,
    AskSave,
    CheckAnswer,
    CheckNode,
    Command,
    CommandResult,
    Farewell,
    Launch,
    LiveRank,
    Prepare,
    Recover,
    Stacks,
    StacksAnswer,
    StartAnswer,
    Stop,
    StopAnswer,
    VerifyShare,
)

Key = tuple[str, int, tuple[int, int]]
ANSWERS_MAX = 256


class Orders:
    """Ranks of this node as the brain knows them, and the commands about them."""

    def __init__(self, node: str, incarnation: str) -> None:
        self.node = node
        self.incarnation = incarnation
        self.attempt = -1  # newest it was told to launch
        self.floor = -1
        self.alive: dict[int, LiveRank] = {}
        self.dirty = False  # since a launch, until a stop or a ``Prepare`` says that nothing is left
        self._stops_at = math.inf  # what failed before fell of itself
        self._prepared: tuple[int, int] | None = None  # (term, attempt)
        self._in_hand: dict[Key, Command] = {}
        self._answers: OrderedDict[Key, CommandResult] = OrderedDict()

    @property
    def launching(self) -> bool:
        """Told to launch and still at it."""
        return any(isinstance(command, Launch) for command in self._in_hand.values())

    @property
    def stopping(self) -> bool:
        """Told to stop and still at it."""
        return any(isinstance(command, Stop) for command in self._in_hand.values())

    @property
    def empty(self) -> bool:
        """No rank of any attempt, nor any descendant of one, is left here."""
        return not self.dirty

    def take(self, command: Command | Farewell, outbox_full: bool, now: float) -> list[Effect]:
        """Obey, refuse or repeat; the caller has checked the term and the lease."""
        key = _key(command)
        if key in self._answers:
            return [effects.SendSupervisor(self._answers[key])]
        if key in self._in_hand:
            return []
        match command:
            case Prepare():
                return self._prepare(command)
            case Launch():
                return self._launch(command, outbox_full)
            case Stop():
                return self._stop(command, now)
            case Stacks() | AskSave() | CheckNode() | Recover() | VerifyShare():
                self._in_hand[key] = command
                return [command]
            case Farewell():
                return [self._answer(command, True)]

    def _prepare(self, command: Prepare) -> list[Effect]:
        if command.attempt <= self.floor:
            return [self._answer(command, False, f"attempt {self.floor} was already started or stopped here")]
        if self.alive or self.launching:
            return [self._answer(command, False, f"ranks of attempt {self.attempt} are alive")]
        for key in [k for k, other in self._in_hand.items() if isinstance(other, Prepare)]:
            del self._in_hand[key]  # withdrawn by this newer one
        self._prepared = None
        self._in_hand[_key(command)] = command
        return [command]

    def _launch(self, command: Launch, outbox_full: bool) -> list[Effect]:
        why = ""
        if command.attempt <= self.floor:
            why = f"attempt {self.floor} was already started or stopped here"
        elif self.alive or self.launching or self.dirty:
            why = f"something of attempt {self.attempt} may be left"
        elif self._prepared != (command.term, command.attempt):
            why = f"attempt {command.attempt} was not prepared by this agent"
        elif outbox_full:
            why = "too many events of this node wait for the journal"
        if why:
            return [self._answer(command, False, why)]
        self.floor = self.attempt = command.attempt
        self._stops_at = math.inf
        self._prepared = None
        self.dirty = True
        self._in_hand[_key(command)] = command
        return [command]

    def _stop(self, command: Stop, now: float) -> list[Effect]:
        if command.attempt < self.attempt:
            # what was launched since was launched on an empty node; it is not this command's to stop
            return [self._answer(command, True)]
        self.floor = max(self.floor, command.attempt)
        if self._prepared is not None and self._prepared[1] <= self.floor:
            self._prepared = None
        # the same stop in other words (a new term's, say) must not cut short a checkpoint that is being saved
        covered = any(
            isinstance(other, Stop) and other.attempt >= command.attempt and _patience_s(other) <= _patience_s(command)
            for other in self._in_hand.values()
        )
        self._stops_at = min(self._stops_at, now + command.settle_s)
        self._in_hand[_key(command)] = command
        return [] if covered else [command]

    def stop_all(self, term: int, grace_s: float, why: str) -> list[Effect]:
        """Stop whatever is left, on this agent's own account; nothing may be launched after it."""
        if self.empty and not self.alive and not self.launching:
            return []
        self.floor = max(self.floor, self.attempt)
        return [Stop(term, (term, -1), self.floor, grace_s, False, 0.0, why)]

    # ---- outcomes ----------------------------------------------------------------------------------------------

    def outcome(
        self, fact: facts.NodePrepared | facts.RanksLaunched | StacksTaken | facts.Checked | facts.DiskTaskDone
    ) -> list[Effect]:
        """A command was obeyed, or could not be."""
        match fact:
            case facts.NodePrepared():
                return self.on_slate(fact)
            case facts.RanksLaunched():
                return self.on_launched(fact)
            case StacksTaken():
                return self.on_stacks(fact)
            case facts.Checked():
                return self.on_checked(fact)
            case facts.DiskTaskDone():
                return self.on_disk_used(fact)

    def on_slate(self, fact: facts.NodePrepared) -> list[Effect]:
        """Nothing of earlier attempts is left for ``fact.attempt``, or something is."""
        answers: list[Effect] = []
        for command in self._withdraw(Prepare, fact.attempt, fact.attempt):
            if fact.ok:
                self.dirty = False
                self._prepared = (command.term, fact.attempt) if fact.attempt > self.floor else None
            answers.append(self._answer(command, fact.ok, fact.why, StartAnswer(fact.port, fact.retry_free)))
        return answers

    def on_launched(self, fact: facts.RanksLaunched) -> list[Effect]:
        """The ranks of ``fact.attempt`` run, or none of them does."""
        answers: list[Effect] = []
        for command in self._withdraw(Launch, fact.attempt, fact.attempt):
            self.alive = {rank.rank: rank for rank in fact.ranks} if fact.ok else {}
            answers.append(self._answer(command, fact.ok, fact.why, StartAnswer(retry_free=fact.retry_free)))
        return answers

    def on_ended(self, fact: facts.RankEnded, lease_live: bool) -> RankExit | None:
        """A rank is gone; None where it is not of the attempt that runs here."""
        if fact.attempt != self.attempt:
            return None
        self.alive.pop(fact.exit.rank, None)
        stopped = self.stopping and fact.exit.fell_at >= self._stops_at
        return replace(fact.exit, by_us=fact.exit.by_us or stopped or not lease_live)

    def on_stopped(self, fact: facts.RanksStopped) -> list[Effect]:
        """Nothing up to ``fact.attempt`` is left, or what is left cannot be killed."""
        if fact.ok and fact.attempt >= self.attempt:
            self.alive = {}
            self.dirty = False
            for launch in self._withdraw(Launch, 0, fact.attempt):
                self._remember(launch, False, "stopped before it was up", None)
        told = bool(fact.leftovers or fact.overdue or fact.saved_step >= 0)
        left = StopAnswer(fact.leftovers, fact.overdue, fact.grace_s, fact.saved_step) if told else None
        why = "" if fact.ok else "cannot be killed: " + ", ".join(fact.leftovers)
        answers: list[Effect] = [self._answer(c, fact.ok, why, left) for c in self._withdraw(Stop, -1, fact.attempt)]
        return answers + [c for c in self._in_hand.values() if isinstance(c, Stop)]

    def on_stacks(self, fact: StacksTaken) -> list[Effect]:
        """All stacks of ``fact.attempt`` are on disk."""
        taken = StacksAnswer(fact.stacks)
        return [self._answer(c, True, "", taken) for c in self._withdraw(Stacks, fact.attempt, fact.attempt)]

    def on_checked(self, fact: facts.Checked) -> list[Effect]:
        """The preflight ended."""
        tested = CheckAnswer(fact.tested, fact.met, fact.broken) if fact.tested or fact.met or fact.broken else None
        asked = [one for one in self._in_hand.values() if isinstance(one, CheckNode)]
        found = [one for one in asked if (one.tests, one.meetings) == (fact.tests, fact.meetings)]
        return [self._answer(command, fact.ok, fact.why, tested) for command in found]

    def on_disk_used(self, fact: facts.DiskTaskDone) -> list[Effect]:
        """What is in memory is known, or is on disk; or this node's share of a checkpoint was read."""
        asked = _key(fact.command) in self._in_hand
        return [self._answer(fact.command, fact.ok, fact.why, fact.answer)] if asked else []

    # ---- memory ------------------------------------------------------------------------------------------------

    def _withdraw(self, kind: type[Any], first: int, last: int) -> list[Any]:
        found = [c for c in self._in_hand.values() if isinstance(c, kind) and first <= c.attempt <= last]
        for command in found:
            del self._in_hand[_key(command)]
        return found

    def _answer(
        self, command: Command | Farewell, ok: bool, why: str = "", answer: Answer | None = None
    ) -> effects.SendSupervisor:
        return effects.SendSupervisor(self._remember(command, ok, why, answer))

    def _remember(self, command: Command | Farewell, ok: bool, why: str, answer: Answer | None) -> CommandResult:
        key = _key(command)
        self._in_hand.pop(key, None)
        result = CommandResult(self.node, self.incarnation, command.act, ok, why, answer)
        self._answers[key] = result
        while len(self._answers) > ANSWERS_MAX:
            self._answers.popitem(last=False)
        return result


def _key(command: Command | Farewell) -> Key:
    return type(command).__name__, command.term, command.act


def _patience_s(command: Stop) -> float:
    return command.grace_s + (command.checkpoint_grace_s if command.checkpoint_first else 0.0)

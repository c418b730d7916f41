"""A brain with a clock in the hand, and the words that are said to it (room: tests)."""

from __future__ import annotations

from typing import Any, TypeVar

from gangrun.agent.brain import effects, facts
from gangrun.agent.brain.decide import AgentBrain, AgentConfig
from gangrun.agent.brain.effects import Effect
from gangrun.core.evidence import RankExit
from gangrun.core.policy import Timing
from gangrun.wire.messages import (
    Ack,
    Beat,
    CommandResult,
    Dial,
    Hello,
    Launch,
    LiveRank,
    PeerAddress,
    Prepare,
    Stop,
    Welcome,
)

E = TypeVar("E")
TIMING = Timing()
ME = PeerAddress("n1", "tcp://n1", "key1")
PEERS = tuple(PeerAddress(f"n{i}", f"tcp://n{i}", f"key{i}") for i in range(1, 6))


def dial(term: int) -> Dial:
    return Dial(term, f"tcp://sup{term}", f"skey{term}")


def prepare(attempt: int, term: int = 1, n: int = 0, rank_zero: bool = False) -> Prepare:
    return Prepare(term, (term, n or 100 + attempt), attempt, rank_zero)


def launch(attempt: int, term: int = 1, n: int = 0) -> Launch:
    return Launch(term, (term, n or 200 + attempt), attempt, 2, 0, 1, (0, 1), (0, 1), "h", 2000, ("n1",))


def stop(attempt: int, term: int = 1, n: int = 0, grace_s: float = 10.0, save: bool = False,
         settle_s: float = 0.0) -> Stop:  # fmt: skip
    return Stop(term, (term, n or 300 + attempt), attempt, grace_s, save, 60.0, "because", settle_s)


def live(*ranks: int) -> tuple[LiveRank, ...]:
    return tuple(LiveRank(rank, 1000 + rank, 5) for rank in ranks)


def died(
    rank: int,
    code: int | None = None,
    by_us: bool = False,
    signal: int | None = None,
    at: float = 0.0,
    written: float = 0.0,
) -> RankExit:
    return RankExit(rank, "n1", code, signal, False, by_us, None, at, written_at=written)


class Stage:
    """One brain; ``now`` moves only when told to."""

    def __init__(self, now: float = 1000.0, **config: Any) -> None:
        self.now = now
        given: dict[str, Any] = {"peer": ME, "timing": TIMING, "roster_count": 0, **config}
        self.brain = AgentBrain(AgentConfig("n1", "inc", "boot", "job", 2, **given), now)
        self.done: list[Effect] = []
        self.leases: list[float] = []
        self.did(self.brain.start(now))

    def did(self, wanted: list[Effect]) -> list[Effect]:
        self.done += wanted
        self.leases += [e.deadline for e in wanted if isinstance(e, effects.WriteLease)]
        return wanted

    def take(self) -> list[Effect]:
        """What was done since the last time this was asked."""
        done, self.done = self.done, []
        return done

    def only(self, kind: type[E]) -> list[E]:
        """What of this kind was done since, or was said to the supervisor."""
        said = [e.message if isinstance(e, effects.SendSupervisor) else e for e in self.take()]
        return [e for e in said if isinstance(e, kind)]

    def sup(self, message: Any) -> list[Effect]:
        return self.did(self.brain.from_supervisor(message, self.now))

    def peer(self, message: Any, route: bytes = b"") -> list[Effect]:
        return self.did(self.brain.from_peer(message, self.now, route))

    def local(self, fact: facts.Fact) -> list[Effect]:
        return self.did(self.brain.local(fact, self.now))

    def pass_s(self, seconds: float, acks: bool = False, **ack: Any) -> None:
        """Time passes; ``tick`` whenever the brain asks for it. ``acks``: every beat is acked at once."""
        until = self.now + seconds
        for _ in range(10_000):
            wake = self.brain.next_wake()
            if wake > until:
                break
            self.now = max(self.now, wake)
            for effect in self.did(self.brain.tick(self.now)):
                if acks and isinstance(effect, effects.SendSupervisor) and isinstance(effect.message, Beat):
                    self.ack(effect.message, **ack)
        else:
            raise AssertionError("it never sleeps")
        self.now = until
        self.did(self.brain.tick(self.now))

    def ack(self, beat: Beat, term: int = 0, journalled_seq: int = 0, **more: Any) -> list[Effect]:
        term = term or (self.brain.lease.line.term if self.brain.lease.line else 0)
        return self.sup(Ack(term, beat.seq, beat.boottime, journalled_seq, **more))

    def follow(self, term: int = 1, **ack: Any) -> Stage:
        """Dial a term, be welcomed and acked once."""
        self.peer(dial(term))
        assert any(isinstance(hello, Hello) for hello in self.only(Hello))
        self.sup(Welcome(term, "n1", stamp=500.0))
        beat = self.only(Beat)[-1]
        self.ack(beat, term, **ack)
        self.take()
        return self

    def run(self, attempt: int = 0, term: int = 1) -> Stage:
        """Prepare and launch an attempt, with all that is answered."""
        self.sup(prepare(attempt, term))
        self.local(facts.NodePrepared(attempt, True))
        self.sup(launch(attempt, term))
        self.local(facts.RanksLaunched(attempt, True, ranks=live(0, 1)))
        assert [r.ok for r in self.only(CommandResult)] == [True, True]
        return self

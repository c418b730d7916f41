"""Is a slow node slow, or what its ranks do? They run on a spare, and their speed there tells (``--race-stragglers``).

Theory of operation. A rank that is slower than its peers may be slow for its node, or for its data or code: both look
the same as long as it stays where it is. All ranks step together, so the two nodes cannot train at the same time. They
are compared one after the other instead:

- ``begun``: at a checkpoint one spare takes the place of one slow node (``planned_replacement``). The time of a step so
  far, which came with that checkpoint, is kept in ``Race.before``.
- ``timed``: after the move, the supervisor tells the time of as many steps on the spare. If they are faster, the node
  stays set aside as slow. If they are not, the node is innocent, and its ranks are not moved for being slow again
  (``Races.followed``). If they are slower, the ranks go back once (``Races.back``), and the spare is set aside.
- ``followed_up``: a comparison that anything else comes into is dropped, and blames nobody. That is a new supervisor, a
  stop for any other reason, or a start on other nodes.

What counts as faster or slower is ``bound``: the larger of ``race_min_share``, and of ``race_missing_share`` of what
the others had lost by waiting for the rank. ``StepTimes`` measures. It cuts an attempt into blocks, because steps are
seen in heartbeats: the time of few short steps would be that of the heartbeats. A median over blocks leaves out an
evaluation or a save in some of them. The first block of an attempt is left out: caches are cold, and code is compiled.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from statistics import median

from gangrun.core.actions import Decision, SaveGang
from gangrun.core.events import Event, StepsTimed, TermTaken
from gangrun.core.evidence import Alert
from gangrun.core.machine.transitions import ignored, stay
from gangrun.core.model import TERMINAL, After, Outcome, Phase, Placement, Race, Races, RunState, StepTime
from gangrun.core.nodes import roster
from gangrun.core.nodes.placement import ranks_of_node
from gangrun.core.policy import Policy, TrendPolicy
from gangrun.core.recovery import alerts

MOVED = "moved"  # what became of an attempt that was stopped to replace nodes
FIGURES = "a step took"  # so begins what a comparison showed
BLOCKS_COUNT, BLOCKS_MIN_COUNT, BLOCKS_MAX_COUNT = 10, 5, 200
BLOCK_STEPS_MIN_COUNT = 5


class StepTimes:
    """How long the steps of one attempt take, in blocks of a tenth of the trend window and five steps at least."""

    def __init__(self, policy: TrendPolicy) -> None:
        self._block_s = policy.window_s / BLOCKS_COUNT
        self._blocks: deque[tuple[float, int]] = deque(maxlen=BLOCKS_MAX_COUNT)
        self._began: tuple[float, int] | None = None
        self._is_warm = False

    def advanced(self, step: int, now: float) -> None:
        """The gang was seen at a new step."""
        if self._began is None:
            self._began = now, step
            return
        over_s, steps_count = now - self._began[0], step - self._began[1]
        if over_s < self._block_s or steps_count < BLOCK_STEPS_MIN_COUNT:
            return
        if self._is_warm:
            self._blocks.append((over_s, steps_count))
        self._is_warm, self._began = True, (now, step)

    def newest(self) -> StepTime | None:
        """Over the newest blocks; None: too few."""
        blocks = list(self._blocks)[-BLOCKS_COUNT:]
        return _over(blocks) if len(blocks) >= BLOCKS_MIN_COUNT else None

    def first(self, steps_count: int) -> StepTime | None:
        """Over the first ``steps_count`` steps of the attempt; None: it has not made them."""
        blocks = list(self._blocks)
        done = accumulate(steps for _, steps in blocks)
        needed = next((k for k, count in enumerate(done, 1) if count >= steps_count), None)
        return None if needed is None else _over(blocks[:needed])


def _over(blocks: Sequence[tuple[float, int]]) -> StepTime:
    return StepTime(median(seconds / steps for seconds, steps in blocks), sum(steps for _, steps in blocks))


# ---- before ----------------------------------------------------------------------------------------------------------


def why_stays(state: RunState, placed: Placement, alert: Alert) -> str:
    """Why a node of the gang is not left for this slow rank, in words; "" if it may be."""
    races = state.race
    if alert.rank in races.followed and placed.world_size == races.world_size:
        return f"rank {alert.rank} was slow on another node too"
    if races.open is not None and alert.node == races.open.other:
        return f"the speed of its ranks is being compared with that on {races.open.node}"
    if races.back is not None and alert.node == races.back.other:
        return f"its ranks go back to {races.back.node} at the next checkpoint"
    return ""


def begun(
    state: RunState, leaving: Sequence[str], coming: Sequence[str], before: StepTime | None, policy: Policy
) -> tuple[RunState, str]:
    """All ranks are stopped for a move: the state in which the speed on both nodes is to be compared, and the words for
    it. The same state if the move is for another reason, or compares nothing.
    """
    placed = state.attempt.placement
    if not policy.race_stragglers or placed is None or (state.race.back and goes_back(state, leaving, coming)):
        return state, ""
    if len(leaving) != 1 or len(coming) != 1 or state.roster.nodes[leaving[0]].due:
        return state, ""  # what came of it would say nothing about one slow node
    (node,), (other,) = leaving, coming
    open_ones = [one.alert for one in alerts.open_ones(state) if one.alert.kind in alerts.OF_A_RANK]
    lost = [one.lost_share for one in open_ones if one.node == node]
    if not lost:
        return state, ""  # it was slow in an earlier attempt
    if before is None:
        return state, f"; the speed on {node} and {other} is not compared, as too few steps were seen on {node}"
    ranks = tuple(ranks_of_node(placed, node))
    race = Race(node, other, ranks, state.attempt.number, before, max(lost))
    words = f"; then the speed is compared with {_step_s(before.step_s)} for a step on {node}"
    return replace(state, race=replace(state.race, open=race, back=None)), words


def goes_back(state: RunState, leaving: Sequence[str], coming: Sequence[str]) -> bool:
    """Is this the move that takes ranks back to the node on which they were faster?"""
    back = state.race.back
    return back is not None and (*leaving, *coming) == (back.other, back.node)


# ---- after -----------------------------------------------------------------------------------------------------------


def bound(race: Race, policy: TrendPolicy) -> float:
    """The share of a step's time that counts as a difference."""
    return max(policy.race_min_share, policy.race_missing_share * race.lost_share)


def wanted_count(state: RunState) -> int:
    """How many steps of this attempt are to be timed; 0: none."""
    race = state.race.open
    return race.before.steps_count if race is not None and state.attempt.number > race.attempt else 0


def timed(state: RunState, event: StepsTimed, now: float, policy: Policy) -> Decision:
    """RUNNING: the steps on the spare have been timed, so the comparison has its outcome."""
    del now
    race = state.race.open
    if race is None:
        return ignored(state, "no speed is being compared")
    state = replace(state, race=replace(state.race, open=None))
    saved_share, least = 1 - event.step_s / race.before.step_s, bound(race, policy.trends)
    figures = _figures(race, event)
    if saved_share >= least:
        state = roster.found_slow(state, race.node, figures)
        return stay(state, f"{figures}: {race.node} is slow, and it is used only if no other node is free", loud=True)
    state = roster.found_slow(state, race.node, "")
    if -saved_share >= least:
        state = roster.found_slow(state, race.other, figures)
        state = replace(state, race=replace(state.race, back=race))
        reason = f"{figures}: {race.other} is slower still, so the ranks go back at the next checkpoint"
        return stay(
            state, f"{reason}, which all ranks are asked for now", SaveGang(state.attempt.number, ""), loud=True
        )
    assert state.attempt.placement is not None  # all ranks are alive
    state = replace(state, race=_with_followed(state.race, race.ranks, state.attempt.placement.world_size))
    whose = f"the slowness followed {_ranks(race)}, so data or code is its cause"
    reason = f"{figures}, which is no difference of {100 * least:.0f} %: {whose}"
    what = f"{race.node} is set aside as slow no more, and {_ranks(race)} {'is' if len(race.ranks) == 1 else 'are'}"
    return stay(state, f"{reason}; {what} not moved for being slow again", loud=True)


def _with_followed(races: Races, ranks: tuple[int, ...], world_size: int) -> Races:
    """In a world of another size each rank has other data."""
    known = races.followed if races.world_size == world_size else ()
    return replace(races, followed=tuple(sorted({*known, *ranks})), world_size=world_size)


def _figures(race: Race, after: StepsTimed) -> str:
    """Both figures in words."""
    counts = f"{race.before.steps_count} and {after.steps_count} steps"
    return (
        f"{FIGURES} {_step_s(race.before.step_s)} with {_ranks(race)} on {race.node} and {_step_s(after.step_s)} with"
        f" {'it' if len(race.ranks) == 1 else 'them'} on {race.other} (medians of {counts})"
    )


def _ranks(race: Race) -> str:
    first, last = race.ranks[0], race.ranks[-1]
    return f"rank {first}" if first == last else f"ranks {first} {'and' if last == first + 1 else 'to'} {last}"


def _step_s(seconds: float) -> str:
    return f"{seconds:.3g} s"


# ---- what comes into it ----------------------------------------------------------------------------------------------


def followed_up(before: RunState, event: Event, decision: Decision) -> Decision:
    """A comparison ends here if something else came into it, and the way back with the start that it asked for."""
    state, race = decision.state, before.race.open
    if decision.outcome is not Outcome.APPLIED or state.phase in TERMINAL:
        return decision
    if state.phase is Phase.RUNNING is not before.phase and state.race.back is not None:
        state = replace(state, race=replace(state.race, back=None))
    why = "" if race is None or state.race.open is not race else _broken_off(before, event, state, race)
    if race is None or not why:
        return replace(decision, state=state)
    state = roster.found_slow(replace(state, race=replace(state.race, open=None)), race.node, "")
    reason = f"{decision.reason}; the speed on {race.node} and {race.other} is not compared: {why}. Neither is blamed"
    tells = decision.state.reason == decision.reason
    return replace(decision, state=replace(state, reason=reason) if tells else state, reason=reason)


def _broken_off(before: RunState, event: Event, state: RunState, race: Race) -> str:
    """Why a comparison cannot have an outcome any more, in words; "" if it can."""
    if isinstance(event, TermTaken):
        return "another supervisor took over meanwhile"
    moved = next((one for one in state.attempts if one.number == race.attempt), None)
    match state.phase:
        case Phase.STOPPING if before.phase is Phase.STOPPING:
            return "" if state.underway.after is After.MOVE else "the ranks stop for another reason"
        case Phase.CHECKING | Phase.STARTING if moved is not None and moved.outcome == MOVED:
            return ""
        case Phase.RUNNING if before.phase is Phase.RUNNING:
            return ""
        case Phase.RUNNING:
            before_nodes = () if moved is None else moved.nodes
            nodes = tuple(race.other if name == race.node else name for name in before_nodes)
            return "" if state.attempts[-1].nodes == nodes else "the ranks were started on other nodes"
        case _:
            return "the ranks were stopped for another reason"

"""Whose fault it was: evidence in, one verdict with one sentence out.

Order of trust: what the hardware says, silence, an agent's death, the first rank that fell of itself, then where
everybody stood. A victim's collective error never counts against its own node, and nobody is blamed who may be
innocent. ``error_rules`` reads what a rank wrote, ``signatures`` knows a failure that came before, ``blame_hang`` reads
a stall, ``move`` compares a rank with its node; ``lifecycle`` asks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from types import MappingProxyType

from gangrun.core.checkpoints import poison
from gangrun.core.evidence import Evidence, RankExit, traits_of
from gangrun.core.model import Cause, Cure, Failure, Move, Placement, Sighting, Verdict
from gangrun.core.nodes.placement import ranks_of_node
from gangrun.core.nodes.standing import shared_by_check, shared_nodes
from gangrun.core.nodeset import fold, natural_sort
from gangrun.core.policy import Policy
from gangrun.core.recovery import blame_hang, error_rules, move, self_checks, signatures
from gangrun.core.recovery.error_rules import Spread
from gangrun.core.recovery.failure_texts import VICTIMS, Rule
from gangrun.core.text import counted, finding_told, last_lines, listed, one_line, signal_name

SIGKILL = 9
NO_RANK = -1  # a verdict that speaks of no rank that may be moved
# From outside: operator, scheduler, another process. These tell nothing about the code, so they never "repeat".
KILLS = frozenset({1, 2, SIGKILL})  # an exception ends no process so: somebody did, whatever was raised before
OUTSIDE_SIGNALS = frozenset({1, 2, 3, 9, 10, 12, 13, 14, 15, 19, 20, 21, 22, 24, 25})
MAY_BE_HARDWARE = frozenset(
    {Cause.RANK_ERROR, Cause.SIGNAL, Cause.KILLED, Cause.HANG, Cause.VICTIMS_ONLY, Cause.START_FAILED}
    | {Cause.HARDWARE}  # as a rank tells it, of a node that is not blamed
)


@dataclass(frozen=True, slots=True)
class _Scene:
    """What every rule may look at besides the evidence."""

    attempt_step: int
    placement: Placement | None
    nodes_count: int
    policy: Policy
    finished: AbstractSet[int]
    addresses: Mapping[str, str]
    stopped: AbstractSet[int]
    losable: AbstractSet[int]

    @property
    def world_size(self) -> int:
        """How many ranks there were; 0 where nobody knows."""
        return self.placement.world_size if self.placement is not None else 0

    @property
    def gang_nodes_count(self) -> int:
        """How many nodes had ranks."""
        return len(self.placement.nodes) if self.placement is not None else self.nodes_count


def judge(
    evidence: Evidence,
    *,
    attempt: int,
    attempt_step: int,
    placement: Placement | None,
    sightings: tuple[Sighting, ...],
    suspicion: Mapping[str, int],
    nodes_count: int,
    policy: Policy,
    load: poison.Load | None = None,
    finished: AbstractSet[int] = frozenset(),
    stopped: AbstractSet[int] = frozenset(),
    moved: Move | None = None,
    addresses: Mapping[str, str] = MappingProxyType({}),
    losable: AbstractSet[int] = frozenset(),
) -> Verdict:
    """Weigh the evidence of one failure. ``finished``: the ranks that had ended with 0. ``stopped``: those that we
    stopped. ``moved``: the rank that was moved to another node because it had fallen first twice. ``addresses``: which
    node a text means by an address. ``losable``: the ranks that ended whose slots their nodes can do without.

    A node that is in both ``blamed`` and ``suspects`` goes on suspicion alone: leave it out only if the gang can do
    without it (``placement.can_do_without``).
    """
    scene = _Scene(attempt_step, placement, nodes_count, policy, finished, addresses, stopped, losable)
    evidence = replace(evidence, exits=error_rules.compared(evidence.exits, evidence.shown))
    verdict = _first_impression(evidence, scene)
    without = _first_impression(_without_lines(evidence), scene) if sightings else verdict
    if any(one.signature == without.signature and not set(one.nodes) & set(without.suspects) for one in sightings):
        verdict = without
    if verdict.final:
        return verdict
    compared = move.compared(verdict, moved, placement, suspicion)
    if compared is not None:
        return compared
    again = signatures.seen_before(verdict, sightings, attempt, attempt_step, nodes_count)
    on_hardware = _on_poor_hardware(verdict, evidence, scene)
    is_poor = on_hardware is not verdict
    times = 0 if is_poor else poison.times_count(verdict, sightings, load, attempt_step, policy)
    weighed = _fell_first_again(on_hardware, suspicion, scene, is_poor=is_poor)
    if load is not None and load.is_on_disk and times >= policy.poison_times_count:
        return poison.verdict(verdict, load, times, policy)
    if again is not None and not times:
        if _is_open(verdict, again) and _replaceable(scene):
            return replace(verdict, moves=True)
        elsewhere = {name for one in sightings if one.signature == verdict.signature for name in one.nodes}
        cleared = tuple(natural_sort(elsewhere - set(verdict.suspects)))  # it was taken for those nodes' own
        return replace(_same_again(verdict, again, _first_to_fall(evidence), attempt_step), cleared=cleared)
    return replace(weighed, moves=weighed.moves and not times)


def _first_impression(evidence: Evidence, scene: _Scene) -> Verdict:
    """The verdict on this failure alone."""
    if evidence.started_over is not None:
        return _started_over(*evidence.started_over)
    fatal = [finding for finding in evidence.findings if finding.fatal]
    if fatal:
        return _hardware(evidence, scene)
    if evidence.silent:
        return _silent(evidence, scene)
    if evidence.start_failed is not None:
        return _start_failed(*evidence.start_failed)
    if evidence.agents_died:
        return _agents_died(evidence.agents_died)
    if evidence.divergence is not None:
        return self_checks.verdict(evidence.divergence, scene.placement)
    first = _first_to_fall(evidence)
    if first is not None:
        return _fell(first, evidence, scene)
    if (stop := evidence.anomaly) is not None:
        cause = Cause.DATA if stop.is_data else Cause.NUMERICAL
        return Verdict(cause, Failure.SCRIPT, (), (), "", stop.sentence, stop.is_final)
    victims = [rank_exit for rank_exit in evidence.exits if not rank_exit.by_us]
    if victims:
        lost = blame_hang.lost_peers(
            victims,
            evidence.hang,
            attempt_step=scene.attempt_step,
            placement=scene.placement,
            finished=scene.finished,
            addresses=scene.addresses,
        )
        return blame_hang.with_recorded(lost, evidence.exits)
    if evidence.hang is not None:
        return blame_hang.verdict(evidence.hang, scene.attempt_step, scene.world_size)
    if evidence.unfinished:
        return Verdict(Cause.LEFT_EARLY, Failure.SCRIPT, (), (), signatures.exit_signature(0), evidence.unfinished)
    return Verdict(
        Cause.VICTIMS_ONLY, Failure.SCRIPT, (), (), "", f"all ranks ended{_at_step(scene)} and none reported a cause"
    )


def _without_lines(evidence: Evidence) -> Evidence:
    """A line beside a failure does not explain it if the same failure came on another node before."""
    exits = [replace(died, shown=()) if died.shown and error_rules.own_end(died) else died for died in evidence.exits]
    return replace(evidence, exits=tuple(exits))


def is_victim(rank_exit: RankExit) -> bool:
    """Did it end because others had, or because we stopped it?"""
    rule = error_rules.rule_of(rank_exit)
    if rank_exit.by_us or rule is not None:
        return rank_exit.by_us or (rule is not None and rule.few in VICTIMS)
    return rank_exit.error is not None and rank_exit.error.collective


def _first_to_fall(evidence: Evidence) -> RankExit | None:
    """The first rank that ended of itself: whoever ended later may be its victim."""
    own = [rank_exit for rank_exit in evidence.exits if not is_victim(rank_exit)]
    return min(own, key=lambda rank_exit: (rank_exit.fell_at, rank_exit.rank)) if own else None


# ---- nodes -----------------------------------------------------------------------------------------------------------


def _hardware(evidence: Evidence, scene: _Scene) -> Verdict:
    fatal = [finding for finding in evidence.findings if finding.fatal]
    shared = shared_by_check(fatal, scene.nodes_count, scene.policy)
    own = [finding for finding in fatal if finding.node not in shared.get(finding.check, ())]
    if not own:
        check, nodes = max(shared.items(), key=lambda item: (len(item[1]), item[0]))
        said = next(finding.sentence for finding in fatal if finding.check == check)
        storage = traits_of(check).is_storage
        cause, failure = (Cause.STORAGE, Failure.STORAGE) if storage else (Cause.HARDWARE, Failure.SCHEDULER)
        return Verdict(cause, failure, (), (), "", _shared_sentence(nodes, scene, f"{check}: {one_line(said)}"))
    blamed = dict.fromkeys(finding.node for finding in own)
    if not shared_nodes(evidence.silent, scene.nodes_count, scene.policy):
        blamed |= dict.fromkeys(_gone(evidence, scene))
    told = listed([finding_told(finding) for finding in own])
    return Verdict(Cause.HARDWARE, Failure.NODE, tuple(natural_sort(blamed)), (), "", f"hardware failed on {told}")


def _gone(evidence: Evidence, scene: _Scene) -> tuple[str, ...]:
    """Silent nodes. Where there is one node only, it is ours: its agent is stuck, the node is not gone."""
    return tuple(evidence.silent) if scene.nodes_count > 1 else ()


def _silent(evidence: Evidence, scene: _Scene) -> Verdict:
    shared = shared_nodes(evidence.silent, scene.nodes_count, scene.policy)
    blamed = tuple(natural_sort(set(_gone(evidence, scene)) - set(shared)))
    if shared and not blamed:
        sentence = _shared_sentence(shared, scene, "no heartbeat")
        return Verdict(Cause.NODE_SILENT, Failure.SCHEDULER, (), (), "", sentence)
    if not blamed:
        only = fold(evidence.silent)
        stuck = "sent no heartbeat although its node runs: the agent is stuck, not the node"
        sentence = f"the agent on {only} {stuck}{_at_step(scene)}"
        return Verdict(Cause.NODE_SILENT, Failure.NODE, (), (), "", sentence)
    held = listed([_held(name, scene) for name in blamed])
    return Verdict(Cause.NODE_SILENT, Failure.NODE, blamed, (), "", f"no heartbeat from {held}{_at_step(scene)}")


def _held(name: str, scene: _Scene) -> str:
    ranks = ranks_of_node(scene.placement, name) if scene.placement is not None else range(0)
    if not ranks:
        return name
    return f"{name} (rank {ranks[0]})" if len(ranks) == 1 else f"{name} (ranks {ranks[0]}-{ranks[-1]})"


def _shared_sentence(nodes: Iterable[str], scene: _Scene, what: str) -> str:
    names = list(nodes)
    return (
        f"{counted(len(names), 'node')} of {scene.nodes_count} ({fold(names)}) failed in the same way within"
        f" {scene.policy.shared_fault_window_s:g} s, so a service that they share is at fault and no node is blamed:"
        f" {what}"
    )


def _agents_died(nodes: tuple[str, ...]) -> Verdict:
    names = tuple(natural_sort(set(nodes)))
    who, where = (
        ("the agent", "the node still answers") if len(names) == 1 else ("the agents", "the nodes still answer")
    )
    sentence = f"{who} on {fold(names)} died, so the ranks there were killed; {where}"
    return Verdict(Cause.AGENT_DIED, Failure.NODE, (), names if len(names) == 1 else (), "", sentence)


def _start_failed(node: str, why: str) -> Verdict:
    where = f" on {node}" if node else ""
    failure = Failure.NODE if node else Failure.SCHEDULER
    signature = signatures.start_signature(why)
    sentence = f"the ranks could not be started{where}: {one_line(why)}"
    return Verdict(Cause.START_FAILED, failure, (), (node,) if node else (), signature, sentence)


def _started_over(first_step: int, resumed_step: int) -> Verdict:
    sentence = (
        f"it started over: the first step seen was {first_step} although it was given the checkpoint of step"
        f" {resumed_step}; the script does not load what GANGRUN_RESUME names (--resume-argument gives it the path as"
        " an option; --resume none begins anew on purpose)"
    )
    return Verdict(Cause.STARTED_OVER, Failure.SCRIPT, (), (), "", sentence, final=True)


# ---- ranks -----------------------------------------------------------------------------------------------------------


def _fell(first: RankExit, evidence: Evidence, scene: _Scene) -> Verdict:
    """One rank ended of itself before all others: it is the story, its node is innocent so far."""
    who, step = f"rank {first.rank} on {first.node}", _at_step(scene)
    spread = error_rules.spread_of(first, evidence.exits, scene.gang_nodes_count, scene.policy.shared_fault_share)
    if first.oom_kill:
        sentence = f"{who} ran out of memory{step}: the job's memory cgroup killed it ({_how(first)})"
        sentence += f"; {first.memory}" if first.memory else ""
        signature = signatures.everywhere(signatures.OOM_SIGNATURE, spread.is_many)
        return Verdict(Cause.OOM, Failure.SCRIPT, (), (), signature, sentence)
    if first.code == 0:
        sentence = f"{who} ended with exit code 0{step} while the others ran on"
        return Verdict(Cause.LEFT_EARLY, Failure.SCRIPT, (), (), signatures.exit_signature(0), sentence)
    rule = error_rules.rule_of(first)
    if rule is not None:
        return _by_rule(first, rule, spread, f"{who} {_ended(first, step)}", evidence, scene)
    suspects = (first.node,) if len(spread.nodes) == 1 else ()
    cause = Cause.RANK_ERROR
    signature = signatures.everywhere(signatures.exit_signature(first.code), spread.is_many)
    sentence = f"{who} {_ended(first, step)}"
    if first.error is not None and first.signal not in KILLS:
        signature = signatures.error_signature(first.error)
    elif first.signal is not None:
        outside = first.signal in OUTSIDE_SIGNALS
        cause = Cause.KILLED if outside else Cause.SIGNAL
        signature = signatures.everywhere(signatures.signal_signature(first.signal), spread.is_many)
        signature = "" if outside else signature
        sentence += _nobody_said_why(first.signal)
    is_whole = _is_whole_node(first, spread, scene)
    may_be_known = bool(signature) or (is_whole and cause is Cause.KILLED)
    rank = first.rank if suspects and may_be_known and (is_whole or not error_rules.is_plain(first)) else NO_RANK
    is_before_steps = scene.attempt_step < 0 and first.step < 0 and first.log_step < 0
    if spread.is_many and is_before_steps and cause is Cause.RANK_ERROR and error_rules.is_native(first):
        sentence += (
            "; that is no exception of Python, and ranks on many nodes ended so before the first step: what is"
            " installed, or how the ranks are started, is at fault"
        )
        return Verdict(Cause.ENVIRONMENT, Failure.NODE, (), (), signature, sentence)
    verdict = Verdict(cause, Failure.SCRIPT, (), suspects, signature, sentence, rank=rank)
    if not is_whole or cause is not Cause.RANK_ERROR or error_rules.is_plain(first):
        return verdict
    sentence += f"; all ranks of {first.node} show it and no other does: its environment or the code is at fault"
    return replace(
        verdict, cause=Cause.ENVIRONMENT, sentence=sentence, cure=Cure.MOVE, moves=rank >= 0 and _replaceable(scene)
    )


def _is_whole_node(first: RankExit, spread: Spread, scene: _Scene) -> bool:
    """Did all ranks of its node show the same, and none elsewhere?"""
    ranks = ranks_of_node(scene.placement, first.node) if scene.placement is not None else range(0)
    return spread.nodes == (first.node,) and 1 < len(ranks) == spread.ranks_count < scene.world_size


_WARNING = re.compile(r"\S+\.py:\d+: |(?:\[rank\d+\]: ?)?\[?W\d{4} ")  # Python's or torch's: no process ends of it


def _backwards(lines: Sequence[str]) -> Iterable[tuple[str, str]]:
    """Each line with the one before it, the last first."""
    return reversed(tuple(zip(("", *lines), lines, strict=False)))


def _is_of_warning(before: str, line: str) -> bool:
    """Python writes the warned line of the source below a warning."""
    return bool(_WARNING.match(line) or (line[:1].isspace() and _WARNING.match(before)))


def _ended(first: RankExit, step: str) -> str:
    """``raised ValueError: bad batch at step 7 (exit code 1)``."""
    if first.error is not None:
        return f"raised {one_line(first.error.kind)}: {one_line(first.error.message)}{step} ({_how(first)})"
    last = next((line for before, line in _backwards(first.tail) if not _is_of_warning(before, line)), "")
    said = f": {one_line(last)}" if last else ""
    if first.signal is not None:
        return f"was killed by {signal_name(first.signal)}{step}{said}"
    return f"ended with {_how(first)}{step} and no traceback{said}"


_OF_NODES = frozenset({Cure.EXCLUDE, Cure.TEST, Cure.RESTART, Cure.MOVE})
_NODES_OWN = frozenset({Cause.HARDWARE, Cause.CPU, Cause.LOCAL_DISK, Cause.NETWORK})
_REACHED = frozenset({Cause.STORAGE, Cause.SERVICE, Cause.PORT})  # by the node's own mount, name server, route or ports
_WHOSE = {
    **dict.fromkeys((Cause.STORAGE, Cause.LOCAL_DISK), Failure.STORAGE),
    **dict.fromkeys((Cause.ENVIRONMENT, Cause.FOREIGN_PROCESS, Cause.PORT), Failure.NODE),
    **dict.fromkeys((Cause.HARDWARE, Cause.CPU, Cause.NETWORK), Failure.NODE),
    Cause.SERVICE: Failure.SCHEDULER,
}  # fmt: skip


def _is_sure(first: RankExit, rule: Rule, spread: Spread, evidence: Evidence, scene: _Scene) -> bool:
    """May its node be excluded for this? A line of stderr may be one that all ranks write at their start, or rank 0
    alone: it counts for less if another rank did not show it too, or most other nodes have not been heard. So do words
    that the script itself may have chosen, of one rank of several.
    """
    said = [entry.removesuffix(error_rules.LAST) for entry in first.shown if entry.startswith(f"{rule.name}/")]
    alone = spread.ranks_count == 1 and not any(first.node in evidence.shown.get(entry, ()) for entry in said)
    of_script = rule.name == "gpu-count" or error_rules.is_plain(first)
    if rule.name in (first.mark, "foreign-process") and not (of_script and alone):
        return True
    if alone and (first.rank == 0 or (of_script and not said)):
        return False
    heard = {*scene.stopped, *(died.rank for died in evidence.exits)}
    seats = scene.placement.seats if scene.placement is not None else ()
    others = {seat.slot.node for seat in seats if seat.slot.node != first.node}
    silent = {seat.slot.node for seat in seats if not heard.issuperset(seat.ranks)} & others
    return 2 * len(silent) <= len(others) > 0


def _is_its_slots(first: RankExit, rule: Rule, spread: Spread, scene: _Scene) -> bool:
    """Did this rank alone show what only its GPU causes, and can its node do without the slot?"""
    is_own = first.mark == rule.name in error_rules.OF_ONE_GPU and not error_rules.is_plain(first)
    return is_own and spread.ranks_count == 1 and first.rank in scene.losable


def _cause_here(rule: Rule, cause: Cause, cure: Cure, spread: Spread, is_whole: bool, scene: _Scene) -> Cause:
    """The cause of a row, by where it was seen and how far the attempt had come."""
    has_begun = scene.attempt_step >= 0
    if rule.name == "read-only-here" and spread.is_many and not has_begun:
        return Cause.ENVIRONMENT  # where the ranks run, as in a container, is read-only on all nodes
    if rule.name == "gpu-launch" and spread.is_many and has_begun:
        return Cause.RANK_ERROR  # what is installed had run before
    if rule.name == "refused" and has_begun:
        return Cause.SERVICE  # it had been asked rightly before
    if is_whole and cause is Cause.USAGE:
        return Cause.ENVIRONMENT  # ranks on other nodes read the same script and modules
    if is_whole and rule.name == "storage-full":
        return Cause.LOCAL_DISK  # what all nodes share is full on all
    if spread.is_many and cause in _NODES_OWN and (cause, cure) != (Cause.NETWORK, Cure.WAIT):
        return Cause.STORAGE if cure is Cure.WAIT else Cause.ENVIRONMENT
    return cause


def _by_rule(first: RankExit, rule: Rule, spread: Spread, ended: str, evidence: Evidence, scene: _Scene) -> Verdict:
    """What a known text means on so many nodes."""
    if rule.name == "foreign-process" and spread.is_many:  # who shares the GPUs of many nodes is the gang itself
        rule = error_rules.BY_NAME["gpu-memory"]
    has_one_node = scene.gang_nodes_count == 1
    if rule.name == "gpu-memory" and not has_one_node and _is_held_by_others(first, spread, scene):
        rule = error_rules.BY_NAME["foreign-process"]
    is_alone = has_one_node and rule.few not in {Cure.EXCLUDE, Cure.TEST}
    cure, cause = (rule.many if spread.is_many or is_alone else rule.few), rule.cause
    if _is_its_slots(first, rule, spread, scene):
        sentence = f"{ended}; no other rank shows it, so the GPU of rank {first.rank} is at fault"
        signature = signatures.rule_signature(rule.name, Cure.EXCLUDE, first.error)
        return Verdict(cause, Failure.NODE, (), (), signature, sentence, cure=Cure.EXCLUDE, broken_rank=first.rank)
    is_sure = _is_sure(first, rule, spread, evidence, scene)
    is_at_start = rule.name == "gpu-launch" and cure is Cure.TEST and scene.attempt_step < 0 and not has_one_node
    if is_at_start and not scene.policy.test_suspects:
        cure = Cure.EXCLUDE  # before the first step all ranks do the same, and no test will clear it
    if cure is Cure.EXCLUDE and not is_sure:
        cure = Cure.RESTART
    if has_one_node and cure is Cure.EXCLUDE and not _replaceable(scene):  # no other node can show whose it is
        everywhere = spread.ranks_count >= scene.world_size > 0
        cure, cause = (Cure.END, Cause.ENVIRONMENT) if everywhere else (Cure.ONCE, cause)
    if cure is Cure.END and scene.attempt_step >= 0:
        cure = Cure.ONCE  # it had worked
    if cure is Cure.ONCE and not (spread.is_many or has_one_node) and scene.attempt_step < 0:
        cure = Cure.RESTART  # ranks on other nodes came past that point
    if cure is Cure.MOVE and scene.attempt_step >= 0 and not _is_whole_node(first, spread, scene):
        cure = Cure.RESTART  # one rank's own limit looks like this, and it had worked
    blamed = spread.nodes if cure is Cure.EXCLUDE else ()
    is_whole = _is_whole_node(first, spread, scene)
    cause = _cause_here(rule, cause, cure, spread, is_whole, scene)
    if cause is Cause.SERVICE and scene.placement and blame_hang.names_a_peer(first, scene.placement, scene.addresses):
        cause, rule = Cause.NETWORK, replace(rule, says="another node of the gang that does not answer")
    may_be_way = (cause in _REACHED and is_sure) or (cause is Cause.KILLED and is_whole)
    may_be_its = cure in _OF_NODES or (cure is Cure.WAIT and may_be_way and not has_one_node)
    suspects = spread.nodes if may_be_its and not spread.is_many else ()
    failure = Failure.SCRIPT if cure is Cure.TEST else _WHOSE.get(cause, Failure.SCRIPT)
    sentence = f"{ended}; {error_rules.concluded(rule, cure, spread, first, is_compared=is_sure and not has_one_node)}"
    by_name = cure in {Cure.RESTART, Cure.MOVE} and cause in {Cause.STORAGE, Cause.OOM}  # each time of another file
    signature = signatures.rule_signature(rule.name, Cure.ONCE if by_name else cure, first.error)
    rank = first.rank if len(suspects) == 1 and not blamed else NO_RANK
    if cure is Cure.WAIT and is_whole and cause is Cause.STORAGE:
        rank = NO_RANK  # no rank's own: the same once more, and the node goes
    moves = cure is Cure.MOVE and rank != NO_RANK and _replaceable(scene)
    return Verdict(cause, failure, blamed, suspects, signature, sentence, cure is Cure.END, cure, rank, moves)


def _is_held_by_others(first: RankExit, spread: Spread, scene: _Scene) -> bool:
    """Did the driver have no memory for any rank of one node, before the first step and before torch held a lot of it?
    On the other nodes there was room for the same.
    """
    told = first.error.message if first.error is not None else "\n".join(first.tail)
    return scene.attempt_step < 0 and _is_whole_node(first, spread, scene) and not error_rules.tells_sizes(told)


_how = error_rules.how_it_ended


def _nobody_said_why(signal: int) -> str:
    if signal == SIGKILL:
        return "; who sent it is not known, but it was not the job's memory limit"
    return "; who sent it is not known" if signal in OUTSIDE_SIGNALS else ""


def _at_step(scene: _Scene) -> str:
    return f" at step {scene.attempt_step}" if scene.attempt_step >= 0 else ""


# ---- once more -------------------------------------------------------------------------------------------------------


def _same_again(verdict: Verdict, before: Sighting, first: RankExit | None, attempt_step: int) -> Verdict:
    """The same failure as in an earlier attempt: no restart will cure it."""
    if before.step == attempt_step >= 0:
        where = f" at the same step ({attempt_step})"
    elif verdict.suspects and before.nodes and not set(verdict.suspects) & set(before.nodes):
        where = f" on another node ({fold(before.nodes)} before, {fold(verdict.suspects)} now)"
    else:
        where = ", with no progress since"
    told = _traceback_of(first)
    whose = {Failure.STORAGE: "storage", Failure.NODE: "environment"}.get(verdict.failure, "code")
    again = f"attempt {before.attempt} failed in the same way{where}"
    sentence = f"{verdict.sentence}; {again}: the {whose} is at fault, so another attempt would fail too"
    sentence += f": {told}" if told else ""
    failure = Failure.STORAGE if verdict.failure is Failure.STORAGE else Failure.SCRIPT
    is_elsewhere = bool(verdict.suspects and before.nodes) and not set(verdict.suspects) & set(before.nodes)
    is_everywhere = is_elsewhere and verdict.cause in {Cause.HARDWARE, Cause.CPU} and whose == "environment"
    cause = Cause.ENVIRONMENT if is_everywhere else move.cause_of_same(verdict)
    return Verdict(cause, failure, (), (), verdict.signature, sentence, final=True)


def _traceback_of(first: RankExit | None) -> str:
    error = first.error if first is not None else None
    return last_lines(error.traceback) if error is not None and error.traceback.strip() else ""


def traceback_told(evidence: Evidence) -> str:
    """The end of the traceback of the first rank that fell, on one line; "" where there is none."""
    return _traceback_of(_first_to_fall(evidence))


_OF_MAPPED = signatures.rule_signature("bus-error", Cure.ONCE, None)  # which an uncorrectable memory error raises too


def _on_poor_hardware(verdict: Verdict, evidence: Evidence, scene: _Scene) -> Verdict:
    """Hardware that was poor just before is a sign against its node where nothing else says why; it is no proof."""
    poor = [one for one in evidence.findings if one.poor and not traits_of(one.check).is_storage]
    may_be = verdict.cause in MAY_BE_HARDWARE or verdict.signature == _OF_MAPPED
    if verdict.blamed or verdict.final or not may_be or not poor:
        return verdict
    shared = {name for names in shared_by_check(poor, scene.nodes_count, scene.policy).values() for name in names}
    held = scene.placement.nodes if scene.placement is not None else ()
    own = {one.node: one for one in poor if one.node in held and one.node not in shared}
    if not own:
        return verdict
    told = listed([finding_told(one) for one in own.values()])
    suspects = tuple(natural_sort(own))  # rather than whoever fell first: hardware says more than the order
    return replace(verdict, suspects=suspects, sentence=f"{verdict.sentence}; just before, {told}")


_POINTS_AT_NODE = frozenset(
    {Cause.SILENT_CORRUPTION, Cause.START_FAILED, Cause.AGENT_DIED, Cause.HANG, Cause.VICTIMS_ONLY}
)


def _is_open(verdict: Verdict, before: Sighting) -> bool:
    """May the same failure once more still be one node's? It may if no other node showed it, at the same step too: each
    attempt first saves to a full disk there, or first comes to a kernel that a sick GPU cannot run.
    """
    may_be_its = verdict.cure in {Cure.RESTART, Cure.MOVE} and verdict.rank >= 0 and bool(verdict.suspects)
    return may_be_its and before.nodes == verdict.suspects


def _replaceable(scene: _Scene) -> bool:
    """Is there another node, in this job or the next, on which a rank can run?"""
    return scene.nodes_count > 1 or scene.policy.can_requeue


def _fell_first_again(verdict: Verdict, suspicion: Mapping[str, int], scene: _Scene, *, is_poor: bool) -> Verdict:
    """A node on which ranks fell first before. A rank that would fall on any node looks the same, so the rank is moved
    to another node once. If poor hardware, a failed start, a stuck rank or the peers point at the node, the node goes.

    Only where another can take its place, be it in the next job: a suspicion is no reason to end a run.
    """
    known = tuple(name for name in verdict.suspects if suspicion.get(name, 0) > 0)
    often_passes = verdict.cause is Cause.VICTIMS_ONLY or verdict.cure is Cure.WAIT
    if often_passes and verdict.rank >= 0 and scene.nodes_count == scene.gang_nodes_count > 1:
        return replace(verdict, moves=True)  # nodes that change places cost no more than a restart
    if not known or verdict.final or verdict.blamed:
        return verdict
    if verdict.cause is Cause.SILENT_CORRUPTION and len(verdict.suspects) > 1:
        return verdict  # of two copies either may be right
    if verdict.rank >= 0 and not is_poor:
        return replace(verdict, moves=_replaceable(scene))
    if not is_poor and verdict.cause not in _POINTS_AT_NODE and verdict.cure is not Cure.WAIT:
        return verdict
    if scene.nodes_count <= scene.gang_nodes_count and not (scene.policy.can_requeue and scene.nodes_count > 1):
        return verdict
    times = max(suspicion[name] for name in known) + 1
    sentence = f"{verdict.sentence}; {fold(known)} was suspected for the {_nth(times)} time, so it is blamed"
    return replace(verdict, blamed=tuple(dict.fromkeys((*verdict.blamed, *known))), sentence=sentence)


def _nth(number: int) -> str:
    return {1: "1st", 2: "2nd", 3: "3rd"}.get(number, f"{number}th")


def on_doubt_only(verdict: Verdict, evidence: Evidence) -> tuple[str, ...]:
    """Blamed nodes against which there is nothing but that they fell first before, or that they were silent beside
    another whose hardware failed.
    """
    failed = {finding.node for finding in evidence.findings if finding.fatal}
    silent = evidence.silent.keys() - failed if verdict.cause is Cause.HARDWARE else frozenset[str]()
    return tuple(name for name in verdict.blamed if name in verdict.suspects or name in silent)

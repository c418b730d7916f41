"""Reading a stall: which rank is not where the others are.

In order: a rank that was stopped, a rank stuck in the kernel, the one that the others wait for by the count of its
collectives (``standing``), the odd one out by stack, the one behind by step. The
node of the one named becomes a suspect, never blamed at once. ``hang`` decides *that* it is a stall; ``blame`` asks.

Also here: a gang in which every rank only lost a peer in a collective (``lost_peers``). Either a stall names the rank
that left, or a rank had ended with 0 while others still trained: a data set that is shorter on one rank, an early
``return``. That is the script's failure and comes again. Else the cause stays unknown.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from gangrun.core.evidence import Hang, RankExit, RankObservation, RankStack
from gangrun.core.model import Cause, Cure, Failure, Placement, Verdict
from gangrun.core.nodes.placement import node_of_rank
from gangrun.core.recovery import flight_recorder
from gangrun.core.recovery.signatures import hang_signature
from gangrun.core.recovery.standing import WAITING_WORDS
from gangrun.core.text import counted, is_remark, listed, one_line

ODD_MAX_SHARE = 1 / 3  # more than this share "differs" means that there is no majority to differ from
STOPPED = ("T", "t")
STUCK = "D"


def verdict(hang: Hang, attempt_step: int, world_size: int = 0) -> Verdict:
    """What a stall tells, with what torch's flight recorder says; suspects only if the named ranks sit on one node."""
    return with_recorded(_stood(hang, attempt_step, world_size), hang.stacks)


def with_recorded(found: Verdict, ranks: Sequence[RankStack | RankExit]) -> Verdict:
    """The same, with what the flight recorders of these ranks say together."""
    recorded = flight_recorder.sentence(ranks)
    return replace(found, sentence=f"{found.sentence}; {recorded}") if recorded else found


def _stood(hang: Hang, attempt_step: int, world_size: int) -> Verdict:
    """By where the ranks stand.

    Whoever is not among those observed had ended before: its step says nothing of where the others stand.
    """
    left = {seen.rank for seen in hang.observations} or set(range(world_size))
    gone = [f"rank {rank}" for rank in range(world_size) if rank not in left]
    ended = f" after {len(gone)} of {counted(world_size, 'rank')} ({listed(gone)}) had ended with exit code 0"
    step = f" at step {attempt_step}" if attempt_step >= 0 else ""
    when = ended if gone else step
    head = f"no progress for {hang.stalled_s:.0f} s (limit {hang.limit_s:.0f} s){when}"
    stopped = [seen for seen in hang.observations if seen.state in STOPPED]
    if stopped:
        words = f"{_ranks(stopped)} stopped (state T: a SIGSTOP or a debugger), all others wait"
        return _verdict(f"{head}: {words}", stopped, "")
    stuck = [seen for seen in hang.observations if seen.state == STUCK]
    if stuck:
        words = f"{_ranks(stuck)} stuck in the kernel (state D: storage, driver or network)"
        return _verdict(f"{head}: {words}", stuck, "", storage=len(_nodes(stuck)) > 1)
    odd, frame = odd_by_stack(hang.stacks)
    signed = [seen for seen in hang.observations if seen.sign]
    if signed:
        own = next((stack.frame for stack in hang.stacks if stack.rank == signed[0].rank), "")
        at = f" in {one_line(signed[0].place or own)}" if signed[0].place or own else " not there"
        signature = hang_signature(own or signed[0].place)
        return _verdict(f"{head}: {_ranks(signed)}{at}, {signed[0].sign}", signed, signature)
    if odd:
        words = f"{_ranks(odd)} in {one_line(odd[0].frame)} while the others wait in {one_line(frame)}"
        return _verdict(f"{head}: {words}", odd, hang_signature(odd[0].frame))
    behind = behind_by_step(hang.observations)
    if behind:
        ahead = max(seen.step for seen in hang.observations)
        words = f"{_ranks(behind)} at step {behind[0].step} while the others reached {ahead}"
        return _verdict(f"{head}: {words}", behind, hang_signature(frame))
    sentence = f"{head}: {_alike(hang, frame, bool(gone))}"
    if gone and (not frame or _waits(frame)):
        return Verdict(Cause.LEFT_EARLY, Failure.SCRIPT, (), (), _LEFT_EARLY, sentence)
    return _verdict(sentence, [], hang_signature(frame))


def _alike(hang: Hang, frame: str, some_ended: bool) -> str:
    if len(hang.observations) == 1 and (frame or some_ended):
        return f"{_ranks(hang.observations)} {f'in {one_line(frame)}' if frame else 'all that is left'}"
    if not frame:
        return "no rank differs from the others"
    return f"{'all that are left' if some_ended else 'all ranks'} stand in {one_line(frame)}"


def odd_by_stack(stacks: Sequence[RankStack]) -> tuple[list[RankStack], str]:
    """Those who stand elsewhere than the majority, and where the majority stands ("" where there is none).

    With two ranks there is no majority: then whoever waits for nobody is the odd one.
    """
    told = [stack for stack in stacks if stack.frame]
    if not told:
        return [], ""
    frame, most = Counter(stack.frame for stack in told).most_common(1)[0]
    odd = [stack for stack in told if stack.frame != frame]
    if odd and len(odd) <= ODD_MAX_SHARE * len(told):
        return odd, frame
    busy = [stack for stack in told if not _waits(stack.frame)]
    waiting = [stack for stack in told if _waits(stack.frame)]
    if busy and waiting and len(busy) <= len(waiting):
        return busy, waiting[0].frame
    return [], frame if 2 * most > len(told) else ""


def differing(hang: Hang) -> Sequence[RankObservation | RankStack]:
    """The ranks that the verdict on this stall names; none if all stand alike."""
    for states in (STOPPED, (STUCK,)):
        held = [seen for seen in hang.observations if seen.state in states]
        if held:
            return held
    signed = [seen for seen in hang.observations if seen.sign]
    return signed or odd_by_stack(hang.stacks)[0] or behind_by_step(hang.observations)


def behind_by_step(observations: Sequence[RankObservation]) -> list[RankObservation]:
    """The few ranks whose step is below everybody else's; none where steps are equal or not reported."""
    steps = [seen.step for seen in observations]
    if not steps or min(steps) < 0 or min(steps) == max(steps):
        return []
    behind = [seen for seen in observations if seen.step == min(steps)]
    return behind if 2 * len(behind) <= len(observations) else []


def _waits(frame: str) -> bool:
    lowered = frame.lower()
    return any(word in lowered for word in WAITING_WORDS)


def _nodes(ranks: Sequence[RankObservation | RankStack]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(seen.node for seen in ranks))


def _ranks(ranks: Sequence[RankObservation | RankStack]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0].rank} on {ranks[0].node} is"
    told = listed([f"{seen.rank} on {seen.node}" for seen in ranks])
    return f"{counted(len(ranks), 'rank')} ({told}) are"


def _verdict(
    sentence: str, named: Sequence[RankObservation | RankStack], signature: str, storage: bool = False
) -> Verdict:
    nodes = _nodes(named)
    failure = Failure.STORAGE if storage else Failure.SCRIPT
    rank = named[0].rank if len(nodes) == 1 and signature else -1  # whoever is stopped or stuck is so by its node
    return Verdict(Cause.HANG, failure, (), nodes if len(nodes) == 1 else (), signature, sentence, rank=rank)


_LEFT_EARLY = "a rank ended with 0 before the others"


def lost_peers(
    victims: Sequence[RankExit],
    hang: Hang | None,
    *,
    attempt_step: int,
    placement: Placement | None,
    finished: AbstractSet[int],
    addresses: Mapping[str, str],
) -> Verdict:
    """Blames no node: of all that were heard nobody fell of itself. It suspects the rank that the others miss."""
    first = min(victims, key=lambda rank_exit: (rank_exit.fell_at, rank_exit.rank))
    said = f": {one_line(first.error.message)}" if first.error is not None else ""
    at_step = f" at step {attempt_step}" if attempt_step >= 0 else ""
    is_hang = _is_hang(victims)
    cause = Cause.HANG if is_hang else Cause.VICTIMS_ONLY
    befell = "waited too long in a collective" if is_hang else "lost a peer in a collective"
    lost = f"{counted(len(victims), 'rank')} {befell}{at_step}"
    whole = f"{lost}, rank {first.rank} on {first.node} first{said}"
    if hang is not None:
        stood = verdict(hang, attempt_step, placement.world_size if placement is not None else 0)
        return replace(stood, cause=cause, sentence=f"{whole}; {stood.sentence}")
    if finished:
        sentence = f"{ended_words(finished)} while others still trained; then {whole}"
        return Verdict(Cause.LEFT_EARLY, Failure.SCRIPT, (), (), _LEFT_EARLY, sentence)
    if placement is not None and _cannot_begin(victims, attempt_step, placement.world_size):
        sentence = (
            f"{whole}; all ranks say that a system call failed before the first step: the environment is at fault"
        )
        return Verdict(Cause.ENVIRONMENT, Failure.NODE, (), (), "", sentence)
    rank, why = _missed(victims, placement, addresses) if placement is not None else (-1, "")
    if placement is None or rank < 0:
        unknown, nodes = f"{whole}; which rank left them is not known", {died.node for died in victims}
        if placement is None or len(nodes) > 1 or len(placement.nodes) <= SPEAKERS_MIN_COUNT:
            return Verdict(cause, Failure.SCRIPT, (), (), "", unknown)
        alone = f"{unknown}; only ranks of {first.node} say so, so its own network may be at fault"
        nodes_own = (first.node,)  # unless it passes
        return Verdict(cause, Failure.SCRIPT, (), nodes_own, "", alone, cure=Cure.WAIT, rank=first.rank)
    node = node_of_rank(placement, rank)
    sentence = f"{whole}; rank {rank} on {node} is suspected, as {why}"
    return Verdict(cause, Failure.SCRIPT, (), (node,), "", sentence, cure=Cure.TEST, rank=rank)


_OF_SYSTEM = "nccl-system"
_WAITED, _OF_TRANSPORT = "nccl-watchdog", frozenset({"ib-completion", "rdma-route", "rdma-local", "fabric-other"})


def _is_hang(victims: Sequence[RankExit]) -> bool:
    """Did ranks only wait until their watchdog or barrier ended them, without an error of what moves bytes?"""
    said = {entry.partition("/")[0] for died in victims for entry in (died.mark, *died.shown)}
    return _WAITED in said and not said & _OF_TRANSPORT


def _cannot_begin(victims: Sequence[RankExit], attempt_step: int, world_size: int) -> bool:
    """Did a system call fail in NCCL for each rank before the first step? Then none of them only lost a peer."""
    is_all = len({died.rank for died in victims}) == world_size and attempt_step < 0
    return is_all and all(died.mark == _OF_SYSTEM for died in victims)


# As gloo writes it, peer [10.0.0.3]:12345; NCCL, from n2<49152> and peer fe80::1%ib0<5>; c10d, to (n0, 29500) and
# remote=[::ffff:10.0.0.3]:29500.
_PEER = re.compile(
    r"(?:\b(?:peer|from|to) \[?|remote=\[?|\()(?:::ffff:)?((?:[0-9a-f]*:){2,7}[0-9a-f]*|[\w.-]+)(?:%\w+)?"
    r"(?:<\d|\]?:\d|, ?\d+\))",
    re.IGNORECASE,
)
_RANKS = re.compile(r"\branks? ([\d, ]+) failed to pass|\b(?:from|for) rank (\d+)", re.IGNORECASE)
_HOSTS = re.compile(r"(?:[0-9a-f]*:){2,7}[0-9a-f]+|[\w-]+(?:\.[\w-]+)*", re.IGNORECASE)
SPEAKERS_MIN_COUNT = 2  # nodes whose ranks lost a peer, before the silence of another says something


def _missed(victims: Sequence[RankExit], placement: Placement, addresses: Mapping[str, str]) -> tuple[int, str]:
    """The rank that others name and that names nobody, or one of the only node of which no rank spoke; or -1."""
    holders = {rank: seat.slot.node for seat in placement.seats for rank in seat.ranks}
    first_ranks = {seat.slot.node: seat.first_rank for seat in reversed(placement.seats)}
    names = {died.rank: set(_named(died, first_ranks, len(holders), addresses)) - {died.rank} for died in victims}
    who_names = {died.node for died in victims if names[died.rank]}
    named = sorted({rank for others in names.values() for rank in others if holders[rank] not in who_names})
    if len({holders[rank] for rank in named}) == 1:
        return named[0], "other ranks name it or its node"
    silent = [rank for rank in holders if rank not in names]
    nodes = {holders[rank] for rank in silent}
    speakers = {died.node for died in victims} - nodes
    if len(nodes) == 1 and len(speakers) >= SPEAKERS_MIN_COUNT:
        return silent[0], "all others said that they lost a peer, and it said nothing"
    return -1, ""


def _named(
    died: RankExit, first_ranks: Mapping[str, int], world_size: int, addresses: Mapping[str, str]
) -> Iterator[int]:
    """The ranks that its text names; the first rank of a node that it names, or whose address."""
    said = [line for line in died.tail if not is_remark(line)]
    text = "\n".join((died.error.message if died.error is not None else "", *said))
    for host in _PEER.findall(text):
        name = addresses.get(host.lower(), host.partition(".")[0])
        if name != died.node and name in first_ranks:
            yield first_ranks[name]
    for ranks, rank in _RANKS.findall(text):
        yield from (number for word in (ranks or rank).split(",") if (number := int(word)) < world_size)


def names_a_peer(died: RankExit, placement: Placement, addresses: Mapping[str, str]) -> bool:
    """Does the error that ended it name another node of the gang, or an address of one?"""
    peers = {seat.slot.node for seat in placement.seats} - {died.node}
    text = died.error.message if died.error is not None else "\n".join(died.tail[-1:])
    names = {addresses.get(word.lower(), word.partition(".")[0]) for word in _HOSTS.findall(text)}
    return not peers.isdisjoint(names)


def ended_words(finished: AbstractSet[int]) -> str:
    """``rank 1, rank 2 ended with exit code 0``."""
    return f"{listed([f'rank {rank}' for rank in sorted(finished)])} ended with exit code 0"

"""What is remembered of nodes and their GPUs over attempts, jobs and runs.

Driver reports (XIDs) of the last day: most numbers are the program's fault, or a GPU gets over them. The same number
of the same GPU once more tells hardware from program; the same number of several GPUs is the program's. What a second
report is worth comes with the report, as ``health`` knows the numbers; that there was a first one is known here, since
an agent lives no longer than its job. Echoes of gangrun's own kill never come this far.

Nodes that earlier runs of the user found broken: a node counts for a day, twice as long each time it is found broken
again, a week at most. At most ``COUNTED_MAX`` nodes count at once, so that a faulty check cannot empty a cluster.
These times are wall-clock seconds, since they outlive runs and machines.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from gangrun.core.evidence import NodeFinding, Reported
from gangrun.core.model import RunState

DAY_S = 24 * 3600.0
APART_S = 60.0  # nearer than that, two reports tell of one fault
SEEN_MAX_COUNT = 8  # of one GPU and number: the newest
KEPT_MAX_COUNT = 1024
FATAL, POOR = "fatal", "poor"  # what the same once more is worth


def heard(state: RunState, finding: NodeFinding, now: float) -> tuple[RunState, NodeFinding]:
    """A finding as it is kept: heard of now, in this boot of its node, and weighed with what was reported before."""
    node = state.roster.nodes.get(finding.node)
    boot_id = node.boot_id if node is not None else ""
    found = replace(finding, at=now, boot_id=boot_id if finding.until_boot else "")
    report = found.report
    if report is None:
        return state, found
    past = remembered(state.health.reports, now)
    key = _key(report.gpu, report.number)
    earlier = past[key].seen if key in past else ()
    attempt = f"{state.run} {state.attempt.number}"
    one = Reported(found.node, report.gpu, report.number, (*earlier, (now, attempt))[-SEEN_MAX_COUNT:])
    after = _newest({**past, key: one})
    return replace(state, health=replace(state.health, reports=after)), _weighed(found, one, past, boot_id)


def _weighed(found: NodeFinding, one: Reported, past: Mapping[str, Reported], boot_id: str) -> NodeFinding:
    assert found.report is not None
    if found.fatal:
        return found
    if found.report.again == FATAL and (count := _faults_count(one)) > 1:
        sentence = f"{found.sentence}; {one.gpu} had it {count} times within a day, so it is the hardware's"
        return replace(found, fatal=True, poor=False, sentence=sentence, until_boot=True, boot_id=boot_id)
    attempts_count = len({attempt for _, attempt in one.seen})
    others = any(other.number == one.number and other.gpu != one.gpu for other in past.values())
    if found.report.again == POOR and attempts_count > 1 and not others:
        sentence = f"{found.sentence}; {one.gpu} had it in {attempts_count} attempts within a day, and no other GPU did"
        return replace(found, poor=True, sentence=sentence)
    return found


def _faults_count(one: Reported) -> int:
    times = [at for at, _ in one.seen]
    return 1 + sum(later - earlier > APART_S for earlier, later in pairwise(times))


def _key(gpu: str, number: int) -> str:
    return f"{gpu} {number}"


def keyed(reports: Iterable[Reported]) -> Mapping[str, Reported]:
    """As the state has them."""
    return {_key(one.gpu, one.number): one for one in reports}


def _newest(reports: Mapping[str, Reported]) -> Mapping[str, Reported]:
    if len(reports) <= KEPT_MAX_COUNT:
        return reports
    newest = sorted(reports, key=lambda key: reports[key].seen[-1][0], reverse=True)[:KEPT_MAX_COUNT]
    return {key: reports[key] for key in sorted(newest)}


def remembered(reports: Mapping[str, Reported], now: float) -> Mapping[str, Reported]:
    """Those of the last day. A clock that ran ahead is not believed."""
    kept = {}
    for key, one in reports.items():
        seen = tuple((min(at, now), attempt) for at, attempt in one.seen if now - at < DAY_S)
        if seen:
            kept[key] = one if seen == one.seen else replace(one, seen=seen)
    return kept


def joined(reports: Mapping[str, Reported], others: Iterable[Reported], now: float) -> Mapping[str, Reported]:
    """With what other runs know, each report once."""
    after = dict(remembered(reports, now))
    for key, other in remembered(keyed(others), now).items():
        known = after[key].seen if key in after else ()
        seen = tuple(sorted({*known, *other.seen}))[-SEEN_MAX_COUNT:]
        after[key] = Reported(other.node, other.gpu, other.number, seen)
    return _newest(after)


def news(before: Mapping[str, Reported], after: Mapping[str, Reported]) -> tuple[Reported, ...]:
    """What came in between."""
    return tuple(one for key, one in after.items() if key not in before or one.seen[-1] != before[key].seen[-1])


# ---- nodes that earlier runs found broken ----------------------------------------------------------------------------

WEEK_S = 7 * DAY_S
COUNTED_MAX = 8
NODES_MAX_COUNT = 256


@dataclass(frozen=True, slots=True)
class KnownBad:
    """One node: why, found by which run, when last, how often so far."""

    node: str
    reason: str
    run: str
    at: float
    times: int = 1

    @property
    def until(self) -> float:
        """When it is given another chance."""
        return self.at + min(WEEK_S, DAY_S * 2.0 ** min(self.times - 1, 10))


KnownNodes = Mapping[str, KnownBad]


def with_bad_node(known: KnownNodes, node: str, reason: str, run: str, now: float) -> KnownNodes:
    """The list with one more finding; the same run's second word about the same node is no second time."""
    held = remembered_nodes(known, now)
    old = held.get(node)
    again = old is not None and old.run != run
    times = (old.times if old is not None else 0) + (1 if again or old is None else 0)
    kept = {**held, node: KnownBad(node, reason, run, now, times)}
    newest = sorted(kept.values(), key=lambda one: one.at, reverse=True)[:NODES_MAX_COUNT]
    return {one.node: one for one in sorted(newest, key=lambda one: one.at)}


def remembered_nodes(known: KnownNodes, now: float) -> KnownNodes:
    """Without those that were well for a week after their time was up. A clock that ran ahead is not believed."""
    held = {node: replace(one, at=min(one.at, now)) for node, one in known.items()}
    return {node: one for node, one in held.items() if now < one.until + WEEK_S}


def nodes_to_avoid(known: KnownNodes, now: float) -> tuple[KnownBad, ...]:
    """Those that a new run does without: the newest first, and only so many."""
    now_out = [one for one in remembered_nodes(known, now).values() if now < one.until]
    return tuple(sorted(now_out, key=lambda one: (-one.at, one.node))[:COUNTED_MAX])

"""What ports count that says something only beside other ports. See ``ib_ports``.

A full fabric, a slow receiver or a burst of work raises these everywhere: one port far above the others of its node is
worth a word. It may just be the busiest, as the one that carries storage or what rank 0 gathers: none of this counts
against its node. They are read seldom, and apart from what must be seen within seconds, as each costs a question.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from gangrun.health.framework.check import CauseClass, Check, Facts, Finding, Needs, Outcome, Reading, Severity
from gangrun.health.framework.growth import FIRST_LOOK, Growth, growth
from gangrun.health.framework.policy import HealthPolicy
from gangrun.health.framework.rounds import Family, Surroundings
from gangrun.health.network import ports
from gangrun.health.network.ports import finding, in_use

WAITS = "port_xmit_wait"
BESIDE_PEERS, USUAL_WAITS_PER_S = 10.0, 1e6
PEERS_MIN_COUNT = 3


@dataclass(frozen=True, slots=True)
class _Told:
    """A counter, how many a second are nothing to speak of, and what it tells.

    Worth a word is what exceeds ten times as many, and ten times the median of the ports.
    """

    counter: str
    usual_per_s: float
    tells: str


BESIDE = (
    _Told("port_rcv_remote_physical_errors", 1.0, "packets that were damaged before: the other end, or beyond"),
    _Told("port_rcv_switch_relay_errors", 1.0, "packets that could not be passed on"),
    _Told("port_rcv_constraint_errors", 1.0, "packets refused on arrival: partitions or keys of the fabric"),
    _Told("port_xmit_constraint_errors", 1.0, "packets refused on leaving: partitions or keys of the fabric"),
    _Told("VL15_dropped", 1.0, "management packets dropped: the subnet manager asks too much at once"),
    _Told("packet_seq_err", 10.0, "packets lost on the way"),
    _Told("out_of_sequence", 10.0, "packets overtaken or lost on the way"),
    _Told("implied_nak_seq_err", 10.0, "packets lost on the way"),
    _Told("out_of_buffer", 10.0, "the receiver had no buffer ready"),
    _Told("np_cnp_sent", 1000.0, "senders told to slow down"),
    _Told("rp_cnp_handled", 1000.0, "told to slow down"),
)


def read(around: Surroundings) -> Facts:
    """Every port, and the counters that are compared."""
    return ports.read(around, (WAITS, *(one.counter for one in BESIDE)))


def _far_above(
    now: Reading, before: Reading | None, policy: HealthPolicy, counter: str, usual_per_s: float
) -> tuple[dict[str, Growth], dict[str, float]]:
    """The growth at each port in use, and at those far above the others how many times the usual it is."""
    used = in_use(now, policy)
    grown = {place: one for place in used if (one := growth(now, before, place, counter)) is not None}
    if len(grown) < PEERS_MIN_COUNT:
        return {}, {}
    usual = max(median(one.per_s for one in grown.values()), usual_per_s)
    return grown, {p: one.per_s / usual for p, one in grown.items() if one.per_s > BESIDE_PEERS * usual}


def _too_few(now: Reading, before: Reading | None, policy: HealthPolicy, counters: tuple[str, ...]) -> str:
    known = any(now.facts.number(place, one) is not None for place in in_use(now, policy) for one in counters)
    return FIRST_LOOK if known and before is None else f"fewer than {PEERS_MIN_COUNT} ports to compare"


def _beside(check: str, place: str, sentence: str, grown: Growth) -> Finding:
    return finding(check, place, Severity.WARN, sentence, grown.evidence, Needs.NONE, CauseClass.ELSEWHERE)


def judge_congestion(now: Reading, before: Reading | None, policy: HealthPolicy) -> Outcome:
    """Does one port wait to send far longer than those beside it? Rarely its own fault, and told for that reason."""
    limit = f"<= {BESIDE_PEERS:g} times its peers"
    grown, above = _far_above(now, before, policy, WAITS, USUAL_WAITS_PER_S)
    if not grown:
        return Outcome("-", limit, unknown=_too_few(now, before, policy, (WAITS,)))
    words = "times as long as ports beside it: congestion on its way"
    found = tuple(
        _beside("ib_congestion", place, f"{place} waits to send {times:.0f} {words}", grown[place])
        for place, times in above.items()
    )
    return Outcome(f"{max(one.per_s for one in grown.values()):.3g} ticks/s at most", limit, found)


def judge_peers(now: Reading, before: Reading | None, policy: HealthPolicy) -> Outcome:
    """Does one port count far more of what others count, too?"""
    limit = f"<= {BESIDE_PEERS:g} times its peers"
    found, compared_count = [], 0
    for one in BESIDE:
        grown, above = _far_above(now, before, policy, one.counter, one.usual_per_s)
        compared_count += len(grown)
        for place in above:
            sentence = f"{place}: {one.counter} went {grown[place].words}, far more than at ports beside it"
            found.append(_beside("ib_peers", place, f"{sentence} ({one.tells})", grown[place]))
    if not compared_count:
        return Outcome("-", limit, unknown=_too_few(now, before, policy, tuple(one.counter for one in BESIDE)))
    return Outcome(f"{len(found)} of {compared_count} counters", limit, tuple(found))


FAMILY = Family(
    "ib_peers",
    5.0,
    read,
    (
        Check("ib_congestion", "ib_peers", "no port waits longer than its peers", judge_congestion, 60.0),
        Check("ib_peers", "ib_peers", "no port stands out among its peers", judge_peers, 60.0),
    ),
    ports.seen_up,
)

"""Which nodes the gang may not use, why and until when (room: core, which only decides).

Exclusions are capped per hour, since a fault that "hits" many nodes is more often a fault of the judge. Whether the
gang can do without a node is ``placement``'s question; who is guilty is ``blame``'s.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gangrun.core.model import Exclusion
from gangrun.core.nodeset import fold
from gangrun.core.policy import Policy
from gangrun.core.wording import counted

HOUR_S = 3600.0
CAP_MIN_COUNT = 2
CAP_NODES_PER_EXCLUSION = 20  # one in twenty is 5 %


@dataclass(frozen=True, slots=True)
class Quarantined:
    """The exclusions after, which nodes went in, which the cap kept out, and the sentence that says so."""

    excluded: Mapping[str, Exclusion]
    taken: tuple[str, ...]
    refused: tuple[str, ...]
    sentence: str


def cap_count(nodes_count: int, policy: Policy) -> int:
    """How many nodes may be excluded within an hour."""
    if policy.exclusions_per_hour_max_count is not None:
        return policy.exclusions_per_hour_max_count
    return max(CAP_MIN_COUNT, nodes_count // CAP_NODES_PER_EXCLUSION)


def exclude(
    excluded: Mapping[str, Exclusion],
    names: Iterable[str],
    reason: str,
    now: float,
    policy: Policy,
    nodes_count: int,
    hardware: Iterable[str] = (),
) -> Quarantined:
    """Leave ``names`` out from now on, as far as the cap allows; expired exclusions are dropped on the way. On those
    that are among ``hardware`` something broke.
    """
    broken = frozenset(hardware)
    after = dict(active(excluded, now))
    cap = cap_count(nodes_count, policy)
    recent = sum(entry.since > now - HOUR_S for entry in after.values())
    taken: list[str] = []
    refused: list[str] = []
    for name in dict.fromkeys(names):
        if name in after:
            after[name] = Exclusion(
                reason, after[name].since, max(after[name].until, now + policy.exclusion_s), name in broken
            )
            taken.append(name)
        elif recent < cap:
            after[name] = Exclusion(reason, now, now + policy.exclusion_s, name in broken)
            recent += 1
            taken.append(name)
        else:
            refused.append(name)
    told = [f"{fold(taken)} left out for {policy.exclusion_s / HOUR_S:g} h"] if taken else []
    if refused:
        told.append(
            f"{fold(refused)} stays although blamed: only {counted(cap, 'node')} may be left out within an hour"
        )
    return Quarantined(after, tuple(taken), tuple(refused), "; ".join(told))


def active(excluded: Mapping[str, Exclusion], now: float) -> Mapping[str, Exclusion]:
    """What is still in force; an exclusion ends at its ``until``."""
    return {name: entry for name, entry in excluded.items() if now < entry.until}


def newly_broken(before: Mapping[str, Exclusion], after: Mapping[str, Exclusion]) -> Mapping[str, str]:
    """Nodes that were just left out because something broke there, each with the reason."""
    return {name: out.reason for name, out in after.items() if out.hardware and before.get(name) != out}


def usable(name: str, excluded: Mapping[str, Exclusion], now: float) -> bool:
    """May the gang use this node now, as far as exclusions go?"""
    entry = excluded.get(name)
    return entry is None or now >= entry.until


def next_expiry(excluded: Mapping[str, Exclusion], now: float) -> float | None:
    """When the next exclusion in force ends; None where there is none."""
    return min((entry.until for entry in active(excluded, now).values()), default=None)

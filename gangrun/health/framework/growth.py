"""How counters grew between two readings. Absolute counts say nothing: they may be years old.

Another boot, another GPU in the place, a counter that went back or time that stood still: then there is no growth to
speak of, and the newer reading is the new baseline.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from gangrun.health.framework.check import Evidence, Facts, Reading, Value

FIRST_LOOK = "counters are judged by how they grow, and this was the first look"


@dataclass(frozen=True, slots=True)
class Growth:
    """One counter, then and now."""

    old: float
    new: float
    over_s: float

    @property
    def count(self) -> float:
        """By how much it grew."""
        return self.new - self.old

    @property
    def per_s(self) -> float:
        """How much in a second, on average."""
        return self.count / self.over_s

    @property
    def evidence(self) -> Evidence:
        """What goes into a finding."""
        return Evidence(self.new, self.old, self.over_s)

    @property
    def words(self) -> str:
        """``from 3 to 7 in 12 s``."""
        return f"from {self.old:.0f} to {self.new:.0f} in {span(self.over_s)}"


def growth(now: Reading, before: Reading | None, place: str, name: str, same: str = "") -> Growth | None:
    """The growth of a counter; ``same`` names a value (a UUID) that must be the same in both readings."""
    if before is None or not comparable(now, before):
        return None
    if same and now.facts.get(place, same) != before.facts.get(place, same):
        return None
    new, old = now.facts.number(place, name), before.facts.number(place, name)
    if new is None or old is None or new < old:
        return None
    return Growth(old, new, now.at - before.at)


def all_growths(now: Reading, before: Reading | None, name: str, same: str = "") -> tuple[tuple[str, Growth], ...]:
    """Every place at which the counter could be compared."""
    compared = ((place, growth(now, before, place, name, same)) for place in now.facts.places_with(name))
    return tuple((place, grown) for place, grown in compared if grown is not None)


def comparable(now: Reading, before: Reading | None) -> bool:
    """Do both count in the same boot, the one after the other?"""
    return before is not None and now.boot_id == before.boot_id and now.at > before.at


def with_windows(now: Reading, before: Reading | None, windows_s: Mapping[str, float]) -> Reading:
    """Carry on, beside each counter named, what it was when its window began: rare things need longer than a look.

    A window that is over begins anew with the reading before this one, so that nothing falls between two windows. What
    is judged spans at most the window; or the time in which nobody looked, where that was longer.
    """
    values: dict[str, Mapping[str, Value]] = dict(now.facts.values)
    for place in now.facts.values:
        more: dict[str, Value] = {}
        for name, window_s in windows_s.items():
            new = now.facts.number(place, name)
            if new is None:
                continue
            base, since = new, now.at
            last = growth(now, before, place, name)
            if before is not None and last is not None:
                base, since = last.old, before.at
                old, at = before.facts.number(place, f"{name} then"), before.facts.number(place, f"{name} since")
                if old is not None and at is not None and old <= new and 0 <= now.at - at <= window_s:
                    base, since = old, at
            more[f"{name} then"], more[f"{name} since"] = base, since
        values[place] = {**values[place], **more}
    return replace(now, facts=Facts(values, now.facts.missing, now.facts.absent))


def in_window(now: Reading, place: str, name: str) -> Growth | None:
    """Growth since the counter's window began; None at its very beginning."""
    new, old = now.facts.number(place, name), now.facts.number(place, f"{name} then")
    since = now.facts.number(place, f"{name} since")
    if new is None or old is None or since is None or now.at <= since:
        return None
    return Growth(old, new, now.at - since)


def span(seconds: float) -> str:
    """A time as people say it."""
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"

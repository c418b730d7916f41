"""What a node's devices reached at their best, kept between runs. Speeds are judged against it.

A device, driver or torch that changed begins anew. What was worse than the policy's share is not taken in, so that a
node does not grow slow unseen; what was better is.
"""

from __future__ import annotations

from collections.abc import Mapping

from gangrun.health.active.devices import SAME
from gangrun.health.framework.check import Facts, Reading, Value

SPEEDS = ("gemm_tflops", "memory_gbps", "h2d_gbps", "d2h_gbps", "allreduce_gbps")


def kept(now: Reading, before: Reading | None) -> Reading:
    """The baseline after this reading: the best of both, place by place."""
    values: dict[str, Mapping[str, Value]] = dict(before.facts.values) if before is not None else {}
    for place in now.facts.values:
        measured = {name: speed for name in SPEEDS if (speed := now.facts.number(place, name)) is not None}
        if not measured:
            continue
        identity = {name: v for name in SAME if (v := now.facts.get(place, name)) is not None}
        old = values.get(place, {})
        same = all(old.get(name) == identity.get(name) for name in SAME)
        best: dict[str, Value] = {}
        for name in SPEEDS:
            was = old.get(name) if same else None
            both = [v for v in (was, measured.get(name)) if isinstance(v, (int, float))]
            if both:
                best[name] = max(both)
        values[place] = {**identity, **best}
    return Reading(now.family, now.at, now.boot_id, Facts(values))

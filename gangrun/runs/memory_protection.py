"""How many lost nodes the newest step in memory survives, for ``gangrun status``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gangrun.wire.spec import RunSpec


def bears(live: Mapping[str, Any], spec: RunSpec) -> dict[str, int] | None:
    """So many lost nodes it survives, whichever they are, and so many were asked for; None where nobody says."""
    found = live.get("kept_losses_count")
    parity = spec.checkpoint.memory_parity.partition("+")[2]
    asked = int(parity) if parity else min(1, max(0, (spec.nodes_count or len(spec.nodes)) - 1))
    return {"lost_nodes": found, "asked": asked} if isinstance(found, int) else None


def bears_words(bears: Mapping[str, int] | None) -> str:
    """The same for people, as the end of a sentence; "" where one node is all there is."""
    if bears is None or (not bears["asked"] and not bears["lost_nodes"]):
        return ""
    count, asked = bears["lost_nodes"], bears["asked"]
    told = "no lost node" if not count else "any lost node" if count == 1 else f"any {count} lost nodes"
    return f"; survives {told}" + (f" (degraded: {asked} asked for)" if count < asked else "")

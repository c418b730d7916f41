"""A run of a drill's own, whose ports count errors on one host and stay up: what the run makes of that, as JSON. A
program of its own, since an ordinary user enters a user namespace for it.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict

from gangrun.adapters.local.played_world import own_mounts
from gangrun.launch.chaos.kinds import DrillKind
from gangrun.launch.chaos.own_run import own_run
from gangrun.launch.chaos.plan import Drill
from gangrun.launch.chaos.stage import Stage
from tests.waiting import until

STEPS_COUNT = 40
COUNTED = {"counters/link_downed": 4, "counters/symbol_error": 1_000_000}


def told(stage: Stage) -> dict[str, list[str]]:
    """The checks of ports that found something, and on which nodes."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for record in stage.records:
        if record.kind == "FindingRaised" and record.event["finding"]["check"].startswith("ib_"):
            found[record.event["finding"]["check"]].add(record.event["finding"]["node"])
    return {check: sorted(nodes) for check, nodes in found.items()}


def main() -> None:
    """One lost link and many wrong symbols on one host; the run goes on for some steps after both were told."""
    own_mounts()
    drill = Drill(DrillKind.IB_DOWN, after_s=8.0)  # the baseline of what ports count is read meanwhile
    with own_run(drill, ()) as stage:
        stage.wait_until_it_trains(drill)
        assert stage.own is not None and stage.own.ports is not None
        node = stage.own.ports.nodes[-1]
        stage.own.ports.say(node, COUNTED)

        def both_told() -> bool:
            stage.look()
            return {"ib_flaps", "ib_errors"} <= told(stage).keys()

        until(both_told, 60, lambda: f"findings: {told(stage)}")
        first = stage.step()
        until(lambda: stage.step() >= first + STEPS_COUNT, 60, lambda: f"step {stage.step()}, from {first}")
        state = stage.look()
        assert state is not None
        found = {
            "node": node, "told": told(stage), "phase": state.phase.name, "attempt": state.attempt.number,
            "excluded": sorted(state.health.excluded), "steps": stage.step() - first,
        }  # fmt: skip
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()

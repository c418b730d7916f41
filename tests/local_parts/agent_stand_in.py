"""An agent in miniature for the warden's tests: attaches, renews its lease, runs one rank, obeys files in its folder.

agent_stand_in.py DIR LEASE_S      files: mute (no sign of life), no-renew, spawn (ask for a supervisor), die, bye,
                                   speak (more than a pipe takes)
"""

from __future__ import annotations

import json
import os
import select
import sys
from pathlib import Path

from gangrun.agent.surroundings import AgentEnd
from gangrun.node.processes import boottime_ns
from gangrun.node.speech import Voice
from tests.local_parts.gang import Harness, order


def main(directory: Path, lease_s: float) -> None:
    end = AgentEnd.attach(os.environ)
    assert end is not None
    end.lease.touch()
    made = Harness(directory, (str(directory / "script.py"),))
    ranks = made.gang.launch(order(1, attempt=end.incarnation))
    state = directory / f"agent-{end.incarnation}.json"
    state.with_suffix(".new").write_text(json.dumps({"agent": os.getpid(), "rank": ranks[0].pid}))
    state.with_suffix(".new").rename(state)
    asked = False
    voice = Voice()
    voice.say("the agent speaks")
    while True:
        if (directory / "speak").exists():
            for _ in range(100):
                voice.say("x" * 4000)
        select.select([end], [], [], 0.02)
        for message in end.receive():
            with (directory / "ops.jsonl").open("a") as file:
                file.write(json.dumps({**message, "incarnation": end.incarnation}) + "\n")
        if not (directory / "mute").exists():
            end.lease.touch()
            if not (directory / "no-renew").exists():
                end.lease.renew(boottime_ns() + int(lease_s * 1e9))
        if (directory / "die").exists() or (end.incarnation == 0 and (directory / "die-first").exists()):
            os._exit(3)
        if end.incarnation == 0 and (directory / "raise-first").exists():
            with end.telling_a_crash():
                raise MemoryError("no page is left")
        if (directory / "spawn").exists() and not asked:
            asked = True
            end.send({"op": "spawn_supervisor", "term_min": 4, "promises": ["n0", "n1"]})
        if (directory / "bye").exists():
            end.send({"op": "goodbye", "code": 0})
            return


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]))

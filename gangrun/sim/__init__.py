"""A world made of numbers: gangrun's own test tools, public and documented like the rest.

The real decisions, the real supervisor loop and the real agent brains run here against a virtual clock, simulated
nodes, disks, networks and a scheduler, through seeded faults, while the invariants of ``docs/protocol.md`` section 9
are checked. No file, socket, thread, process or real clock may enter, and chance only with a seed.

    from gangrun.sim import FaultPlan, Kind, Setup, World

    plan = FaultPlan().fail_at(20.0, Kind.KILL_RANK, rank=1).fail_at(24.0, Kind.KILL_SUPERVISOR)
    outcome = World(Setup.of(4), plan, seed=7).run()

Begin with ``world``; ``faults`` is the vocabulary, ``invariants`` the promises, ``sweep`` runs seeds by
the thousand. From the shell: ``python -m gangrun.sim --seed 7 --nodes 128``.
"""

from gangrun.sim.body.gang import Behaviour, Script
from gangrun.sim.faults import HOLDER, Fault, FaultPlan, Kind
from gangrun.sim.invariants import InvariantBroken
from gangrun.sim.setup import Setup
from gangrun.sim.world import World, WorldOutcome

__all__ = [
    "HOLDER",
    "Behaviour",
    "Fault",
    "FaultPlan",
    "InvariantBroken",
    "Kind",
    "Script",
    "Setup",
    "World",
    "WorldOutcome",
]

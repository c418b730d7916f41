"""What is simulated: the shape of the gang, the policy, the script, the number of nodes."""

from __future__ import annotations

from dataclasses import dataclass

from gangrun.core.model import Savers, Shape
from gangrun.core.policy import HangPolicy, Policy
from gangrun.sim.body.gang import Script

IMPATIENT = HangPolicy(startup_limit_s=90.0, steady_min_s=45.0, steady_max_s=120.0, long_phase_min_s=45.0)


@dataclass(frozen=True, slots=True)
class Setup:
    """What is simulated: the gang's shape, the policy, the script, how many nodes the cluster has."""

    shape: Shape = Shape(nodes_count=4, nodes_min_count=4, slots_per_node=1, ranks_per_slot=1)
    policy: Policy = Policy()
    script: Script = Script()
    pool_count: int = 0  # nodes of the cluster; 0: just those of one job
    agents_begin_s: tuple[float, float] | None = None  # how long they import, from and to; None: at once
    label: str = ""  # how to say this setup on the command line
    spares_count: int = 0  # nodes that each job has besides, which hold no ranks
    spare_slots_count: int = 0  # of each node: one box with a GPU for each rank, and more
    time_limit_s: float = 0.0  # of each job; 0: none
    reads_together: bool = False  # all nodes read a checkpoint before it is resumed from

    @property
    def job_nodes_count(self) -> int:
        """Nodes that each job asks for."""
        return self.shape.nodes_count + self.spares_count

    @staticmethod
    def of(
        nodes_count: int, *, ranks_per_node: int = 1, script: Script | None = None, requeue: bool = False,
        replica_ranks_count: int = 0, savers: Savers | None = None,
    ) -> Setup:  # fmt: skip
        """A usual one. A script that saves by itself does so in rank 0, under the final name."""
        shape = Shape(nodes_count, nodes_count, 1, ranks_per_node)
        pool_count = nodes_count + max(2, nodes_count // 16) if requeue else nodes_count
        label = f"--nodes {nodes_count}" + (" --requeue" if requeue else "")
        script = script or Script()
        policy = Policy(
            can_requeue=requeue, hang=IMPATIENT, keeps_memory=script.memory_every_count > 0,
            replica_ranks_count=replica_ranks_count, saves_with=savers or (Savers.RANK0 if script.foreign else None),
        )  # fmt: skip
        return Setup(shape, policy, script, pool_count, label=label)

"""Small worlds for mutants: supervisors that die, stop or are cut off, saves held up, jobs that come twice.

Next: ``worlds_late``, where words and kills come late.
"""

from __future__ import annotations

import random
from dataclasses import replace

from gangrun.core.model import Savers
from gangrun.sim import Behaviour, FaultPlan, Kind, Script, Setup, World
from gangrun.sim.engine.process import SimProcess
from tests.sim.canaries.recipes import recipe
from tests.sim.time_limit import watched


def anything(rng: random.Random, seed: int) -> World:
    """Any faults at all."""
    nodes_count = rng.choice((3, 4, 5))
    script = Script(steps_count=40, foreign=seed % 5 == 0)
    setup = Setup.of(nodes_count, script=script, requeue=seed % 3 == 0)
    return World(setup, FaultPlan.random(seed, nodes_count, nodes_count), seed)


@recipe("read_before_seal")
def holder_stopped_in_a_backoff(rng: random.Random, seed: int) -> World:
    """A pause before the next attempt is long enough for another supervisor to be made meanwhile."""
    del seed
    setup = Setup.of(4)
    setup = replace(setup, policy=replace(setup.policy, backoff_first_s=8.0))
    plan = FaultPlan()
    for at_s in (10.0, 16.0):
        plan = plan.fail_at(at_s, Kind.KILL_RANK, rank=rng.randrange(4))
    plan = plan.fail_at(16.0 + rng.uniform(0.6, 2.5), Kind.PAUSE_SUPERVISOR, node=0, for_s=rng.uniform(3.2, 9.0))
    return World(setup, plan, rng.randrange(10**6))


@recipe("deposed_goes_on", "agents_hear_every_term")
def holder_stopped_with_its_clock(rng: random.Random, seed: int) -> World:
    """Its machine is paused while a restart is under way, so that it wakes believing that it still leads."""
    del seed
    plan = FaultPlan().fail_at(10.0, Kind.KILL_RANK, rank=rng.randrange(1, 4))
    plan = plan.fail_at(10.0 + rng.uniform(0.0, 1.2), Kind.PAUSE_NODE, node=0, for_s=rng.uniform(3.6, 7.0))
    return World(Setup.of(4), plan, rng.randrange(10**6))


@recipe("open_acts_twice")
def claimed_and_stopped(rng: random.Random, seed: int) -> World:
    """A supervisor stops between its claim and its first ticket, until the next one has sealed its folder."""
    del seed
    stopped: list[str] = []

    def probe(process: SimProcess, label: str) -> None:
        if label == "before open acts" and process.timeline.now > 5.0 and not stopped:
            stopped.append(process.name)
            process.pause(for_s)

    for_s = rng.uniform(20.0, 40.0)
    plan = FaultPlan().fail_at(rng.uniform(8.0, 12.0), Kind.KILL_SUPERVISOR)
    plan = plan.fail_at(50.0, Kind.KILL_RANK)
    return World(Setup.of(4), plan, rng.randrange(10**6), probe=probe)


@recipe("claim_overwrites", "ambiguous_claim_is_believed")
def two_candidates(rng: random.Random, seed: int) -> World:
    """The supervisor dies; the first in its place cannot reach the disk, and sees old claims when it can."""
    del seed
    at_s = rng.uniform(8.0, 12.0)
    plan = FaultPlan()
    for node in (0, 1)[: rng.choice((1, 2))]:
        plan = plan.fail_at(at_s - 2.0, Kind.FS_STALE, node=node, for_s=60.0)
        plan = plan.fail_at(at_s - 1.0, Kind.FS_STALL, node=node, for_s=rng.uniform(9.0, 30.0))
        if rng.random() < 0.5:
            plan = plan.fail_at(at_s, Kind.FS_LOST_REPLY, node=node)
    return World(Setup.of(4), plan.fail_at(at_s, Kind.KILL_SUPERVISOR), rng.randrange(10**6))


@recipe("attempt_without_tickets")
def killed_between_ticket_and_start(rng: random.Random, seed: int) -> World:
    """Its record is torn, no agent has heard of the attempt: the ticket alone names it."""
    del seed
    tickets_count = 0
    at = rng.choice((3, 6))  # the tickets of an attempt: to seal, to choose, to start

    def probe(process: SimProcess, label: str) -> None:
        nonlocal tickets_count
        tickets_count += label.startswith("after ticket")
        if label.startswith("after ticket") and tickets_count == at:
            world.disk.journals[1][-1].torn = world.journal_damaged = True
            process.kill()

    plan = FaultPlan().fail_at(rng.uniform(6.0, 12.0), Kind.KILL_RANK)
    world = World(Setup.of(3), plan, rng.randrange(10**6), probe=probe)
    return world


@recipe("attempt_from_journal_alone")
def journal_damaged(rng: random.Random, seed: int) -> World:
    """The record of a start is lost after its ticket was taken."""
    del seed
    at_s = rng.uniform(3.3, 4.2)
    plan = FaultPlan().fail_at(at_s, Kind.FLIP_JOURNAL, amount=rng.choice((5, 6, 7)))
    return World(Setup.of(3), plan.fail_at(at_s + 0.01, Kind.KILL_SUPERVISOR), rng.randrange(10**6))


@recipe("lease_from_receipt", "any_attempt_counts")
def acks_come_late(rng: random.Random, seed: int) -> World:
    """Acks arrive seconds after their beats were sent, then not at all."""
    del seed
    at_s = rng.uniform(10.0, 20.0)
    plan = FaultPlan().fail_at(5.0, Kind.DELAY, node=0, for_s=at_s + 20.0, amount=rng.uniform(1.8, 2.4))
    plan = plan.fail_at(at_s, Kind.CUT, node=2, for_s=90.0)
    script = Script(steps_count=30, foreign=True, victims_after_s=0.0)
    return World(Setup.of(4, script=script, savers=Savers.ALL), plan, rng.randrange(10**6))


@recipe("warden_never_kills", "leads_without_majority", "presume_from_the_journal", "leader_lease_outlasts_patience")
def a_node_is_cut_off(rng: random.Random, seed: int) -> World:
    """For longer than its lease, with or without the supervisor on it, with or without a rank that falls elsewhere."""
    at_s = rng.uniform(6.0, 15.0)
    plan = FaultPlan().fail_at(at_s, Kind.CUT, node=rng.choice((0, 0, 1, 2)), for_s=90.0)
    if seed % 2:
        plan = plan.fail_at(at_s + rng.uniform(0.0, 8.0), Kind.KILL_RANK, rank=3)
    return World(
        Setup.of(4, script=Script(steps_count=30, foreign=True, victims_after_s=0.0)), plan, rng.randrange(10**6)
    )


@recipe("ranks_outlive_the_agent")
def an_agent_dies(rng: random.Random, seed: int) -> World:
    """Its next incarnation knows nothing of the ranks that it left."""
    del seed
    plan = FaultPlan().fail_at(rng.uniform(6.0, 15.0), Kind.KILL_AGENT, node=rng.randrange(3))
    return World(Setup.of(3), plan, rng.randrange(10**6))


@recipe("fragment_with_a_saver")
def the_saver_behind_a_cut(rng: random.Random, seed: int) -> World:
    """Rank 0 is cut off from a supervisor that has moved to another node."""
    del seed
    plan = FaultPlan().fail_at(rng.uniform(8.0, 10.0), Kind.CUT, node=0, for_s=18.0)
    plan = plan.fail_at(rng.uniform(45.0, 50.0), Kind.CUT, node=0, for_s=90.0)
    script = Script(steps_count=300, foreign=True, victims_after_s=0.0)
    return World(Setup.of(4, script=script, replica_ranks_count=2), plan, rng.randrange(10**6))


@recipe("fragment_without_a_dead_rank", "fragment_with_a_whole_replica")
def a_gang_behind_a_cut(rng: random.Random, seed: int) -> World:
    """One side of a cut holds ranks that might step, or save, alone."""
    at_s = rng.uniform(9.0, 12.0) + rng.choice((0.0, 2.0, 3.5))
    node = seed % 4
    plan = FaultPlan().fail_at(at_s, Kind.CUT, node=node, for_s=90.0)
    script = Script(
        steps_count=40,
        foreign=True,
        victims_after_s=0.0,
        save_s=rng.choice((0.3, 6.0, 9.0, 12.0)),
        checkpoint_every_count=2,
    )
    per_node = rng.choice((1, 2))
    setup = Setup.of(4, ranks_per_node=per_node, script=script, requeue=True, replica_ranks_count=2)
    return World(setup, plan, rng.randrange(10**6))


@recipe("launches_what_was_stopped")
def orders_come_late(rng: random.Random, seed: int) -> World:
    """A launch overtaken by the stop that followed it."""
    del seed
    plan = FaultPlan().fail_at(1.0, Kind.REORDER, node=0, for_s=60.0).fail_at(1.0, Kind.DUPLICATE, node=0, for_s=60.0)
    plan = plan.fail_at(rng.uniform(3.0, 8.0), Kind.KILL_RANK, rank=2).fail_at(
        rng.uniform(3.0, 8.0), Kind.KILL_AGENT, node=2
    )
    return World(Setup.of(3), plan, rng.randrange(10**6))


NEXT_CHOICE_S = 9.5  # from the loss of a node until the next job's attempt has chosen its resume point


@recipe("staging_stays_open")
def a_save_is_held_up(rng: random.Random, seed: int) -> World:
    """Rank 0 is stopped, clock and all, in the middle of a save, and wakes when a later attempt has chosen."""
    del seed
    at_s, for_s = rng.uniform(8.0, 20.0), NEXT_CHOICE_S + rng.uniform(0.0, 10.0)
    script = Script(steps_count=60, checkpoint_every_count=2, save_s=1.5)
    plan = FaultPlan().fail_at(at_s, Kind.PAUSE_NODE, node=0, for_s=for_s)
    plan = plan.fail_at(at_s + for_s + rng.uniform(1.0, 3.0), Kind.KILL_RANK, rank=2)
    return World(Setup.of(3, script=script, requeue=True), plan, rng.randrange(10**6))


@recipe("chooses_unsealed", "commit_overwrites", "lists_all_that_stands")
def a_save_is_held_up_where_nothing_seals(rng: random.Random, seed: int) -> World:
    """The same on a mount where chmod does nothing: only the journal's list of commits counts."""
    made = a_save_is_held_up(rng, seed)
    made.checkpoint_fs.seals = False
    return made


@recipe("believes_the_seal")
def a_save_is_held_up_where_modes_do_not_bind(rng: random.Random, seed: int) -> World:
    """The same as root, or on a mount of an object store."""
    made = a_save_is_held_up(rng, seed)
    return World(made.setup, made.plan.fail_at(0.0, Kind.FS_NO_MODES), made.seed)


@recipe("moves_what_bears_the_name")
def stopped_between_judging_and_moving(rng: random.Random, seed: int) -> World:
    """The newest save is damaged; while the supervisor that is to move it stops, the next one's attempt saves anew."""
    at_s = rng.uniform(22.0, 40.0)
    plan = FaultPlan().fail_at(at_s, Kind.PAUSE_AT_MOVE, for_s=rng.uniform(20.0, 50.0))
    plan = plan.fail_at(at_s, Kind.FLIP_CHECKPOINT).fail_at(at_s + rng.uniform(0.0, 1.0), Kind.KILL_RANK, rank=2)
    return World(Setup.of(4, script=Script(steps_count=90, foreign=seed % 2 == 1)), plan, rng.randrange(10**6))


@recipe("chooses_damaged", "from_zero_when_in_doubt")
def checkpoints_are_damaged(rng: random.Random, seed: int) -> World:
    """The newest ones no longer hold when they are needed."""
    del seed
    plan = FaultPlan()
    for _ in range(rng.choice((1, 2, 3))):
        plan = plan.fail_at(rng.uniform(15.0, 40.0), Kind.FLIP_CHECKPOINT)
    return World(Setup.of(3), plan.fail_at(rng.uniform(20.0, 45.0), Kind.KILL_RANK), rng.randrange(10**6))


@recipe("acked_before_the_journal", "forgets_once_said")
def supervisor_dies_with_news(rng: random.Random, seed: int) -> World:
    """A rank falls or finishes just as the supervisor does, while the disk is slow."""
    end_s = 36.0 + rng.uniform(-0.5, 1.5)
    if seed % 2:
        script, at_s = Script(steps_count=33), end_s
        plan = FaultPlan()
    else:
        script, at_s = Script(), rng.uniform(10.0, 15.0)
        plan = FaultPlan().fail_at(at_s, Kind.EXIT_RANK, rank=rng.randrange(3), amount=9.0)
    plan = plan.fail_at(at_s - 2.0, Kind.FS_STALL, for_s=rng.uniform(1.9, 8.0), node=None)
    plan = plan.fail_at(at_s + rng.uniform(0.0, 4.0), Kind.KILL_SUPERVISOR)
    return World(Setup.of(3, script=script), plan, rng.randrange(10**6))


@recipe("run_clock_is_the_wall")
def clocks_are_wrong(rng: random.Random, seed: int) -> World:
    """The next supervisor's host lives an hour earlier."""
    del seed
    plan = FaultPlan()
    for node in range(3):
        plan = plan.fail_at(1.0, Kind.WALL_JUMP, node=node, amount=rng.choice((-3600.0, 0.0)) if node else 0.0)
    return World(Setup.of(3), plan.fail_at(rng.uniform(6.0, 20.0), Kind.KILL_NODE), rng.randrange(10**6))


@recipe("run_clock_believes_the_wall")
def a_clock_is_six_hours_ahead(rng: random.Random, seed: int) -> World:
    """All hosts but the first live hours later, or earlier; the first one fails."""
    plan = FaultPlan()
    for node in (1, 2):
        plan = plan.fail_at(1.0, Kind.WALL_JUMP, node=node, amount=21600.0 if seed % 3 else -21600.0)
    return World(Setup.of(3), plan.fail_at(rng.uniform(6.0, 20.0), Kind.KILL_NODE), rng.randrange(10**6))


@recipe("time_limit_by_the_wall")
def a_time_limit_and_wrong_clocks(rng: random.Random, seed: int) -> World:
    """Jobs have ten minutes, which the clocks of hosts put hours away."""
    plan = FaultPlan()
    for node in range(5):
        plan = plan.fail_at(
            rng.uniform(1.0, 300.0), Kind.WALL_JUMP, node=node, amount=21600.0 if seed % 3 else -21600.0
        )
    setup = Setup.of(3, script=Script(steps_count=700), requeue=True)
    plan = plan.fail_at(rng.uniform(6.0, 400.0), Kind.KILL_SUPERVISOR)
    return watched(World(replace(setup, time_limit_s=600.0), plan, rng.randrange(10**6)))


@recipe("budget_never_runs_out")
def the_same_again(rng: random.Random, seed: int) -> World:
    """A script that fails in every attempt, a little differently each time; its rank has no other node to move to."""
    del seed
    again = tuple(
        Behaviour(step=rng.randrange(1, 6), code=rng.randrange(1, 100), attempts=frozenset({n})) for n in range(200)
    )
    script = Script(steps_count=30, checkpoint_every_count=0, behaviours=again, victims_after_s=0.0)
    return World(Setup.of(1, script=script), FaultPlan(), rng.randrange(10**6))


@recipe("excludes_without_a_cap")
def nodes_go_one_by_one(rng: random.Random, seed: int) -> World:
    """More nodes are to blame, one after the other, than may be excluded within an hour."""
    del seed
    setup = Setup.of(3, script=Script(steps_count=400), requeue=True)
    setup = replace(setup, pool_count=12)
    plan = FaultPlan()
    for i in range(6):
        plan = plan.fail_at(
            20.0 + 130.0 * i + rng.uniform(0.0, 5.0), Kind.REBOOT_NODE, node=rng.choice((-1, *range(8))), for_s=5000.0
        )
    return World(setup, plan, rng.randrange(10**6))


@recipe("nobody_meets", "first_of_a_failed_pair_goes")
def a_node_loses_its_network(rng: random.Random, seed: int) -> World:
    """Ranks on one node reach no rank on other nodes, and a spare is free."""
    setup = Setup.of(4, script=Script(steps_count=30), requeue=True)
    setup = replace(setup, spares_count=1, policy=replace(setup.policy, test_suspects=True))
    kind = (Kind.BAD_NIC, Kind.BAD_LINK)[seed % 2]
    plan = FaultPlan().fail_at(rng.uniform(8.0, 16.0), kind, node=rng.randrange(1, 3))
    return World(setup, plan, rng.randrange(10**6))


@recipe("an_error_is_a_cancel", "leaves_after_an_error", "lost_reply_is_anothers_claim")
def the_next_job_meets_an_error(rng: random.Random, seed: int) -> World:
    """A node is lost; when the next job has its nodes the run directory fails for a while, or loses a reply."""
    at_s = rng.uniform(6.0, 12.0)
    kind = (Kind.FS_ERROR, Kind.FS_FULL, Kind.FS_LOST_REPLY)[seed % 3]
    plan = FaultPlan().fail_at(at_s, Kind.KILL_NODE, node=rng.choice((1, 2)))
    plan = plan.fail_at(at_s + rng.uniform(2.0, 6.0), kind, node=None, for_s=rng.uniform(3.0, 20.0))
    return World(replace(Setup.of(3, requeue=True), pool_count=9), plan, rng.randrange(10**6))


@recipe(
    "ignores_the_marker",
    "marks_the_cancel_last",
    "submits_again_blindly",
    "every_job_passes",
    "forgets_the_cancel",
    "requeued_job_loses_its_place",
)
def the_next_job(rng: random.Random, seed: int) -> World:
    """A node is lost, so a job is submitted, with a scheduler that has its moods; and perhaps somebody cancels."""
    at_s = rng.uniform(6.0, 12.0)
    plan = FaultPlan().fail_at(at_s - 1.0, Kind.SLURM_TIMEOUT).fail_at(at_s, Kind.KILL_NODE, node=rng.choice((1, 2)))
    if seed % 3 == 0:
        plan = plan.fail_at(at_s + rng.uniform(5.0, 45.0), Kind.SLURM_TWICE)
    if seed % 3 == 1:
        plan = plan.fail_at(at_s + rng.uniform(30.0, 45.0), Kind.CANCEL)
        plan = plan.fail_at(at_s + rng.uniform(30.0, 46.0), Kind.SLURM_REQUEUE)
    return World(replace(Setup.of(3, requeue=True), pool_count=9), plan, rng.randrange(10**6))

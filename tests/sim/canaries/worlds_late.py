"""Small worlds for mutants: words that come late or are lost, kills that take time, slow clocks, disks that stall.

Next: ``canary``, which looks into them.
"""

from __future__ import annotations

import random
from dataclasses import replace

from gangrun.core.model import Savers
from gangrun.sim import Behaviour, FaultPlan, Kind, Script, Setup, World
from gangrun.sim.engine.process import SimProcess
from gangrun.sim.faults import HOLDER
from tests.sim.canaries.recipes import recipe

FALLS_ALONE = Script(steps_count=30, victims_after_s=0.0)


@recipe("stop_waits_for_the_disk", "acts_in_a_stall")
def a_rank_falls_in_a_stall(rng: random.Random, seed: int) -> World:
    """The run directory stands still for everybody."""
    del seed
    at_s = rng.uniform(8.0, 12.0)
    plan = FaultPlan().fail_at(at_s, Kind.FS_STALL, node=None, for_s=rng.uniform(20.0, 40.0))
    return World(Setup.of(3), plan.fail_at(at_s + rng.uniform(0.0, 8.0), Kind.KILL_RANK, rank=1), rng.randrange(10**6))


@recipe("supervisor_waits_for_its_log")
def a_healthy_gang_in_a_stall(rng: random.Random, seed: int) -> World:
    """The run directory stands still for everybody, for longer than a lease."""
    del seed
    plan = FaultPlan().fail_at(rng.uniform(8.0, 12.0), Kind.FS_STALL, node=None, for_s=rng.uniform(45.0, 60.0))
    return World(Setup.of(3, script=Script(steps_count=400)), plan, rng.randrange(10**6))


@recipe("warden_speaks_first")
def cut_off_in_a_stall(rng: random.Random, seed: int) -> World:
    """A node is cut off while the run directory stands still for it, longer than its lease."""
    del seed
    node, at_s = rng.choice((1, 2)), rng.uniform(8.0, 12.0)
    plan = FaultPlan().fail_at(at_s, Kind.CUT, node=node, for_s=120.0)
    plan = plan.fail_at(at_s + rng.uniform(0.0, 5.0), Kind.FS_STALL, node=node, for_s=rng.uniform(60.0, 90.0))
    return World(Setup.of(3, script=FALLS_ALONE, savers=Savers.ALL), plan, seed_of(rng))


@recipe("stored_though_sealed")
def news_for_a_stopped_leader(rng: random.Random, seed: int) -> World:
    """Leader and one agent on one side of a cut; the leader's machine stops, the agent has news, others claim."""
    del seed
    at_s = rng.uniform(8.0, 12.0)
    plan = FaultPlan().fail_at(at_s, Kind.CUT_HALF, node=0, for_s=rng.uniform(16.0, 40.0), amount=0.4)
    plan = plan.fail_at(at_s + rng.uniform(0.0, 0.3), Kind.PAUSE_NODE, node=0, for_s=rng.uniform(6.0, 14.0))
    plan = plan.fail_at(at_s + rng.uniform(0.0, 8.0), Kind.EXIT_RANK, rank=1, amount=9.0)
    return World(Setup.of(5, script=FALLS_ALONE), plan, rng.randrange(10**6))


@recipe("no_last_resort")
def every_node_leaves(rng: random.Random, seed: int) -> World:
    """Agent after agent dies, until each warden gives up."""
    del seed
    plan = FaultPlan()
    at_s = rng.uniform(2.5, 12.0)
    for node in range(3):
        first_s = at_s + rng.uniform(0.0, 2.0)
        for count in range(12):
            plan = plan.fail_at(first_s + 0.35 * count, Kind.KILL_AGENT, node=node)
    return World(replace(Setup.of(3, requeue=True), pool_count=6), plan, rng.randrange(10**6))


@recipe("attempt_number_used_again")
def a_rank_falls(rng: random.Random, seed: int) -> World:
    """Nothing else."""
    del seed
    return World(Setup.of(2), FaultPlan().fail_at(rng.uniform(6.0, 15.0), Kind.KILL_RANK), rng.randrange(10**6))


@recipe("claims_without_asking", "judges_with_a_dead_disk")
def a_lonely_node(rng: random.Random, seed: int) -> World:
    """It hears nobody for minutes, and perhaps its disk does not answer either, while all others go on."""
    node, at_s = rng.choice((1, 2, 3)), rng.uniform(8.0, 12.0)
    plan = FaultPlan().fail_at(at_s, Kind.CUT, node=node, for_s=rng.uniform(200.0, 260.0))
    if seed % 2:
        plan = plan.fail_at(at_s + rng.uniform(50.0, 70.0), Kind.FS_STALL, node=node, for_s=rng.uniform(75.0, 120.0))
    setup = Setup.of(4, script=Script(steps_count=400), requeue=True)
    return World(replace(setup, shape=replace(setup.shape, nodes_min_count=3)), plan, rng.randrange(10**6))


@recipe("acks_behind_a_still_disk")
def a_spare_takes_the_run_from_a_holder_without_a_disk(rng: random.Random, seed: int) -> World:
    """Behind a cut, where the run directory stands still, the holder and its gang go on; the spare sees no sign."""
    at_s = rng.uniform(8.0, 12.0)
    plan = FaultPlan()
    for node in range(3):
        if node == seed % 3:
            plan = plan.fail_at(at_s, Kind.CUT, node=node, for_s=300.0)
        else:
            plan = plan.fail_at(at_s + rng.uniform(0.0, 2.0), Kind.FS_STALL, node=node, for_s=rng.uniform(150.0, 250.0))
    script = Script(steps_count=400, victims_after_s=0.0)
    setup = replace(Setup.of(2, script=script, requeue=True), spares_count=1, pool_count=6)
    return World(setup, plan, rng.randrange(10**6))


@recipe("acks_for_ever_if_all_are_heard", "next_job_waits_for_a_proof_only")
def slurm_gives_up_nodes_that_train_on(rng: random.Random, seed: int) -> World:
    """Neither Slurm nor the storage reaches the job, all of whose nodes hear each other; the job is requeued."""
    nodes_count, at_s = (1, 2, 4)[seed % 3], rng.uniform(8.0, 12.0)
    given_up_at_s = at_s + rng.uniform(20.0, 40.0)
    plan = FaultPlan().fail_at(given_up_at_s, Kind.SLURM_GIVES_UP, for_s=300.0)
    for node in range(nodes_count):
        plan = plan.fail_at(at_s + rng.uniform(0.0, 1.0), Kind.FS_STALL, node=node, for_s=300.0)
    setup = Setup.of(nodes_count, script=Script(steps_count=400), requeue=True)
    return World(replace(setup, pool_count=2 * nodes_count), plan, rng.randrange(10**6))


@recipe("slurms_word_outlives_the_step")
def srun_loses_nodes_that_train_on(rng: random.Random, seed: int) -> World:
    """The holder, off the batch host, reaches Slurm and its nodes and not the storage; for srun all have left."""
    nodes_count, at_s = 2 + seed % 3, rng.uniform(8.0, 12.0)
    plan = FaultPlan()
    for count in range(12):  # until the warden gives up: with it goes the first supervisor
        plan = plan.fail_at(at_s + 0.35 * count, Kind.KILL_AGENT, node=0)
    at_s += 200.0
    for node in range(1, nodes_count + 1):
        plan = plan.fail_at(at_s + rng.uniform(0.0, 1.0), Kind.FS_STALL, node=node, for_s=400.0)
    plan = plan.fail_at(at_s + rng.uniform(2.0, 30.0), Kind.STEP_LOST)
    setup = Setup.of(nodes_count, script=Script(steps_count=600), requeue=True)
    return World(replace(setup, spares_count=1, pool_count=3 * nodes_count), plan, seed_of(rng))


@recipe("promises_too_early")
def the_leader_hesitates(rng: random.Random, seed: int) -> World:
    """A moment without acks, shorter than anybody's patience."""
    del seed
    plan = FaultPlan().fail_at(rng.uniform(8.0, 12.0), Kind.PAUSE_SUPERVISOR, for_s=rng.uniform(1.2, 3.8))
    plan = plan.fail_at(rng.uniform(20.0, 24.0), Kind.DELAY, node=0, for_s=20.0, amount=rng.uniform(1.2, 2.0))
    return World(Setup.of(4), plan, rng.randrange(10**6))


@recipe("promises_after_a_welcome")
def the_leader_hesitates_again_and_again(rng: random.Random, seed: int) -> World:
    """Its agents connect anew, and are welcomed by a supervisor that may not ack yet, or stops again."""
    nodes_count = 2 + seed % 5
    kinds = (Kind.PAUSE_SUPERVISOR, Kind.PAUSE_SUPERVISOR, Kind.KILL_SUPERVISOR, Kind.CUT, Kind.PAUSE_AGENT)
    plan, at_s = FaultPlan(), rng.uniform(8.0, 12.0)
    for _ in range(6):
        node = rng.choice((0, 0, rng.randrange(nodes_count)))
        kind = rng.choice(kinds)
        plan = plan.fail_at(at_s, kind, node=node, for_s=rng.uniform(1.2, 6.0))
        at_s += rng.uniform(1.0, 6.0)
    return World(Setup.of(nodes_count), plan, seed_of(rng))


@recipe("any_ack_renews")
def acks_of_an_old_term(rng: random.Random, seed: int) -> World:
    """What the old supervisor said arrives when another leads, on a node that this one does not reach."""
    del seed
    at_s, node = rng.uniform(8.0, 12.0), rng.choice((2, 3))
    plan = FaultPlan().fail_at(at_s, Kind.DELAY, node=0, for_s=rng.uniform(4.0, 30.0), amount=rng.uniform(9.0, 16.0))
    plan = plan.fail_at(at_s + rng.uniform(4.2, 7.5), Kind.CUT, node=node, for_s=90.0)
    return World(Setup.of(5, script=FALLS_ALONE), plan, seed_of(rng))


@recipe("late_beats_count")
def the_leader_is_heard_late(rng: random.Random, seed: int) -> World:
    """It stops, or all words to and from it take longer than agents are patient; then a node is cut off."""
    at_s = rng.uniform(8.0, 12.0)
    if seed % 2:
        plan = FaultPlan().fail_at(at_s, Kind.PAUSE_SUPERVISOR, node=0, for_s=rng.uniform(5.0, 9.0))
    else:
        plan = FaultPlan().fail_at(at_s, Kind.DELAY, node=0, for_s=rng.uniform(8.0, 40.0), amount=rng.uniform(2.6, 8.0))
    if seed % 3:
        node = rng.choice((0, 1, 2))
        plan = plan.fail_at(at_s + rng.uniform(4.0, 9.0), Kind.CUT, node=node, for_s=90.0)
    return World(Setup.of(rng.choice((3, 4, 5))), plan, rng.randrange(10**6))


@recipe("adopts_half_a_gang", "running_when_the_first_launched")
def a_launch_is_late(rng: random.Random, seed: int) -> World:
    """One node hears its orders seconds after the others, and the supervisor dies meanwhile, or not."""
    plan = FaultPlan().fail_at(1.0, Kind.DELAY, node=2, for_s=60.0, amount=rng.uniform(0.3, 4.0))
    if seed % 2:
        plan = plan.fail_at(rng.uniform(3.0, 18.0), Kind.KILL_SUPERVISOR)
    return World(Setup.of(4), plan, rng.randrange(10**6))


@recipe("no_death_signal")
def an_agent_dies_while_its_warden_sleeps(rng: random.Random, seed: int) -> World:
    """So nobody but the kernel can end its ranks."""
    del seed
    at_s, node = rng.uniform(8.0, 12.0), rng.choice((1, 2))
    plan = FaultPlan().fail_at(at_s, Kind.PAUSE_WARDEN, node=node, for_s=rng.uniform(60.0, 90.0))
    return World(
        Setup.of(3), plan.fail_at(at_s + rng.uniform(0.1, 5.0), Kind.KILL_AGENT, node=node), rng.randrange(10**6)
    )


@recipe("agent_starts_beside_old_ranks")
def an_agent_dies_and_kills_are_slow(rng: random.Random, seed: int) -> World:
    """SIGKILL takes three seconds, longer than the next agent needs to come up."""
    del seed
    at_s, node = rng.uniform(8.0, 12.0), rng.choice((1, 2))
    plan = FaultPlan().fail_at(at_s, Kind.SLOW_KILL, node=node, for_s=30.0, amount=3.0)
    return World(
        Setup.of(3), plan.fail_at(at_s + rng.uniform(0.1, 5.0), Kind.KILL_AGENT, node=node), rng.randrange(10**6)
    )


@recipe("second_warden_beside_the_first")
def srun_dies(rng: random.Random, seed: int) -> World:
    """Nothing else."""
    del seed
    plan = FaultPlan().fail_at(rng.uniform(8.0, 12.0), Kind.KILL_SRUN, for_s=rng.uniform(0.5, 3.0))
    return World(Setup.of(3, requeue=True), plan, seed_of(rng))


@recipe("warden_begins_beside_old_ranks")
def a_warden_dies_and_kills_are_slow(rng: random.Random, seed: int) -> World:
    """SIGKILL takes three seconds, longer than srun needs to start another warden."""
    del seed
    at_s, node = rng.uniform(8.0, 12.0), rng.choice((0, 1, 2))
    plan = FaultPlan().fail_at(at_s, Kind.SLOW_KILL, node=node, for_s=30.0, amount=3.0)
    plan = plan.fail_at(at_s + rng.uniform(0.1, 5.0), Kind.KILL_WARDEN, node=node)
    return World(Setup.of(3, requeue=True), plan, seed_of(rng))


@recipe("all_outlive_the_warden")
def a_warden_dies_and_its_node_is_cut_off(rng: random.Random, seed: int) -> World:
    """Whoever should end the lease is gone."""
    del seed
    at_s, node = rng.uniform(8.0, 12.0), rng.choice((1, 2))
    plan = FaultPlan().fail_at(at_s, Kind.KILL_WARDEN, node=node)
    plan = plan.fail_at(at_s + rng.uniform(0.1, 5.0), Kind.CUT, node=node, for_s=90.0)
    return World(Setup.of(3, script=FALLS_ALONE, savers=Savers.ALL), plan, seed_of(rng))


@recipe("wait_without_drift", "wait_without_kill")
def a_slow_clock_behind_a_cut(rng: random.Random, seed: int) -> World:
    """Its lease ends as late as it may: the clock is slow, the kill takes as long as it may."""
    del seed
    node = rng.choice((1, 2))
    plan = FaultPlan().fail_at(1.0, Kind.DRIFT, node=node, amount=-0.01)
    plan = plan.fail_at(2.0, Kind.SLOW_KILL, node=node, for_s=200.0, amount=0.9)
    plan = plan.fail_at(rng.uniform(8.0, 12.0), Kind.CUT, node=node, for_s=90.0)
    return World(Setup.of(3, script=FALLS_ALONE, savers=Savers.ALL), plan, seed_of(rng))


@recipe("places_on_excluded_nodes")
def an_excluded_node_is_missed(rng: random.Random, seed: int) -> World:
    """A spare has taken the place of a node that was drained, and is lost."""
    del seed
    plan = FaultPlan().fail_at(rng.uniform(8.0, 12.0), Kind.DRAIN, node=1)
    plan = plan.fail_at(rng.uniform(55.0, 65.0), Kind.KILL_NODE, node=3)
    script = Script(steps_count=100, victims_after_s=0.0)
    return World(replace(Setup.of(3, script=script), spares_count=1, pool_count=4), plan, seed_of(rng))


def seed_of(rng: random.Random) -> int:
    """For what chance the world itself has."""
    return rng.randrange(10**6)


@recipe("late_saves_stay")
def a_save_is_cut_short(rng: random.Random, seed: int) -> World:
    """A script that saves under the final name is stopped, or falls, in the middle of it."""
    script = Script(steps_count=40, checkpoint_every_count=2, save_s=rng.choice((0.8, 1.5)), foreign=True)
    at_s = rng.uniform(8.0, 16.0)
    plan = FaultPlan()
    if seed % 2:
        plan = plan.fail_at(at_s - 0.2, Kind.PAUSE_NODE, node=0, for_s=rng.uniform(43.0, 55.0))
    for _ in range(3):
        plan = plan.fail_at(at_s + rng.uniform(0.0, 3.0), Kind.KILL_RANK, rank=rng.choice((0, 2)))
    return World(Setup.of(3, script=script, requeue=seed % 2 > 0), plan, seed_of(rng))


@recipe("snapshot_without_marks")
def news_and_a_death(rng: random.Random, seed: int) -> World:
    """An agent's news is on disk; before the agent hears of that the supervisor dies."""
    del seed
    at_s = rng.uniform(8.0, 12.0)
    plan = FaultPlan().fail_at(at_s - 3.0, Kind.DELAY, node=1, for_s=10.0, amount=rng.uniform(0.2, 1.5))
    plan = plan.fail_at(at_s, Kind.EXIT_RANK, rank=1, amount=9.0)
    return World(Setup.of(4), plan.fail_at(at_s + rng.uniform(0.3, 3.0), Kind.KILL_SUPERVISOR), seed_of(rng))


@recipe("replaced_agents_count")
def last_words_come_late(rng: random.Random, seed: int) -> World:
    """A rank falls, its agent says so and dies; the next agent's greeting overtakes that."""
    del seed
    at_s = rng.uniform(8.0, 12.0)
    plan = (
        FaultPlan()
        .fail_at(at_s - 3.0, Kind.REORDER, node=1, for_s=30.0)
        .fail_at(at_s, Kind.EXIT_RANK, rank=1, amount=9.0)
    )
    return World(Setup.of(3), plan.fail_at(at_s + rng.uniform(0.01, 0.3), Kind.KILL_AGENT, node=1), seed_of(rng))


@recipe("any_progress_refills")
def a_few_steps_and_again(rng: random.Random, seed: int) -> World:
    """Each attempt makes a few steps, then fails, a little differently each time; its rank has no other node."""
    del seed
    again = tuple(
        Behaviour(step=rng.randrange(2, 6), code=rng.randrange(1, 100), attempts=frozenset({n})) for n in range(200)
    )
    script = Script(steps_count=30, checkpoint_every_count=0, behaviours=again, victims_after_s=0.0)
    setup = Setup.of(1, script=script)
    policy = replace(setup.policy, progress_mark_every_s=1.0)
    return World(replace(setup, policy=policy), FaultPlan(), seed_of(rng))


@recipe("one_port_for_all")
def a_fragment_is_left(rng: random.Random, seed: int) -> World:
    """A node that nobody hears keeps its ranks as the next attempt starts, which the fragment rule allows."""
    del seed
    script = Script(steps_count=60, victims_after_s=0.0)
    plan = FaultPlan().fail_at(rng.uniform(8.0, 12.0), Kind.CUT, node=3, for_s=90.0)
    setup = Setup.of(4, script=script, requeue=True, replica_ranks_count=2)
    shape = replace(setup.shape, nodes_min_count=3)
    return World(replace(setup, shape=shape), plan.fail_at(20.0, Kind.KILL_RANK, rank=1), seed_of(rng))


@recipe("starts_unlooked")
def sleeps_through_the_cancel(rng: random.Random, seed: int) -> World:
    """A supervisor stops before its first word, and wakes long after the cancel; it has not heard of it."""
    del seed
    stopped: list[str] = []
    for_s = rng.uniform(30.0, 44.0)

    def probe(process: SimProcess, label: str) -> None:
        if label == "before open acts" and not stopped:
            stopped.append(process.name)
            process.pause(for_s)

    plan = FaultPlan().fail_at(rng.uniform(4.0, 8.0), Kind.CANCEL)
    return World(Setup.of(3), plan, seed_of(rng), probe=probe)


@recipe("excludes_what_slurm_took")
def slurm_takes_a_good_node(rng: random.Random, seed: int) -> World:
    """Of a job that needs every node there is. The node is free again at once."""
    nodes_count = (2, 3, 4)[seed % 3]
    node = rng.choice((HOLDER, *range(nodes_count)))
    plan = FaultPlan().fail_at(rng.uniform(0.5, 20.0), Kind.NODE_TAKEN, node=node)
    return World(Setup.of(nodes_count, script=Script(steps_count=400), requeue=True), plan, rng.randrange(10**6))

"""Every knob of a run, validated, with its unit in the name.

A new knob gets a field here with its docstring line, a row in ``docs/operating.md`` and a test.
The protocol's laws between the times are checked in ``Policy.__post_init__``: a policy that breaks one cannot exist.
"""

from __future__ import annotations

from dataclasses import dataclass

from gangrun.core.model import OnAnomaly, OnDataChange, OnSlowRank, Savers

SETTLE_MAX_S = 10.0


class PolicyError(ValueError):
    """A knob has a value that cannot work; the message says which, why, and what would."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Beats, leases and takeover; the letters are those of ``docs/protocol.md``."""

    beat_every_s: float = 1.0  # b
    silence_after_s: float = 2.0  # S
    fence_after_s: float = 30.0  # L
    takeover_after_s: float = 3.0  # T
    leader_lease_s: float = 2.75  # D: a heartbeat proves a word of ours that is up to two beats old
    kill_within_s: float = 1.0  # K
    warden_wake_s: float = 0.25  # P
    drift: float = 0.01  # rho
    counter_every_s: float = 5.0
    counter_still_s: float = 60.0
    store_stalled_after_s: float = 5.0


@dataclass(frozen=True, slots=True)
class HangPolicy:
    """When a gang counts as hung. ``timeout_s`` overrides what would be learnt; 0 turns the watch off."""

    timeout_s: float | None = None
    startup_limit_s: float = 1800.0
    steady_min_s: float = 120.0
    steady_max_s: float = 3600.0
    long_phase_min_s: float = 600.0  # an evaluation or a save may wait for a service or a storage that fails over
    factor: float = 10.0  # times the longest interval seen
    samples_min_count: int = 5
    idle_cpu_rate: float = 0.05


@dataclass(frozen=True, slots=True)
class TrendPolicy:
    """What counts as slow, and as growth that ends in a full node: alerts only."""

    window_s: float = 600.0  # over which ranks, speed and memory are judged; 0: never
    slow_share: float = 0.15  # of each step that its peers wait for a rank
    drop_share: float = 0.10  # of the steps per second that the attempt made before
    full_within_s: float = 3600.0  # a limit that is reached sooner is told; 0: none
    race_min_share: float = 0.05  # of a step's time, that makes one node faster than another ...
    race_missing_share: float = 0.5  # ... and of what the others had lost by waiting for the slow rank


MEASURED_FACTOR = 2.0  # the last save of a job may take longer than those before: all runs that end then save too


@dataclass(frozen=True, slots=True)
class Policy:
    """All knobs of one run."""

    timing: Timing = Timing()
    hang: HangPolicy = HangPolicy()
    trends: TrendPolicy = TrendPolicy()
    restarts_max_count: int = 3  # per cause, since the last progress
    jobs_max_count: int = 0  # that the run may have, the first one included; 0: as many as it takes
    total_time_s: float = 0.0  # for which all ranks run, over all jobs; 0: as long as it takes
    backoff_first_s: float = 2.0
    backoff_max_s: float = 300.0
    unproven_backoff_factor: float = 4.0  # on these, for what may never have worked, before the run's first progress
    join_within_s: float = 60.0
    check_within_s: float = 60.0
    tests_within_s: float = 60.0  # more, where devices are put to work; twice that for who is suspected
    test_at_start: bool = False  # put all devices to work before a job's first attempt
    test_suspects: bool = False  # put those of suspected nodes to work before they are used again
    start_within_s: float = 120.0
    choose_within_s: float = 1800.0
    settle_s: float = 0.3  # once a rank fails, before the others get SIGTERM; 0: none
    stop_grace_s: float = 10.0
    peer_gone_grace_s: float = 1.0  # the same once a rank of the gang is gone: the others wait in vain for it
    stop_within_s: float = 60.0
    checkpoint_grace_s: float = 60.0
    save_lead_s: float | None = None  # so long before a time limit ranks are told to save; None: ``save_within_s``
    finish_grace_s: float = 30.0  # one rank ended with 0, the others have this long
    stacks_within_s: float = 10.0
    waiting_max_s: float = 3600.0
    move_suspects: bool = True  # replace one that still works at the next checkpoint, where a healthy node is free
    grow_every_s: float = 600.0  # so long after a start a smaller gang may be stopped to grow; 0: it is not
    exclusion_s: float = 24 * 3600.0
    exclusions_per_hour_max_count: int | None = None  # None: 5 % of nodes or 2, whichever is more
    shared_fault_share: float = 0.2
    shared_fault_window_s: float = 10.0
    shared_fault_wait_s: float = 600.0
    progress_mark_every_s: float = 30.0
    total_steps: int = 0  # that the training has; 0: nobody said
    poison_after_steps: int = 10  # so soon after loading it a failure may be the checkpoint's; 0: never
    poison_times_count: int = 2  # the same failure, so often, before it is set aside
    on_anomaly: OnAnomaly = OnAnomaly.ALERT  # a loss that is not finite or blew up, and stays so
    on_slow_rank: OnSlowRank = OnSlowRank.ALERT  # that slows all others down
    race_stragglers: bool = False  # moves it, and tells by its speed elsewhere whether its node was slow
    data_checksums: OnDataChange = OnDataChange.OFF  # are samples compared with those of the checkpoint
    sdc_check: str = "off"  # "saves": ranks compare copies of the same weights at each save. "every=N": and replays
    skip_batches_count: int = 0  # global batches that are left out after a rollback
    replica_ranks_count: int = 0  # consecutive ranks that can complete a step without all others; 0: the whole gang
    saves_with: Savers | None = None  # who writes checkpoints; None: told by their format
    can_requeue: bool = False  # is there a scheduler behind us
    keeps_memory: bool = False  # steps are kept in the nodes' memory: before a job ends they are brought to the disk
    # None: no refills, one-node jobs for missing nodes once no spare is left. Else the job holds its healthy nodes so
    # long for one if they are too few; 0: not at all, and a refill only becomes a spare.
    refill_wait_s: float | None = None
    observe: bool = False  # decide and tell; after the first start stop nothing that lives, start nothing that died

    def __post_init__(self) -> None:
        """Refuse a policy under which the promises do not hold."""
        check(self)

    @property
    def moves_slow_ranks(self) -> bool:
        """Is a node with a slow rank left if a healthy one is free? A race needs that."""
        return self.race_stragglers or self.on_slow_rank is OnSlowRank.MOVE

    def save_within_s(self, measured_s: float = 0.0) -> float:
        """How long a save before a stop may take, if saves took ``measured_s`` lately; 0: nobody has measured any."""
        return max(self.checkpoint_grace_s, MEASURED_FACTOR * measured_s)

    @property
    def compares_saves(self) -> bool:
        """Do ranks that hold copies of the same weights compare them at each save?"""
        return self.sdc_check != "off"

    @property
    def replay_every_count(self) -> int:
        """Every so many steps two ranks compute the same batch; 0: never."""
        return int(self.sdc_check.partition("=")[2] or 0)

    def lead_s(self, measured_s: float = 0.0) -> float:
        """How long before a known end saving begins; the stop itself comes after it."""
        return self.save_within_s(measured_s) if self.save_lead_s is None else self.save_lead_s


def check(policy: Policy) -> None:
    """Raise ``PolicyError`` where a knob is out of range or a law between the times is broken."""
    timing = policy.timing
    positive = {
        "beat_every_s": timing.beat_every_s,
        "silence_after_s": timing.silence_after_s,
        "fence_after_s": timing.fence_after_s,
        "takeover_after_s": timing.takeover_after_s,
        "leader_lease_s": timing.leader_lease_s,
        "backoff_first_s": policy.backoff_first_s,
        "waiting_max_s": policy.waiting_max_s,
        "join_within_s": policy.join_within_s,
        "check_within_s": policy.check_within_s,
        "tests_within_s": policy.tests_within_s,
        "choose_within_s": policy.choose_within_s,
        "start_within_s": policy.start_within_s,
        "stop_within_s": policy.stop_within_s,
    }
    for name, value in positive.items():
        if not value > 0:
            raise PolicyError(f"{name} = {value} must be more than 0")
    if not policy.unproven_backoff_factor >= 1:
        raise PolicyError(f"unproven_backoff_factor = {policy.unproven_backoff_factor} must be at least 1")
    if not timing.leader_lease_s * (1 + timing.drift) < timing.takeover_after_s:
        raise PolicyError(
            f"leader_lease_s = {timing.leader_lease_s} must be under takeover_after_s = {timing.takeover_after_s}"
            " by more than the clocks drift, or two supervisors could act at once"
        )
    reconnect_s = timing.takeover_after_s + 2 * timing.beat_every_s + 5.0
    if not timing.silence_after_s + reconnect_s < timing.fence_after_s:
        raise PolicyError(
            f"fence_after_s = {timing.fence_after_s} must be over {timing.silence_after_s + reconnect_s:g}"
            " (detect, claim, reconnect), or a takeover would kill good ranks"
        )
    if policy.save_lead_s is not None and not policy.save_lead_s >= 0:
        raise PolicyError(f"save_lead_s = {policy.save_lead_s} must not be negative")
    if not 0 <= policy.settle_s <= SETTLE_MAX_S:
        raise PolicyError(
            f"settle_s = {policy.settle_s} must be from 0 (off) to {SETTLE_MAX_S:g}: each restart waits for it"
        )
    zero_means = {
        "peer_gone_grace_s": "",
        "poison_after_steps": " (0 turns it off)",
        "skip_batches_count": " (0: none)",
        "replica_ranks_count": " (0: the whole gang)",
        "grow_every_s": " (0: grow at restarts only)",
        "jobs_max_count": " (0: no limit)",
        "restarts_max_count": "",
    }
    if policy.refill_wait_s is not None:
        zero_means["refill_wait_s"] = " (0: no wait)"
    for name, zero in zero_means.items():
        if not getattr(policy, name) >= 0:
            raise PolicyError(f"{name} = {getattr(policy, name)} must not be negative{zero}")
    if policy.total_time_s and not policy.total_time_s >= 1:
        raise PolicyError(f"total_time_s = {policy.total_time_s} must be 0 (no limit) or at least 1")
    if policy.poison_times_count < 2:
        raise PolicyError(f"poison_times_count = {policy.poison_times_count} must be at least 2: once proves nothing")
    if policy.skip_batches_count and policy.on_anomaly is not OnAnomaly.ROLLBACK:
        raise PolicyError(f"skip_batches_count = {policy.skip_batches_count} needs on_anomaly rollback")
    _check_moves(policy)
    _check_trends(policy.trends)


def _check_moves(policy: Policy) -> None:
    if policy.moves_slow_ranks and not policy.move_suspects:
        what = "race_stragglers" if policy.race_stragglers else "on_slow_rank move"
        raise PolicyError(f"{what} needs move_suspects")
    if policy.race_stragglers and not policy.trends.window_s:
        raise PolicyError("race_stragglers needs trends.window_s over 0: else no rank is found to be slow")


WINDOW_MIN_S = 20.0  # a rank is looked at twice a second: fewer looks tell nothing


def _check_trends(trends: TrendPolicy) -> None:
    if trends.window_s and not trends.window_s >= WINDOW_MIN_S:
        raise PolicyError(f"trends.window_s = {trends.window_s} must be at least {WINDOW_MIN_S:g} (0 turns it off)")
    if not trends.full_within_s >= 0:
        raise PolicyError(f"trends.full_within_s = {trends.full_within_s} must not be negative (0 turns it off)")
    for name in ("slow_share", "drop_share", "race_min_share", "race_missing_share"):
        share = getattr(trends, name)
        if not 0 < share < 1:
            raise PolicyError(f"trends.{name} = {share} must be between 0 and 1")

"""Alerts on the speed and the resources of the training: remembered, told, and explained by what nodes' checks found.

``pace_rules`` and ``fill_rules`` find them. Nothing acts on an alert. It is open from the event that tells of it to
the one that says it is over, or to the end of its attempt.
"""

from __future__ import annotations

from dataclasses import replace

from gangrun.core.evidence import Alert, AlertKind, NodeFinding, SeenAlert
from gangrun.core.model import RunState
from gangrun.core.text import counted, listed, one_line

KEPT_MAX_COUNT = 32
FINDINGS_MAX_COUNT = 64
FINDINGS_COUNT_FOR_S = 86400.0
MORE_TOKENS_MIN_SHARE = 0.05
# What makes a rank slow without stopping it: heat, power, clocks, memory errors, narrow or failing links, a busy host,
# slow storage. ``tests.health`` holds the names against the catalogue of checks.
SLOWING_CHECKS = frozenset(
    {
        "gpu_throttled", "gpu_slowed", "gpu_power", "gpu_clocks", "gpu_temperature", "gpu_pcie", "gpu_pcie_speed",
        "gpu_pcie_replays", "gpu_ecc_corrected", "gpu_ecc_growth", "gpu_remapped", "gpu_leftovers", "gpu_fabric",
        "nvlink_state", "nvlink_errors", "nvlink_speed", "ib_state", "ib_rate", "ib_flaps", "ib_errors",
        "ib_congestion", "ib_peers", "host_memory", "host_memory_errors", "host_load", "host_processes",
        "host_pressure", "host_steal", "host_pcie_errors", "storage_answers", "dcgm_health", "active_gemm_speed",
        "active_bandwidth", "active_copies",
    }
)  # fmt: skip


# ---- what is known ---------------------------------------------------------------------------------------------------


def noted(state: RunState, alert: Alert, at: float) -> tuple[RunState, SeenAlert]:
    """The state that knows it as open, in the newest words; one that is open already keeps its beginning."""
    known = _open(state, alert)
    one = SeenAlert(state.attempt.number, alert, at if known is None else known.at, at)
    kept = tuple(other for other in state.alerts if other is not known)[-(KEPT_MAX_COUNT - 1) :]
    return replace(state, alerts=(*kept, one)), one


def ended(state: RunState, alert: Alert, at: float) -> tuple[RunState, SeenAlert | None]:
    """The state in which it is over; None: there was none."""
    known = _open(state, alert)
    if known is None:
        return state, None
    one = replace(known, until=at)
    return replace(state, alerts=tuple(one if other is known else other for other in state.alerts)), one


def _open(state: RunState, alert: Alert) -> SeenAlert | None:
    return next((one for one in open_ones(state) if one.alert.key == alert.key), None)


def open_ones(state: RunState) -> tuple[SeenAlert, ...]:
    """Those of the newest attempt that are not over."""
    return tuple(one for one in state.alerts if one.until is None and one.attempt == state.attempt.number)


def with_finding(state: RunState, found: NodeFinding) -> RunState:
    """The state that remembers what may make the node's ranks slow, the newest of each check and place."""
    if found.check not in SLOWING_CHECKS:
        return state
    sign = found.node, found.check, found.place
    others = [one for one in state.slowing if (one.node, one.check, one.place) != sign]
    return replace(state, slowing=(*others, found)[-FINDINGS_MAX_COUNT:])


# ---- words -----------------------------------------------------------------------------------------------------------


def told(one: SeenAlert) -> str:
    """As it is: ``rank 17 on n004 is 30 % slower than its peers for 10 min: the others wait for it during ...``."""
    alert = one.alert
    match alert.kind:
        case AlertKind.SLOW_RANK:
            return (
                f"{_who(alert)} is {_percent(alert.share)} slower than its peers for {_span(alert.over_s)}"
                f"{_others(alert)}: the others wait for it during {_percent(alert.lost_share)} of the time"
            )
        case AlertKind.SLOW_GPU:
            return (
                f"{_who(alert)} is {_percent(alert.share)} slower than its peers for {_span(alert.over_s)}"
                f"{_others(alert)}: {'; '.join(alert.signs)}"
            )
        case AlertKind.IDLE_GPU:
            before, now = alert.rates
            return (
                f"the GPU of {_who(alert)} is busy for {_percent(now)} of the time for {_span(alert.over_s)}, and was"
                f" for {_percent(before)} before in this attempt{_others(alert, ' those of', ' that of')}"
            )
        case AlertKind.SLOWER:
            before, now = alert.rates
            return (
                f"the training is {_percent(alert.share)} slower than before in this attempt for {_span(alert.over_s)}:"
                f" {now:.3g} steps per second instead of {before:.3g}"
            )
        case AlertKind.MEMORY:
            return f"node {alert.node} will be out of memory in {_span(alert.in_s)}: {_growth(alert)}"
        case AlertKind.SHARED_MEMORY:
            rate = f"it grows by {_bytes(alert.per_s * 60)}/min"
            return f"shared memory (/dev/shm) of {alert.node} will be full in {_span(alert.in_s)}: {rate}"
        case AlertKind.GPU_MEMORY:
            used = f"{_bytes(alert.used)} of {_bytes(alert.limit)} are used, and {_bytes(alert.per_s * 60)} more"
            return f"{_who(alert)} will be out of GPU memory in {_span(alert.in_s)}: {used} each minute"
        case AlertKind.THREADS:
            used = f"{alert.used} of {alert.limit} are in use, and {alert.per_s * 60:.3g} more each minute"
            more = f" ({counted(alert.others_count, 'other rank')} too)" if alert.others_count else ""
            return f"{_who(alert)} will be out of threads in {_span(alert.in_s)}: {used}{more}"
        case AlertKind.FILES:  # pragma: no branch - the enum has no other member
            grow = f"{alert.used} of {alert.limit} are open, and {alert.per_s * 60:.3g} more each minute"
            return f"rank {alert.rank} on {alert.node} will have too many open files in {_span(alert.in_s)}: {grow}"


def past_words(one: SeenAlert) -> str:
    """As it was, once it is over: ``rank 17 on n004 was 30 % slower than its peers``."""
    alert = one.alert
    match alert.kind:
        case AlertKind.SLOW_RANK:
            return f"{_who(alert)} was {_percent(alert.share)} slower than its peers"
        case AlertKind.SLOW_GPU:
            return f"{_who(alert)} was {_percent(alert.share)} slower than its peers: {'; '.join(alert.signs)}"
        case AlertKind.IDLE_GPU:
            before, now = alert.rates
            return (
                f"the GPU of {_who(alert)} was busy for {_percent(now)} of the time, and before for {_percent(before)}"
            )
        case AlertKind.SLOWER:
            return f"the training was {_percent(alert.share)} slower than before in its attempt"
        case AlertKind.MEMORY:
            return f"the memory of node {alert.node} filled up: {_growth(alert)}"
        case AlertKind.SHARED_MEMORY:
            return f"shared memory (/dev/shm) of {alert.node} grew by {_bytes(alert.per_s * 60)}/min"
        case AlertKind.GPU_MEMORY:
            return f"the GPU memory of {_who(alert)} filled up by {_bytes(alert.per_s * 60)}/min"
        case AlertKind.THREADS:
            return f"{_who(alert)} started {alert.per_s * 60:.3g} more threads each minute"
        case AlertKind.FILES:  # pragma: no branch - the enum has no other member
            return f"rank {alert.rank} on {alert.node} opened {alert.per_s * 60:.3g} more files each minute"


def _who(alert: Alert) -> str:
    """``rank 17 (GPU 3 on n004)``."""
    return f"rank {alert.rank} " + (f"on {alert.node}" if alert.gpu < 0 else f"(GPU {alert.gpu} on {alert.node})")


def _others(alert: Alert, those: str = "", that: str = "") -> str:
    is_one = alert.others_count == 1
    more = f", and so {f'is{that}' if is_one else f'are{those}'} {counted(alert.others_count, 'other rank')}"
    return more if alert.others_count else ""


def _growth(alert: Alert) -> str:
    more = f", and {counted(alert.others_count, 'other rank')} too" if alert.others_count else ""
    return f"rank {alert.rank} grows by {_bytes(alert.per_s * 60)}/min{more}"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _span(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _bytes(count: float) -> str:
    return f"{count / 1e9:.3g} GB" if count >= 1e9 else f"{count / 1e6:.3g} MB"


OF_A_RANK = frozenset({AlertKind.SLOW_RANK, AlertKind.SLOW_GPU})


# ---- causes ----------------------------------------------------------------------------------------------------------


def causes(state: RunState, one: SeenAlert) -> tuple[str, ...]:
    """Why a rank may be slow: its GPU, more data than its peers have, and what checks found on its node lately."""
    alert = one.alert
    if alert.kind not in OF_A_RANK:
        return ()
    tokens = alert.more_tokens_share
    data = [f"it trains on {_percent(tokens)} more tokens than its peers"] if tokens >= MORE_TOKENS_MIN_SHARE else []
    slot = _slot(state, alert)
    end = state.updated_at if one.until is None else one.until
    found = [
        f"{one_line(found.sentence)} ({found.check}, seen {_span(max(0.0, end - found.at))} ago)"
        for found in reversed(state.slowing)
        if found.node == alert.node and found.slot in (-1, slot) and 0 <= end - found.at + 1 <= FINDINGS_COUNT_FOR_S
    ]
    signs = alert.signs if alert.kind is AlertKind.SLOW_RANK else ()  # else they are in the sentence itself
    return (*signs, *data, *found)


def _slot(state: RunState, alert: Alert) -> int:
    """The slot of its node that the rank has, if each has one: findings of other slots are no cause."""
    placement = state.attempt.placement
    seats = placement.seats if placement is not None else ()
    return alert.rank - min((seat.first_rank for seat in seats if seat.slot.node == alert.node), default=alert.rank)


def causes_told(state: RunState, one: SeenAlert) -> str:
    """The end of a sentence on an alert; "" for one that has its cause in it."""
    found = causes(state, one)
    if not found and one.alert.kind is not AlertKind.SLOW_RANK:
        return ""
    if not found:
        return f"; no check of {one.alert.node} found a cause"
    return f"; likely {'cause' if len(found) == 1 else 'causes'}: {listed(found)}"

"""How GPUs run: heat, what holds their clocks down, PCIe, fabric; each beside those of its kind. The reading: ``gpu``.

What one look shows of work is chance, so what depends on work must show at two looks running. Of what holds clocks down
two looks make a warning; most looks of ten minutes, while the clock is below that of the GPUs at work beside it, make a
node that slows all ranks down. That a GPU draws all the power it may is no fault.
"""

from __future__ import annotations

from dataclasses import replace
from statistics import median

from gangrun.health.framework.bounds import Bound, BoundMeasure, counters, each, far_below
from gangrun.health.framework.check import (
    FAIL,
    WARN,
    CauseClass,
    Check,
    CheckLook,
    CheckOutcome,
    Finding,
    FindingEvidence,
    Needs,
    Reading,
    Sticky,
    Value,
    comparable,
    span,
)  # fmt: skip
from gangrun.health.framework.readings import UUID
from gangrun.health.gpu.devices import GPU, gpus, gpus_in

HOT_FOR_S = 300.0
HOT_SINCE = "no margin since"
BUSY_PERCENT, IDLE_PERCENT = 50.0, 5.0
PEERS_MIN_COUNT = 3
TOO_FEW = f"fewer than {PEERS_MIN_COUNT} GPUs are at work"
NONE_AT_WORK = "no GPU is at work"


# ---- heat ------------------------------------------------------------------------------------------------------------


def judge_temperature(look: CheckLook) -> CheckOutcome:
    """Degrees left before a GPU slows itself down, and each beside its peers."""
    policy, middle = look.policy, median(look.numbers("temperature_c").values() or [0.0])

    def bad(place: str, heat: float) -> Finding | None:
        margin, slowdown = look.number(place, "margin_c"), look.number(place, "slowdown_c")
        if margin is None and slowdown is not None:
            margin = slowdown - heat
        since = look.number(place, HOT_SINCE)
        if since is not None and look.now.at - since >= HOT_FOR_S:
            lasts = span(look.now.at - since)
            sentence = f"{place} is at {heat:.0f} °C, and has been too hot not to slow down for {lasts}"
            return look.found(FAIL, place, sentence, heat, needs=Needs.ADMIN, sticky=Sticky.CLEAN)
        most = look.number(place, "memory_most_c") or policy.memory_temperature_c
        hot, measured = look.number(place, "memory_temperature_c"), heat
        if margin is not None and margin < policy.margin_warn_c:
            sentence = f"{place} is at {heat:.0f} °C, {margin:.0f} °C before it slows down: look at its cooling"
        elif heat - middle > policy.above_peers_c and len(gpus(look)) > 2:
            sentence = f"{place} is at {heat:.0f} °C while GPUs beside it are at {middle:.0f} °C: look at its cooling"
        elif hot is not None and hot >= min(most, policy.memory_temperature_c):
            sentence, measured = (
                f"the memory of {place} is at {hot:.0f} °C: it may slow down without any other sign",
                hot,
            )
        else:
            return None
        return look.found(WARN, place, sentence, measured, needs=Needs.ADMIN, sticky=Sticky.NO)

    return each(look, "temperature_c", f">= {policy.margin_warn_c:g} °C margin", "{most:.0f} °C at most", bad)


def with_heat(now: Reading, before: Reading | None) -> Reading:
    """Carry on since when each look found a GPU so hot that it must slow down."""
    more: dict[str, dict[str, Value]] = {}
    for place in gpus_in(now.facts):
        margin = now.facts.number(place, "margin_c")
        if margin is not None and margin <= 0:
            same = before is not None and comparable(now, before)
            since = before.facts.number(place, HOT_SINCE) if before is not None and same else None
            more[place] = {HOT_SINCE: now.at if since is None else since}
    return now.with_more(more)


# ---- what holds clocks down ------------------------------------------------------------------------------------------


def _throttled(counter: str, how: str) -> Bound:
    def sentence(look: CheckLook, place: str, share: float) -> str:
        over_s = look.now.at - (look.before.at if look.before else 0.0)
        return f"{place} was slowed down {how}, {share * 100:.0f} % of the last {span(over_s)}"

    limit, of = "throttle_share", BoundMeasure.SHARE_OF_TIME
    return Bound(counter, limit, WARN, sentence, of, needs=Needs.ADMIN, sticky=Sticky.CLEAN)


judge_throttled = counters(  # the share of time in which a GPU was slowed down; what it is at this moment is chance
    _throttled("throttled_heat_ns", "by its own heat guard"),
    _throttled("throttled_software_heat_ns", "for heat by the driver"),
    _throttled("power_brake_ns", "by the power brake: power supply or rack"),
    limit=lambda policy: f"<= {policy.throttle_share * 100:g} % of the time",
    shown="{percent:.0f} % at most",
)

WINDOW_S, WINDOW_LOOKS_MIN, WINDOW_SHARE = 600.0, 5, 0.6  # 0.6 a minute over ten, as gpud counts them
SOFTWARE_HEAT, HARDWARE = 0x20, 0x08 | 0x40 | 0x80
REASONS = (  # (bit, words), the most telling first: the hardware's own bit comes with one of the two before it
    (0x80, "by the power brake: power supply or rack"),
    (0x40, "by its own heat guard"),
    (0x08, "by its hardware, for heat, power or a brake"),
    (SOFTWARE_HEAT, "for heat by the driver"),
)
LOOKS, SLOWED, SINCE, SHARE = "clock looks", "clock slowed", "clock since", "clock share before"


def with_slowing(now: Reading, before: Reading | None) -> Reading:
    """Carry on how many looks at work there were, and how many found it slowed by its hardware: this ten minutes, and
    of the last ten minutes the share.
    """
    more: dict[str, dict[str, Value]] = {}
    for place in gpus_in(now.facts):
        if now.facts.number(place, "clock_reasons") is None:
            continue
        looks, slowed, since, share = 0.0, 0.0, now.at, None
        if before is not None and comparable(now, before) and _same(now, before, place):
            looks, slowed = (before.facts.number(place, name) or 0.0 for name in (LOOKS, SLOWED))
            began, share = before.facts.number(place, SINCE), before.facts.number(place, SHARE)
            since = now.at if began is None else began
        if now.at - since > WINDOW_S:
            share = slowed / looks if looks >= WINDOW_LOOKS_MIN else None
            looks, slowed, since = 0.0, 0.0, now.at
        if _at_work(now, place):
            looks, slowed = looks + 1, slowed + bool(_bits(now, place) & HARDWARE)
        more[place] = {LOOKS: looks, SLOWED: slowed, SINCE: since, **({SHARE: share} if share is not None else {})}
    return now.with_more(more)


def judge_slowed(look: CheckLook) -> CheckOutcome:
    """Does the hardware, or the driver for heat, hold down the clocks of a GPU at work?"""
    limit, known = "none at work", look.numbers("clock_reasons")
    busy = [place for place in known if _at_work(look.now, place)]
    if not busy:
        return CheckOutcome("-", limit, unknown=NONE_AT_WORK) if known else look.unknown(limit, "clock_reasons")
    found = tuple(one for place in busy if (one := _slowed(look, place, busy)) is not None)
    return CheckOutcome(f"{len(found)} of {len(busy)} at work", limit, found)


def _slowed(look: CheckLook, place: str, busy: list[str]) -> Finding | None:
    now, before, bits = look.now, look.before, _bits(look.now, place)
    words = next((words for bit, words in REASONS if bits & bit), "")
    if not words or before is None or not comparable(now, before) or not _same(now, before, place):
        return None
    if not (_at_work(before, place) and _bits(before, place) & (HARDWARE | SOFTWARE_HEAT)):
        return None
    also = sum(bool(_bits(now, other) & (HARDWARE | SOFTWARE_HEAT)) for other in busy) - 1
    company = f", as {also} more at work here" if also else ""
    share = look.number(place, SHARE) or 0.0
    clocks = {other: mhz for other in busy if (mhz := look.number(other, "sm_clock_mhz")) is not None}
    slower, usual = far_below(clocks, look.policy.clock_share, PEERS_MIN_COUNT)
    severity, sentence = WARN, f"{place} is at work and slowed down {words}{company}"
    if bits & HARDWARE and share >= WINDOW_SHARE and place in slower:
        often = f"in {share * 100:.0f} % of all looks of {span(WINDOW_S)}"
        beside = f"{clocks[place]:.0f} MHz while the GPUs beside it run at {usual:.0f}{company}"
        severity, sentence = FAIL, f"{place} is slowed down {words}, {often}: {beside}"
    evidence = FindingEvidence(bits, _bits(before, place), now.at - before.at)
    return look.found(severity, place, sentence, evidence, needs=Needs.ADMIN, sticky=Sticky.CLEAN)


def _at_work(reading: Reading, place: str) -> bool:
    return (reading.facts.number(place, "busy_percent") or 0.0) >= BUSY_PERCENT


def _bits(reading: Reading, place: str) -> int:
    return int(reading.facts.number(place, "clock_reasons") or 0)


def _same(now: Reading, before: Reading, place: str) -> bool:
    return now.facts.get(place, UUID) == before.facts.get(place, UUID)


# ---- beside those of its kind ----------------------------------------------------------------------------------------


def judge_clocks(look: CheckLook) -> CheckOutcome:
    """Does a busy GPU run slower than the busy ones beside it? At rest clocks say nothing."""
    limit = f">= {look.policy.clock_share * 100:.0f} % of its peers"
    clocks = look.numbers("sm_clock_mhz")
    busy = {place: clock for place, clock in clocks.items() if _at_work(look.now, place)}
    if len(busy) < PEERS_MIN_COUNT:
        return CheckOutcome("-", limit, unknown=TOO_FEW) if clocks else look.unknown(limit, "sm_clock_mhz")
    slow, middle = far_below(busy, look.policy.clock_share, PEERS_MIN_COUNT)
    told = f"while the GPUs beside it run at {middle:.0f}: it slows all ranks down"
    found = tuple(
        look.found(WARN, place, f"{place} runs at {clock:.0f} MHz {told}", clock, middle, Needs.ADMIN, sticky=Sticky.NO)
        for place, clock in slow.items()
    )
    return CheckOutcome(f"{min(busy.values()):.0f} to {max(busy.values()):.0f} MHz", limit, found)


def judge_power(look: CheckLook) -> CheckOutcome:
    """May every GPU draw as much as the others of its model?"""
    kinds: dict[object, dict[str, float]] = {}
    for place, watts in look.numbers("power_limit_w").items():
        kinds.setdefault(look.facts.get(place, "model"), {})[place] = watts
    share = look.policy.power_limit_share

    def bad(place: str, watts: float) -> Finding | None:
        less, usual = far_below(kinds[look.facts.get(place, "model")], share, PEERS_MIN_COUNT)
        if place not in less:
            return None
        beside = f"while the GPUs beside it may draw {usual:.0f}: it slows all ranks down"
        sentence = f"{place} may draw {watts:.0f} W {beside}"
        return look.found(WARN, place, sentence, watts, usual, Needs.ADMIN, CauseClass.EITHER, Sticky.NO)

    return each(look, "power_limit_w", f">= {share * 100:.0f} % of its peers", _watts, bad)


def _watts(all_of: list[float]) -> str:
    least, most = f"{min(all_of):.0f}", f"{max(all_of):.0f}"
    return f"{most} W" if least == most else f"{least} to {most} W"


def judge_idle(look: CheckLook) -> CheckOutcome:
    """Does a GPU that holds a program rest while others work? One that hangs or lags shows like this."""
    limit, before = f">= {IDLE_PERCENT:g} % where others work", look.before
    shares = look.numbers("busy_percent")
    busy_count = sum(_at_work(look.now, place) for place in gpus(look))
    if busy_count < PEERS_MIN_COUNT:
        return CheckOutcome("-", limit, unknown=TOO_FEW) if shares else look.unknown(limit, "busy_percent")
    told = f"does nothing while {busy_count} GPUs beside it work: its rank waits for something else, or hangs"
    found = tuple(
        look.found(
            WARN, place, f"{place} {told}", FindingEvidence(share, over_s=look.now.at - before.at), None, Needs.NONE,
            CauseClass.APPLICATION, Sticky.NO,
        )
        for place, share in shares.items()
        if before is not None and comparable(look.now, before) and _is_idle(look.now, place) and _is_idle(before, place)
    )  # fmt: skip
    return CheckOutcome(f"{busy_count} of {len(gpus(look))} at work", limit, found)


def _is_idle(reading: Reading, place: str) -> bool:
    busy, held = reading.facts.number(place, "busy_percent"), reading.facts.number(place, "processes_count")
    return busy is not None and busy < IDLE_PERCENT and bool(held)


# ---- PCIe ------------------------------------------------------------------------------------------------------------

REPLAYS_PER_LANE_MIN = {1: 0.15, 2: 0.3, 3: 0.48, 4: 0.96, 5: 1.92, 6: 3.84}  # by PCIe generation, as DCGM has them
NEWEST_GENERATION = 6


def judge_pcie(look: CheckLook) -> CheckOutcome:
    """Lanes of the bus; their speed drops when a GPU rests, so only their number is judged."""

    def bad(place: str, width: float) -> Finding | None:
        full = look.number(place, "pcie_width_max")
        if full is None or width >= full:
            return None
        sentence = f"{place} is connected by {width:.0f} PCIe lanes instead of {full:.0f}: copies to it are slow"
        return look.found(FAIL, place, sentence, width, full, Needs.REBOOT)

    return each(look, "pcie_width", "= its maximum", "x{least:.0f}", bad)


def judge_pcie_speed(look: CheckLook) -> CheckOutcome:
    """Does the bus of a busy GPU run at its full speed? At rest it is slow on purpose."""
    limit, before = "= its maximum at work", look.before
    known = [place for place in gpus(look) if _generations(look.now, place) is not None]
    busy = [place for place in known if _at_work(look.now, place)]
    if not busy:
        return CheckOutcome("-", limit, unknown=NONE_AT_WORK if known else GPU.why_not(look, "pcie_generation"))
    found = []
    for place in busy:
        if before is None or not (
            _is_slow(look.now, place) and comparable(look.now, before) and _is_slow(before, place)
        ):
            continue
        speed, full = _generations(look.now, place) or (0.0, 0.0)
        runs = f"its PCIe runs at generation {speed:.0f} of {full:.0f}: copies to it are slow"
        evidence = FindingEvidence(speed, full, look.now.at - before.at)
        sentence = f"{place} is at work and {runs}"
        found.append(look.found(WARN, place, sentence, evidence, needs=Needs.REBOOT, sticky=Sticky.NO))
    return CheckOutcome(f"{len(busy) - len(found)} of {len(busy)} at full speed", limit, tuple(found))


def _generations(reading: Reading, place: str) -> tuple[float, float] | None:
    speed, full = reading.facts.number(place, "pcie_generation"), reading.facts.number(place, "pcie_generation_max")
    return None if speed is None or full is None else (speed, full)


def _is_slow(reading: Reading, place: str) -> bool:
    both = _generations(reading, place)
    return _at_work(reading, place) and both is not None and both[0] < both[1]


def judge_replays(look: CheckLook) -> CheckOutcome:
    """How often does PCIe send again? A few are normal, and more the faster the bus is."""
    limit, grown = "as DCGM allows, by lanes and speed", look.grown("pcie_replays")
    if not grown:
        return look.unknown(limit, "pcie_replays")
    found = tuple(
        look.found(
            WARN, place, f"{place}: PCIe sent again {one.count:.0f} times ({one.words}): a slot or riser may be bad",
            one.evidence, needs=Needs.ADMIN, sticky=Sticky.CLEAN,
        )
        for place, one in grown.items()
        if one.per_min > _replays_allowed(look, place)
    )  # fmt: skip
    return CheckOutcome(f"{max(one.per_min for one in grown.values()):.1f}/min at most", limit, found)


def _replays_allowed(look: CheckLook, place: str) -> float:
    generation = int(look.number(place, "pcie_generation_max") or NEWEST_GENERATION)
    per_lane = REPLAYS_PER_LANE_MIN.get(generation, REPLAYS_PER_LANE_MIN[NEWEST_GENERATION])
    return (look.number(place, "pcie_width") or 16.0) * per_lane


# ---- the NVLink fabric -----------------------------------------------------------------------------------------------

FABRIC_DONE, FABRIC_NONE, FABRIC_IN_PROGRESS = 3, 0, 2
SUMMARY_BAD = (2, 3)
FABRIC_TRUE = 1
FABRIC_MASK = (  # (shift of two bits, words, is it broken while it lasts)
    (0, "its bandwidth is degraded", True),
    (4, "a route is unhealthy", True),
    (2, "a route is being recovered", False),
    (6, "it recovers from an access that timed out", False),
)


def judge_fabric(look: CheckLook) -> CheckOutcome:
    """On machines with NVSwitch CUDA does not start before the fabric is up."""

    def bad(place: str, state: float) -> Finding | None:
        status, summary = look.number(place, "fabric_status") or 0, look.number(place, "fabric_summary")
        mask = int(look.number(place, "fabric_mask") or 0)
        wrong = [(words, fatal) for shift, words, fatal in FABRIC_MASK if mask >> shift & 3 == FABRIC_TRUE]
        joined, unwell = state == FABRIC_DONE and status == 0, summary in SUMMARY_BAD
        if state == FABRIC_NONE or (joined and not wrong and not unwell):
            return None
        if joined:
            severity = FAIL if unwell or any(fatal for _, fatal in wrong) else WARN
            what = " and ".join(words for words, _ in wrong) or f"it is not well (health {summary:.0f})"
            sentence = f"{place}: {what} in the NVLink fabric"
            return look.found(severity, place, sentence, mask, None, Needs.ADMIN, CauseClass.EITHER)
        if state == FABRIC_IN_PROGRESS:
            sentence = f"{place} is still being joined to the NVLink fabric; if that lasts minutes, CUDA will not start"
            return look.found(WARN, place, sentence, state, needs=Needs.ADMIN, sticky=Sticky.NO)
        how = f"state {state:.0f}, status {status:.0f}, health {summary}"
        sentence = f"{place} is not part of the NVLink fabric ({how}): the Fabric Manager must be looked at"
        return look.found(FAIL, place, sentence, how, None, Needs.ADMIN, CauseClass.EITHER)

    outcome = each(look, "fabric_state", "joined, well", _joined, bad)
    unwell_count = len(outcome.findings)
    return replace(outcome, shown=f"{outcome.shown}, {unwell_count} unwell") if unwell_count else outcome


def _joined(all_of: list[float]) -> str:
    return f"{sum(state == FABRIC_DONE for state in all_of)} joined"


RUNNING = (
    Check("gpu_temperature", "gpu", "GPUs are cool enough", judge_temperature, 15.0, GPU),
    Check("gpu_throttled", "gpu", "GPUs are not slowed down", judge_throttled, 60.0, GPU),
    Check("gpu_pcie", "gpu", "GPUs have all PCIe lanes", judge_pcie, 60.0, GPU),
    Check("gpu_fabric", "gpu", "GPUs have joined the NVLink fabric", judge_fabric, 60.0, GPU),
)
BESIDE_OTHERS = (
    Check("gpu_clocks", "gpu", "busy GPUs run alike", judge_clocks, 15.0, GPU),
    Check("gpu_pcie_replays", "gpu", "PCIe seldom sends again", judge_replays, 60.0, GPU),
    Check("gpu_power", "gpu", "GPUs may draw equal power", judge_power, 300.0, GPU),
    Check("gpu_pcie_speed", "gpu", "busy GPUs have a fast bus", judge_pcie_speed, 60.0, GPU),
    Check("gpu_idle", "gpu", "no GPU rests while others work", judge_idle, 60.0, GPU),
    Check("gpu_slowed", "gpu", "nothing holds down GPUs at work", judge_slowed, 15.0, GPU),
)

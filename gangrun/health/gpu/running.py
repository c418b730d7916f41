"""How GPUs run: heat, what holds their clocks down, PCIe, fabric; each beside those of its kind. The reading: ``gpu``.

What one look shows of work is chance, so what depends on work must show at two looks running. Of what holds clocks down
two looks make a warning; most looks of ten minutes, while the clock is below that of the GPUs at work beside it, make a
node that slows all ranks down. That a GPU draws all the power it may is no fault.
"""

from __future__ import annotations

from gangrun.health.framework.bounds import (
    Bound,
    BoundMeasure,
    Breaks,
    Limit,
    Rows,
    ShareOf,
    ShareOfPeers,
    far_below,
    median,
)
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
    Severity,
    Sticky,
    Value,
    comparable,
    span,
)  # fmt: skip
from gangrun.health.framework.readings import UUID
from gangrun.health.gpu.devices import GPU, gpus_in

HOT_FOR_S = 300.0
HOT_SINCE = "no margin since"
BUSY_PERCENT, IDLE_PERCENT = 50.0, 5.0
PEERS_MIN_COUNT = 3
NOTHING_IDLE = f"fewer than {PEERS_MIN_COUNT} GPUs are at work, or no GPU lists its programs"
COOLING, SILENT = "Look at its cooling", "It may slow down without any other sign"
TOO_FEW = f"fewer than {PEERS_MIN_COUNT} GPUs are at work"
NONE_AT_WORK = "no GPU is at work"


# ---- heat ------------------------------------------------------------------------------------------------------------


def with_heat(now: Reading, before: Reading | None) -> Reading:
    """Add the degrees left before a GPU slows down, how much hotter it is than those beside it, and how long looks have
    found it so hot that it must slow down.
    """
    more: dict[str, dict[str, Value]] = {}
    here = gpus_in(now.facts)
    heats = {place: heat for place in here if (heat := now.facts.number(place, "temperature_c")) is not None}
    for place, heat in heats.items():
        margin, slowdown = (now.facts.number(place, name) for name in ("margin_c", "slowdown_c"))
        left = margin if margin is not None or slowdown is None else slowdown - heat
        more[place] = {} if left is None else {"degrees_left_c": left}
        if len(here) > 2:
            more[place]["above_others_c"] = heat - median(heats.values())
        if margin is not None and margin <= 0:
            same = before is not None and comparable(now, before)
            since = before.facts.number(place, HOT_SINCE) if before is not None and same else None
            more[place] |= {HOT_SINCE: now.at if since is None else since}
            more[place]["too_hot_s"] = now.at - float(more[place][HOT_SINCE])
    return now.with_more(more)


def _hot(
    name: str, limit: Limit, says: str, means: str = COOLING, breaks: Breaks = Breaks.ABOVE, severity: Severity = WARN
) -> Bound:
    sticky = Sticky.CLEAN if severity is FAIL else Sticky.NO
    return Bound(name, limit, severity, says, means, breaks=breaks, needs=Needs.ADMIN, sticky=sticky)


TEMPERATURE = (
    _hot("too_hot_s", HOT_FOR_S, "time at the temperature at which it slows down (now {temperature_c})", COOLING,
         Breaks.AT_LEAST, FAIL),
    _hot("degrees_left_c", "margin_warn_c", "temperature is {temperature_c}, and the margin before it slows down",
         COOLING, Breaks.BELOW),
    _hot("above_others_c", "above_peers_c", "temperature is {temperature_c}, and the difference to the GPUs beside it"),
    _hot("memory_temperature_c", "memory_temperature_c", "memory temperature", SILENT, Breaks.AT_LEAST),
    _hot("memory_temperature_c", ShareOf("memory_most_c"), "memory temperature", SILENT, Breaks.AT_LEAST),
)  # fmt: skip


# ---- what holds clocks down ------------------------------------------------------------------------------------------


def _throttled(counter: str, how: str) -> Bound:
    limit, of = "throttle_share", BoundMeasure.SHARE_OF_TIME
    return Bound(counter, limit, WARN, f"the GPU was slowed down {how}", "", of, needs=Needs.ADMIN, sticky=Sticky.CLEAN)


THROTTLED = (  # the share of time in which a GPU was slowed down; what it is at this moment is chance
    _throttled("throttled_heat_ns", "by its own heat guard"),
    _throttled("throttled_software_heat_ns", "for heat by the driver"),
    _throttled("power_brake_ns", "by the power brake (power supply or rack)"),
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
    severity, sentence = WARN, f"{place}: the GPU is at work and slowed down {words}{company}"
    if bits & HARDWARE and share >= WINDOW_SHARE and place in slower:
        often = f"in {share * 100:.0f} % of all looks of {span(WINDOW_S)}"
        beside = f"{clocks[place]:.0f} MHz while the GPUs beside it run at {usual:.0f}{company}"
        severity, sentence = FAIL, f"{place}: the GPU is slowed down {words}, {often}. It runs at {beside}"
    evidence = FindingEvidence(bits, _bits(before, place), now.at - before.at)
    return look.found(severity, place, sentence, evidence, needs=Needs.ADMIN, sticky=Sticky.CLEAN)


def _at_work(reading: Reading, place: str) -> bool:
    return (reading.facts.number(place, "busy_percent") or 0.0) >= BUSY_PERCENT


def _bits(reading: Reading, place: str) -> int:
    return int(reading.facts.number(place, "clock_reasons") or 0)


def _same(now: Reading, before: Reading, place: str) -> bool:
    return now.facts.get(place, UUID) == before.facts.get(place, UUID)


# ---- beside those of its kind ----------------------------------------------------------------------------------------


SLOWS_ALL = "All ranks wait for this GPU"


def _holds(now: Reading, place: str) -> bool:
    """Does the GPU hold a program, while enough others work?"""
    busy_count = sum(_at_work(now, other) for other in gpus_in(now.facts))
    return busy_count >= PEERS_MIN_COUNT and bool(now.facts.number(place, "processes_count"))


CLOCKS = Bound(  # at rest clocks say nothing
    "sm_clock_mhz", ShareOfPeers("clock_share"), WARN, "clock at work", SLOWS_ALL, breaks=Breaks.BELOW, where=_at_work,
    needs=Needs.ADMIN, sticky=Sticky.NO,
)  # fmt: skip
POWER = Bound(
    "power_limit_w", ShareOfPeers("power_limit_share", "model"), WARN, "power limit", SLOWS_ALL, breaks=Breaks.BELOW,
    needs=Needs.ADMIN, cause=CauseClass.EITHER, sticky=Sticky.NO,
)  # fmt: skip
IDLE = Bound(  # one that hangs or lags shows like this
    "busy_percent", IDLE_PERCENT, WARN, "load while the GPUs beside it work",
    "Its rank waits for something else, or hangs", breaks=Breaks.BELOW, twice=True, where=_holds, needs=Needs.NONE,
    cause=CauseClass.APPLICATION, sticky=Sticky.NO,
)  # fmt: skip

# ---- PCIe ------------------------------------------------------------------------------------------------------------

REPLAYS_PER_LANE_MIN = {1: 0.15, 2: 0.3, 3: 0.48, 4: 0.96, 5: 1.92, 6: 3.84}  # by PCIe generation, as DCGM has them
NEWEST_GENERATION = 6
COPIES_SLOW = "Copies to this GPU are slow"


def _replays_allowed(look: CheckLook, place: str) -> float:
    """A few are normal, and more the faster the bus is."""
    generation = int(look.number(place, "pcie_generation_max") or NEWEST_GENERATION)
    per_lane = REPLAYS_PER_LANE_MIN.get(generation, REPLAYS_PER_LANE_MIN[NEWEST_GENERATION])
    return (look.number(place, "pcie_width") or 16.0) * per_lane


LANES = Bound(  # the speed of lanes drops when a GPU rests, so only their number is judged
    "pcie_width", ShareOf("pcie_width_max"), FAIL, "number of PCIe lanes", COPIES_SLOW, breaks=Breaks.BELOW,
    needs=Needs.REBOOT,
)  # fmt: skip
SPEED = Bound(
    "pcie_generation", ShareOf("pcie_generation_max"), WARN, "PCIe generation at work", COPIES_SLOW,
    breaks=Breaks.BELOW, twice=True, where=_at_work, needs=Needs.REBOOT, sticky=Sticky.NO,
)  # fmt: skip
REPLAYS = Bound(
    "pcie_replays", _replays_allowed, WARN, "repeated PCIe transfers", "A slot or riser may be bad",
    BoundMeasure.RATE, per_s=60.0, least_s=60.0, needs=Needs.ADMIN, sticky=Sticky.CLEAN,
)  # fmt: skip

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
    states = look.numbers("fabric_state")
    if not states:
        return look.unknown("joined, well", "fabric_state")
    found = tuple(one for place, state in states.items() if (one := _fabric(look, place, state)) is not None)
    unwell = f", {len(found)} unwell" if found else ""
    joined_count = sum(state == FABRIC_DONE for state in states.values())
    silent_count = len(gpus_in(look.facts)) - len(states)
    silent = f" ({silent_count} not measured)" if silent_count else ""
    return CheckOutcome(f"{joined_count} joined{silent}{unwell}", "joined, well", found)


def _fabric(look: CheckLook, place: str, state: float) -> Finding | None:
    status, summary = look.number(place, "fabric_status") or 0, look.number(place, "fabric_summary")
    mask = int(look.number(place, "fabric_mask") or 0)
    wrong = [(words, fatal) for shift, words, fatal in FABRIC_MASK if mask >> shift & 3 == FABRIC_TRUE]
    joined, unwell = state == FABRIC_DONE and status == 0, summary in SUMMARY_BAD
    if state == FABRIC_NONE or (joined and not wrong and not unwell):
        return None
    if joined:
        severity = FAIL if unwell or any(fatal for _, fatal in wrong) else WARN
        what = " and ".join(words for words, _ in wrong) or f"fabric health is {summary:.0f} (not healthy)"
        sentence = f"{place}: {what} in the NVLink fabric"
        return look.found(severity, place, sentence, mask, None, Needs.ADMIN, CauseClass.EITHER)
    if state == FABRIC_IN_PROGRESS:
        sentence = f"{place}: the GPU is still joining the NVLink fabric. If that lasts minutes, CUDA will not start"
        return look.found(WARN, place, sentence, state, needs=Needs.ADMIN, sticky=Sticky.NO)
    how = f"state {state:.0f}, status {status:.0f}, health {summary}"
    sentence = f"{place}: the GPU is not part of the NVLink fabric ({how}). Look at the Fabric Manager"
    return look.found(FAIL, place, sentence, how, None, Needs.ADMIN, CauseClass.EITHER)


RUNNING = (
    Check("gpu_temperature", "gpu", "GPUs are cool enough",
          Rows(TEMPERATURE, lambda p: f">= {p.margin_warn_c:g} °C margin", "{most} at most", of="temperature_c"),
          15.0, GPU),
    Check("gpu_throttled", "gpu", "GPUs are not slowed down",
          Rows(THROTTLED, lambda p: f"<= {p.throttle_share * 100:g} % of the time", "{most} at most", each=True),
          60.0, GPU),
    Check("gpu_pcie", "gpu", "GPUs have all PCIe lanes", Rows((LANES,), "= its maximum", "x{least}"), 60.0, GPU),
    Check("gpu_fabric", "gpu", "GPUs have joined the NVLink fabric", judge_fabric, 60.0, GPU),
)  # fmt: skip
BESIDE_OTHERS = (
    Check("gpu_clocks", "gpu", "busy GPUs run alike",
          Rows((CLOCKS,), lambda p: f">= {p.clock_share * 100:.0f} % of its peers", "{range}", nobody=TOO_FEW),
          15.0, GPU),
    Check("gpu_pcie_replays", "gpu", "PCIe seldom sends again",
          Rows((REPLAYS,), "as DCGM allows, by lanes and speed", "{most}/min at most"), 60.0, GPU),
    Check("gpu_power", "gpu", "GPUs may draw equal power",
          Rows((POWER,), lambda p: f">= {p.power_limit_share * 100:.0f} % of its peers", "{range}"), 300.0, GPU),
    Check("gpu_pcie_speed", "gpu", "busy GPUs have a fast bus",
          Rows((SPEED,), "= its maximum at work", "{good} of {count} at full speed", nobody=NONE_AT_WORK), 60.0, GPU),
    Check("gpu_idle", "gpu", "no GPU rests while others work",
          Rows((IDLE,), f">= {IDLE_PERCENT:g} % where others work", "{good} of {count} at work", nobody=NOTHING_IDLE),
          60.0, GPU),
    Check("gpu_slowed", "gpu", "nothing holds down GPUs at work", judge_slowed, 15.0, GPU),
)  # fmt: skip

"""The memory of GPUs: ECC counts, SRAM, remapped rows, retired pages, repairs, info ROM. The reading: ``gpu``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gangrun.health.framework.bounds import Bound, BoundMeasure, counters, each, levels
from gangrun.health.framework.check import (
    FAIL,
    WARN,
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
    in_window,
    span,
    with_windows,
)  # fmt: skip
from gangrun.health.framework.readings import UUID
from gangrun.health.gpu.devices import GPU, gpus, gpus_in

ECC_WINDOW_S = 600.0
NOT_MEASURED = "this GPU does not measure it"  # as ``adapters.nvml`` says it
RATES = ("ecc_corrected rate", "ecc_corrected rate before", "ecc_corrected rate before that")


def _uncorrected(look: CheckLook, place: str, count: float) -> str:
    ever = look.number(place, "ecc_uncorrected_ever")
    history = f" ({ever:.0f} in its whole life)" if ever is not None else ""
    return f"{place} had {count:.0f} uncorrectable memory errors since the driver was loaded{history}"


judge_uncorrected = levels(
    Bound("ecc_uncorrected", 0, FAIL, _uncorrected, good=0), limit="0", shown="{total:.0f} uncorrected"
)
judge_ever = counters(  # it outlives resets: only its growth tells of today
    Bound(
        "ecc_uncorrected_ever",
        0,
        FAIL,
        "{place}: its count of uncorrectable memory errors went {words}",
        BoundMeasure.GROWTH,
    ),
    limit="0 new",
    shown="{total:.0f} new",
)


def judge_corrected(look: CheckLook) -> CheckOutcome:
    """Corrected errors by rate: each did no harm, many announce worse."""
    per_hour = look.policy.ecc_corrected_per_hour
    limit = f"<= {per_hour:g}/h"
    measured = look.numbers("ecc_corrected")
    grown = {place: g for place in measured if (g := in_window(look.now, place, "ecc_corrected")) is not None}
    growing = tuple(one for place in measured if (one := _growing(look, place)) is not None)
    if not (grown or growing):
        return look.unknown(limit, "ecc_corrected")
    found = tuple(
        look.found(
            WARN, place, f"{place} corrected {g.count:.0f} memory errors in {span(g.over_s)}: not harmful yet",
            g.evidence, needs=Needs.NONE, sticky=Sticky.CLEAN,
        )
        for place, g in grown.items()
        # at least a tenth of an hour's worth: two errors in the first second are no rate
        if g.per_s * 3600 > per_hour and g.count > per_hour / 10
    )  # fmt: skip
    return CheckOutcome(f"{sum(g.count for g in grown.values()):.0f} new", limit, found or growing)


def _growing(look: CheckLook, place: str) -> Finding | None:
    """Few errors, but twice as many in each span as in the one before."""
    newest, middle, oldest = [(look.number(place, name) or 0.0) * 3600 for name in RATES]
    if oldest <= 0 or newest < look.policy.ecc_growing_per_hour or middle < 2 * oldest or newest < 2 * middle:
        return None
    told = f"{oldest:.0f}, {middle:.0f}, {newest:.0f} an hour"
    sentence = f"{place} corrects memory errors faster and faster ({told}, {span(ECC_WINDOW_S)} each): not harmful yet"
    evidence = FindingEvidence(newest, oldest, 3 * ECC_WINDOW_S)
    return look.found(WARN, place, sentence, evidence, needs=Needs.NONE, sticky=Sticky.CLEAN)


def remember(now: Reading, before: Reading | None) -> Reading:
    """Carry on the window of corrected errors, and the rates of the last windows that are over."""
    now = with_windows(now, before, {"ecc_corrected": ECC_WINDOW_S})
    if before is None or not comparable(now, before):
        return now
    more: dict[str, dict[str, Value]] = {}
    for place in gpus_in(now.facts):
        if now.facts.get(place, UUID) != before.facts.get(place, UUID):
            continue
        rates = [before.facts.number(place, name) for name in RATES]
        over = before.facts.number(place, "ecc_corrected since") != now.facts.number(place, "ecc_corrected since")
        if over and (done := in_window(before, place, "ecc_corrected")) is not None:
            rates = [done.per_s, *rates[:-1]]
        more[place] = {name: rate for name, rate in zip(RATES, rates, strict=True) if rate is not None}
    return now.with_more(more)


SRAM_PARTS = {
    "sram_l2": "the L2 cache",
    "sram_sm": "the processors",
    "sram_pcie": "PCIe",
    "sram_mcu": "the microcontrollers",
    "sram_other": "other parts",
}


def _sram(told: str) -> Callable[[CheckLook, str, float], str]:
    def sentence(look: CheckLook, place: str, value: float) -> str:
        del value
        counts = [(look.number(place, name) or 0.0, words) for name, words in SRAM_PARTS.items()]
        where = " and ".join(f"{count:.0f} in {words}" for count, words in counts if count)
        ever = look.number(place, "sram_uncorrected_ever") or 0.0
        return told.format(
            place=place,
            history=f"{ever:.0f} uncorrectable errors of its SRAM in its life{f' ({where})' if where else ''}",
        )

    return sentence


SRAM_WORN = "{place} says that its SRAM had more errors than NVIDIA allows, {history}: it is to be replaced"
SRAM_BOUNDS = (
    Bound("sram_threshold", 0, FAIL, _sram(SRAM_WORN), needs=Needs.RMA, good=0),
    Bound(
        "sram_uncorrected_ever", "sram_uncorrected_max", WARN,
        _sram("{place} had {history}: GPUs with so many are replaced"), needs=Needs.RMA,
    ),
)  # fmt: skip


def judge_sram(look: CheckLook) -> CheckOutcome:
    """The GPU's own mark that its SRAM is worn out, and what it counted in its life."""
    ever = look.numbers("sram_uncorrected_ever").values()
    shown = "{total:.0f} marked" + (f", {sum(ever):.0f} uncorrected ever" if ever else "")
    limit = f"none marked, <= {look.policy.sram_uncorrected_max} ever"
    return levels(*SRAM_BOUNDS, limit=limit, shown=shown)(look)


def judge_remapped(look: CheckLook) -> CheckOutcome:
    """Rows of memory that were replaced by spare ones: failure is final, pending wants a reset, many are a sign."""

    def bad(place: str, failed: float) -> Finding | None:
        corrected, uncorrected = (
            look.number(place, f"remapped_{name}") or 0.0 for name in ("corrected", "uncorrected")
        )
        rows = f"{uncorrected:.0f} uncorrected and {corrected:.0f} corrected rows remapped"
        evidence = f"{rows}, failed {failed:.0f}"
        told = (
            (failed, FAIL, Needs.RMA, f"{place} has no spare row left where one failed ({rows}): it is to be replaced"),
            (look.number(place, "remap_pending"), WARN, Needs.RESET,
             f"{place} has a memory row that waits for a reset to be remapped; new work may hit it ({rows})"),
            (uncorrected >= look.policy.remapped_rows_max, WARN, Needs.RMA,
             f"{place} has hardly a spare row left: {rows}"),
            (corrected > look.policy.remapped_rows_many, WARN, Needs.NONE,
             f"{place}: {rows}; GPUs with so many are slow more often than others"),
        )  # fmt: skip
        for is_bad, severity, needs, sentence in told:
            if is_bad:
                return look.found(severity, place, sentence, evidence, needs=needs)
        return None

    rows = sum(look.numbers("remapped_uncorrected").values())
    return each(look, "remap_failed", "0 failed, 0 pending", f"{rows:.0f} rows remapped", bad)


def _none_of(look: CheckLook, name: str, words: str) -> str:
    """Why it was measured nowhere: in plain words if these are GPUs of another generation."""
    why = GPU.why_not(look, name)
    return words if why == NOT_MEASURED else why


def judge_retired(look: CheckLook) -> CheckOutcome:
    """Pages taken out of use, on GPUs before Ampere."""

    def bad(place: str, pages: float) -> Finding | None:
        if look.number(place, "retired_pending"):
            return look.found(WARN, place, f"{place} has a memory page that waits for a reset to be retired", pages)
        if pages <= look.policy.retired_pages_max:
            return None
        sentence = f"{place} has retired {pages:.0f} memory pages: it is wearing out"
        return look.found(FAIL, place, sentence, pages, needs=Needs.RMA)

    outcome = each(look, "retired_pages", f"<= {look.policy.retired_pages_max}, 0 pending", "{total:.0f} pages", bad)
    if outcome.unknown:
        return replace(outcome, unknown=_none_of(look, "retired_pages", "these GPUs retire no pages"))
    return outcome


PENDING_REPAIRS = {
    "channel_repair_pending": "a memory channel",
    "tpc_repair_pending": "a group of its processors",
    "bank_remap_pending": "a memory bank",
}


def judge_repairs(look: CheckLook) -> CheckOutcome:
    """Does a GPU (from Blackwell on) wait for a reset to repair itself?"""
    here = [place for place in gpus(look) if any(look.number(place, name) is not None for name in PENDING_REPAIRS)]
    if not here:
        why = _none_of(look, "repair_pending", "these GPUs make no such repairs")
        return CheckOutcome("-", "none", unknown=why)
    found = []
    for place in here:
        waiting = [words for name, words in PENDING_REPAIRS.items() if look.number(place, name)]
        if waiting:
            sentence = f"{place} waits for a reset to repair {' and '.join(waiting)}; new work may hit it"
            found.append(look.found(WARN, place, sentence, ", ".join(waiting)))
    return CheckOutcome(f"{len(found)} of {len(here)} wait for one", "none", tuple(found))


CORRUPTED = "the info ROM of {place} is corrupted: it forgets its errors and remapped rows"
judge_info_rom = levels(
    Bound("info_rom_valid", 1, WARN, CORRUPTED, below=True, needs=Needs.RMA, good=1),
    limit="valid",
    shown="{total:.0f} of {count} valid",
)
NO_SPARE = "{place} has {value:.0f} memory banks with few or no spare rows: the next faults cannot be mended"
judge_spare_rows = levels(
    Bound("banks_exhausted", 0, WARN, NO_SPARE, needs=Needs.ADMIN, good=0), limit="0 banks", shown="{total:.0f} banks"
)
CHECKS = (
    Check("gpu_ecc", "gpu", "no uncorrectable memory errors", judge_uncorrected, 60.0, GPU),
    Check("gpu_ecc_growth", "gpu", "no new ones since the last look", judge_ever, 60.0, GPU),
    Check("gpu_ecc_corrected", "gpu", "corrected memory errors are rare", judge_corrected, 60.0, GPU),
    Check("gpu_sram", "gpu", "SRAM errors are below NVIDIA's mark", judge_sram, 300.0, GPU),
    Check("gpu_remapped", "gpu", "no memory row failed or waits", judge_remapped, 60.0, GPU),
    Check("gpu_repairs", "gpu", "no GPU waits to repair itself", judge_repairs, 60.0, GPU),
    Check("gpu_info_rom", "gpu", "GPUs' info ROMs are valid", judge_info_rom, 300.0, GPU),
    Check("gpu_retired", "gpu", "few memory pages are retired", judge_retired, 300.0, GPU),
)
SPARE_ROWS = Check("gpu_spare_rows", "gpu", "memory banks have spare rows", judge_spare_rows, 300.0, GPU)

"""The memory of GPUs: ECC counts, SRAM, remapped rows, retired pages. The reading: ``gpu``."""

from __future__ import annotations

from dataclasses import replace

from gangrun.health.framework.check import Check, Evidence, Finding, Needs, Outcome, Reading, Severity, Sticky
from gangrun.health.framework.growth import FIRST_LOOK, comparable, growth, in_window, span
from gangrun.health.framework.policy import HealthPolicy
from gangrun.health.gpu.presence import each, finding, gpus, why_not

ECC_WINDOW_S = 600.0
NOT_MEASURED = "this GPU does not measure it"  # as ``adapters.nvml`` says it
RATES = ("ecc_corrected rate", "ecc_corrected rate before", "ecc_corrected rate before that")


def judge_uncorrected(now: Reading, before: Reading | None, policy: HealthPolicy) -> Outcome:
    """Uncorrectable errors since the driver was loaded: any is one too many."""
    del before, policy

    def bad(place: str, count: float) -> Finding | None:
        if count == 0:
            return None
        ever = now.facts.number(place, "ecc_uncorrected_ever")
        history = f" ({ever:.0f} in its whole life)" if ever is not None else ""
        sentence = f"{place} had {count:.0f} uncorrectable memory errors since the driver was loaded{history}"
        return finding("gpu_ecc", place, Severity.FAIL, sentence, Evidence(count, 0))

    return each(now, "ecc_uncorrected", "0", lambda all_of: f"{sum(all_of):.0f} uncorrected", bad)


def judge_corrected(now: Reading, before: Reading | None, policy: HealthPolicy) -> Outcome:
    """Corrected errors by rate: each did no harm, many announce worse."""
    del before
    limit = f"<= {policy.ecc_corrected_per_hour:g}/h"
    measured = [place for place in gpus(now) if now.facts.number(place, "ecc_corrected") is not None]
    if not measured:
        return Outcome("-", limit, unknown=why_not(now, "ecc_corrected"))
    grown = {place: g for place in measured if (g := in_window(now, place, "ecc_corrected")) is not None}
    growing = tuple(one for place in measured if (one := _growing(now, place, policy)) is not None)
    if not (grown or growing):
        return Outcome("-", limit, unknown=FIRST_LOOK)
    found = tuple(
        finding(
            "gpu_ecc_corrected",
            place,
            Severity.WARN,
            f"{place} corrected {g.count:.0f} memory errors in {span(g.over_s)}: not harmful yet",
            g.evidence,
            Needs.NONE,
            sticky=Sticky.CLEAN,
        )
        for place, g in grown.items()
        # at least a tenth of an hour's worth: two errors in the first second are no rate
        if g.per_s * 3600 > policy.ecc_corrected_per_hour and g.count > policy.ecc_corrected_per_hour / 10
    )
    return Outcome(f"{sum(g.count for g in grown.values()):.0f} new", limit, found or growing)


def _growing(now: Reading, place: str, policy: HealthPolicy) -> Finding | None:
    """Few errors, but twice as many in each span as in the one before."""
    known = [now.facts.number(place, name) for name in RATES]
    newest, middle, oldest = [0.0 if rate is None else rate * 3600 for rate in known]
    if oldest <= 0 or newest < policy.ecc_growing_per_hour or middle < 2 * oldest or newest < 2 * middle:
        return None
    told = f"{oldest:.0f}, {middle:.0f}, {newest:.0f} an hour"
    sentence = f"{place} corrects memory errors faster and faster ({told}, {span(ECC_WINDOW_S)} each): not harmful yet"
    evidence = Evidence(newest, oldest, 3 * ECC_WINDOW_S)
    return finding("gpu_ecc_corrected", place, Severity.WARN, sentence, evidence, Needs.NONE, sticky=Sticky.CLEAN)


def with_rates(now: Reading, before: Reading | None) -> Reading:
    """Carry on, beside the window of corrected errors, the rates of the last windows that are over."""
    if before is None or not comparable(now, before):
        return now
    values = dict(now.facts.values)
    for place in gpus(now):
        if now.facts.get(place, "uuid") != before.facts.get(place, "uuid"):
            continue
        rates = [before.facts.number(place, name) for name in RATES]
        over = before.facts.number(place, "ecc_corrected since") != now.facts.number(place, "ecc_corrected since")
        if over and (done := in_window(before, place, "ecc_corrected")) is not None:
            rates = [done.per_s, *rates[:-1]]
        values[place] = {**values[place], **{n: r for n, r in zip(RATES, rates, strict=True) if r is not None}}
    return replace(now, facts=replace(now.facts, values=values))


SRAM_PARTS = (
    ("sram_l2", "the L2 cache"),
    ("sram_sm", "the processors"),
    ("sram_pcie", "PCIe"),
    ("sram_mcu", "the microcontrollers"),
    ("sram_other", "other parts"),
)


def judge_sram(now: Reading, before: Reading | None, policy: HealthPolicy) -> Outcome:
    """The GPU's own mark that its SRAM is worn out, and what it counted in its life."""
    del before

    def bad(place: str, exceeded: float) -> Finding | None:
        ever = now.facts.number(place, "sram_uncorrected_ever") or 0.0
        counts = [(now.facts.number(place, name) or 0.0, words) for name, words in SRAM_PARTS]
        where = " and ".join(f"{count:.0f} in {words}" for count, words in counts if count)
        history = f"{ever:.0f} uncorrectable errors of its SRAM in its life{f' ({where})' if where else ''}"
        if exceeded:
            sentence = f"{place} says that its SRAM had more errors than NVIDIA allows, {history}: it is to be replaced"
            return finding("gpu_sram", place, Severity.FAIL, sentence, Evidence(exceeded, 0), Needs.RMA)
        if ever > policy.sram_uncorrected_max:
            sentence = f"{place} had {history}: GPUs with so many are replaced"
            return finding("gpu_sram", place, Severity.WARN, sentence, Evidence(ever), Needs.RMA)
        return None

    def shown(all_of: list[float]) -> str:
        ever = [count for p in gpus(now) if (count := now.facts.number(p, "sram_uncorrected_ever")) is not None]
        return f"{sum(all_of):.0f} marked" + (f", {sum(ever):.0f} uncorrected ever" if ever else "")

    return each(now, "sram_threshold", f"none marked, <= {policy.sram_uncorrected_max} ever", shown, bad)


def judge_remapped(now: Reading, before: Reading | None, policy: HealthPolicy) -> Outcome:
    """Rows of memory that were replaced by spare ones: failure is final, pending wants a reset, many are a sign."""
    del before

    def bad(place: str, failed: float) -> Finding | None:
        corrected = now.facts.number(place, "remapped_corrected") or 0.0
        uncorrected = now.facts.number(place, "remapped_uncorrected") or 0.0
        rows = f"{uncorrected:.0f} uncorrected and {corrected:.0f} corrected rows remapped"
        evidence = Evidence(f"{rows}, failed {failed:.0f}")
        if failed:
            sentence = f"{place} has no spare row left where one failed ({rows}): it is to be replaced"
            return finding("gpu_remapped", place, Severity.FAIL, sentence, evidence, Needs.RMA)
        if now.facts.number(place, "remap_pending"):
            sentence = f"{place} has a memory row that waits for a reset to be remapped; new work may hit it ({rows})"
            return finding("gpu_remapped", place, Severity.WARN, sentence, evidence)
        if uncorrected >= policy.remapped_rows_max:
            sentence = f"{place} has hardly a spare row left: {rows}"
            return finding("gpu_remapped", place, Severity.WARN, sentence, evidence, Needs.RMA)
        if corrected > policy.remapped_rows_many:
            sentence = f"{place}: {rows}; GPUs with so many are slow more often than others"
            return finding("gpu_remapped", place, Severity.WARN, sentence, evidence, Needs.NONE)
        return None

    rows = sum((now.facts.number(p, "remapped_uncorrected") or 0) for p in gpus(now))
    return each(now, "remap_failed", "0 failed, 0 pending", lambda _: f"{rows:.0f} rows remapped", bad)


def judge_retired(now: Reading, before: Reading | None, policy: HealthPolicy) -> Outcome:
    """Pages taken out of use, on GPUs before Ampere."""
    del before

    def bad(place: str, pages: float) -> Finding | None:
        if now.facts.number(place, "retired_pending"):
            sentence = f"{place} has a memory page that waits for a reset to be retired"
            return finding("gpu_retired", place, Severity.WARN, sentence, Evidence(pages))
        if pages <= policy.retired_pages_max:
            return None
        sentence = f"{place} has retired {pages:.0f} memory pages: it is wearing out"
        return finding("gpu_retired", place, Severity.FAIL, sentence, Evidence(pages), Needs.RMA)

    limit = f"<= {policy.retired_pages_max}, 0 pending"
    outcome = each(now, "retired_pages", limit, lambda all_of: f"{sum(all_of):.0f} pages", bad)
    if outcome.unknown:
        return replace(outcome, unknown=_none_of(now, "retired_pages", "these GPUs retire no pages"))
    return outcome


def _none_of(now: Reading, name: str, words: str) -> str:
    """Why it was measured nowhere: in plain words where these are GPUs of another generation."""
    why = why_not(now, name)
    return words if why == NOT_MEASURED else why


PENDING_REPAIRS = (
    ("channel_repair_pending", "a memory channel"),
    ("tpc_repair_pending", "a group of its processors"),
    ("bank_remap_pending", "a memory bank"),
)


def judge_repairs(now: Reading, before: Reading | None, policy: HealthPolicy) -> Outcome:
    """Does a GPU (from Blackwell on) wait for a reset to repair itself?"""
    del before, policy
    names = [name for name, _ in PENDING_REPAIRS]
    here = [place for place in gpus(now) if any(now.facts.number(place, name) is not None for name in names)]
    if not here:
        return Outcome("-", "none", unknown=_none_of(now, "repair_pending", "these GPUs make no such repairs"))
    found = []
    for place in here:
        waiting = [words for name, words in PENDING_REPAIRS if now.facts.number(place, name)]
        if waiting:
            sentence = f"{place} waits for a reset to repair {' and '.join(waiting)}; new work may hit it"
            found.append(finding("gpu_repairs", place, Severity.WARN, sentence, Evidence(", ".join(waiting))))
    return Outcome(f"{len(found)} of {len(here)} wait for one", "none", tuple(found))


def judge_info_rom(now: Reading, before: Reading | None, policy: HealthPolicy) -> Outcome:
    """Does a GPU's own record of itself hold together?"""
    del before, policy

    def bad(place: str, valid: float) -> Finding | None:
        if valid:
            return None
        sentence = f"the info ROM of {place} is corrupted: it forgets its errors and remapped rows"
        return finding("gpu_info_rom", place, Severity.WARN, sentence, Evidence(valid, 1), Needs.RMA)

    return each(now, "info_rom_valid", "valid", lambda all_of: f"{sum(all_of):.0f} of {len(all_of)} valid", bad)


def judge_ever(now: Reading, before: Reading | None, policy: HealthPolicy) -> Outcome:
    """The life's count of uncorrectable errors, which outlives resets: only its growth tells of today."""
    del policy
    compared = {p: g for p in gpus(now) if (g := growth(now, before, p, "ecc_uncorrected_ever", "uuid")) is not None}
    if not compared:
        known = any(now.facts.number(p, "ecc_uncorrected_ever") is not None for p in gpus(now))
        return Outcome("-", "0 new", unknown=FIRST_LOOK if known else why_not(now, "ecc_uncorrected_ever"))
    found = tuple(
        finding(
            "gpu_ecc_growth",
            place,
            Severity.FAIL,
            f"{place}: its count of uncorrectable memory errors went {g.words}",
            g.evidence,
        )
        for place, g in compared.items()
        if g.count > 0
    )
    return Outcome(f"{sum(g.count for g in compared.values()):.0f} new", "0 new", found)


CHECKS = (
    Check("gpu_ecc", "gpu", "no uncorrectable memory errors", judge_uncorrected, 60.0),
    Check("gpu_ecc_growth", "gpu", "no new ones since the last look", judge_ever, 60.0),
    Check("gpu_ecc_corrected", "gpu", "corrected memory errors are rare", judge_corrected, 60.0),
    Check("gpu_sram", "gpu", "SRAM errors are below NVIDIA's mark", judge_sram, 300.0),
    Check("gpu_remapped", "gpu", "no memory row failed or waits", judge_remapped, 60.0),
    Check("gpu_repairs", "gpu", "no GPU waits to repair itself", judge_repairs, 60.0),
    Check("gpu_info_rom", "gpu", "GPUs' info ROMs are valid", judge_info_rom, 300.0),
    Check("gpu_retired", "gpu", "few memory pages are retired", judge_retired, 300.0),
)

"""The memory of GPUs: ECC counts, SRAM, remapped rows, retired pages, repairs, info ROM. The reading: ``gpu``."""

from __future__ import annotations

from gangrun.health.framework.bounds import Bound, BoundMeasure, Breaks, Rows
from gangrun.health.framework.check import (
    FAIL,
    WARN,
    Check,
    CheckLook,
    Needs,
    Reading,
    Sticky,
    Value,
    comparable,
    in_window,
    with_windows,
)  # fmt: skip
from gangrun.health.framework.readings import UUID
from gangrun.health.gpu.devices import FLAG, GPU, gpus_in

ECC_WINDOW_S = 600.0
RATES = ("ecc_corrected rate", "ecc_corrected rate before", "ecc_corrected rate before that")
DOUBLING = "ecc_corrected doubling"


def remember(now: Reading, before: Reading | None) -> Reading:
    """Carry on the window of corrected errors, the rates of the last windows, and whether these doubled."""
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
        newest, middle, oldest = (rate or 0.0 for rate in rates)
        if oldest > 0 and middle >= 2 * oldest and newest >= 2 * middle:
            more[place][DOUBLING] = newest * 3600
    return now.with_more(more)


SRAM_PARTS = {
    "sram_l2": "the L2 cache",
    "sram_sm": "the processors",
    "sram_pcie": "PCIe",
    "sram_mcu": "the microcontrollers",
    "sram_other": "other parts",
}


def _sram(look: CheckLook, place: str) -> str:
    counts = [(look.number(place, name) or 0.0, words) for name, words in SRAM_PARTS.items()]
    where = " and ".join(f"{count:.0f} in {words}" for count, words in counts if count)
    return f"{f'They are {where}. ' if where else ''}NVIDIA replaces such GPUs"


ROWS = "{remapped_uncorrected} rows with uncorrected and {remapped_corrected} with corrected errors are remapped"
HIT = "New work may hit it: reset the GPU"
HARMLESS = "This is not harmful yet, but many such errors announce worse ones"


def _waits(reading: str, says: str, means: str = "") -> Bound:
    return Bound(reading, 0, WARN, says, means, FLAG)


ECC = Bound("ecc_uncorrected", 0, FAIL, "number of uncorrectable memory errors since the driver was loaded",
            "The GPU had {ecc_uncorrected_ever} in its whole life", good=0)  # fmt: skip
ECC_GROWTH = Bound(  # it outlives resets: only its growth tells of today
    "ecc_uncorrected_ever", 0, FAIL, "uncorrectable memory errors", measure=BoundMeasure.GROWTH
)
ECC_CORRECTED = (  # two errors in the first second are no rate
    Bound("ecc_corrected", "ecc_corrected_per_hour", WARN, "corrected memory errors", HARMLESS,
          BoundMeasure.RATE, per_s=3600.0, least_s=360.0, window=True, needs=Needs.NONE, sticky=Sticky.CLEAN),
    Bound(DOUBLING, "ecc_growing_per_hour", WARN,
          "number of corrected memory errors in an hour, which doubles every 10 min,", HARMLESS,
          breaks=Breaks.AT_LEAST, needs=Needs.NONE, sticky=Sticky.CLEAN),
)  # fmt: skip
SRAM = (
    Bound("sram_threshold", 0, FAIL,
          "the SRAM had more errors than NVIDIA allows: {sram_uncorrected_ever} uncorrectable ones", _sram, FLAG,
          needs=Needs.RMA, good=0),
    Bound("sram_uncorrected_ever", "sram_uncorrected_max", WARN, "number of uncorrectable SRAM errors in its life",
          _sram, needs=Needs.RMA),
)  # fmt: skip
REMAPPED = (
    Bound("remap_failed", 0, FAIL, "no spare row is left for a memory row that failed", f"{ROWS}. Replace the GPU",
          FLAG, needs=Needs.RMA),
    _waits("remap_pending", "a memory row waits for a reset to be remapped", f"{HIT}. {ROWS}"),
    Bound("remapped_uncorrected", "remapped_rows_max", WARN, "number of memory rows remapped after uncorrected errors",
          "Hardly a spare row is left", breaks=Breaks.AT_LEAST, needs=Needs.RMA),
    Bound("remapped_corrected", "remapped_rows_many", WARN, "number of memory rows remapped after corrected errors",
          "GPUs with so many are often slower than others", needs=Needs.NONE),
)  # fmt: skip
REPAIRS = (
    _waits("channel_repair_pending", "a memory channel waits for a reset to be repaired"),
    _waits("tpc_repair_pending", "a group of processors waits for a reset to be repaired"),
    _waits("bank_remap_pending", "a memory bank waits for a reset to be repaired"),
)
RETIRED = (  # on GPUs before Ampere
    _waits("retired_pending", "a memory page waits for a reset to be retired", HIT),
    Bound("retired_pages", "retired_pages_max", FAIL, "number of retired memory pages", "The GPU is wearing out",
          needs=Needs.RMA),
)  # fmt: skip
INFO_ROM = Bound("info_rom_valid", 1, WARN, "the info ROM is corrupted", "The GPU forgets its errors and remapped rows",
                 FLAG, Breaks.BELOW, needs=Needs.RMA, good=1)  # fmt: skip
EXHAUSTED = Bound("banks_exhausted", 0, WARN, "number of memory banks with few or no spare rows",
                  "The next faults there cannot be repaired", needs=Needs.ADMIN, good=0)  # fmt: skip
CHECKS = (
    Check("gpu_ecc", "gpu", "no uncorrectable memory errors", Rows((ECC,), "0", "{total} uncorrected"), 60.0, GPU),
    Check("gpu_ecc_growth", "gpu", "no new ones since the last look",
          Rows((ECC_GROWTH,), "0 new", "{total} new"), 60.0, GPU),
    Check("gpu_ecc_corrected", "gpu", "corrected memory errors are rare",
          Rows(ECC_CORRECTED, lambda p: f"<= {p.ecc_corrected_per_hour:g}/h", "{total} new"), 60.0, GPU),
    Check("gpu_sram", "gpu", "SRAM errors are below NVIDIA's mark",
          Rows(SRAM, lambda p: f"none marked, <= {p.sram_uncorrected_max} ever", "{total} marked"), 300.0, GPU),
    Check("gpu_remapped", "gpu", "no memory row failed or waits",
          Rows(REMAPPED, "0 failed, 0 pending", "{bad} of {count} in need"), 60.0, GPU),
    Check("gpu_repairs", "gpu", "no GPU waits to repair itself",
          Rows(REPAIRS, "none", "{bad} of {count} wait for one", joined=True,
               never="these GPUs make no such repairs"), 60.0, GPU),
    Check("gpu_info_rom", "gpu", "GPUs' info ROMs are valid",
          Rows((INFO_ROM,), "valid", "{good} of {count} valid"), 300.0, GPU),
    Check("gpu_retired", "gpu", "few memory pages are retired",
          Rows(RETIRED, lambda p: f"<= {p.retired_pages_max}, 0 pending", "{total} pages", of="retired_pages",
               never="these GPUs retire no pages"), 300.0, GPU),
)  # fmt: skip
SPARE_ROWS = Check(
    "gpu_spare_rows", "gpu", "memory banks have spare rows", Rows((EXHAUSTED,), "0 banks", "{total} banks"), 300.0, GPU
)

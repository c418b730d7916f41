"""What GPUs say of their memory: ECC, SRAM, remapped rows, retired pages, repairs, info ROM."""

from __future__ import annotations

from gangrun.adapters.nvml import library
from gangrun.adapters.nvml.codes import CORRUPTED_INFOROM, RETIREMENT_CAUSES
from gangrun.adapters.nvml.library import Handle, Refused
from gangrun.adapters.nvml.reading import Getter, Plain, named, of_field, once


def _ecc(name: str, kind: int, since: int) -> tuple[str, Getter]:
    return named(name, "nvmlDeviceGetTotalEccErrors", kind, since)


def _sram(gpu: Handle) -> Plain:
    status = library.filled("nvmlDeviceGetSramEccErrorStatus", gpu, "c_nvmlEccSramErrorStatus_v1_t")
    ever_count = status.aggregateUncParity + status.aggregateUncSecDed
    return {
        "sram_threshold": int(status.bThresholdExceeded),
        "sram_uncorrected_ever": ever_count,
        "sram_l2": status.aggregateUncBucketL2,
        "sram_sm": status.aggregateUncBucketSm,
        "sram_pcie": status.aggregateUncBucketPcie,
        "sram_mcu": status.aggregateUncBucketMcu,
        "sram_other": status.aggregateUncBucketOther,
    }


def _remapped(gpu: Handle) -> Plain:
    names = ("remapped_corrected", "remapped_uncorrected", "remap_pending", "remap_failed")
    return dict(zip(names, library.ask("nvmlDeviceGetRemappedRows", gpu), strict=True))


def _spare_rows(gpu: Handle) -> Plain:
    banks = library.ask("nvmlDeviceGetRowRemapperHistogram", gpu)
    return {"banks_exhausted": banks.low + banks.none}


def _repairs(gpu: Handle) -> Plain:
    names = ("channel_repair_pending", "tpc_repair_pending")
    return dict(zip(names, library.ask("nvmlDeviceGetRepairStatus", gpu), strict=True))


def _retired(gpu: Handle) -> Plain:
    pages_count = sum(len(library.ask("nvmlDeviceGetRetiredPages", gpu, cause)) for cause in RETIREMENT_CAUSES)
    pending = library.ask("nvmlDeviceGetRetiredPagesPendingStatus", gpu)
    return {"retired_pages": pages_count, "retired_pending": pending}


def _info_rom(gpu: Handle) -> Plain:
    try:
        library.ask("nvmlDeviceValidateInforom", gpu)
    except Refused as why:
        if why.code != CORRUPTED_INFOROM:
            raise
        return {"info_rom_valid": 0}
    return {"info_rom_valid": 1}


GETTERS: tuple[tuple[str, Getter], ...] = (
    _ecc("ecc_uncorrected", 1, 0),
    _ecc("ecc_uncorrected_ever", 1, 1),
    _ecc("ecc_corrected", 0, 0),
    ("sram_threshold", _sram),
    ("remap_failed", _remapped),
    ("banks_exhausted", _spare_rows),
    ("repair_pending", _repairs),
    of_field("bank_remap_pending", 307),
    once("info_rom_valid", _info_rom),
    ("retired_pages", _retired),
)

"""What GPUs say of themselves through NVML: the only module that imports pynvml (room: adapters).

``snapshot`` hands out plain values by place and name, and one word of why for each that is missing: NVML's functions
come and go with drivers and cards, so "not supported", "not permitted" and "not known to this driver" are no faults. A
GPU that is lost, wants a reset or has a corrupted info ROM says so under ``lost``, and is asked no further.
Any call here may hang on a sick driver: run ``snapshot`` in a process of its own. Events: ``events``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pynvml

from gangrun.adapters.nvml.codes import (
    ARGUMENT_VERSION_MISMATCH,
    CORRUPTED_INFOROM,
    ERROR_RATES,
    FUNCTION_NOT_FOUND,
    LINK5_FIELDS,
    LOST_WORDS,
    NOT_SUPPORTED,
    TIMEOUT,
    UNKNOWN_WORDS,
    VALUE_TYPES,
    error_rate,
)

Plain = dict[str, Any]
Getter = Callable[[Any], Plain]

LINKS_MAX_COUNT = 36
PIDS_SHOWN_COUNT = 8


class _Lost(Exception):
    """This GPU answers no more."""

    def __init__(self, code: int) -> None:
        super().__init__(LOST_WORDS[code])
        self.code = code


def snapshot() -> Plain:
    """Every value of every GPU that this user can see. Raises nothing that NVML raises."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return {"values": {"node": {"nvml_error": _code(error), "nvml_words": str(error)}}}
    try:
        return _all()
    finally:
        try:
            pynvml.nvmlShutdown()
        except pynvml.NVMLError:
            pass  # it was read; that it will not be left in order changes nothing


def seen() -> list[tuple[str, str]]:
    """UUID and model of each GPU that this user can see, in NVML's order; none where one of them cannot say."""
    try:
        pynvml.nvmlInit()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        return [(_text(pynvml.nvmlDeviceGetUUID(one)), _text(pynvml.nvmlDeviceGetName(one))) for one in handles]
    except pynvml.NVMLError:
        return []


def _all() -> Plain:
    values: dict[str, Plain] = {"node": {}}
    missing: dict[str, Plain] = {"node": {}}
    for name, getter in NODE_GETTERS:
        _ask(name, getter, None, values["node"], missing["node"])
    count = values["node"].get("gpus_count", 0)
    for index in range(int(count)):
        place = f"gpu {index}"
        values[place], missing[place] = {}, {}
        try:
            for where, name, getter, handle in _questions(index, place):
                _ask(name, getter, handle, values.setdefault(where, {}), missing.setdefault(where, {}))
        except _Lost as lost:
            values[place] |= {"lost": str(lost), "lost_code": lost.code}
        except pynvml.NVMLError as error:  # no handle: the driver counts a GPU that it cannot reach
            values[place] |= {"lost": str(error), "lost_code": _code(error)}
    return {"values": values, "missing": missing}


def _questions(index: int, place: str) -> Iterator[tuple[str, str, Getter, Any]]:
    """Every question about one GPU: (place, name, getter, what it is asked of)."""
    handle = _handle(index)
    for name, getter in GPU_GETTERS:
        yield place, name, getter, handle
    for link in range(_links_count(handle)):
        for name, getter in LINK_GETTERS:
            yield f"{place} link {link}", name, getter, (handle, link)


def _handle(index: int) -> Any:
    try:
        return pynvml.nvmlDeviceGetHandleByIndex(index)
    except pynvml.NVMLError as error:
        if _code(error) in LOST_WORDS:
            raise _Lost(_code(error)) from error
        raise


def _ask(name: str, getter: Getter, about: Any, values: Plain, missing: Plain) -> None:
    try:
        values |= getter(about)
    except pynvml.NVMLError as error:
        code = _code(error)
        if code in LOST_WORDS and about is not None:
            raise _Lost(code) from error
        missing[name] = UNKNOWN_WORDS.get(code, f"NVML error {code}: {error}")
    except AttributeError:
        missing[name] = "the installed nvidia-ml-py is too old to ask"


def _code(error: pynvml.NVMLError) -> int:
    return int(getattr(error, "value", 999))


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


# ---- fields ----------------------------------------------------------------------------------------------------------


def _field(handle: Any, number: int) -> float:
    """One field; its own return code stands beside it and must be looked at before its value."""
    [answer] = pynvml.nvmlDeviceGetFieldValues(handle, [number])
    if answer.nvmlReturn != 0:
        raise pynvml.NVMLError(answer.nvmlReturn)
    kind = VALUE_TYPES.get(int(answer.valueType))
    if kind is None or not hasattr(answer.value, kind):
        raise pynvml.NVMLError(NOT_SUPPORTED)
    found: float = getattr(answer.value, kind)
    return found


def _of_field(name: str, number: int) -> Getter:
    return lambda handle: {name: _field(handle, number)}


def _links_count(handle: Any) -> int:
    """Field 91, as the number of links differs from card to card; no answer: no links."""
    try:
        return min(LINKS_MAX_COUNT, max(0, int(_field(handle, 91))))
    except pynvml.NVMLError as error:
        if _code(error) in LOST_WORDS:
            raise _Lost(_code(error)) from error
        return 0


# ---- getters ---------------------------------------------------------------------------------------------------------


def _ecc(name: str, kind: int, since: int) -> Getter:
    return lambda handle: {name: pynvml.nvmlDeviceGetTotalEccErrors(handle, kind, since)}


def _sram(handle: Any) -> Plain:
    status = pynvml.c_nvmlEccSramErrorStatus_v1_t()
    pynvml.nvmlDeviceGetSramEccErrorStatus(handle, pynvml.byref(status))
    return {"sram_threshold": int(status.bThresholdExceeded)}


def _remapped(handle: Any) -> Plain:
    names = ("remapped_corrected", "remapped_uncorrected", "remap_pending", "remap_failed")
    return dict(zip(names, pynvml.nvmlDeviceGetRemappedRows(handle), strict=True))


def _retired(handle: Any) -> Plain:
    causes = (
        pynvml.NVML_PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS,
        pynvml.NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR,
    )
    pages_count = sum(len(pynvml.nvmlDeviceGetRetiredPages(handle, cause)) for cause in causes)
    return {"retired_pages": pages_count, "retired_pending": pynvml.nvmlDeviceGetRetiredPagesPendingStatus(handle)}


def _either(name: str, newer: str, older: str, *more: int) -> Getter:
    """The newer function, or the older one where this driver or binding has no other."""

    def ask(handle: Any) -> Plain:
        try:
            return {name: getattr(pynvml, newer)(handle, *more)}
        except (AttributeError, pynvml.NVMLError) as error:
            if isinstance(error, pynvml.NVMLError) and _code(error) not in (NOT_SUPPORTED, FUNCTION_NOT_FOUND):
                raise
            return {name: getattr(pynvml, older)(handle, *more)}

    return ask


def _pcie(name: str, now: str, most: str) -> Getter:
    return lambda handle: {name: getattr(pynvml, now)(handle), f"{name}_max": getattr(pynvml, most)(handle)}


def _ecc_mode(handle: Any) -> Plain:
    current, pending = pynvml.nvmlDeviceGetEccMode(handle)
    return {"ecc_mode": current, "ecc_mode_pending": pending}


def _memory(handle: Any) -> Plain:
    """The second form counts what the driver keeps for itself apart; older drivers have the first only."""
    try:
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle, pynvml.nvmlMemory_v2)
    except (AttributeError, pynvml.NVMLError) as error:
        if isinstance(error, pynvml.NVMLError) and _code(error) not in (FUNCTION_NOT_FOUND, ARGUMENT_VERSION_MISMATCH):
            raise
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    return {"memory_used_bytes": memory.used, "memory_bytes": memory.total}


def _processes(handle: Any) -> Plain:
    running = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
    pids = " ".join(str(one.pid) for one in running[:PIDS_SHOWN_COUNT])
    return {"processes_count": len(running), "processes_pids": pids}


def _fabric(handle: Any) -> Plain:
    """In the newest form that this driver knows; the older one has a mask of what is wrong, and no summary."""
    info = pynvml.c_nvmlGpuFabricInfo_v3_t()
    try:
        pynvml.nvmlDeviceGetGpuFabricInfoV(handle, pynvml.byref(info))
    except pynvml.NVMLError as error:
        if _code(error) != ARGUMENT_VERSION_MISMATCH:
            raise
        info = pynvml.c_nvmlGpuFabricInfo_v2_t()
        pynvml.nvmlDeviceGetGpuFabricInfoV(handle, pynvml.byref(info))
    known = {"fabric_state": info.state, "fabric_status": info.status, "fabric_mask": info.healthMask}
    return known | ({"fabric_summary": info.healthSummary} if hasattr(info, "healthSummary") else {})


def _link_error(name: str, number: int) -> Getter:
    return lambda link: {name: pynvml.nvmlDeviceGetNvLinkErrorCounter(link[0], link[1], number)}


def _link5(link: Any) -> Plain:
    """Links of the fifth generation: fields whose scope is the link. Some drivers know only some of them."""
    handle, number = link
    answers = pynvml.nvmlDeviceGetFieldValues(handle, [(field, number) for _, field in LINK5_FIELDS])
    found: Plain = {}
    for (name, _), answer in zip(LINK5_FIELDS, answers, strict=True):
        kind = VALUE_TYPES.get(int(answer.valueType))
        if answer.nvmlReturn == 0 and kind is not None:
            value = getattr(answer.value, kind)
            found |= {name: value} if name not in ERROR_RATES else error_rate(name, int(value))
    if not found:
        raise pynvml.NVMLError(next((one.nvmlReturn for one in answers if one.nvmlReturn), NOT_SUPPORTED))
    return found


def _repairs(handle: Any) -> Plain:
    names = ("channel_repair_pending", "tpc_repair_pending")
    return dict(zip(names, pynvml.nvmlDeviceGetRepairStatus(handle), strict=True))


_info_roms: dict[str, int] = {}  # by UUID: checking reads the flash, so each process does it once


def _info_rom(handle: Any) -> Plain:
    uuid = _text(pynvml.nvmlDeviceGetUUID(handle))
    if uuid not in _info_roms:
        try:
            pynvml.nvmlDeviceValidateInforom(handle)
        except pynvml.NVMLError as error:
            if _code(error) != CORRUPTED_INFOROM:
                raise
            _info_roms[uuid] = 0
        else:
            _info_roms[uuid] = 1
    return {"info_rom_valid": _info_roms[uuid]}


def _spare_rows(handle: Any) -> Plain:
    banks = pynvml.nvmlDeviceGetRowRemapperHistogram(handle)
    return {"banks_exhausted": banks.low + banks.none}


EVENT_REASONS = "nvmlDeviceGetCurrentClocksEventReasons"
THROTTLE_REASONS = "nvmlDeviceGetCurrentClocksThrottleReasons"
NODE_GETTERS: tuple[tuple[str, Getter], ...] = (
    ("gpus_count", lambda _: {"gpus_count": pynvml.nvmlDeviceGetCount()}),
    ("driver", lambda _: {"driver": _text(pynvml.nvmlSystemGetDriverVersion())}),
)
GPU_GETTERS: tuple[tuple[str, Getter], ...] = (
    ("uuid", lambda gpu: {"uuid": _text(pynvml.nvmlDeviceGetUUID(gpu))}),
    ("model", lambda gpu: {"model": _text(pynvml.nvmlDeviceGetName(gpu))}),
    ("pci", lambda gpu: {"pci": _text(pynvml.nvmlDeviceGetPciInfo(gpu).busId)}),
    ("recovery_action", _of_field("recovery_action", 230)),
    ("ecc_uncorrected", _ecc("ecc_uncorrected", 1, 0)),
    ("ecc_uncorrected_ever", _ecc("ecc_uncorrected_ever", 1, 1)),
    ("ecc_corrected", _ecc("ecc_corrected", 0, 0)),
    ("sram_threshold", _sram),
    ("remap_failed", _remapped),
    ("banks_exhausted", _spare_rows),
    ("repair_pending", _repairs),
    ("bank_remap_pending", _of_field("bank_remap_pending", 307)),
    ("info_rom_valid", _info_rom),
    ("retired_pages", _retired),
    ("temperature_c", _either("temperature_c", "nvmlDeviceGetTemperatureV", "nvmlDeviceGetTemperature", 0)),
    ("margin_c", lambda gpu: {"margin_c": pynvml.nvmlDeviceGetMarginTemperature(gpu)}),
    ("slowdown_c", lambda gpu: {"slowdown_c": pynvml.nvmlDeviceGetTemperatureThreshold(gpu, 1)}),
    ("memory_most_c", lambda gpu: {"memory_most_c": pynvml.nvmlDeviceGetTemperatureThreshold(gpu, 2)}),
    ("memory_temperature_c", _of_field("memory_temperature_c", 82)),
    ("clock_reasons", _either("clock_reasons", EVENT_REASONS, THROTTLE_REASONS)),
    ("throttled_heat_ns", _of_field("throttled_heat_ns", 270)),
    ("throttled_software_heat_ns", _of_field("throttled_software_heat_ns", 269)),
    ("power_brake_ns", _of_field("power_brake_ns", 271)),
    ("power_limit_w", lambda gpu: {"power_limit_w": pynvml.nvmlDeviceGetEnforcedPowerLimit(gpu) / 1000}),
    ("power_w", lambda gpu: {"power_w": pynvml.nvmlDeviceGetPowerUsage(gpu) / 1000}),
    ("sm_clock_mhz", lambda gpu: {"sm_clock_mhz": pynvml.nvmlDeviceGetClockInfo(gpu, 1)}),
    ("pcie_width", _pcie("pcie_width", "nvmlDeviceGetCurrPcieLinkWidth", "nvmlDeviceGetMaxPcieLinkWidth")),
    (
        "pcie_generation",
        _pcie("pcie_generation", "nvmlDeviceGetCurrPcieLinkGeneration", "nvmlDeviceGetMaxPcieLinkGeneration"),
    ),
    ("pcie_replays", lambda gpu: {"pcie_replays": pynvml.nvmlDeviceGetPcieReplayCounter(gpu)}),
    ("persistence", lambda gpu: {"persistence": pynvml.nvmlDeviceGetPersistenceMode(gpu)}),
    ("ecc_mode", _ecc_mode),
    ("mig_mode", lambda gpu: {"mig_mode": pynvml.nvmlDeviceGetMigMode(gpu)[0]}),
    ("compute_mode", lambda gpu: {"compute_mode": pynvml.nvmlDeviceGetComputeMode(gpu)}),
    ("memory_used_bytes", _memory),
    ("processes_count", _processes),
    ("busy_percent", lambda gpu: {"busy_percent": pynvml.nvmlDeviceGetUtilizationRates(gpu).gpu}),
    ("fabric_state", _fabric),
)
LINK_GETTERS: tuple[tuple[str, Getter], ...] = (
    ("active", lambda link: {"active": pynvml.nvmlDeviceGetNvLinkState(link[0], link[1])}),
    ("replay", _link_error("replay", 0)),
    ("recovery", _link_error("recovery", 1)),
    ("crc", _link_error("crc", 2)),
    ("recoveries", _link5),
)


# ---- events ----------------------------------------------------------------------------------------------------------

EVENT_TYPES = 0x8 | 0x2 | 0x1000 | 0x2000 | 0x4000 | 0x8000


class EventWatch:
    """Events of all GPUs. What came before ``open`` is lost, so open it before ranks start."""

    def __init__(self) -> None:
        self._set: Any = None

    def open(self) -> dict[str, str]:
        """Register what each GPU supports; says why, by GPU, where it could not. ``OSError``: none can be."""
        refused: dict[str, str] = {}
        try:
            pynvml.nvmlInit()
            self._set = pynvml.nvmlEventSetCreate()
            for index in range(pynvml.nvmlDeviceGetCount()):
                why = self._register(index)
                if why:
                    refused[f"gpu {index}"] = why
        except pynvml.NVMLError as error:
            raise OSError(f"NVML error {_code(error)}: {error}") from error
        return refused

    def _register(self, index: int) -> str:
        """One unsupported bit and nothing at all would be registered: ask first."""
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            wanted = pynvml.nvmlDeviceGetSupportedEventTypes(handle) & EVENT_TYPES
            if not wanted:
                return "it tells no events"
            pynvml.nvmlDeviceRegisterEvents(handle, wanted, self._set)
        except pynvml.NVMLError as error:
            return UNKNOWN_WORDS.get(_code(error), LOST_WORDS.get(_code(error), str(error)))
        return ""

    def wait(self, within_ms: int) -> tuple[str, int, int] | None:
        """The next event as (GPU's UUID, event type, its number), or None in time. Blocks: a thread's work."""
        try:
            data = pynvml.nvmlEventSetWait_v2(self._set, within_ms)
        except pynvml.NVMLError as error:
            if _code(error) == TIMEOUT:
                return None
            raise OSError(f"NVML error {_code(error)}: {error}") from error
        try:
            uuid = _text(pynvml.nvmlDeviceGetUUID(data.device))
        except pynvml.NVMLError:
            uuid = ""  # lost in the meantime: the event still tells
        return uuid, int(data.eventType), int(data.eventData)

    def close(self) -> None:
        """Let go; what cannot be let go in order is left to the process's end."""
        try:
            if self._set is not None:
                pynvml.nvmlEventSetFree(self._set)
            pynvml.nvmlShutdown()
        except pynvml.NVMLError:
            return

"""What GPUs say of themselves through NVML, and what their driver reports: the only module that imports pynvml.

``snapshot`` returns plain values by place and name, and for each value that is missing the reason. NVML's functions
come and go with drivers, cards and bindings, so everything is asked by name. "Not supported", "not permitted" and "not
known to this driver" are no faults: each is an ``NvmlRefused`` with a number, as all that NVML refuses. A GPU that is
lost, wants a reset or has a corrupted info ROM says so under ``lost``, and is asked no further. ``EventWatch`` is what
the driver reports by itself. A new reading is a function of a few lines and a row of its table.
Any call here may hang on a sick driver: run it in a process or a thread of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NewType

import pynvml

NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND, TIMEOUT, FUNCTION_NOT_FOUND = 3, 4, 6, 10, 13
INVALID_ARGUMENT, CORRUPTED_INFOROM, GPU_IS_LOST, RESET_REQUIRED = 2, 14, 15, 16
ARGUMENT_VERSION_MISMATCH, UNKNOWN = 25, 999
BINDING_TOO_OLD = -1  # none of NVML's: nvidia-ml-py itself does not know the question
NEVER_SAID = frozenset({NOT_SUPPORTED, FUNCTION_NOT_FOUND, BINDING_TOO_OLD})  # of this card, driver or binding
UNKNOWN_WORDS = {
    NOT_SUPPORTED: "this GPU does not measure it",
    NO_PERMISSION: "users may not read it here",
    NOT_FOUND: "this GPU has none",
    TIMEOUT: "the driver did not answer in time",
    FUNCTION_NOT_FOUND: "this driver is too old to say",
    INVALID_ARGUMENT: "this driver does not know the question",
    ARGUMENT_VERSION_MISMATCH: "this driver does not know the question",
    BINDING_TOO_OLD: "the installed nvidia-ml-py is too old to ask",
}
LOST_WORDS = {
    GPU_IS_LOST: "it fell off the bus or does not answer any more",
    RESET_REQUIRED: "it waits for a reset",
    CORRUPTED_INFOROM: "its info ROM is corrupted",
}

RETIREMENT_CAUSES = (0, 1)  # many single-bit errors, one double-bit error
VALUE_TYPES = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}
LINK5_FIELDS = (
    ("malformed_packets", 206),
    ("buffer_overruns", 207),
    ("receive_errors", 208),
    ("remote_errors", 209),
    ("general_errors", 210),
    ("integrity_errors", 211),
    ("discards", 212),
    ("recoveries_failed", 214),
    ("recoveries", 215),
    ("effective_ber", 220),
    ("symbol_errors", 221),
    ("symbol_ber", 222),
)
ERROR_RATES = frozenset({"effective_ber", "symbol_ber"})


def error_rate(name: str, coded: int) -> dict[str, float]:
    """A share of bits as NVML codes it: four bits times ten to the minus of the lowest eight. One or more is none."""
    mantissa, exponent = coded >> 8 & 0xF, coded & 0xFF
    rate = float(f"{mantissa}e-{exponent}")
    return {name: rate} if rate < 1 else {}


# ---- the binding -----------------------------------------------------------------------------------------------------

Handle = NewType("Handle", object)  # of one GPU, opaque


class NvmlRefused(Exception):
    """NVML's return code, and its own words for it."""

    def __init__(self, code: int, words: str = "") -> None:
        super().__init__(words)
        self.code = code


def start() -> None:
    """Load the library and begin; each needs its ``stop``."""
    ask("nvmlInit")


def stop() -> None:
    """Let go; what cannot be let go in order is left to the process's end."""
    try:
        ask("nvmlShutdown")
    except NvmlRefused:
        return


def count() -> int:
    """How many GPUs this user can see."""
    return int(ask("nvmlDeviceGetCount"))


def handle(index: int) -> Handle:
    """The GPU of this number."""
    return Handle(ask("nvmlDeviceGetHandleByIndex", index))


def ask(function: str, *about: Any) -> Any:
    """What this function of the binding returns."""
    try:
        return getattr(pynvml, function)(*about)
    except pynvml.NVMLError as error:
        raise NvmlRefused(int(getattr(error, "value", UNKNOWN)), str(error)) from error
    except AttributeError as error:
        raise NvmlRefused(BINDING_TOO_OLD, str(error)) from error


def text(function: str, *about: Any) -> str:
    """The same as text."""
    return words(ask(function, *about))


def words(value: Any) -> str:
    """Text, of which some bindings hand out the bytes."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def either(newer: str, older: str, *about: Any) -> Any:
    """The newer function, or the older one where this driver or binding has no other."""
    try:
        return ask(newer, *about)
    except NvmlRefused as why:
        if why.code not in NEVER_SAID:
            raise
        return ask(older, *about)


def filled(function: str, of: Handle, *structures: str) -> Any:
    """The first of these structures that the driver knows, filled in by it."""
    *newer, oldest = structures
    for name in newer:
        try:
            return _filled(function, of, name)
        except NvmlRefused as why:
            if why.code not in (ARGUMENT_VERSION_MISMATCH, BINDING_TOO_OLD):
                raise
    return _filled(function, of, oldest)


def _filled(function: str, of: Handle, name: str) -> Any:
    structure = ask(name)
    ask(function, of, pynvml.byref(structure))
    return structure


def constant(name: str) -> Any:
    """A constant of the binding."""
    try:
        return getattr(pynvml, name)
    except AttributeError as error:
        raise NvmlRefused(BINDING_TOO_OLD, str(error)) from error


def fields(of: Handle, asked: Sequence[int | tuple[int, int]]) -> list[float | NvmlRefused]:
    """Fields by number, or by number and scope. Each has a return code of its own, which goes before its value."""
    return [_value(answer) for answer in ask("nvmlDeviceGetFieldValues", of, list(asked))]


def _value(answer: Any) -> float | NvmlRefused:
    if answer.nvmlReturn != 0:
        return NvmlRefused(int(answer.nvmlReturn), str(pynvml.NVMLError(answer.nvmlReturn)))
    kind = VALUE_TYPES.get(int(answer.valueType))
    if kind is None or not hasattr(answer.value, kind):
        return NvmlRefused(NOT_SUPPORTED)
    found: float = getattr(answer.value, kind)
    return found


def field(of: Handle, number: int) -> float:
    """One field."""
    [answer] = fields(of, [number])
    if isinstance(answer, NvmlRefused):
        raise answer
    return answer


# ---- the shape of a reading: a name, and what is asked of a GPU under it ---------------------------------------------

Plain = dict[str, Any]
Getter = Callable[[Handle], Plain]
LinkGetter = Callable[[Handle, int], Plain]


def named(name: str, function: str, *more: int, per: int = 1) -> tuple[str, Getter]:
    """What one function says; ``per``: so many of its units are one of ours."""
    if per == 1:
        return name, lambda gpu: {name: ask(function, gpu, *more)}
    return name, lambda gpu: {name: ask(function, gpu, *more) / per}


def worded(name: str, function: str) -> tuple[str, Getter]:
    """The same, where it says a word."""
    return name, lambda gpu: {name: text(function, gpu)}


def newer_or_older(name: str, newer: str, older: str, *more: int) -> tuple[str, Getter]:
    """What the newer function says, or the older one where there is no other."""
    return name, lambda gpu: {name: either(newer, older, gpu, *more)}


_known: dict[tuple[str, str], Plain] = {}  # by UUID and name


def once(name: str, getter: Getter) -> tuple[str, Getter]:
    """What does not change while the driver runs, or is costly as it reads the flash: once in each process."""

    def asked_once(gpu: Handle) -> Plain:
        key = (text("nvmlDeviceGetUUID", gpu), name)
        if key not in _known:
            _known[key] = getter(gpu)
        return _known[key]

    return name, asked_once


def of_field(name: str, number: int) -> tuple[str, Getter]:
    """What one field says."""
    return name, lambda gpu: {name: field(gpu, number)}


# ---- memory: ECC, SRAM, remapped rows, retired pages, repairs, info ROM ----------------------------------------------


def _sram(gpu: Handle) -> Plain:
    status = filled("nvmlDeviceGetSramEccErrorStatus", gpu, "c_nvmlEccSramErrorStatus_v1_t")
    found = {
        "sram_threshold": int(status.bThresholdExceeded),
        "sram_uncorrected_ever": status.aggregateUncParity + status.aggregateUncSecDed,
    }
    parts = ("L2", "Sm", "Pcie", "Mcu", "Other")
    return found | {f"sram_{part.lower()}": getattr(status, f"aggregateUncBucket{part}") for part in parts}


def _remapped(gpu: Handle) -> Plain:
    names = ("remapped_corrected", "remapped_uncorrected", "remap_pending", "remap_failed")
    return dict(zip(names, ask("nvmlDeviceGetRemappedRows", gpu), strict=True))


def _spare_rows(gpu: Handle) -> Plain:
    banks = ask("nvmlDeviceGetRowRemapperHistogram", gpu)
    return {"banks_exhausted": banks.low + banks.none}


def _repairs(gpu: Handle) -> Plain:
    names = ("channel_repair_pending", "tpc_repair_pending")
    return dict(zip(names, ask("nvmlDeviceGetRepairStatus", gpu), strict=True))


def _retired(gpu: Handle) -> Plain:
    pages_count = sum(len(ask("nvmlDeviceGetRetiredPages", gpu, cause)) for cause in RETIREMENT_CAUSES)
    pending = ask("nvmlDeviceGetRetiredPagesPendingStatus", gpu)
    return {"retired_pages": pages_count, "retired_pending": pending}


def _info_rom(gpu: Handle) -> Plain:
    try:
        ask("nvmlDeviceValidateInforom", gpu)
    except NvmlRefused as why:
        if why.code != CORRUPTED_INFOROM:
            raise
        return {"info_rom_valid": 0}
    return {"info_rom_valid": 1}


ECC_ERRORS = "nvmlDeviceGetTotalEccErrors"
MEMORY_GETTERS: tuple[tuple[str, Getter], ...] = (
    named("ecc_uncorrected", ECC_ERRORS, 1, 0),
    named("ecc_uncorrected_ever", ECC_ERRORS, 1, 1),
    named("ecc_corrected", ECC_ERRORS, 0, 0),
    ("sram_threshold", _sram),
    ("remap_failed", _remapped),
    ("banks_exhausted", _spare_rows),
    ("channel_repair_pending", _repairs),
    of_field("bank_remap_pending", 307),
    once("info_rom_valid", _info_rom),
    ("retired_pages", _retired),
)

# ---- how GPUs run and are set up: heat, clocks, power, PCIe, modes, processes ----------------------------------------

PIDS_SHOWN_COUNT = 8
EVENT_REASONS = "nvmlDeviceGetCurrentClocksEventReasons"
THROTTLE_REASONS = "nvmlDeviceGetCurrentClocksThrottleReasons"


def _pcie(name: str, now: str, most: str) -> tuple[str, Getter]:
    return name, lambda gpu: {name: ask(now, gpu), f"{name}_max": ask(most, gpu)}


def _ecc_mode(gpu: Handle) -> Plain:
    current, pending = ask("nvmlDeviceGetEccMode", gpu)
    return {"ecc_mode": current, "ecc_mode_pending": pending}


def _memory(gpu: Handle) -> Plain:
    """The second form counts what the driver keeps for itself apart; older drivers have the first only."""
    try:
        memory = ask("nvmlDeviceGetMemoryInfo", gpu, constant("nvmlMemory_v2"))
    except NvmlRefused as why:
        if why.code not in (FUNCTION_NOT_FOUND, ARGUMENT_VERSION_MISMATCH, BINDING_TOO_OLD):
            raise
        memory = ask("nvmlDeviceGetMemoryInfo", gpu)
    return {"memory_used_bytes": memory.used, "memory_bytes": memory.total}


def _processes(gpu: Handle) -> Plain:
    running = ask("nvmlDeviceGetComputeRunningProcesses", gpu)
    pids = " ".join(str(one.pid) for one in running[:PIDS_SHOWN_COUNT])
    return {"processes_count": len(running), "processes_pids": pids}


RUNNING_GETTERS: tuple[tuple[str, Getter], ...] = (
    newer_or_older("temperature_c", "nvmlDeviceGetTemperatureV", "nvmlDeviceGetTemperature", 0),
    named("margin_c", "nvmlDeviceGetMarginTemperature"),
    named("slowdown_c", "nvmlDeviceGetTemperatureThreshold", 1),
    named("memory_most_c", "nvmlDeviceGetTemperatureThreshold", 2),
    of_field("memory_temperature_c", 82),
    newer_or_older("clock_reasons", EVENT_REASONS, THROTTLE_REASONS),
    of_field("throttled_heat_ns", 270),
    of_field("throttled_software_heat_ns", 269),
    of_field("power_brake_ns", 271),
    named("power_limit_w", "nvmlDeviceGetEnforcedPowerLimit", per=1000),
    named("power_w", "nvmlDeviceGetPowerUsage", per=1000),
    named("sm_clock_mhz", "nvmlDeviceGetClockInfo", 1),
    _pcie("pcie_width", "nvmlDeviceGetCurrPcieLinkWidth", "nvmlDeviceGetMaxPcieLinkWidth"),
    _pcie("pcie_generation", "nvmlDeviceGetCurrPcieLinkGeneration", "nvmlDeviceGetMaxPcieLinkGeneration"),
    named("pcie_replays", "nvmlDeviceGetPcieReplayCounter"),
    named("persistence", "nvmlDeviceGetPersistenceMode"),
    ("ecc_mode", _ecc_mode),
    ("mig_mode", lambda gpu: {"mig_mode": ask("nvmlDeviceGetMigMode", gpu)[0]}),
    named("compute_mode", "nvmlDeviceGetComputeMode"),
    ("memory_used_bytes", _memory),
    ("processes_count", _processes),
    ("busy_percent", lambda gpu: {"busy_percent": ask("nvmlDeviceGetUtilizationRates", gpu).gpu}),
)
USE = frozenset({  # of these, what is read every few seconds while ranks train
    "temperature_c", "clock_reasons", "power_limit_w", "power_w", "sm_clock_mhz", "memory_used_bytes", "busy_percent",
})  # fmt: skip
USE_GETTERS: tuple[tuple[str, Getter], ...] = (
    *(row for row in RUNNING_GETTERS if row[0] in USE),
    named("pcie_width", "nvmlDeviceGetCurrPcieLinkWidth"),
    named("pcie_generation", "nvmlDeviceGetCurrPcieLinkGeneration"),
)

# ---- NVLinks one by one, and the fabric between GPUs -----------------------------------------------------------------

LINKS_MAX_COUNT = 36
LINKS_COUNT_FIELD, SPEED_FIELD = 91, 164


def links_count(gpu: Handle) -> int:
    """As it differs from card to card; no answer: no links."""
    try:
        return min(LINKS_MAX_COUNT, max(0, int(field(gpu, LINKS_COUNT_FIELD))))
    except NvmlRefused as why:
        if why.code in LOST_WORDS:
            raise
        return 0


def _fabric(gpu: Handle) -> Plain:
    """In the newest form that this driver knows; the older one has a mask of what is wrong, and no summary."""
    forms = ("c_nvmlGpuFabricInfo_v3_t", "c_nvmlGpuFabricInfo_v2_t")
    info = filled("nvmlDeviceGetGpuFabricInfoV", gpu, *forms)
    known = {"fabric_state": info.state, "fabric_status": info.status, "fabric_mask": info.healthMask}
    return known | ({"fabric_summary": info.healthSummary} if hasattr(info, "healthSummary") else {})


def _error(name: str, counter: int) -> tuple[str, LinkGetter]:
    return name, lambda gpu, link: {name: ask("nvmlDeviceGetNvLinkErrorCounter", gpu, link, counter)}


def _speed(gpu: Handle, link: int) -> Plain:
    [answer] = fields(gpu, [(SPEED_FIELD, link)])
    if isinstance(answer, NvmlRefused):
        raise answer
    return {"speed_mbps": answer}


def _link5(gpu: Handle, link: int) -> Plain:
    """Links of the fifth generation: fields whose scope is the link. Some drivers know only some of them."""
    answers = fields(gpu, [(field, link) for _, field in LINK5_FIELDS])
    found: Plain = {}
    for (name, _), value in zip(LINK5_FIELDS, answers, strict=True):
        if not isinstance(value, NvmlRefused):
            found |= {name: value} if name not in ERROR_RATES else error_rate(name, int(value))
    if not found:
        raise next((why for why in answers if isinstance(why, NvmlRefused)), NvmlRefused(NOT_SUPPORTED))
    return found


LINK_GETTERS: tuple[tuple[str, LinkGetter], ...] = (
    ("active", lambda gpu, link: {"active": ask("nvmlDeviceGetNvLinkState", gpu, link)}),
    _error("replay", 0),
    _error("recovery", 1),
    _error("crc", 2),
    _error("crc_data", 3),
    _error("ecc", 4),
    ("speed_mbps", _speed),
    ("recoveries", _link5),
)

# ---- everything ------------------------------------------------------------------------------------------------------

Question = Callable[[], Plain]

SILENT_LINKS_COUNT = 2  # so many links of a GPU that are up and cannot say it, and its others are not asked

NODE_GETTERS: tuple[tuple[str, Question], ...] = (
    ("gpus_count", lambda: {"gpus_count": count()}),
    ("driver", lambda: {"driver": text("nvmlSystemGetDriverVersion")}),
)
GPU_GETTERS: tuple[tuple[str, Getter], ...] = (
    worded("uuid", "nvmlDeviceGetUUID"),
    worded("model", "nvmlDeviceGetName"),
    ("pci", lambda gpu: {"pci": words(ask("nvmlDeviceGetPciInfo", gpu).busId)}),
    once(*worded("vbios", "nvmlDeviceGetVbiosVersion")),
    once(*worded("info_rom_version", "nvmlDeviceGetInforomImageVersion")),
    of_field("recovery_action", 230),
    *MEMORY_GETTERS,
    *RUNNING_GETTERS,
    ("fabric_state", _fabric),
)


def snapshot() -> Plain:
    """Every value of every GPU that this user can see. Raises nothing that NVML raises."""
    try:
        start()
    except NvmlRefused as why:
        return {"values": {"node": {"nvml_error": why.code, "nvml_words": str(why)}}}
    try:
        return _all()
    finally:
        stop()


def seen() -> list[tuple[str, str]]:
    """UUID and model of each GPU that this user can see, in NVML's order; none where one of them cannot say."""
    try:
        start()
        handles = [handle(index) for index in range(count())]
        return [(text("nvmlDeviceGetUUID", one), text("nvmlDeviceGetName", one)) for one in handles]
    except NvmlRefused:
        return []


def in_use(silent: set[tuple[str, str]]) -> dict[str, Plain]:
    """How each GPU is used now, between ``start`` and ``stop``; one that is lost is missing.

    Args:
        silent: What was never said, by place and name, which is not asked again. It grows.
    """
    found: dict[str, Plain] = {}
    for index in range(count()):
        place, values = f"gpu {index}", Plain()
        try:
            gpu = handle(index)
            for name, getter in USE_GETTERS:
                if (place, name) in silent:
                    continue
                try:
                    values |= getter(gpu)
                except NvmlRefused as why:
                    if why.code in LOST_WORDS:
                        raise
                    if why.code in NEVER_SAID:
                        silent.add((place, name))
            found[place] = values
        except NvmlRefused:
            continue
    return found


def _all() -> Plain:
    values: dict[str, Plain] = {"node": {}}
    missing: dict[str, Plain] = {"node": {}}
    for name, question in NODE_GETTERS:
        try:
            values["node"] |= question()
        except NvmlRefused as why:
            missing["node"][name] = _words(why)
    for index in range(int(values["node"].get("gpus_count", 0))):
        place = f"gpu {index}"
        values[place], missing[place] = {}, {}
        said, silent = set[str](), Counter[str]()
        try:
            for where, name, question in _questions(index, place):
                if name not in said and silent[name] >= SILENT_LINKS_COUNT:
                    continue
                try:
                    values.setdefault(where, {}).update(question())
                    said.add(name)
                except NvmlRefused as why:
                    if why.code in LOST_WORDS:
                        raise
                    missing.setdefault(where, {})[name] = _words(why)
                    silent[name] += why.code in NEVER_SAID and values.get(where, {}).get("active") == 1
        except NvmlRefused as lost:  # or no handle: the driver counts a GPU that it cannot reach
            values[place] |= {"lost": LOST_WORDS.get(lost.code, str(lost)), "lost_code": lost.code}
    return {"values": values, "missing": missing}


def _questions(index: int, place: str) -> Iterator[tuple[str, str, Question]]:
    """Every question about one GPU: (place, name, what to ask)."""
    gpu = handle(index)
    for name, getter in GPU_GETTERS:
        yield place, name, partial(getter, gpu)
    for link in range(links_count(gpu)):
        for name, of_link in LINK_GETTERS:
            yield f"{place} link {link}", name, partial(of_link, gpu, link)


def _words(why: NvmlRefused) -> str:
    return UNKNOWN_WORDS.get(why.code, f"NVML error {why.code}: {why}")


# ---- what the driver reports by itself -------------------------------------------------------------------------------

EVENT_TYPES = 0x8 | 0x2 | 0x1000 | 0x2000 | 0x4000 | 0x8000


class EventWatch:
    """Events of all GPUs. What came before ``open`` is lost, so open it before ranks start."""

    def __init__(self) -> None:
        self._set: Any = None

    def open(self) -> dict[str, str]:
        """Register what each GPU supports; says why, by GPU, where it could not. ``OSError``: none can be."""
        refused: dict[str, str] = {}
        try:
            start()
            self._set = ask("nvmlEventSetCreate")
            for index in range(count()):
                why = self._register(index)
                if why:
                    refused[f"gpu {index}"] = why
        except NvmlRefused as why_not:
            raise OSError(f"NVML error {why_not.code}: {why_not}") from why_not
        return refused

    def _register(self, index: int) -> str:
        """One unsupported bit and nothing at all would be registered: ask first."""
        try:
            gpu = handle(index)
            wanted = ask("nvmlDeviceGetSupportedEventTypes", gpu) & EVENT_TYPES
            if not wanted:
                return "it tells no events"
            ask("nvmlDeviceRegisterEvents", gpu, wanted, self._set)
        except NvmlRefused as why:
            return UNKNOWN_WORDS.get(why.code, LOST_WORDS.get(why.code, str(why)))
        return ""

    def wait(self, within_ms: int) -> tuple[str, int, int] | None:
        """The next event as (GPU's UUID, event type, its number), or None in time. Blocks: a thread's work."""
        try:
            data = ask("nvmlEventSetWait_v2", self._set, within_ms)
        except NvmlRefused as why:
            if why.code == TIMEOUT:
                return None
            raise OSError(f"NVML error {why.code}: {why}") from why
        try:
            uuid = text("nvmlDeviceGetUUID", data.device)
        except NvmlRefused:
            uuid = ""  # lost in the meantime: the event still tells
        return uuid, int(data.eventType), int(data.eventData)

    def close(self) -> None:
        """Let go; what cannot be let go in order is left to the process's end."""
        try:
            if self._set is not None:
                ask("nvmlEventSetFree", self._set)
        except NvmlRefused:
            return
        stop()

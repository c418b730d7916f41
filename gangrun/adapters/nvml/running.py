"""What GPUs say of how they run and are set up: heat, clocks, power, PCIe, modes, who uses them."""

from __future__ import annotations

from gangrun.adapters.nvml import library
from gangrun.adapters.nvml.codes import ARGUMENT_VERSION_MISMATCH, BINDING_TOO_OLD, FUNCTION_NOT_FOUND
from gangrun.adapters.nvml.library import Handle, Refused
from gangrun.adapters.nvml.reading import Getter, Plain, either, named, of_field

PIDS_SHOWN_COUNT = 8
EVENT_REASONS = "nvmlDeviceGetCurrentClocksEventReasons"
THROTTLE_REASONS = "nvmlDeviceGetCurrentClocksThrottleReasons"


def _pcie(name: str, now: str, most: str) -> tuple[str, Getter]:
    return name, lambda gpu: {name: library.ask(now, gpu), f"{name}_max": library.ask(most, gpu)}


def _ecc_mode(gpu: Handle) -> Plain:
    current, pending = library.ask("nvmlDeviceGetEccMode", gpu)
    return {"ecc_mode": current, "ecc_mode_pending": pending}


def _memory(gpu: Handle) -> Plain:
    """The second form counts what the driver keeps for itself apart; older drivers have the first only."""
    try:
        memory = library.ask("nvmlDeviceGetMemoryInfo", gpu, library.constant("nvmlMemory_v2"))
    except Refused as why:
        if why.code not in (FUNCTION_NOT_FOUND, ARGUMENT_VERSION_MISMATCH, BINDING_TOO_OLD):
            raise
        memory = library.ask("nvmlDeviceGetMemoryInfo", gpu)
    return {"memory_used_bytes": memory.used, "memory_bytes": memory.total}


def _processes(gpu: Handle) -> Plain:
    running = library.ask("nvmlDeviceGetComputeRunningProcesses", gpu)
    pids = " ".join(str(one.pid) for one in running[:PIDS_SHOWN_COUNT])
    return {"processes_count": len(running), "processes_pids": pids}


GETTERS: tuple[tuple[str, Getter], ...] = (
    either("temperature_c", "nvmlDeviceGetTemperatureV", "nvmlDeviceGetTemperature", 0),
    named("margin_c", "nvmlDeviceGetMarginTemperature"),
    named("slowdown_c", "nvmlDeviceGetTemperatureThreshold", 1),
    named("memory_most_c", "nvmlDeviceGetTemperatureThreshold", 2),
    of_field("memory_temperature_c", 82),
    either("clock_reasons", EVENT_REASONS, THROTTLE_REASONS),
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
    ("mig_mode", lambda gpu: {"mig_mode": library.ask("nvmlDeviceGetMigMode", gpu)[0]}),
    named("compute_mode", "nvmlDeviceGetComputeMode"),
    ("memory_used_bytes", _memory),
    ("processes_count", _processes),
    ("busy_percent", lambda gpu: {"busy_percent": library.ask("nvmlDeviceGetUtilizationRates", gpu).gpu}),
)

"""Bounds that checks judge by, and what a node is expected to have.

Each bound names its unit. Where the figure comes from stands in ``docs/health.md``. None among the expectations: nobody
said, so a check compares what it sees with itself (GPUs with each other) or says what it sees.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HealthPolicy:
    """What is bad, and what should be here."""

    gpus_count: int | None = None
    gpus_used: tuple[str, ...] | None = None  # by number or UUID: others never fail it
    ib_devices: tuple[str, ...] = ()  # those the job uses; (): every one that is up or was up
    ib_rate_gbps: float | None = None

    margin_warn_c: float = 5.0
    above_peers_c: float = 12.0
    memory_temperature_c: float = 95.0
    leftover_bytes: float = 1e9
    ecc_corrected_per_hour: float = 1000.0
    ecc_growing_per_hour: float = 100.0  # where they come faster and faster
    power_limit_share: float = 0.9  # of what GPUs of its model beside it may draw
    remapped_rows_many: int = 10
    remapped_rows_max: int = 512
    retired_pages_max: int = 10
    sram_uncorrected_max: int = 4  # in a GPU's whole life
    throttle_share: float = 0.1  # of the time between two readings
    nvlink_errors_per_min: float = 1.0
    nvlink_speed_share: float = 0.99  # of the fastest link of GPUs of its model beside it
    nvlink_effective_ber: float = 1e-12  # bits wrong after correction, as DCGM has it
    nvlink_symbol_ber: float = 15e-238
    clock_share: float = 0.85  # of the busy GPUs beside it

    port_grace_s: float = 30.0
    link_downed_per_hour: float = 2.0
    link_downed_per_day: float = 3.0
    link_recovery_per_min: float = 5.0
    symbol_errors_per_s: float = 10.0
    symbol_errors_per_hour: float = 120.0  # a bit in 1e12, as InfiniBand has it
    receive_errors_per_s: float = 10.0
    discards_per_s: float = 100.0
    ack_timeouts_per_s: float = 1.0

    load_per_cpu: float = 2.0
    memory_available_share: float = 0.1
    shm_min_bytes: float = 1e9
    shm_free_share: float = 0.1
    disk_used_warn: float = 0.85
    disk_used_fail: float = 0.95
    inodes_free_min: int = 1000
    edac_corrected_per_min: float = 1.0
    waiting_processes_max: int = 5  # in uninterruptible sleep
    files_min: int = 65536
    room_used_warn: float = 0.8  # of the processes, and of the open files, that a node may have
    room_used_fail: float = 0.95
    probe_warn_s: float = 5.0
    probe_fail_s: float = 15.0
    names_within_s: float = 2.0
    clock_error_warn_s: float = 1.0
    pressure_share: float = 0.2  # of the last minute

    preflight_within_s: float = 5.0  # every check before ranks start; a site's own commands have their own time
    active_share: float = 0.8  # of the speed that was seen before
    active_share_cpu: float = 0.5  # a CPU works for others too

    def __post_init__(self) -> None:
        """Refuse bounds that nothing can pass, or everything."""
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            if isinstance(value, (int, float)) and not value >= 0:
                raise ValueError(f"{name} = {value}: a bound is 0 or more")
        if self.disk_used_fail < self.disk_used_warn:
            raise ValueError(f"disk_used_fail ({self.disk_used_fail}) is below disk_used_warn ({self.disk_used_warn})")

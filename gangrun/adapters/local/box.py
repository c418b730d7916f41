"""What this box is: its GPUs, its processors."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def gpus_count(variables: Mapping[str, str], driver: Path = Path("/proc/driver/nvidia/gpus")) -> int:
    """GPUs that a rank may see; read from the kernel so that no driver library is loaded."""
    visible = variables.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        named = [part for part in visible.split(",") if part.strip()]
        return 0 if named == ["-1"] or "NoDevFiles" in named else len(named)
    try:
        return len(list(driver.iterdir()))
    except OSError:
        return 0


def cpus_count() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0))


def boot_id() -> str:
    """Changes with every boot of the host."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "unknown"

"""What the driver reports by itself: XIDs and their like, as they come."""

from __future__ import annotations

from typing import Any

from gangrun.adapters.nvml import library
from gangrun.adapters.nvml.codes import LOST_WORDS, TIMEOUT, UNKNOWN_WORDS
from gangrun.adapters.nvml.library import Refused

EVENT_TYPES = 0x8 | 0x2 | 0x1000 | 0x2000 | 0x4000 | 0x8000


class EventWatch:
    """Events of all GPUs. What came before ``open`` is lost, so open it before ranks start."""

    def __init__(self) -> None:
        self._set: Any = None

    def open(self) -> dict[str, str]:
        """Register what each GPU supports; says why, by GPU, where it could not. ``OSError``: none can be."""
        refused: dict[str, str] = {}
        try:
            library.start()
            self._set = library.ask("nvmlEventSetCreate")
            for index in range(library.count()):
                why = self._register(index)
                if why:
                    refused[f"gpu {index}"] = why
        except Refused as why_not:
            raise OSError(f"NVML error {why_not.code}: {why_not}") from why_not
        return refused

    def _register(self, index: int) -> str:
        """One unsupported bit and nothing at all would be registered: ask first."""
        try:
            gpu = library.handle(index)
            wanted = library.ask("nvmlDeviceGetSupportedEventTypes", gpu) & EVENT_TYPES
            if not wanted:
                return "it tells no events"
            library.ask("nvmlDeviceRegisterEvents", gpu, wanted, self._set)
        except Refused as why:
            return UNKNOWN_WORDS.get(why.code, LOST_WORDS.get(why.code, str(why)))
        return ""

    def wait(self, within_ms: int) -> tuple[str, int, int] | None:
        """The next event as (GPU's UUID, event type, its number), or None in time. Blocks: a thread's work."""
        try:
            data = library.ask("nvmlEventSetWait_v2", self._set, within_ms)
        except Refused as why:
            if why.code == TIMEOUT:
                return None
            raise OSError(f"NVML error {why.code}: {why}") from why
        try:
            uuid = library.text("nvmlDeviceGetUUID", data.device)
        except Refused:
            uuid = ""  # lost in the meantime: the event still tells
        return uuid, int(data.eventType), int(data.eventData)

    def close(self) -> None:
        """Let go; what cannot be let go in order is left to the process's end."""
        try:
            if self._set is not None:
                library.ask("nvmlEventSetFree", self._set)
        except Refused:
            return
        library.stop()

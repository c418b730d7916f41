"""What real Slurms printed, by version; ``shown/VERSION/NAME.txt`` is the tool's answer byte for byte but for names."""

from __future__ import annotations

from pathlib import Path

SHOWN = Path(__file__).parent / "shown"
VERSIONS = tuple(sorted(path.name for path in SHOWN.iterdir()))


def shown(version: str, name: str) -> str:
    return (SHOWN / version / f"{name}.txt").read_text("utf-8")

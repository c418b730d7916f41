"""Small files of /sys and /proc: read in one go, short, and never trusted."""

from __future__ import annotations

import os
from pathlib import Path

TEXT_MAX_BYTES = 4096
NUMBER_MAX_DIGITS = 20


def text_of(path: Path, max_bytes: int = TEXT_MAX_BYTES) -> str:
    """The text of a file without its last newline; "" where it cannot be read. A FIFO is not waited for."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        parts, left = [], max_bytes
        while left > 0 and (part := os.read(fd, left)):
            parts.append(part)
            left -= len(part)
        return b"".join(parts).decode("utf-8", "replace").strip()
    except OSError:
        return ""
    finally:
        os.close(fd)


def number_in(path: Path) -> int | None:
    """The whole number that a file holds, or None."""
    text = text_of(path)
    return int(text) if text.isascii() and text.isdigit() and len(text) <= NUMBER_MAX_DIGITS else None

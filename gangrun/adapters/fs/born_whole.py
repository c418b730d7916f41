"""A claim comes into the world whole, and one of many claimants gets it.

Used by ``terms`` and ``job_claims``, which say what a failure means: only ``EEXIST`` tells that somebody else was
first, after any other error nobody knows whether it is there.
"""

from __future__ import annotations

import zlib
from pathlib import Path

from gangrun.adapters.fs.disk import Disk
from gangrun.adapters.fs.patience import LINK_MISSING


def temporary_tag(host: str, job: str, pid: int, start_ticks: int) -> str:
    """What tells one claimant's temporary name from any other's."""
    who = zlib.crc32(f"{host}\0{job}".encode("utf-8", "surrogateescape"))
    return f"{who:08x}-{pid}-{start_ticks}"


def link_whole(disk: Disk, temporary: Path, target: Path, data: bytes) -> None:
    """Written aside and linked to its name; where links are missing, made under its name at once. ``OSError``."""
    try:
        disk.discard((temporary,))
        disk.write_new(temporary, data)
        try:
            disk.link(temporary, target)
        except OSError as error:
            if error.errno not in LINK_MISSING:
                raise
            disk.write_new(target, data)
        disk.fsync_dir(target.parent)
    finally:
        disk.discard((temporary,))

"""Seals the staging of older attempts, so that the file server refuses their late commits.

Staging is ``CKPT/.gangrun/<run>/<term>/<attempt>-<nonce>/``; a commit is a rename out of it, which mode 0500 forbids to
ordinary users. Modes do not bind root: there the directory is renamed away, and a late rename finds nothing.
"""

from __future__ import annotations

import os
import re

from gangrun.checkpoint.scan import MACHINE_FOLDER, StorageUnreadable

_ATTEMPT = re.compile(r"([0-9]+)-[^.]+")
_SEALED = ".sealed"


def seal_staging(directory: str, run: str, attempt: int) -> tuple[str, ...]:
    """Seal every attempt before ``attempt``, whatever its term; returns what was sealed now.

    Raises ``StorageUnreadable`` if one of them would not be sealed: then nothing may be chosen.
    """
    base = os.path.join(directory, MACHINE_FOLDER, run)
    sealed: list[str] = []
    try:
        for term in _numbered(base):
            for name in sorted(os.listdir(os.path.join(base, term))):
                match = _ATTEMPT.fullmatch(name)
                if match and int(match.group(1)) < attempt:
                    sealed.append(_seal(os.path.join(base, term, name)))
    except OSError as error:
        raise StorageUnreadable(f"staging of older attempts in {base} cannot be sealed: {error.strerror}") from error
    return tuple(sealed)


def _numbered(base: str) -> list[str]:
    try:
        return sorted((name for name in os.listdir(base) if name.isdecimal()), key=int)
    except FileNotFoundError:
        return []


def _seal(path: str) -> str:
    os.chmod(path, 0o500)
    if os.geteuid() == 0:
        os.rename(path, path + _SEALED)
        return path + _SEALED
    return path

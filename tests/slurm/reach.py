"""What an ordinary user of the test cluster must be able to read, wherever it lies: checkout, environment, python.

A clone may lie in somebody's home, or below a folder made by mktemp, that only its owner may enter. Each host of the
cluster has a mount namespace of its own, so a way in can be made there, at the same paths; nothing changes outside.
Next: ``room``, which starts the hosts.
"""

from __future__ import annotations

import os
import shlex
import shutil
import stat
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PYTHON = sys.executable
OTHER_SLURM = os.environ.get("GANGRUN_TEST_SLURM", "")  # a folder that fetch_slurm24.sh made: tested instead of ours
ENTER = stat.S_IROTH | stat.S_IXOTH
NOT_COPIED = {".git", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis", "gangrun_runs"}


def readable(path: Path) -> bool:
    """May others read it, as far as its own mode says?"""
    mode = path.stat().st_mode
    return mode & ENTER == ENTER if stat.S_ISDIR(mode) else bool(mode & stat.S_IROTH)


def cover(path: Path) -> Path | None:
    """The highest folder above ``path`` that others may not pass."""
    closed = (above for above in reversed(path.parents) if not above.stat().st_mode & stat.S_IXOTH)
    return next(closed, None)


def wanted() -> list[Path]:
    """The checkout and the python that runs it, without what lies in another of them."""
    places = {
        ROOT,
        *(Path(one).resolve() for one in (sys.prefix, sys.base_prefix, sys.base_exec_prefix, OTHER_SLURM or ROOT)),
    }
    return sorted(one for one in places if not places & set(one.parents))


def mounts(base: Path) -> list[str]:
    """Shell lines for a host's own mount namespace: a /tmp of its own, and ``base`` and all that is wanted readable.

    What can be entered by anybody stays as it is. What cannot is covered by an empty folder, in which the wanted
    places appear again; where even their files are closed (umask 077), an open copy of them does.
    """
    binds: dict[Path, Path] = {base: base}  # where it shall appear -> what
    covers = {Path("/tmp")}
    for place in wanted():
        if readable(place):
            binds[place] = place
        elif all(readable(one) for one in place.iterdir() if not one.is_symlink() and one.name not in NOT_COPIED):
            covers.add(place)
            binds |= {one: one for one in place.iterdir() if one.name not in NOT_COPIED and not one.is_symlink()}
        else:
            binds[place] = opened_copy(place, base / "copies" / str(len(binds)))
        if (above := cover(place)) is not None:
            covers.add(above)
    covers = {one for one in covers if not covers & set(one.parents)}
    moved = [(at, what) for at, what in binds.items() if at != what or covers & {at, *at.parents}]
    aside = [f"/mnt/{number}" for number in range(len(moved))]
    lines = ["mount -t tmpfs tmpfs /mnt"]
    for (_, what), spare in zip(moved, aside, strict=True):
        lines += [place_for(what, spare), f"mount --rbind {shlex.quote(str(what))} {spare}"]
    lines += [f"mount -t tmpfs -o mode=1777 tmpfs {shlex.quote(str(one))}" for one in sorted(covers)]
    for (at, _), spare in sorted(zip(moved, aside, strict=True)):
        target = shlex.quote(str(at))
        lines += [place_for(at, target), f"mount --rbind {spare} {target}"]
    return [*lines, "umount -R -l /mnt"]


def place_for(what: Path, at: str) -> str:
    """A shell line that makes an empty file or folder to mount ``what`` on."""
    return f"mkdir -p {at}" if what.is_dir() else f'mkdir -p "$(dirname {at})" && touch {at}'


def opened_copy(place: Path, copy: Path) -> Path:
    """A copy that anybody may read."""
    copy.parent.mkdir(exist_ok=True)
    shutil.copytree(place, copy, symlinks=True, ignore=lambda _, names: NOT_COPIED & set(names))
    subprocess.run(["chmod", "-R", "a+rX", str(copy)], check=True, timeout=120)
    return copy

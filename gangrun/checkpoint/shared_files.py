"""Which other checkpoints hold the very same file: a save links what did not change (hard links).

What is damaged in one is then damaged in all of them, and a verdict has to say so. Told by inode, not by manifests: it
is true whoever made the link, and costs nothing until something is damaged.
"""

from __future__ import annotations

import os


def also_in(directory: str, path: str) -> tuple[str, ...]:
    """Names of the directories beside ``directory`` that hold its file ``path`` too, in order; none where unknown."""
    try:
        known = os.lstat(os.path.join(directory, path))
        if known.st_nlink < 2:
            return ()
        with os.scandir(os.path.dirname(os.path.abspath(directory))) as found:
            beside = [one for one in found if one.name[:1] != "." and one.is_dir(follow_symlinks=False)]
    except OSError:
        return ()
    own = os.path.basename(os.path.abspath(directory))
    others = [one.name for one in beside if one.name != own and _holds(one.path, known)]
    return tuple(sorted(others, key=lambda name: (len(name), name)))


def shared_words(directory: str, path: str) -> str:
    """What follows the sentence that says what is wrong with the file; "" where it is nobody else's."""
    others = also_in(directory, path)
    return f"; the same file is in {', '.join(others)} too" if others else ""


def _holds(directory: str, known: os.stat_result) -> bool:
    try:
        with os.scandir(directory) as inside:
            return any(
                one.inode() == known.st_ino and one.stat(follow_symlinks=False).st_dev == known.st_dev for one in inside
            )
    except OSError:
        return False

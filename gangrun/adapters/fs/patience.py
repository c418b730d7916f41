"""What all who claim by link(2) share: how long they look, and when link is missing."""

from __future__ import annotations

import errno
import threading

UNREADABLE_VOID_AFTER_S = 5.0
LINK_MISSING = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS})


def wait(seconds: float) -> None:
    """Sleep, for whoever looks again and again at start."""
    threading.Event().wait(seconds)

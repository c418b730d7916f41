"""Does another host answer at all? Asked before anything heavy waits for it.

A refused connection is an answer, too: the other kernel gave it.
"""

from __future__ import annotations

import socket

TRIES_COUNT = 2


def unanswered(host: str, port: int, within_s: float) -> str:
    """Why nothing came back from there; "" where something did."""
    why = ""
    for _ in range(TRIES_COUNT):
        try:
            socket.create_connection((host, port), within_s / TRIES_COUNT).close()
        except ConnectionRefusedError:
            return ""
        except (OSError, UnicodeError) as error:
            why = getattr(error, "strerror", None) or str(error) or type(error).__name__
        else:
            return ""
    return f"{host} does not answer: {why}"

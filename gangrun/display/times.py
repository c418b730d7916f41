"""How times are said. ``now`` is handed in, so that the words can be tested."""

from __future__ import annotations

from datetime import datetime, timezone, tzinfo

DAY_S = 86400.0
_EPOCH_MAX = 253370764800.0  # the year 9999, in any zone


def clock_words(wall: float, now: float, zone: tzinfo | None = None) -> str:
    """``14:02:31``, with the date where it is not today's."""
    moment, today = _moment(wall, zone), _moment(now, zone)
    if moment is None or today is None:
        return "at an unknown time"
    return moment.strftime("%H:%M:%S" if moment.date() == today.date() else "%Y-%m-%d %H:%M:%S")


def date_words(wall: float, zone: tzinfo | None = None) -> str:
    """``2026-11-18``."""
    moment = _moment(wall, zone)
    return moment.strftime("%Y-%m-%d") if moment else "an unknown day"


def _moment(wall: float, zone: tzinfo | None) -> datetime | None:
    if not 0 <= wall <= _EPOCH_MAX:
        return None
    return datetime.fromtimestamp(wall, tz=timezone.utc).astimezone(zone)


def span_words(seconds: float) -> str:
    """``45 s``, ``3 min``, ``2 h 5 min``, ``3 d 4 h``."""
    whole = int(max(0.0, min(seconds, 1e12)))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min"
    if whole < DAY_S:
        return f"{whole // 3600} h" + (f" {whole % 3600 // 60} min" if whole % 3600 >= 60 else "")
    return f"{whole // 86400} d" + (f" {whole % 86400 // 3600} h" if whole % 86400 >= 3600 else "")


def short_span_words(seconds: float) -> str:
    """``45s``, ``3m20s``, ``2h05m``, ``3d4h``: where room is dear."""
    whole = int(max(0.0, min(seconds, 1e12)))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < DAY_S:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d{whole % 86400 // 3600}h"


def ago_words(wall: float, now: float) -> str:
    """``3 min ago``, or ``in 55 min`` for what is to come."""
    if wall > now + 1:
        return f"in {span_words(wall - now)}"
    return "just now" if now - wall < 2 else f"{span_words(now - wall)} ago"


def when_words(wall: float, now: float, zone: tzinfo | None = None) -> str:
    """``14:02:31 (3 min ago)``."""
    return f"{clock_words(wall, now, zone)} ({ago_words(wall, now)})"

"""Values as people write them: each parser takes text, or what TOML has, and gives the value or ``BadValue``.

Pure. ``msgspec`` converts and checks what it has types for; here is how a person is told.
"""

from __future__ import annotations

import math
import re
import shlex
import signal
from collections.abc import Callable, Sequence
from typing import Annotated, Any

Parser = Callable[[object], Any]
NODE_RANKS_MAX_COUNT = 1024
GROUP_MAX_COUNT = 128  # nodes that code together: up to twice as many do, and the field has 256 elements
ON_SLOW_RANK = ("alert", "move")
ON_ANOMALY = ("alert", "checkpoint", "rollback")
SDC_CHECK = ("off", "saves")
DATA_CHECKSUMS = ("off", "alert", "stop")
SAVERS = ("checkpointer", "rank0", "all")
REFILLS = {"off": None, "spare": 0.0}
REFILL_MAX_S = 7 * 24 * 3600.0
SAVE_SIGNALS = ("HUP", "INT", "QUIT", "USR1", "USR2", "TERM", "URG")
_SPAN = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(s|sec|m|min|h|d)?\s*")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?")
_FLOPS = re.compile(r"(\d+(?:\.\d+)?(?:e[+-]?\d+)?)\s*([kmgtpez]?)(?:flops?(?:/s)?)?")
_SECONDS = {None: 1.0, "s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_SWITCH = {**dict.fromkeys(("1", "true", "yes", "on"), True), **dict.fromkeys(("0", "false", "no", "off", ""), False)}


class BadValue(ValueError):
    """What is wrong with a value, and what to write instead."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


def converted(value: object, kind: Any, what: str, hint: str = "") -> Any:
    """``value`` as ``kind``, which a person calls ``what``."""
    import msgspec  # here and below: --help parses nothing

    try:
        return msgspec.convert(value.strip() if isinstance(value, str) else value, kind, strict=False)
    except msgspec.ValidationError:
        raise BadValue(f"{value!r} is not {what}", hint) from None


def whole(least: int, why: str = "") -> Parser:
    """Parser of whole numbers of at least ``least``."""

    def parse(value: object) -> Any:
        from msgspec import Meta

        return converted(value, Annotated[int, Meta(ge=least)], f"a whole number from {least} up", why)

    return parse


def port(value: object) -> Any:
    """Number of a TCP port."""
    from msgspec import Meta

    return converted(value, Annotated[int, Meta(ge=1, le=65535)], "a port: a whole number from 1 to 65535")


def one_of(*words: str) -> Parser:
    """Parser of one of these words, in any case."""

    def parse(value: object) -> str:
        word = str(value).strip().lower()
        if word not in words:
            raise BadValue(f"{value!r} is not one of {', '.join(words)}")
        return word

    return parse


def text(value: object) -> str:
    """Any text."""
    if not isinstance(value, str):
        raise BadValue(f"{value!r} is not text", 'put it in quotes: "..."')
    return value


def word(value: object) -> str:
    """Text or a whole number, without blanks around it."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise BadValue(f"{value!r} is not text", 'put it in quotes: "..."')
    return str(value).strip()


def resize_words(value: object) -> tuple[str, ...]:
    """Arguments for a script that runs at another size; what stands in braces must be a name that is filled in."""
    from gangrun.wire.spec import ON_RESIZE_NAMES

    words = command(value)
    for name in re.findall(r"\{(\w*)\}", " ".join(words)):
        if name not in ON_RESIZE_NAMES:
            known = ", ".join(f"{{{one}}}" for one in ON_RESIZE_NAMES)
            raise BadValue(f"{{{name}}} is not a name that gangrun fills in here", f"known are {known}")
    return words


def switch(value: object) -> bool:
    """True or false in the usual spellings."""
    found = _SWITCH.get(str(value).strip().lower())
    if found is None:
        raise BadValue(f"{value!r} is neither true nor false")
    return found


def span_s(value: object) -> float:
    """Seconds from 90, "90", "90s", "15m", "2h"."""
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0:
        return float(value)
    match = _SPAN.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise BadValue(f"{value!r} is not a time", "write seconds, or 90s, 15m, 2h")
    return float(match.group(1)) * _SECONDS[match.group(2)]


def positive_span_s(value: object) -> float:
    """A time longer than 0."""
    if not (seconds := span_s(value)) > 0:
        raise BadValue(f"{value!r} must be more than 0")
    return seconds


def size_bytes(value: object) -> int:
    """Bytes from 1048576, "512M", "64G", "64GiB"."""
    match = None if isinstance(value, bool) else _SIZE.fullmatch(str(value).strip().lower())
    if match is None:
        raise BadValue(f"{value!r} is not a size", "write bytes, or 512M, 64G")
    return int(float(match.group(1)) * 1024 ** " kmgt".index(match.group(2) or " "))


def flops(value: object) -> float:
    """Floating-point operations, or so many per second, from 3.5e15, "989T", "989 TFLOPS"."""
    match = None if isinstance(value, bool) else _FLOPS.fullmatch(str(value).strip().lower())
    if match is None:
        raise BadValue(f"{value!r} is not a number of FLOPs", "write 3.5e15, or 989T")
    found = float(match.group(1)) * 1000.0 ** " kmgtpez".index(match.group(2) or " ")
    if not 0 < found < math.inf:
        raise BadValue(f"{value!r} must be more than 0, and finite")
    return found


def command(value: object) -> tuple[str, ...]:
    """A command as a shell would split it, without a shell; "" is none."""
    import msgspec

    try:
        words = shlex.split(value) if isinstance(value, str) else msgspec.convert(value, tuple[str, ...])
    except ValueError as error:  # msgspec's is one
        why = f": {error}" if isinstance(value, str) else ""
        raise BadValue(f"{value!r} is not a command{why}") from None
    if any("\0" in one for one in words):
        raise BadValue(f"{value!r} is not a command: it holds a NUL")
    return tuple(words)


def shell_lines(value: object) -> tuple[str, ...]:
    """Each one line of shell; one text may hold several."""
    what = "neither a line of shell nor a list of such"
    lines: Sequence[str] = converted([value] if isinstance(value, str) else value, tuple[str, ...], what)
    if any("\0" in one for one in lines):
        raise BadValue("a line of shell cannot hold a NUL")
    return tuple(one for one in lines if one.strip())


def ranks_per_node(value: object) -> str:
    """A number from 1 up, or auto, gpu, cpu; or MIN:MAX, two numbers."""
    asked = str(value).strip().lower()
    if asked in {"auto", "gpu", "cpu"}:
        return asked
    least, colon, most = asked.rpartition(":")
    if not most.isdecimal() or not (least.isdecimal() or not colon):
        raise BadValue(f"{value!r} is neither a number of ranks nor MIN:MAX nor one of auto, gpu, cpu")
    numbers = [whole(1)(number) for number in (least, most) if number]
    if numbers[-1] > NODE_RANKS_MAX_COUNT:
        raise BadValue(f"{value} is too many: a node has at most {NODE_RANKS_MAX_COUNT} ranks")
    if numbers[0] > numbers[-1]:
        raise BadValue(f"{value}: MIN is more than MAX")
    return ":".join(map(str, numbers))


def step_pattern(value: object) -> str:
    """A regular expression with one group, the step."""
    from gangrun.checkpoint import scan  # not for those who only need a time

    try:
        return scan.step_pattern(text(value)).text
    except scan.BadPattern as error:
        raise BadValue(str(error)) from None


def framework(value: object) -> str:
    """auto, or the name of a framework whose checkpoints gangrun knows; "" means none."""
    asked, known = str(value).strip().lower(), framework_names()
    if asked and asked not in known:
        hint = "use --checkpoint-pattern for directories of torch.distributed.checkpoint, --validator for other formats"
        raise BadValue(f"gangrun does not know how {value!r} saves; it knows {', '.join(known)}", hint)
    return asked


def framework_names() -> tuple[str, ...]:
    """What ``framework`` takes."""
    from gangrun.frameworks.framework import AUTO, known_names  # not for those who only need a time

    return (AUTO, *known_names())


def _choice(kind: str, words: tuple[str, ...]) -> Parser:
    """One of ``words``, as a member of the enum ``kind`` of ``core.model``, which --help has no use for."""

    def parse(value: object) -> Any:
        word = str(value).strip().lower()
        if word not in words:
            raise BadValue(f"{value!r} is not one of {', '.join(words)}")
        from gangrun.core import model

        return getattr(model, kind)(word)

    return parse


savers = _choice("Savers", SAVERS)
on_anomaly = _choice("OnAnomaly", ON_ANOMALY)
on_slow_rank = _choice("OnSlowRank", ON_SLOW_RANK)


def sdc_check(value: object) -> str:
    """off, saves, or every=N with a number of steps."""
    word = str(value).strip().lower()
    every = re.fullmatch(r"every=0*([1-9]\d{0,8})", word)
    if word not in SDC_CHECK and every is None:
        raise BadValue(f"{value!r} is not one of off, saves, every=N (N: a number of steps)")
    return word if every is None else f"every={every[1]}"


data_checksums = _choice("OnDataChange", DATA_CHECKSUMS)


def notify_addresses(value: object) -> tuple[str, ...]:
    """Addresses of services, in one text or a list; no message may show one, as each holds a token."""
    import msgspec

    try:
        parts = [value] if isinstance(value, str) else msgspec.convert(value, list[str])
    except msgspec.ValidationError:
        raise BadValue("this is neither an address nor a list of addresses") from None
    found = tuple(word for part in parts for word in part.split())
    for k, word in enumerate(found, 1):
        if not re.match(r"[A-Za-z][A-Za-z0-9+.-]*://.", word):
            hint = "apprise's documentation lists the addresses of its services"
            raise BadValue(f"address {k} is not of the form SERVICE://...", hint)
    return found


def notify_kinds(value: object) -> tuple[str, ...]:
    """Kinds of news, in one text with commas or in a list."""
    news = news_names()
    asked = converted(value.replace(",", " ").split() if isinstance(value, str) else value, tuple[str, ...], "a list")
    for word in asked:
        if word not in news:
            raise BadValue(f"{word!r} is not one of {', '.join(news)}")
    return tuple(one for one in news if one in asked)


def news_names() -> tuple[str, ...]:
    """What ``notify_kinds`` takes."""
    from gangrun.wire.spec import NEWS  # not for --help

    return tuple(NEWS)


def refill(value: object) -> float | None:
    """None for off, 0.0 for spare, the seconds of wait:MINUTES."""
    word, _, minutes = str(value).strip().lower().partition(":")
    if word in REFILLS and not minutes:
        return REFILLS[word]
    if word != "wait" or not minutes:
        raise BadValue(f"{value!r} is not one of off, spare, wait:MINUTES", "write wait:10 for ten minutes")
    seconds: float = 60.0 * converted(minutes, float, "a number of minutes")
    if not seconds > 0:
        raise BadValue(f"{value!r} holds nodes for no time", "write wait:10 for ten minutes, or spare to hold none")
    if seconds > REFILL_MAX_S:
        raise BadValue(f"{value!r} is longer than a week", "nodes that are held cost what nodes at work cost")
    return seconds


def memory_protection(value: object) -> str:
    """copy, or K+M such as 8+2: data of K nodes, and the M nodes of a group that may be lost."""
    asked = str(value).strip().lower()
    match = re.fullmatch(r"([1-9]\d{0,2})\+([1-9]\d{0,2})", asked)
    if asked != "copy" and match is None:
        hint = "8+2: in a group of 10 nodes the checkpoint survives the loss of any 2"
        raise BadValue(f"{value!r} is neither copy nor parity as 8+2", hint)
    if match is not None and sum(map(int, match.groups())) > GROUP_MAX_COUNT:
        hint = f"data and parity of a checkpoint in memory are spread over at most {GROUP_MAX_COUNT} nodes"
        raise BadValue(f"{value!r} is too many", hint)
    return asked


def resume_request(value: object) -> str:
    """auto, none, a step, or a path."""
    if not str(value).strip():
        raise BadValue("'' is not auto, none, a step or a path")
    return str(value)


def save_signal(value: object) -> str:
    """USR1 from USR1, SIGUSR1, usr1 or 10; "" means none."""
    asked = str(value).strip().upper()
    if asked.isdigit() and int(asked) in {number.value for number in signal.Signals}:
        asked = signal.Signals(int(asked)).name
    name = asked.removeprefix("SIG")
    if name and (isinstance(value, bool) or name not in SAVE_SIGNALS):
        raise BadValue(
            f"{value!r} cannot be the signal that tells a script to save", f"give one of {', '.join(SAVE_SIGNALS)}"
        )
    return name

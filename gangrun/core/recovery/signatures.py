"""Knowing a failure that came before.

A signature is what must be equal for two failures to count as the same one. Tracebacks carry their own; exit codes and
fault signals say less, so they count only at the same known step; what comes from outside the code has none.
"""

from __future__ import annotations

import re

from gangrun.core.evidence import ErrorReport
from gangrun.core.model import Cure, Sighting, Verdict
from gangrun.core.text import one_line, signal_name

OOM_SIGNATURE = "weak: out of memory"
_WEAK = "weak: "  # counts at the same known step only
_DEVICE = "device: "  # an exception that a sick GPU raises too: on the same one of several nodes it proves nothing
_START = "start: "  # so may a node on which nothing can be started
_DEVICE_WORDS = ("cuda error", "cudnn", "cublas", "nccl error", "hip error")
_MACHINE = "machine: "  # only a machine causes it: on another node at once it is the environment's
_NUMBER = re.compile(r"[0-9]+")


def error_signature(error: ErrorReport) -> str:
    """A rank's own signature, or type and message without numbers where it sent none."""
    own = error.signature or f"error: {_plain(f'{error.kind}: {error.message}')}"
    said = error.message.lower()
    return f"{_DEVICE}{own}" if any(word in said for word in _DEVICE_WORDS) else own


def rule_signature(name: str, cure: Cure, error: ErrorReport | None) -> str:
    """Of an end whose text is known by a row of ``failure_texts``; "" for what passes with time."""
    match cure:
        case Cure.WAIT:
            return ""
        case Cure.EXCLUDE:
            return f"{_MACHINE}{name}"
        case Cure.TEST:
            return f"{_DEVICE}{name}"
        case Cure.RESTART | Cure.MOVE if error is not None:
            return error_signature(error)
        case _:
            return f"known: {name}"


def start_signature(why: str) -> str:
    """Why a start failed, without what changes from try to try (pids, ports, times)."""
    return f"{_START}{_plain(why)}"


def signal_signature(number: int) -> str:
    """A fault of the process itself, such as SIGSEGV."""
    return f"{_WEAK}{signal_name(number)}"


def exit_signature(code: int | None) -> str:
    """An exit code without a traceback."""
    return f"{_WEAK}exit code {code}"


def everywhere(signature: str, is_many: bool) -> str:
    """The same, as seen on many nodes at once: then it says more than one weak sign."""
    return f"everywhere: {signature.removeprefix(_WEAK)}" if is_many else signature


def hang_signature(frame: str) -> str:
    """Where a stall was; "" where nobody knows."""
    return f"{_WEAK}hang in {_plain(frame)}" if frame else ""


def may_be_the_nodes(signature: str) -> bool:
    """Whether what failed need not be the code's: a device, a start, memory; or nothing that could be known again."""
    return not signature or signature.startswith((_DEVICE, _START, _MACHINE)) or signature == OOM_SIGNATURE


def is_weak(signature: str) -> bool:
    """Whether it says so little that two of it are the same failure at the same known step only."""
    return signature.startswith(_WEAK)


def seen_before(
    verdict: Verdict, sightings: tuple[Sighting, ...], attempt: int, attempt_step: int, nodes_count: int
) -> Sighting | None:
    """The newest earlier attempt with the same failure, if the two together prove that it is the code's.

    At the same step; or on different nodes; or without having come any farther. What a sick GPU or node may say, said
    on the same one of several, proves nothing: that is suspicion, and elsewhere it will or will not come again.
    """
    if not verdict.signature:
        return None
    for sighting in reversed(sightings):
        if sighting.signature != verdict.signature or sighting.attempt == attempt:
            continue
        if verdict.signature.startswith(_MACHINE) and (
            set(verdict.suspects) & set(sighting.nodes) or attempt_step > sighting.step
        ):
            continue
        same_place = not verdict.suspects or not sighting.nodes or set(verdict.suspects) & set(sighting.nodes)
        one_node = bool(verdict.suspects or sighting.nodes) or verdict.signature.startswith(_START)
        if verdict.signature.startswith((_DEVICE, _START)) and same_place and one_node and nodes_count > 1:
            continue
        if attempt_step >= 0 and sighting.step == attempt_step:
            return sighting
        got_farther = attempt_step > sighting.step >= 0
        if not verdict.signature.startswith(_WEAK) and not (same_place and got_farther):
            return sighting
    return None


def _plain(text: str) -> str:
    return _NUMBER.sub("N", one_line(text))

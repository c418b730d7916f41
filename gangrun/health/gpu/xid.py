"""From XID events to findings: repetition, company and echoes weighed. The table: ``xid_table``.

One event rarely tells hardware from program. What does: the same GPU again in another attempt (hardware, perhaps), two
GPUs at once (the program), and what the GPU itself asks for. What our own kill leaves behind never counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gangrun.core.model import DriverReport
from gangrun.core.nodes import history
from gangrun.health.framework.check import CauseClass, Evidence, Finding, Needs, Scope, Severity, Sticky
from gangrun.health.framework.growth import span
from gangrun.health.gpu.xid_table import ALONE_SOFT, CLASS_CAUSES, ECHOES, RECOVERY_ACTIONS, XidClass, XidRow, row_of

CHECK = "xid"
COALESCED_S = 5.0  # one fault is reported many times over
TOGETHER_S = 10.0  # so near in time is "at once"
NEAR_S = 60.0  # another XID this near tells of the same fault
REMEMBERED_S = 86400.0
OF_THE_NODE = 109  # its GPUs share what this one tells of


@dataclass(frozen=True, slots=True)
class XidEvent:
    """One report of the driver. ``by_us``: it came while we stopped the ranks, or just after."""

    at: float
    node: str
    gpu: str  # a stable name: the UUID, or the place where there is none
    xid: int
    attempt: int
    by_us: bool = False


@dataclass(frozen=True, slots=True)
class GpuWord:
    """What the GPU says of itself when asked after an event; None: it says nothing."""

    recovery_action: int | None = None
    links_down: bool | None = None


def findings(node: str, events: Iterable[XidEvent], words: Mapping[str, GpuWord], now: float) -> tuple[Finding, ...]:
    """Findings against ``node``. ``events`` may hold those of other nodes: company is evidence."""
    recent = coalesced(event for event in events if 0 <= now - event.at <= REMEMBERED_S and not is_echo(event))
    own = sorted({(event.gpu, event.xid) for event in recent if event.node == node})
    found = (_finding(node, gpu, row_of(xid), recent, words.get(gpu, GpuWord())) for gpu, xid in own)
    return tuple(finding for finding in found if finding is not None)


def report_of(event: XidEvent, uuid: str, found: Finding) -> DriverReport:
    """What the core remembers of an event, for longer than anybody watches: whose it is, what a second one is worth."""
    row = row_of(event.xid)
    again = history.POOR if row.kind is XidClass.APP else history.FATAL
    if row.kind is XidClass.INFO or found.severity is Severity.FAIL:
        again = ""
    whose = event.node if event.xid == OF_THE_NODE else uuid or f"{event.gpu} of {event.node}"
    return DriverReport(whose, event.xid, again)


def is_echo(event: XidEvent) -> bool:
    """Left behind by a program that we killed; what no kill can cause counts even then."""
    return event.by_us and (event.xid in ECHOES or row_of(event.xid).kind in (XidClass.APP, XidClass.INFO))


def coalesced(events: Iterable[XidEvent]) -> tuple[XidEvent, ...]:
    """One event for a burst: each report within five seconds of the one before belongs to it."""
    kept: list[XidEvent] = []
    latest: dict[tuple[str, str, int], float] = {}
    for event in sorted(events, key=lambda one: (one.at, one.node, one.gpu, one.xid)):
        key = (event.node, event.gpu, event.xid)
        if key not in latest or event.at - latest[key] > COALESCED_S:
            kept.append(event)
        latest[key] = event.at
    return tuple(kept)


def _finding(node: str, gpu: str, row: XidRow, recent: tuple[XidEvent, ...], word: GpuWord) -> Finding | None:
    mine = [event for event in recent if (event.node, event.gpu, event.xid) == (node, gpu, row.xid)]
    last = mine[-1]
    near = {
        event.xid for event in recent if (event.node, event.gpu) == (node, gpu) and abs(event.at - last.at) <= NEAR_S
    }
    kind, needs, why = _class_of(row, near, word)
    if kind is XidClass.SOFT:
        who = "the same GPU"
        faults = _faults(mine)
        if row.xid == OF_THE_NODE:
            who, faults = "the node", _faults([one for one in recent if (one.node, one.xid) == (node, row.xid)])
        if len(faults) > 1:
            kind, why = XidClass.HARD, f"{who} had it {len(faults)} times in {_time(faults)}"
    if kind is XidClass.APP:
        return _of_the_program(node, gpu, row, mine, recent)
    if kind is XidClass.INFO and not row.watch:
        return None
    severity = Severity.FAIL if kind is XidClass.HARD else Severity.WARN
    sticky = Sticky.BOOT if kind is XidClass.HARD else Sticky.CLEAN
    cause = CLASS_CAUSES[kind]
    return _say(gpu, row, severity, cause, needs, sticky, len(mine), why)


def _class_of(row: XidRow, near: set[int], word: GpuWord) -> tuple[XidClass, Needs, str]:
    """The class of an event among its neighbours, and the reason where it is not the table's."""
    if row.xid == 48 and 94 in near and 95 not in near:
        return XidClass.SOFT, Needs.RESET, "the error was contained (XID 94)"
    asked = RECOVERY_ACTIONS.get(word.recovery_action or 0)
    if row.kind is not XidClass.ASK:
        return row.kind, row.needs, ""
    if asked is not None:
        action, fatal, needs = asked
        return (XidClass.HARD if fatal else XidClass.SOFT), needs, f"the GPU asks {action}"
    if row.xid != 154 and word.links_down:
        return XidClass.HARD, Needs.RESET, "one of its NVLinks is down"
    for xid in (79, 48, 95):
        if xid in near and row.xid != 154:
            return XidClass.HARD, row_of(xid).needs, f"XID {xid} came with it"
    if row.xid in ALONE_SOFT:
        return XidClass.SOFT, Needs.NONE, "its links are up" if word.links_down is False else ""
    return XidClass.INFO, Needs.NONE, ""


def _of_the_program(node: str, gpu: str, row: XidRow, mine: list[XidEvent], recent: tuple[XidEvent, ...]) -> Finding:
    """Most of these are the program's. One GPU that has it in attempt after attempt, while no other does, is not."""
    alone = [event for event in mine if not _company(event, recent)]
    attempts_count = len({event.attempt for event in alone})
    others = {(event.node, event.gpu) for event in recent if event.xid == row.xid} - {(node, gpu)}
    if attempts_count > 1 and not others:
        why = f"the same GPU had it in {attempts_count} attempts in {_time(alone)}, and no other GPU did"
        return _say(gpu, row, Severity.WARN, CauseClass.EITHER, Needs.NONE, Sticky.CLEAN, len(mine), why)
    if row.xid == 69 and len(_faults(alone)) > 1:  # two kinds of people read this one in two ways
        why = f"the same GPU had it {len(_faults(alone))} times in {_time(alone)}"
        return _say(gpu, row, Severity.WARN, CauseClass.EITHER, Needs.NONE, Sticky.CLEAN, len(mine), why)
    company = next((found for event in reversed(mine) if (found := _company(event, recent))), 0)
    why = f"{company} other GPUs had it at once, so it is the program's" if company > 1 else ""
    why = "another GPU had it at once, so it is the program's" if company == 1 else why
    why = why or "by itself it is the program's, not the node's"
    return _say(gpu, row, Severity.OK, CauseClass.APPLICATION, Needs.RESTART, Sticky.NO, len(mine), why)


def _company(event: XidEvent, recent: tuple[XidEvent, ...]) -> int:
    """How many other GPUs, on any node, had the same at the same time in the same attempt."""
    return len(
        {
            (other.node, other.gpu)
            for other in recent
            if other.xid == event.xid
            and other.attempt == event.attempt
            and (other.node, other.gpu) != (event.node, event.gpu)
            and abs(other.at - event.at) <= TOGETHER_S
        }
    )


def _faults(events: list[XidEvent]) -> list[XidEvent]:
    """Events that are far enough apart to be faults of their own."""
    apart: list[XidEvent] = []
    for event in events:
        if not apart or event.at - apart[-1].at > NEAR_S:
            apart.append(event)
    return apart


def _time(events: list[XidEvent]) -> str:
    return span(events[-1].at - events[0].at)


def _say(
    gpu: str,
    row: XidRow,
    severity: Severity,
    cause: CauseClass,
    needs: Needs,
    sticky: Sticky,
    times: int,
    why: str,
) -> Finding:
    sentence = f"XID {row.xid} on {gpu}: {row.means}" + (f"; {why}" if why else "")
    evidence = Evidence(new=times, old=0, over_s=REMEMBERED_S)
    return Finding(CHECK, Scope.GPU, gpu, severity, cause, needs, sticky, evidence, sentence)

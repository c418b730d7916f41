"""What is worth telling of many looks: what is new or worse, once.

A node is looked at every few seconds for weeks, and its findings are events that are kept for ever: a finding that
holds is told once, and one that comes and goes is told again only after it was gone for a while.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import replace

from gangrun.health.framework.check import CauseClass, Finding, Severity
from gangrun.health.framework.evidence import NOT_ITS_OWN, is_fatal
from gangrun.health.gpu.xid import COALESCED_S, REMEMBERED_S, GpuWord, XidEvent, findings, is_echo

QUIET_S = 600.0
NOT_TOLD = frozenset({"host_load", "host_clock"})  # a gang's own work, and how a whole site is set up
ECHO_S = 5.0  # after all ranks of the node are down, what the driver reports is still of the kill
EVENTS_MAX_COUNT = 512
MEMORY_ERRORS, CONTAINED, NOT_CONTAINED = frozenset({"gpu_ecc", "gpu_ecc_growth"}), 94, frozenset({64, 95, 140})
_ORDER = (Severity.OK, Severity.UNKNOWN, Severity.WARN, Severity.FAIL)


class News:
    """Remembers what was told, by check and place, and whether it counts against the device in that place."""

    def __init__(self) -> None:
        self._told: dict[tuple[str, str, bool], tuple[tuple[int, bool, int], float]] = {}

    def fresh(self, found: Iterable[Finding], now: float) -> list[Finding]:
        """Those of ``found`` that nobody was told of yet, or that are worse than what was told."""
        told = []
        for finding in found:
            key = finding.check, finding.place, finding.cause in NOT_ITS_OWN
            doubled = finding.devices_count.bit_length()  # not for each single one that comes along
            weight = _ORDER.index(finding.severity), is_fatal(finding), doubled
            before, seen_at = self._told.get(key, ((-1, False, 0), now))
            if now - seen_at > QUIET_S or weight > before:
                told.append(finding)
                before = weight
            self._told[key] = (before, now)
        return told

    def forget(self) -> None:
        """Tell everything again: somebody asks who has heard nothing."""
        self._told.clear()


def travels(finding: Finding) -> bool:
    """Is it worth an event of the run? How all nodes of a site are set up is told by ``gangrun health``."""
    warns = finding.severity is Severity.WARN and finding.cause is not CauseClass.CONFIG
    return finding.severity is Severity.FAIL or (warns and finding.check not in NOT_TOLD)


class XidStory:
    """The driver's reports on this node, weighed together. ``gang`` says what runs, so that echoes are known."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._events: deque[XidEvent] = deque(maxlen=EVENTS_MAX_COUNT)
        self._attempt = -1
        self._stopping = False
        self._stopped_at = float("-inf")

    def gang(self, attempt: int, stopping: bool, now: float) -> None:
        """Which attempt runs here, and whether its ranks are being stopped."""
        if self._stopping and not stopping:
            self._stopped_at = now
        self._attempt, self._stopping = attempt, stopping

    def event(self, gpu: str, xid: int, at: float) -> XidEvent | None:
        """Take in one report; None where it is an echo of our own kill or a repetition within one burst."""
        by_us = self._stopping or at - self._stopped_at <= ECHO_S
        one = XidEvent(at, self._node, gpu, xid, self._attempt, by_us)
        burst = any((old.gpu, old.xid) == (gpu, xid) and at - old.at <= COALESCED_S for old in self._events)
        while self._events and at - self._events[0].at > REMEMBERED_S:
            self._events.popleft()
        self._events.append(one)
        return None if burst or is_echo(one) else one

    def weighed(self, finding: Finding) -> Finding:
        """A finding beside what the driver reported: memory errors that were contained hit one program, which is dead,
        and the GPU can be used until its next reset.
        """
        if finding.check not in MEMORY_ERRORS or finding.severity is not Severity.FAIL:
            return finding
        seen = {event.xid for event in self._events if event.gpu == finding.place}
        if CONTAINED not in seen or seen & NOT_CONTAINED:
            return finding
        sentence = f"{finding.sentence}; contained (XID {CONTAINED}): only the program that was hit died"
        return replace(finding, severity=Severity.WARN, sentence=sentence)

    def finding(self, event: XidEvent, word: GpuWord, now: float) -> Finding | None:
        """What this event means beside all others."""
        found = findings(self._node, self._events, {event.gpu: word}, now)
        about = f"XID {event.xid} on {event.gpu}:"
        return next((one for one in found if one.place == event.gpu and one.sentence.startswith(about)), None)

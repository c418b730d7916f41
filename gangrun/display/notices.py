"""What of a run is worth a message to a person who does not watch it, and in which words.

News is found in the journal, record by record, so that the same journal always makes the same news with the same keys:
a notifier that starts anew knows by the keys what was told already. When a message is sent is not decided here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from gangrun.core.model import Phase, RunState
from gangrun.core.text import counted
from gangrun.display.status_page import recovery_words
from gangrun.display.times import span_words
from gangrun.runs.recoveries import RecoveryReader
from gangrun.runs.status import recovery_status
from gangrun.runs.timeline import seq_of
from gangrun.wire.record import Record

SETTLED_AFTER_S = 600.0  # an earlier estimate is no promise: rates of the first steps are far off
SLIP_SHARE = 0.2


@dataclass(frozen=True, slots=True)
class NewsItem:
    """One piece of news; ``kind`` is one of ``wire.spec.NEWS``, ``tone`` info, success, warning or failure."""

    kind: str
    key: str  # the same for the same news, whoever finds it
    title: str
    body: str
    tone: str = "info"


@dataclass(slots=True)
class NoticeReader:
    """Takes the records of one run, all of them and in their order."""

    name: str
    run: str
    _recoveries: RecoveryReader = field(default_factory=RecoveryReader)
    _starts: bool = True  # the next start is news: the first one, and the first after a person's resume

    def read(self, records: Iterable[Record], state: RunState | None) -> list[NewsItem]:
        """The news of these records; ``state`` is that after them."""
        found: list[NewsItem] = []
        for record in records:
            self._recoveries.read(record)
            if record.outcome == "applied" and record.kind != "Snapshot":
                found += self._of_record(record)
        return found if state is None else [*found, *self._recovered(state)]

    def _of_record(self, record: Record) -> Iterator[NewsItem]:
        key, name = f"{seq_of(record)}", self.name
        if record.kind == "ResumeRequested":
            self._starts = True
        if record.kind == "AnomalySeen" and (record.event.get("anomaly") or {}).get("lasting"):
            yield NewsItem("attention", f"anomaly-{key}", f"{name}: the training looks bad", record.reason, "warning")
        if record.kind == "SelfCheckFailed":
            yield NewsItem(
                "attention", f"check-{key}", f"{name}: a check in the script failed", record.reason, "warning"
            )
        if record.phase == record.was:
            return
        match record.phase:
            case Phase.RUNNING.value if self._starts:
                self._starts = False
                yield NewsItem("started", f"started-{key}", f"{name} started", record.reason)
            case Phase.SUCCEEDED.value:
                yield NewsItem("finished", f"finished-{key}", f"{name} succeeded", record.reason, "success")
            case Phase.CANCELLED.value:
                yield NewsItem("finished", f"finished-{key}", f"{name} was cancelled", record.reason)
            case Phase.TIME_UP.value:
                yield NewsItem("finished", f"finished-{key}", f"{name} used its total time", record.reason)
            case Phase.FAILED.value:
                yield failed_notice(name, self.run, f"failed-{key}", record.reason)
            case _:
                pass

    def _recovered(self, state: RunState) -> Iterator[NewsItem]:
        attempts = {one.number: one for one in state.attempts}
        for one in self._recoveries.told():
            if one.next_attempt is None:  # not over, or it ended the run
                continue
            failed = attempts.get(one.attempt)
            why = "" if failed is None else f"{failed.reason}\ncause: {failed.outcome}\n"
            how = recovery_words(recovery_status(one, lambda at: at))
            title = f"{self.name} recovered after {span_words(one.whole_ms / 1000)}: attempt {one.next_attempt} trains"
            yield NewsItem("recovered", f"recovered-{one.attempt}", title, f"{why}how: {how}", "warning")


def failed_notice(name: str, run: str, key: str, why: str) -> NewsItem:
    """A run that stands still until a person does something."""
    body = f"{why}\n`gangrun explain {run}` tells the story, `gangrun resume {run}` continues the run."
    return NewsItem("attention", key, f"{name} failed and needs you", body, "failure")


def cancelled_notice(name: str, key: str, why: str) -> NewsItem:
    """A run that was cancelled, and no supervisor was left to write that down."""
    return NewsItem("finished", key, f"{name} was cancelled", why or "all its processes have ended")


@dataclass(slots=True)
class EtaWatch:
    """Compares what is left of a run with what was promised; ``promised_end`` is kept with what was told."""

    began: float
    promised_end: float | None = None

    def look(self, now: float, eta_s: float | None, name: str) -> NewsItem | None:
        """News, if the end has moved by more than a fifth of the run; from then on the new end is the promise."""
        if eta_s is None or now < self.began + SETTLED_AFTER_S:
            return None
        end, before = now + eta_s, self.promised_end
        if before is not None and end - self.began <= (1 + SLIP_SHARE) * (before - self.began):
            return None
        self.promised_end = end
        if before is None:
            return None
        title = f"{name} will end {span_words(end - before)} later than estimated"
        return NewsItem("eta", f"eta-{end:.0f}", title, f"about {span_words(eta_s)} are left from now on", "warning")


def message(news: Iterable[NewsItem], run: str) -> tuple[str, str, str]:
    """Title, body and tone of one message: the newest news in full, and what was held back before it in a line each.

    The mark in its last line is the same if the message comes twice.
    """
    *before, newest = news
    title = f"{newest.title} (and {len(before)} more)" if before else newest.title
    lines = [newest.body]
    if before:
        lines += [
            "",
            f"before it, {counted(len(before), 'message')} of this kind:",
            *(f"- {one.title}" for one in before),
        ]
    return title, "\n".join([*lines, "", f"[{run} {newest.key}]"]), newest.tone

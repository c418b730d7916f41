"""The notifier's process: reads a run's directory beside the run's owner, and sends messages to people.

A child of ``gangrun run`` or of the batch script, in a session of its own. Nothing waits for it but its owner at the
very end, for some seconds. It hears at its standard input how the owner left; if the owner just dies, it tells that.

Each message is sent at least once: it counts as told when the service took it, and that is written down afterwards. A
message that comes twice has the same mark.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from gangrun.adapters.fs.disk import Disk
from gangrun.adapters.fs.run_dir import (
    NotificationLog,
    RunPaths,
    note_notifications,
    read_notifications,
    read_notify_addresses,
    read_spec,
)
from gangrun.adapters.notify.services import Services
from gangrun.core.model import TERMINAL
from gangrun.display.notices import EtaWatch, NewsItem, NoticeReader, cancelled_notice, failed_notice, message
from gangrun.launch.sidecars import OwnerEnd
from gangrun.node.speech import DEAF
from gangrun.runs.follow import Follower, JournalReplay
from gangrun.runs.job_queue import read_stopped
from gangrun.runs.snapshot import UNREPLAYABLE
from gangrun.runs.status import status_of
from gangrun.runs.times import steady_now, wall_now
from gangrun.wire.spec import RunSpec

LOOK_EVERY_S = 1.0
ETA_EVERY_S = 30.0
LAST_RECORDS_WITHIN_S = 5.0  # after the owner's death, until its wardens have killed all ranks
LAST_MESSAGES_WITHIN_S = 20.0
RETRY_AFTER_S = 5.0  # then three times as long, and so on
TRIES_MAX_COUNT = 4
NEVER_HELD = frozenset({"attention", "finished"})
GOES_ON_ELSEWHERE = 75
CANCELLED_CODES = (130, 143)


@dataclass(slots=True)
class PendingNews:
    """News that one service is still to be told of. ``every_s``: one message of a kind, at most."""

    every_s: float
    waiting: list[NewsItem] = field(default_factory=list)
    _sent_at: dict[str, float] = field(default_factory=dict)  # by kind, the last message
    _tries_count: int = 0
    _not_before: float = 0.0

    def due(self, now: float, *, final: bool = False) -> list[NewsItem]:
        """The news of the next message; nothing if none may be sent now. ``final``: nothing is held back any more."""
        if now < self._not_before and not final:
            return []
        for first in self.waiting:
            held = now < self._sent_at.get(first.kind, float("-inf")) + self.every_s
            if not held or final or first.kind in NEVER_HELD:
                return [one for one in self.waiting if one.kind == first.kind]
        return []

    def sent(self, news: list[NewsItem], now: float) -> None:
        """The service took it."""
        self._sent_at[news[0].kind] = now
        self._drop(news)

    def refused(self, news: list[NewsItem], now: float) -> bool:
        """The service did not take it; True: nor will it be tried again."""
        self._tries_count += 1
        if self._tries_count < TRIES_MAX_COUNT:
            self._not_before = now + RETRY_AFTER_S * 3 ** (self._tries_count - 1)
            return False
        self._drop(news)
        return True

    def _drop(self, news: list[NewsItem]) -> None:
        self.waiting = [one for one in self.waiting if one not in news]
        self._tries_count, self._not_before = 0, 0.0


@dataclass(slots=True)
class Teller:
    """One run, told to its services. ``send(k, title, body, tone)``: "" if service ``k`` took it, else why not."""

    spec: RunSpec
    paths: RunPaths
    send: Callable[[int, str, str, str], str]
    disk: Disk = field(default_factory=Disk)
    queues: list[PendingNews] = field(init=False)
    journal: JournalReplay = field(init=False)
    _reader: NoticeReader = field(init=False)
    _log: NotificationLog = field(init=False)
    _noted: NotificationLog = field(init=False)
    _known: dict[str, None] = field(init=False)  # keys of all news so far, in order
    _eta: EtaWatch = field(init=False)
    _eta_at: float = 0.0
    _why: str = ""  # the last message was not taken

    def __post_init__(self) -> None:
        """It knows what was told before."""
        self._log = self._noted = read_notifications(self.disk, self.paths)
        self._known = dict.fromkeys(self._log.told)
        self._eta = EtaWatch(self.spec.created_wall, self._log.promised_end)
        self.queues = [PendingNews(self.spec.notify.every_s) for _ in self.spec.notify.services]
        self._begin()

    def _begin(self) -> None:
        self.journal = JournalReplay(self.paths, self.disk)
        self._reader = NoticeReader(self.spec.name, self.spec.run)

    def look(self) -> bool:
        """Read what is new; whether the run has ended."""
        try:
            records = self.journal.poll()
            state = self.journal.state()
        except OSError:
            self._begin()  # the old one may have lost records; what was told is known by its key
            return False
        except UNREPLAYABLE:
            return False
        for one in self._reader.read(records, state):
            self.offer(one)
        return state is not None and state.phase in TERMINAL

    def look_at_eta(self) -> None:
        """Now and then."""
        if "eta" not in self.spec.notify.on or steady_now() < self._eta_at:
            return
        self._eta_at = steady_now() + ETA_EVERY_S
        with contextlib.suppress(Exception):  # an estimate is not worth a message that it costs
            now = wall_now()
            status = status_of(Follower(self.paths, scheduler=False).look(), now)
            if slip := self._eta.look(now, status.eta_s, self.spec.name):
                self.offer(slip)
            self._log = msgspec.structs.replace(self._log, promised_end=self._eta.promised_end)

    def offer(self, news: NewsItem) -> None:
        """News that is to be told, unless it was before."""
        if news.key in self._known or news.kind not in self.spec.notify.on:
            return
        self._known[news.key] = None
        for box in self.queues:
            box.waiting.append(news)

    def flush(self, *, final: bool = False) -> bool:
        """Send what is due; whether nothing is left."""
        for k, box in enumerate(self.queues):
            while news := box.due(steady_now(), final=final):
                why = self._why = self.send(k, *message(news, self.spec.run))
                if not why:
                    box.sent(news, steady_now())
                elif box.refused(news, steady_now()):
                    self._log = msgspec.structs.replace(self._log, failed=self._log.failed + len(news), why=why)
                else:
                    break
        self._note()
        return not any(box.waiting for box in self.queues)

    def _note(self) -> None:
        left = {one.key for box in self.queues for one in box.waiting}
        log = msgspec.structs.replace(self._log, told=tuple(key for key in self._known if key not in left))
        if log != self._noted:
            with contextlib.suppress(OSError):  # the next note tells it too
                note_notifications(self.disk, self.paths, log)
                self._log = self._noted = log

    def give_up(self) -> None:
        """Nobody will try again: count what is left."""
        count = max(len(box.waiting) for box in self.queues)
        if count:
            why = self._why or "the services did not answer before the end"
            self._log = msgspec.structs.replace(self._log, failed=self._log.failed + count, why=why)
            self._note()

    def owner_left(self, end: OwnerEnd | None) -> None:
        """Tell what no supervisor wrote; ``end`` None: the owner died."""
        until = steady_now() + (LAST_RECORDS_WITHIN_S if end is None else 0.0)
        has_ended = self.look()
        while not has_ended and steady_now() < until:
            select.select((), (), (), 0.2)
            has_ended = self.look()
        if has_ended or (end is not None and end.code == GOES_ON_ELSEWHERE):
            return
        state = self.journal.state()
        key = f"left-{-1 if state is None else state.term}-{-1 if state is None else state.attempt.number}"
        if end is not None and end.code in CANCELLED_CODES:
            self.offer(cancelled_notice(self.spec.name, key, end.why))
            return
        who = "the batch script" if self.spec.is_scheduled else "the process that ran it"
        why = f"{who} died" if end is None else end.why or f"{who} ended with exit code {end.code}"
        before = "" if state is None else f"; before that: {state.reason}"
        self.offer(
            failed_notice(self.spec.name, self.spec.run, key, f"{why}, and no supervisor had ended the run{before}")
        )


def owner_end(within_s: float, heard: bytearray) -> tuple[bool, OwnerEnd | None]:
    """Has the owner left, and with which words? Waits so long for that."""
    if not select.select([0], (), (), within_s)[0]:
        return False, None
    data = os.read(0, 65536)
    heard += data
    if data:
        return False, None
    try:
        return True, msgspec.json.decode(bytes(heard), type=OwnerEnd)
    except msgspec.MsgspecError:
        return True, None


def _beside_owner(teller: Teller) -> OwnerEnd | None:
    """Tell all that happens until the owner leaves; how it left."""
    heard = bytearray()
    while True:
        has_left, end = owner_end(LOOK_EVERY_S, heard)
        if has_left:
            return end
        teller.look()
        teller.look_at_eta()
        teller.flush()


def _why_stopped(paths: RunPaths, seq: int) -> str:
    try:
        return read_stopped(paths.setup_failed(seq).read_text("utf-8", errors="replace"))[0]
    except OSError:
        return "the batch script stopped before gangrun began"


def main(words: list[str]) -> int:
    """Until the owner has left."""
    parser = argparse.ArgumentParser(prog="gangrun-notifier")
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument(
        "--stopped", type=int, default=-1, help="the job whose batch script stopped before gangrun began"
    )
    found = parser.parse_args(words)
    paths, disk = RunPaths(found.run_dir), Disk()
    for number in DEAF:
        signal.signal(number, signal.SIG_IGN)
    spec = read_spec(disk, paths)
    try:
        services = Services(read_notify_addresses(disk, paths))
    except (ImportError, OSError, msgspec.MsgspecError) as error:
        why = "apprise cannot be imported" if isinstance(error, ImportError) else "the addresses cannot be read"
        note_notifications(disk, paths, msgspec.structs.replace(read_notifications(disk, paths), failed=1, why=why))
        return 1
    teller = Teller(spec, paths, services.send, disk)
    teller.owner_left(_beside_owner(teller) if found.stopped < 0 else OwnerEnd(1, _why_stopped(paths, found.stopped)))
    until = steady_now() + LAST_MESSAGES_WITHIN_S
    while not teller.flush(final=True) and steady_now() < until:
        select.select((), (), (), LOOK_EVERY_S)
    teller.give_up()
    return 0

"""Journal and tickets of one term on a thread of their own.

Strictly in order; a stalled disk blocks this thread and nothing else. No decision may enter: what cannot be written is
tried again and said so, what is refused means deposed.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from gangrun.adapters.fs.disk import Disk
from gangrun.adapters.fs.journal import Counter, JournalShrank, JournalWriter, note_ranks
from gangrun.adapters.fs.run_dir import RunPaths, read_cancelled
from gangrun.adapters.fs.terms import FsTerms, Ticket, TicketRefused
from gangrun.core.actions import StartGang
from gangrun.ports import Clock, Deposed, Stored, StoreTrouble, Withheld
from gangrun.wire import record as wire_record
from gangrun.wire.record import Record

T = TypeVar("T")

BATCH_MAX_COUNT = 256
RETRY_FIRST_S = 0.1
RETRY_MAX_S = 5.0

Mail = Stored | Withheld | StoreTrouble | Deposed


@dataclass(frozen=True, slots=True)
class _Entry:
    n: int
    line: bytes
    tickets: tuple[Ticket, ...]


class FsStore:
    """``ports.Store``; answers through ``post``, which is called on the store's thread and must not block."""

    def __init__(
        self,
        paths: RunPaths,
        term: int,
        post: Callable[[Mail], None],
        clock: Clock,
        disk: Disk | None = None,
        counter_every_s: float = 5.0,
    ) -> None:
        """``open_acts(term)`` must have worked before. The thread starts with the first ``commit`` or figure."""
        self._disk = disk or Disk()
        self._paths = paths
        self._terms = FsTerms(paths, clock, self._disk)
        self._term = term
        self._post = post
        self._clock = clock
        self._journal = JournalWriter(self._disk, paths.journal(term))
        self._counter = Counter(self._disk, paths, term)
        self._counter_every_s = counter_every_s
        self._counter_due = clock.now()
        self._counter_works = True  # False also while a write is under way
        self._seen_open = float("-inf")
        self._changed = threading.Condition()
        self._queue: deque[_Entry] = deque()
        self._live: dict[str, object] | None = None
        self._ranks: tuple[object, object, object] | None = None  # attempt, ranks, GPUs: until they are written
        self._closing = False
        self._stopped = False
        self._thread = threading.Thread(target=self._main, name="store", daemon=True)

    # ---- called by the loop; never block on the disk ----

    def commit(self, record: Record, tickets: Sequence[int]) -> None:
        """Append and fsync, then take each ticket; the answer comes through ``post``."""
        kinds = {act.n: act for act in record.actions}
        wanted = tuple(Ticket.of(self._term, kinds[n]) if n in kinds else Ticket(self._term, n) for n in tickets)
        with self._changed:
            if self._closing:
                raise RuntimeError("commit after close")
            self._queue.append(_Entry(record.n, wire_record.encode(record), wanted))
            self._wake()

    def note_progress(self, live: Mapping[str, object]) -> bool:
        """The holder's counter file: at most one small write per ``counter_every_s``; loss is harmless."""
        figures = dict(live)
        ranks, gpus = figures.pop("ranks", None), figures.pop("rank_gpus", None)
        with self._changed:
            self._live = figures
            if ranks is not None:  # they are told less often: newer figures without them do not replace them
                self._ranks = figures.get("attempt"), ranks, gpus
            self._wake()
            return self._counter_works

    def seen_open_at(self) -> float:
        """When this term was surely not sealed yet."""
        return self._seen_open

    def close(self, deadline_s: float) -> bool:
        """Write what is queued, for at most ``deadline_s``; True if everything is on disk. Commits nothing after."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
            started = self._thread.ident is not None
        if started:
            self._thread.join(deadline_s)
        with self._changed:
            drained = not self._queue
            self._stopped = True
            self._changed.notify_all()
        return drained

    def _wake(self) -> None:
        if self._thread.ident is None:
            self._thread.start()
        self._changed.notify_all()

    # ---- the thread ----

    def _main(self) -> None:
        try:
            while self._step():
                pass
        except _Abandoned:
            return
        except FileExistsError as error:
            self._depose(f"somebody else wrote as term {self._term}: {error.filename} is there already")
        except (TicketRefused, JournalShrank) as error:
            self._depose(str(error))
        except Exception as error:  # noqa: BLE001  a thread's main: a store that died unseen would leave the loop waiting
            self._depose(f"the store broke: {type(error).__name__}: {error}")
        finally:
            self._journal.close()

    def _depose(self, why: str) -> None:
        with self._changed:
            self._stopped = True
        self._post(Deposed(why))

    def _step(self) -> bool:
        with self._changed:
            while not self._awake():
                self._changed.wait(self._until_counter())  # figures may have come meanwhile that are not due yet
            if self._stopped or (self._closing and not self._queue):
                return False
            batch = [self._queue[i] for i in range(min(len(self._queue), BATCH_MAX_COUNT))]
        self._write_counter()
        if batch:
            self._insist(partial(self._journal.append, b"".join(entry.line for entry in batch)), batch[0].n)
        for entry in batch:
            self._settle(entry)
        return True

    def _awake(self) -> bool:
        return bool(self._queue) or self._closing or self._stopped or self._counter_is_due()

    def _settle(self, entry: _Entry) -> None:
        began = self._clock.now()
        cancelled_by = ""
        for ticket in entry.tickets:
            if self._stopped:  # closed while the disk stood still: nobody would perform the act
                return
            if ticket.kind == StartGang.__name__:
                mark = self._insist(partial(read_cancelled, self._disk, self._paths), entry.n)
                if mark is not None:
                    cancelled_by = mark.by
                    self._insist(partial(self._terms.still_open, self._term), entry.n)
                    continue
            self._insist(partial(self._terms.take_ticket, ticket), entry.n)
        if not entry.tickets:
            self._insist(partial(self._terms.still_open, self._term), entry.n)
        with self._changed:
            if self._stopped:
                return
            self._seen_open = began
            self._queue.popleft()
        self._post(Withheld(entry.n, cancelled_by) if cancelled_by else Stored(entry.n))

    def _insist(self, operation: Callable[[], T], n: int) -> T:
        """Until it works; says so once per change of reason. Stops trying when closed for good."""
        said, pause_s = "", RETRY_FIRST_S
        while True:
            try:
                return operation()
            except FileExistsError:
                raise
            except OSError as error:
                why = f"{error.strerror or error}"
            if why != said:
                self._post(StoreTrouble(n, why))
                said = why
            with self._changed:
                self._changed.wait_for(lambda: self._stopped, timeout=pause_s)
                if self._stopped:
                    raise _Abandoned
            pause_s = min(2 * pause_s, RETRY_MAX_S)
            self._write_counter()

    # ---- counter ----

    def _counter_is_due(self) -> bool:
        return self._live is not None and self._clock.now() >= self._counter_due

    def _until_counter(self) -> float | None:
        return None if self._live is None else max(0.0, self._counter_due - self._clock.now())

    def _write_counter(self) -> None:
        with self._changed:
            if not self._counter_is_due():
                return
            live, self._live, ranks = self._live or {}, None, self._ranks
            began = self._clock.now()
            self._counter_due = began + self._counter_every_s
            self._counter_works = False
        try:
            self._counter.write(live, self._clock.wall())
            self._terms.still_open(self._term)
            if ranks is not None:
                note_ranks(self._disk, self._paths, self._term, *ranks)
        except OSError:
            return  # its loss is harmless: the journal's trouble is what gets reported
        with self._changed:
            self._counter_works = True
            self._seen_open = max(self._seen_open, began)
            if self._ranks is ranks:
                self._ranks = None


class _Abandoned(Exception):
    """Closed while the disk still refused."""

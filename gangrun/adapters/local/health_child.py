"""The agent's end of the process that watches this node's health. It is not trusted to live or answer.

A thread starts it, reads its lines and starts it again when it dies or falls silent, so often at most; one that the
kernel holds is left behind, and no second one is started beside it. What it has not said is unknown, and nothing more.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

LINE_MAX_BYTES = 64 * 1024
SILENT_MAX_S = 420.0  # all families one after the other, each up to its deadline; it says that it lives every 30 s
STARTS_MAX_COUNT = 5
STARTS_WINDOW_S = 3600.0
PAUSES_S = (1.0, 5.0, 30.0, 120.0)
HELD_LOOK_S = 60.0
QUEUE_MAX_COUNT = 256
ENDS_BEFORE_S = 2.0  # the tests of devices, so that their answer is there in time

Plain = Mapping[str, Any]
# What schedulers send to every process of a step, long before its end: the watching ends with its standard input.
SPRAYED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


class HealthChild:
    """Starts ``command``, and keeps what it says until somebody takes it."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        now: Callable[[], float],
        say: Callable[[str], None],
    ) -> None:
        self._command, self._environment = list(command), dict(environment)
        self._now, self._say = now, say
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._told: deque[Plain] = deque(maxlen=QUEUE_MAX_COUNT)
        self._over = threading.Event()
        self._answered = threading.Condition()
        self._watching = False
        self._lives_count = 0
        self._looked = self._asked = 0
        self._round: list[Plain] = []  # what was found since somebody asked
        self._said: Plain = {}  # with the newest answer
        self._last = ""  # the newest word about the gang, for one that is started later
        self._child: subprocess.Popen[bytes] | None = None
        self._held: list[subprocess.Popen[bytes]] = []
        self.gpus: tuple[str, ...] = ()  # the UUIDs of those that ranks may use, by slot
        self._use: list[Any] = []  # how GPUs are used, as it told last
        self.hopeless = ""  # why it will not be started again

    # ---- the agent's side ----

    def start(self) -> None:
        """Begin; returns at once."""
        threading.Thread(target=self._live, name="health", daemon=True).start()

    def fileno(self) -> int:
        """Readable when ``take`` has something."""
        return self._bell

    def take(self) -> list[Plain]:
        """Findings that came, as plain values."""
        try:
            os.eventfd_read(self._bell)
        except BlockingIOError:
            pass
        return [self._told.popleft() for _ in range(len(self._told))]

    def take_use(self) -> list[Any]:
        """How each GPU is used, if it was read since the last call: what CUDA calls it, and its values."""
        found, self._use = self._use, []
        return found

    def pids(self) -> tuple[int, ...]:
        """Processes that are ours and no rank's."""
        child = self._child
        mine = [*self._held, *([child] if child is not None else [])]
        return tuple(one.pid for one in mine if one.returncode is None)

    def gang(self, attempt: int, stopping: bool) -> None:
        """What runs here: the driver's reports are weighed by it."""
        self._last = json.dumps({"op": "gang", "attempt": attempt, "stopping": stopping})
        self._tell(self._last)

    def look(self, within_s: float) -> tuple[list[Plain], str]:
        """Have everything looked at anew and wait for the end of it: what was found, and why that is not all, or ""."""
        found, late = self._ask({"op": "look"}, within_s, "the health checks")
        return found, late or str(self._said.get("late", ""))

    def work(self, tests: str, within_s: float) -> tuple[list[Plain], str, str]:
        """Have devices put to work, on a node that holds no ranks: what was found, what was done and came out right,
        and why not all of it did, or "".
        """
        until = self._now() + within_s
        question = {"op": "work", "tests": tests, "until": until - ENDS_BEFORE_S}
        found, late = self._ask(question, within_s, "the tests of devices")
        return found, "" if late else str(self._said.get("tested", "")), late or str(self._said.get("untested", ""))

    def _ask(self, question: Plain, within_s: float, what: str) -> tuple[list[Plain], str]:
        until = self._now() + within_s
        with self._answered:
            self._answered.wait_for(lambda: self._watching or self.hopeless, within_s)
            if not self._watching:
                return [], self.hopeless or f"{what} did not begin within {within_s:g} s"
            self._asked += 1
            self._round, self._said = [], {}
            mine, life = self._asked, self._lives_count
            self._tell(json.dumps({**question, "n": mine}))
            self._answered.wait_for(
                lambda: self._looked >= mine or self._lives_count != life or self.hopeless,
                max(0.0, until - self._now()),
            )
            if self._looked >= mine:
                return list(self._round), ""
            died = self._lives_count != life
            return list(self._round), f"{what} {'died' if died else f'were not done within {within_s:g} s'}"

    def close(self) -> None:
        """End it; nobody waits for it."""
        self._over.set()
        child = self._child
        if child is not None:
            child.kill()

    # ---- the thread ----

    def _live(self) -> None:
        starts: list[float] = []
        while not self._over.is_set():
            starts = [at for at in starts if at > self._now() - STARTS_WINDOW_S]
            if len(starts) >= STARTS_MAX_COUNT:
                return self._give_up(f"the health checks died {len(starts)} times within an hour, and stay off")
            if starts and self._over.wait(PAUSES_S[min(len(starts), len(PAUSES_S)) - 1]):
                return None
            starts.append(self._now())
            why = self._one_life()
            if self._over.is_set():
                return None
            with self._answered:
                self._watching, self._lives_count = False, self._lives_count + 1
                self._answered.notify_all()
            self._notice(why)
            while self._held and self._held[-1].poll() is None:  # no second one beside one that the kernel holds
                if self._over.wait(HELD_LOOK_S):
                    return None
        return None

    def _give_up(self, why: str) -> None:
        with self._answered:
            self.hopeless = why
            self._answered.notify_all()
        self._notice(why)

    def _notice(self, why: str) -> None:
        self._say(why)
        self._put({"check": "health", "fatal": False, "sentence": f"{why}: nothing is known of this node now"})

    def _put(self, plain: Plain) -> None:
        self._told.append(plain)
        os.eventfd_write(self._bell, 1)

    def _one_life(self) -> str:
        """From its start to its end; how it ended."""
        signal.pthread_sigmask(signal.SIG_BLOCK, SPRAYED)  # of this thread, from which the child has its own
        try:
            child = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                env=self._environment, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            return f"the health checks could not be started ({error.strerror})"
        self._child = child
        if self._last:
            self._tell(self._last)
        silent = self._read(child)
        child.kill()
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except OSError:
                    pass  # what was still to be written has no reader
        self._child = None
        try:
            code = child.wait(2.0)
        except subprocess.TimeoutExpired:
            self._held.append(child)
            return f"the health checks hang in the kernel (process {child.pid})"
        if silent:
            return f"the health checks said nothing for {SILENT_MAX_S:g} s, and were ended"
        return (
            f"the health checks ended with {code}" if code >= 0 else f"the health checks were killed by signal {-code}"
        )

    def _read(self, child: subprocess.Popen[bytes]) -> bool:
        """Its lines until it ends; True: it fell silent."""
        assert child.stdout is not None
        fd, rest = child.stdout.fileno(), b""
        poller = select.poll()
        poller.register(fd, select.POLLIN)
        while not self._over.is_set():
            if not poller.poll(SILENT_MAX_S * 1000):
                return True
            part = os.read(fd, LINE_MAX_BYTES)
            if not part:
                return False
            *lines, rest = (rest + part).split(b"\n")
            for line in lines:
                self._heard(line)
            rest = rest[-LINE_MAX_BYTES:]
        return False

    def _heard(self, line: bytes) -> None:
        try:
            said = json.loads(line)
        except (ValueError, RecursionError):
            return
        if not isinstance(said, dict):
            return
        match said.pop("op", None):
            case "finding":
                self._round.append(said)
                self._put(said)
            case "watching":
                with self._answered:
                    self._watching = True
                    self._answered.notify_all()
                if trouble := said.get("trouble"):
                    self._say(str(trouble)[:300])
            case "looked" if isinstance(said.get("n"), int):
                with self._answered:
                    self._looked, self._said = max(self._looked, said["n"]), said
                    self._answered.notify_all()
            case "gpus" if isinstance(said.get("names"), list):
                self.gpus = tuple(str(name) for name in said["names"])
            case "use" if isinstance(said.get("gpus"), list):
                self._use = said["gpus"]
            case _:
                pass  # "alive", or what a newer one says

    def _tell(self, line: str) -> None:
        child = self._child
        if child is None or child.stdin is None:
            return
        try:
            os.set_blocking(child.stdin.fileno(), False)  # one that hangs must not hold the agent
            os.write(child.stdin.fileno(), line.encode() + b"\n")
        except (OSError, ValueError):
            return

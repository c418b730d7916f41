"""The first process on a node: holds the lease and kills what must not live.

It is started by path (``python -E -s -S warden.py --spec JSON``), so nothing of gangrun, no socket but the pair to its
agent and no file of a shared disk may enter: what it needs must not be able to hang or grow. It starts the agent and,
when asked, a supervisor; adopts every orphan below itself (subreaper); at the lease deadline or at the agent's death it
kills all else by pidfd until none is left. Kill first, speak second, and to a pipe that cannot block (``speech``).
What agent and warden share stands here.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing costs a megabyte that a warden does not have to spend
    from collections.abc import Callable, Collection, Mapping
    from typing import Any
if TYPE_CHECKING or __name__ != "__main__":
    from gangrun.node import processes
    from gangrun.node.lease import LEASE_SIZE_BYTES, Lease, must_kill
    from gangrun.node.speech import LogWriter, Voice
else:
    import processes  # started by path: only its own folder is on sys.path
    from lease import LEASE_SIZE_BYTES, Lease, must_kill
    from speech import LogWriter, Voice

MESSAGE_MAX_BYTES = 128 * 1024
ENV_LEASE_FD, ENV_LINK_FD, ENV_INCARNATION = "GANGRUN_LEASE_FD", "GANGRUN_WARDEN_FD", "GANGRUN_AGENT_INCARNATION"
ENV_MEMORY = "GANGRUN_MEMORY"  # the name of the keeper of checkpoints in memory, for agent and ranks; "" where none is
EXIT_AGENT_LOST, EXIT_LIFE_LINE_LOST = 70, 71
SUPERVISORS_MAX_COUNT = 3
KILL_WITHIN_S = 5.0  # a process that outlives SIGKILL by this is in D state: named, not waited for
AGENT_WITHIN_S, TRY_AGAIN_S = 10.0, 0.2  # while no process can be made
LAST_WORDS_WITHIN_S = 2.0  # what the log writer gets for them; a disk that stands still is not waited for


def receive(link: socket.socket) -> list[dict[str, Any] | None]:
    """Messages that wait, then None if the other side is gone."""
    messages: list[dict[str, Any] | None] = []
    while True:
        try:
            data = link.recv(MESSAGE_MAX_BYTES)
        except (BlockingIOError, InterruptedError):
            return messages
        except OSError:
            data = b""
        if not data:
            return [*messages, None]
        try:
            message = json.loads(data)
        except ValueError:
            continue
        if isinstance(message, dict):
            messages.append(message)


def argv(python: str, spec: Mapping[str, Any]) -> list[str]:
    """The command that starts a warden; keys of ``spec`` are those of ``Warden``."""
    return [python, "-E", "-s", "-S", os.path.abspath(__file__), "--spec", json.dumps(spec)]


class Warden:
    """One node's warden.

    Spec: agent, supervisor (argv lists), node, lease_s, poll_s, agent_start_s, life_fd, pdeathsig, restarts_max_count,
    restarts_window_s, supervisor_linger_s, memory_bytes (of checkpoints kept in memory; 0: as the node has, none: off),
    writes_log (standard error is a file of a disk that may stand still), previous_died (of the agent before, if this
    warden takes a dead one's place), place_fd (held for life, so that no other warden of the job begins here),
    launcher_fd (a pipe to who started it: lines for people, and those that the log refuses, go there).
    """

    def __init__(self, spec: Mapping[str, Any]) -> None:
        self._agent_argv: list[str] = list(spec["agent"])
        self._supervisor_argv: list[str] = list(spec.get("supervisor", ()))
        self._node = str(spec.get("node", ""))
        self._lease_ns = int(float(spec.get("lease_s", 30.0)) * 1e9)
        self._poll_s = float(spec.get("poll_s", 0.25))
        self._agent_start_ns = int(float(spec.get("agent_start_s", 60.0)) * 1e9)
        self._restarts_max_count = int(spec.get("restarts_max_count", 5))
        self._window_ns = int(float(spec.get("restarts_window_s", 60.0)) * 1e9)
        self._linger_s = float(spec.get("supervisor_linger_s", 30.0))
        self._previous_died = str(spec.get("previous_died", ""))
        self._life_fd = int(spec.get("life_fd", -1))
        self._place_fd = int(spec.get("place_fd", -1))
        if self._place_fd >= 0:
            os.set_inheritable(self._place_fd, False)  # ours alone: a child that outlives us must not keep it
        self._launcher_fd = int(spec.get("launcher_fd", -1))
        if self._launcher_fd >= 0:
            os.set_inheritable(self._launcher_fd, False)
        self._lease_fd = os.memfd_create("gangrun-lease")
        os.ftruncate(self._lease_fd, LEASE_SIZE_BYTES)
        self._lease = Lease(self._lease_fd)
        self._link: socket.socket | None = None
        self._agent = 0  # pid, 0: none
        self._memory_bytes: int | None = spec.get("memory_bytes")
        self._keeper, self._keeper_name = 0, ""
        self._voice = Voice()
        self._writes_log = bool(spec.get("writes_log"))
        self._writer: LogWriter | None = None
        self._supervisors: dict[int, int] = {}  # pid -> the least term that it was asked to claim
        self._agent_status = ""  # how the agent ended, "" while it lives
        self._agent_error = ""  # the error that ends the agent, as it tells with its last breath
        self._agent_since_ns = 0
        self._starts_ns: dict[str, list[int]] = {}  # what -> when it was started, lately
        self._incarnation = 0
        self._askings = processes.Askings()
        self._terminating = 0
        self._goodbye: int | None = None
        self._life_lost = False
        self._expired = self._leaving = False
        self._leftovers: list[str] = []
        self._turned_ns = self._woke_ns = processes.boottime_ns()  # when the loop turned last, and the time before
        self._written_deadline_ns = 0  # as the agent wrote it
        self._deadline_s = 0.0  # the same, or the grace granted after a gap
        self._granted = False
        self._selector = selectors.DefaultSelector()

    def run(self) -> int:
        """Watch until the end; the exit code."""
        processes.become_subreaper()
        if self._writes_log:
            self._writer = LogWriter((self._place_fd,) if self._place_fd >= 0 else (), self._launcher_fd)
            self._start_again("log writer", self._writer.start)
        self._listen()
        self._start_again("keeper", self._start_keeper)
        if not self._start_agent(self._previous_died):
            return self._leave(EXIT_AGENT_LOST)
        while True:
            self._turn()
            if self._life_lost or len(self._askings.signals) > 1:
                return self._leave(EXIT_LIFE_LINE_LOST if self._life_lost else 128 + self._askings.signals[0])
            if self._agent_status:
                code = self._after_agent()
                if code is not None:
                    return self._leave(code)
            self._judge_lease()

    def _listen(self) -> None:
        wake_read, wake_write = socket.socketpair()
        wake_read.setblocking(False)
        wake_write.setblocking(False)
        self._wake = wake_read, wake_write
        signal.set_wakeup_fd(wake_write.fileno(), warn_on_full_buffer=False)
        for signum in _ENDS:
            signal.signal(signum, self._askings.note)
        for signum in _NOTICES:
            signal.signal(signum, lambda number, _frame: self._tell({"op": "notice", "signal": number}))
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        self._selector.register(wake_read, selectors.EVENT_READ)
        if self._life_fd >= 0:
            os.set_inheritable(self._life_fd, False)
            os.set_blocking(self._life_fd, False)
            self._selector.register(self._life_fd, selectors.EVENT_READ)

    def _turn(self) -> None:
        """Wait for something, at most one poll; take it in."""
        for key, _ in self._selector.select(self._poll_s):
            if key.fileobj is self._wake[0]:
                self._wake[0].recv(4096)
            elif key.fileobj is self._link:
                self._hear()
            elif os.read(self._life_fd, 4096) == b"":
                self._life_lost = True
        now_ns = processes.boottime_ns()
        self._woke_ns, self._turned_ns = self._turned_ns, now_ns
        self._reap()
        if self._askings.signals and not self._terminating:
            self._terminating = self._askings.signals[0]
            self._tell({"op": "terminate", "signal": self._terminating})

    def _hear(self) -> None:
        assert self._link is not None
        for message in receive(self._link):
            if message is None:
                self._selector.unregister(self._link)
                self._link = None
                return
            if message.get("op") == "goodbye":
                self._goodbye = int(message.get("code", 0))
            elif message.get("op") == "crashed":
                self._agent_error = str(message.get("why"))
            elif message.get("op") == "spawn_supervisor":
                self._start_supervisor(message)
            else:
                self._say(f"unknown message from the agent: {str(message)[:200]}")

    def _tell(self, message: Mapping[str, Any]) -> None:
        if self._link is not None:
            try:
                self._link.send(json.dumps(message).encode())
            except OSError as error:  # a stopped agent's full buffer: it asks again when it wakes, or is replaced
                self._say(f"could not tell the agent {message.get('op')}: {error}")

    def _say(self, text: str) -> None:
        self._voice.say(f"[{self._node}:warden] {text}")

    def _reap(self) -> None:
        """Collect every dead child: agent, supervisor and whatever was adopted."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            code = os.waitstatus_to_exitcode(status)
            if pid == self._agent:
                self._agent = 0
                self._agent_status = f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"
            elif pid == self._keeper:
                self._keeper = 0
                if not self._leaving:
                    self._replace_keeper(code)
            elif self._writer is not None and pid == self._writer.pid:
                self._writer.pid = 0
                if not self._leaving and self._may_start("log writer"):
                    self._start_again("log writer", self._writer.start)
            elif pid in self._supervisors:
                term = self._supervisors.pop(pid)
                self._tell({"op": "supervisor_exited", "code": code, "term": term, "pid": pid})

    def _own_pids(self) -> list[int]:
        """Our children that are no rank's: keeper and log writer."""
        return [pid for pid in (self._keeper, self._writer.pid if self._writer else 0) if pid]

    def _strays(self) -> list[processes.Proc]:
        """All below us that is neither agent nor our own nor of the supervisor's tree."""
        table, spared = processes.process_table(), [*self._supervisors, *self._own_pids()]
        return [p for p in processes.descendants([os.getpid()], table, spared) if p.pid != self._agent]

    def _kill_strays(self) -> list[str]:
        left = [str(proc) for proc in processes.kill_until_none(self._strays, KILL_WITHIN_S, self._reap)]
        if left and left != self._leftovers:
            self._say(f"SIGKILL does not end {', '.join(left)}: stuck in the kernel")
        self._turned_ns = processes.boottime_ns()  # the time spent killing is no gap
        return left

    def _judge_lease(self) -> None:
        if not self._agent:
            return
        now_ns, written_ns, lease_s = processes.boottime_ns(), self._lease.written_ns, self._lease_ns / 1e9
        if self._lease.deadline_ns != self._written_deadline_ns:
            self._written_deadline_ns, self._granted = self._lease.deadline_ns, False
            self._deadline_s = self._written_deadline_ns / 1e9
        if now_ns - self._woke_ns > self._lease_ns // 3:
            self._agent_since_ns = now_ns  # it may have been paused with us
        expired = False
        if self._written_deadline_ns:
            rule = must_kill(self._deadline_s, now_ns / 1e9, self._woke_ns / 1e9, lease_s, granted=self._granted)
            expired, self._deadline_s, self._granted = rule
        if expired:
            self._end_lease()
        self._expired = expired
        limit_ns = self._lease_ns if written_ns else self._agent_start_ns
        if now_ns - max(written_ns, self._agent_since_ns) > limit_ns:
            os.kill(self._agent, signal.SIGKILL)  # our child, not yet reaped: the number is its own
            self._say(f"the agent gave no sign of life for {limit_ns / 1e9:.0f} s: it is killed")
            self._agent_since_ns = now_ns  # said once

    def _end_lease(self) -> None:
        """No rank may live: kill, on every turn until the agent renews."""
        self._leftovers = self._kill_strays()
        if not self._expired:
            self._say("the lease has ended: all ranks were killed")
        if not self._expired or self._leftovers:
            self._tell({"op": "lease_expired", "leftovers": self._leftovers})

    def _after_agent(self) -> int | None:
        """The agent is dead: kill all it left, then replace it, or say with which code to leave."""
        how, self._agent_status = self._agent_status, ""
        if self._link is not None:
            self._hear()  # its goodbye, or its error, may still wait
        if self._agent_error:
            how, self._agent_error = f"{how}: {self._agent_error}", ""
        self._leftovers = self._kill_strays()
        if self._goodbye is not None:
            return self._goodbye
        if self._terminating:
            return 128 + self._terminating
        self._say(f"the agent died ({how}): its ranks are dead, starting it again")
        if not self._may_start("agent"):
            return EXIT_AGENT_LOST
        return None if self._start_agent(how) else EXIT_AGENT_LOST

    def _may_start(self, what: str) -> bool:
        """Start it once more? Not if too many of its kind died lately. Counts as a start."""
        now_ns = processes.boottime_ns()
        recent = [at_ns for at_ns in self._starts_ns.get(what, ()) if at_ns > now_ns - self._window_ns]
        if len(recent) >= self._restarts_max_count:
            self._say(f"{len(recent) + 1} {what}s died within {self._window_ns / 1e9:.0f} s: giving up")
            return False
        self._starts_ns[what] = [*recent, now_ns]
        return True

    def _start_agent(self, previous_died: str) -> bool:
        """Whether it was started; no rank lives meanwhile, so there is time to try."""
        if self._link is not None:
            self._selector.unregister(self._link)
            self._link.close()
            self._link = None
        self._lease.clear()
        self._expired = False
        self._agent_since_ns = processes.boottime_ns()
        while (started := self._try_agent()) is None:
            if processes.boottime_ns() > self._agent_since_ns + int(AGENT_WITHIN_S * 1e9):
                self._say(f"the agent could not be started for {AGENT_WITHIN_S:g} s: giving up")
                return False
            time.sleep(TRY_AGAIN_S)
        self._agent, self._link = started
        self._selector.register(self._link, selectors.EVENT_READ)
        hello = {"op": "hello", "previous_died": previous_died, "supervisor_pids": list(self._supervisors)}
        self._tell({**hello, "leftovers": self._leftovers, "own_pids": self._own_pids()})
        self._incarnation += 1
        return True

    def _try_agent(self) -> tuple[int, socket.socket] | None:
        """The agent's pid and our end of its link; None if either cannot be made: often that is over in a second."""
        with contextlib.ExitStack() as undone:
            try:
                ours, theirs = map(undone.enter_context, socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET))
                ours.setblocking(False)
                environ = {
                    **os.environ,
                    ENV_LEASE_FD: str(self._lease_fd),
                    ENV_LINK_FD: str(theirs.fileno()),
                    ENV_INCARNATION: str(self._incarnation),
                    ENV_MEMORY: self._keeper_name,
                }
                agent = self._spawn(self._agent_argv, environ, (self._lease_fd, theirs.fileno()), _NOTICES)
            except OSError as error:  # no memory, no file descriptor, or too many processes
                self._say(f"the agent cannot be started ({error.strerror or error}): trying again")
                return None
            undone.pop_all()
        theirs.close()
        return agent, ours

    def _replace_keeper(self, code: int) -> None:
        """The next one has the same name, by which the agent and the ranks find it when they save again."""
        self._say(f"the keeper of checkpoints in memory ended ({code}): they are lost, those on disk are not")
        if self._may_start("keeper") and self._start_again("keeper", self._start_keeper):
            self._say("an empty keeper was started in its place: the next checkpoint is kept in memory again")

    def _start_again(self, what: str, start: Callable[[], None]) -> bool:
        """Whether it runs. If no process can be made, the node does without: its ranks go on."""
        try:
            start()
        except OSError as error:
            self._say(f"the {what} cannot be started ({error.strerror or error}): this node goes on without it")
            return False
        self._tell({"op": "own_pids", "pids": self._own_pids()})
        return True

    def _start_keeper(self) -> None:
        if self._memory_bytes is None:
            return
        self._keeper_name = self._keeper_name or f"gangrun-{os.getuid()}-{os.urandom(12).hex()}"
        island = os.path.join(os.path.dirname(os.path.abspath(__file__)), "memory_keeper.py")
        command = [sys.executable, "-E", "-s", "-S", island, self._keeper_name, str(self._memory_bytes)]
        self._keeper = self._spawn(command, dict(os.environ), (), (*_ENDS, *_NOTICES))

    def _start_supervisor(self, message: Mapping[str, Any]) -> None:
        term = int(message.get("term_min", 0))
        if why := self._refusal(term, bool(message.get("promises"))):
            self._tell({"op": "supervisor_refused", "why": why, "term": term})
            return
        promises = json.dumps(message.get("promises", []))
        command = [*self._supervisor_argv, "--term-min", str(term), "--promises", promises]
        try:
            pid = self._spawn(command, dict(os.environ), (), (*_ENDS, *_NOTICES))
        except OSError as error:
            why = f"no process can be made: {error.strerror or error}"
            self._tell({"op": "supervisor_refused", "why": why, "term": term})
            return
        self._supervisors[pid] = term
        self._tell({"op": "supervisor_started", "term": term, "pid": pid})

    def _refusal(self, term: int, promised: bool) -> str:
        """Why none is started. A stopped one is no reason once agents promised themselves to a newer term."""
        if not self._supervisor_argv:
            return "no supervisor command was given"
        newest = max(self._supervisors.values(), default=-1)
        if self._supervisors and (not promised or newest >= term or len(self._supervisors) >= SUPERVISORS_MAX_COUNT):
            return f"one runs as {', '.join(map(str, self._supervisors))}"
        return ""

    def _spawn(self, command: list[str], env: Mapping[str, str], fds: Collection[int], deaf: Collection[int]) -> int:
        warden = os.getpid()
        pid = os.fork()  # safe: a warden has one thread
        if pid:
            return pid
        try:
            signal.set_wakeup_fd(-1)
            for signum in (*_ENDS, *_NOTICES, signal.SIGCHLD, signal.SIGPIPE):
                signal.signal(signum, signal.SIG_IGN if signum in deaf else signal.SIG_DFL)
            processes.prctl(processes.PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != warden:
                os._exit(127)
            os.setsid()  # a terminal's Ctrl-C is for the launcher alone
            for fd in fds:
                os.set_inheritable(fd, True)
            os.execvpe(command[0], command, env)  # noqa: S606 - no shell is the point
        except BaseException as error:  # noqa: BLE001 - the child must never run the warden's loop
            self._say(f"cannot start {command[0]}: {error}")
        os._exit(127)

    def _leave(self, code: int) -> int:
        """Wait a little for a supervisor that is finishing, then leave nothing behind."""
        until_ns = processes.boottime_ns() + int(self._linger_s * 1e9)
        while self._goodbye is not None and self._supervisors and processes.boottime_ns() < until_ns:
            self._turn()
            if self._life_lost or len(self._askings.signals) > 1:
                break
        self._leaving = True
        me, writer = os.getpid(), self._writer
        processes.kill_until_none(
            lambda: processes.descendants([me], processes.process_table(), [writer.pid] if writer else []),
            KILL_WITHIN_S, self._reap,
        )  # fmt: skip
        if writer is not None:
            writer.finish()
            until_ns = processes.boottime_ns() + int(LAST_WORDS_WITHIN_S * 1e9)
            while writer.pid and processes.boottime_ns() < until_ns:
                self._selector.select(0.05)  # SIGCHLD rings
                self._reap()
        if self._place_fd >= 0:
            self._tell_waiting(code)
        return code

    def _tell_waiting(self, code: int) -> None:
        """To those that wait for our place: we end by ourselves. A warden that is killed says nothing."""
        with socket.socket(fileno=self._place_fd) as place:
            place.setblocking(False)
            while True:
                try:
                    waiting = place.accept()[0]
                except OSError:  # nobody else waits
                    return
                try:
                    waiting.send(str(code).encode())
                except OSError:
                    pass  # that one is gone too


_ENDS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_NOTICES = (signal.SIGUSR1, signal.SIGUSR2)  # these come to all of a job step


def main(arguments: list[str]) -> int:
    """Start from the command line: ``--spec JSON``."""
    if len(arguments) != 2 or arguments[0] != "--spec":
        os.write(2, b"usage: node/warden.py --spec JSON\n")
        return 2
    spec = json.loads(arguments[1])
    if spec.get("pdeathsig"):
        parent = os.getppid()
        processes.prctl(processes.PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            return EXIT_LIFE_LINE_LOST
    return Warden(spec).run()


if __name__ == "__main__":
    os._exit(main(sys.argv[1:]))  # the interpreter's own way out takes the handlers away first: a late signal would win

"""What srun starts on each node of a job: finds out which node this is, and becomes its warden.

Every task of a step is started with the same words; only the environment tells the nodes apart. A step is started
again if srun or a warden was killed, so a warden of the job may live here already. Each node has one place for a warden
of a job: a name that the kernel gives to one process, and frees when that process dies. A later task waits for the
place. A warden that ends by itself tells the waiting task its exit code, and the task ends with that code. After a
warden that was killed, the task kills what that warden left: ranks die with their agent, what they started may not.
Only then does it begin, for its agent's first word says that no rank lives here. While it waits, signals that Slurm
sends to all tasks are not for it.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from gangrun.adapters.fs.disk import Disk
from gangrun.adapters.fs.job_claims import JobClaim, wait
from gangrun.adapters.fs.run_dir import RunPaths, read_cancelled
from gangrun.config import environment
from gangrun.launch.node_spec import EXIT_NOBODY, EXIT_WAITED, WARDEN_GONE, filled
from gangrun.node import processes, warden

EXIT_NO_NODE = 78
EXIT_NO_LOG = 74
EXIT_NOT_EMPTY = 73
LOOK_AGAIN_S = 0.25
KILL_WITHIN_S = 5.0
WAITING_MAX_COUNT = 16
RUN_DIR, JOB_ID = "GANGRUN_RUN_DIR", "SLURM_JOB_ID"
STAY = "GANGRUN_STAY"  # the stay of a job whose warden all this comes from


def speak_into(log: Path) -> str:
    """From now on all that is said goes there: srun, which hears us till then, may die with its host. Why not, if so.

    slurmstepd could open it as well, but where that fails it is said nowhere.
    """
    try:
        opened = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    except OSError as error:
        return f"this node cannot open a file in the run directory: {log}: {error.strerror or error}"
    os.dup2(opened, 1)
    os.dup2(opened, 2)
    os.close(opened)
    return ""


@contextmanager
def only_waiting() -> Iterator[None]:
    """A signal to end ends this process with ``EXIT_WAITED``; others that Slurm may send to all tasks do nothing."""

    def leave(*_: object) -> None:
        os._exit(EXIT_WAITED)

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGINT)}
    deaf = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
    before |= {number: signal.signal(number, signal.SIG_IGN) for number in deaf}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def stay_of(claim: JobClaim) -> str:
    """This stay of the job on its nodes, whichever launch of its step it is."""
    return f"{claim.job}r{claim.restart}"


@dataclass(frozen=True, slots=True)
class Place:
    """A node's place of a warden. ``waited``: another process had it first; its exit code, if it told one."""

    fd: int
    waited: bool = False
    code: int | None = None


def take_place(of: str, wait: Callable[[float], None] = wait) -> Place:
    """The place ``of`` (run, job, node). A warden that ends by itself tells its exit code to those that wait."""
    name = hashlib.sha256(of.encode("utf-8", "surrogateescape")).hexdigest()
    address = f"\0gangrun-warden-{os.getuid()}-{name}"
    holder, words = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    waited = connected = False
    words.setblocking(False)
    with words:
        while True:
            try:
                holder.bind(address)
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                waited = True
                connected = connected or words.connect_ex(address) == 0
                wait(LOOK_AGAIN_S)
            else:
                holder.listen(WAITING_MAX_COUNT)
                return Place(holder.detach(), waited, _code_in(words) if connected else None)


def _code_in(words: socket.socket) -> int | None:
    try:
        return int(words.recv(16))
    except (OSError, ValueError):
        return None  # it was killed, or it crashed


def clear(root: str, claim: JobClaim) -> list[str]:
    """Kill all that an earlier warden of this stay left on this node; what does not die, in words.

    What a supervisor or a rank submitted inherits their variables, the next job's batch script too: it is of another
    job, or its own stay is not in its variables.
    """
    me, marks = os.getpid(), {f"{RUN_DIR}={root}", f"{STAY}={stay_of(claim)}", f"{JOB_ID}={claim.job}"}

    def left() -> list[processes.Proc]:
        table = processes.process_table().values()
        return [p for p in table if p.pid != me and processes.is_alive(p) and marks <= _variables(p.pid)]

    return [str(proc) for proc in processes.kill_until_none(left, KILL_WITHIN_S, lambda: None)]


def _variables(pid: int) -> set[str]:
    try:
        return {os.fsdecode(one) for one in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")}
    except OSError:
        return set()


def _is_wanted(paths: RunPaths, claim: JobClaim) -> bool:
    """Does the run want more of this job? If nobody can say: yes, as the supervisor looks again."""
    from gangrun.adapters.fs.journal import JournalReader
    from gangrun.launch.slurm_job_owner import is_over
    from gangrun.wire.record import RecordError, replay

    try:
        if read_cancelled(Disk(), paths) is not None:
            return False
        return not is_over(replay(JournalReader(paths, Disk()).read(newest_only=True).records), claim)
    except (OSError, RecordError):
        return True


def main(words: list[str]) -> int:
    """``SPEC RUN_DIR CLAIM``: the warden's spec, what its processes find in GANGRUN_RUN_DIR, the job's claim."""
    variables = environment.all_variables()
    node = variables.get("SLURMD_NODENAME", "")
    if not node:
        os.write(2, b"SLURMD_NODENAME is not set: this is started by srun, on each node of a job\n")
        return EXIT_NO_NODE
    root, claim = words[1], msgspec.json.decode(words[2], type=JobClaim)
    paths = RunPaths(Path(root))
    launcher_fd = os.dup(2)
    why = speak_into(paths.process_log(node))
    if why:
        os.write(2, f"{why}\n".encode("utf-8", "replace"))
        return EXIT_NO_LOG
    with only_waiting():
        place = take_place(f"{root}\0{stay_of(claim)}\0{node}")
    spec = {key: filled(value, node) for key, value in json.loads(words[0]).items()}
    if spec.pop("only_beside", False) and not place.waited:
        return EXIT_NOBODY
    if (place.waited or spec["previous_died"]) and not _is_wanted(paths, claim):
        return 0
    if place.code is not None:  # a warden that ended by itself is not started again, whichever srun heard of it
        return place.code
    if left := clear(root, claim):
        told = (
            f"[{node}:warden] SIGKILL does not end {', '.join(left)}, which an earlier warden left: nothing is started"
        )
        os.write(2, f"{told}\n".encode("utf-8", "replace"))
        return EXIT_NOT_EMPTY
    if place.waited:
        spec["previous_died"] = WARDEN_GONE
    spec |= {"writes_log": True, "place_fd": place.fd, "launcher_fd": launcher_fd}
    command = warden.argv(sys.executable, spec)
    for fd in (place.fd, launcher_fd):
        os.set_inheritable(fd, True)
    os.execve(command[0], command, {**variables, RUN_DIR: root, STAY: stay_of(claim)})  # noqa: S606 - no shell is the point
    raise AssertionError("unreachable")

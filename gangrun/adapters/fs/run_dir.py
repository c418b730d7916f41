"""Where everything of a run lies, and how its directory is made and checked.

No other file spells a path of the run directory. Private means 0700/0600 and ours: keys that make agents obey lie here.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import os
import shutil
import stat
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from urllib.parse import quote

import msgspec

from gangrun.adapters.fs.disk import REFUSED, Disk
from gangrun.wire import spec as wire_spec
from gangrun.wire import submission as wire_submission

MACHINE_DIR = ".gangrun"
FILE_NAME_MAX_COUNT = 180
SUFFIX_BYTES = 5  # random part of a run id: 2^25 per second


class RunDirError(Exception):
    """A run directory that may not or cannot be used: what is wrong, and what to do."""

    def __init__(self, message: str, hint: str = "") -> None:
        """``hint`` is one sentence an operator can follow."""
        super().__init__(message)
        self.message = message
        self.hint = hint


def file_name(name: str) -> str:
    """Any name (a node's, say) as one path component: letters, digits and ``._-`` stay, all else is %-quoted."""
    quoted = quote(name.encode("utf-8", "surrogateescape"), safe="-_.")
    if quoted.startswith("."):
        quoted = "%2E" + quoted[1:]
    if len(quoted) > FILE_NAME_MAX_COUNT:
        quoted = f"{quoted[:FILE_NAME_MAX_COUNT]}-{zlib.crc32(quoted.encode()):08x}"
    return quoted or "%"


@dataclass(frozen=True, slots=True)
class RunPaths:
    """Every path of one run; ``root`` is ``<runs>/<run id>``."""

    root: Path

    @property
    def run(self) -> str:
        """The run id."""
        return self.root.name

    @property
    def machine(self) -> Path:
        """What only gangrun reads."""
        return self.root / MACHINE_DIR

    @property
    def spec(self) -> Path:
        """What the user asked for."""
        return self.machine / "spec.json"

    @property
    def keys(self) -> Path:
        """Folder of key files."""
        return self.machine / "keys"

    @property
    def client_key(self) -> Path:
        """The run's CURVE client key pair."""
        return self.keys / "client.json"

    @property
    def notify_addresses(self) -> Path:
        """Where the run is told; they hold tokens."""
        return self.keys / "notify.json"

    @property
    def notifications(self) -> Path:
        """What was told so far, and what could not be."""
        return self.machine / "notifications.json"

    @property
    def metrics_fault(self) -> Path:
        """Why the figures are not served; no such file where they are."""
        return self.machine / "metrics.fault"

    @property
    def terms(self) -> Path:
        """Folder of claims, acts and counters."""
        return self.machine / "terms"

    def claim(self, term: int) -> Path:
        """Who holds ``term``."""
        return self.terms / f"{term}.json"

    def acts(self, term: int) -> Path:
        """Folder of tickets of ``term``; a file of that name, or mode 0500, is its seal."""
        return self.terms / f"{term}.acts"

    def acts_kept(self, term: int) -> Path:
        """Where tickets lie after a seal by removal."""
        return self.terms / f"{term}.acts.sealed"

    def ticket(self, term: int, n: int) -> Path:
        """The right to perform act ``n`` of ``term``."""
        return self.acts(term) / str(n)

    def counter(self, term: int) -> Path:
        """The holder's sign of life."""
        return self.terms / f"{term}.counter"

    @property
    def journals(self) -> Path:
        """Folder of journals."""
        return self.machine / "journal"

    def journal(self, term: int) -> Path:
        """Records of ``term``."""
        return self.journals / f"{term}.jsonl"

    @property
    def jobs(self) -> Path:
        """Folder of job claims."""
        return self.machine / "jobs"

    def job(self, seq: int, generation: int = 0) -> Path:
        """Who holds place ``seq`` in the sequence of jobs."""
        return self.jobs / (f"{seq}.json" if generation == 0 else f"{seq}.{generation}.json")

    @property
    def submission(self) -> Path:
        """What Slurm is asked for each job of this run."""
        return self.machine / "submission.json"

    @property
    def batch_scripts(self) -> Path:
        """Folder of the batch scripts as they were sent."""
        return self.machine / "slurm"

    def setup_failed(self, seq: int) -> Path:
        """Why the batch script of job ``seq`` stopped before any process of ours ran."""
        return self.machine / f"setup-failed-{seq}"

    def refill(self, number: int) -> Path:
        """Which job is refill ``number``."""
        return self.jobs / f"refill-{number}.json"

    def refill_failed(self, number: int) -> Path:
        """Why the batch script of refill ``number`` stopped before any process of ours ran."""
        return self.machine / f"setup-failed-refill-{number}"

    def job_log(self, job: str) -> Path:
        """What a job's batch script and its launcher said."""
        return self.logs / f"job-{job}.out"

    def counters(self, node: str) -> Path:
        """What a node's hardware had counted when it was last looked at."""
        return self.machine / "health" / f"{file_name(node)}.json"

    @property
    def ranks(self) -> Path:
        """The ranks of the newest attempt, as the supervisor of a term saw them last: ``<term>.json``."""
        return self.machine / "ranks"

    def process_log(self, node: str) -> Path:
        """Where gangrun's own processes of a node say what no rank and no journal holds."""
        return self.machine / f"processes-{file_name(node)}.log"

    @property
    def imports(self) -> Path:
        """Which installed modules the script imports, for nodes that have not seen it run."""
        return self.machine / "imports.json"

    @property
    def owner_log(self) -> Path:
        """What the owner of a run says that goes on in the background."""
        return self.logs / "owner.out"

    @property
    def logs(self) -> Path:
        """Folder of rank output."""
        return self.root / "logs"

    def node_log(self, attempt: int, node: str) -> Path:
        """Output of a node's ranks in one attempt."""
        return self.logs / str(attempt) / f"{file_name(node)}.log"

    def stacks(self, attempt: int, rank: int) -> Path:
        """Where a rank stood when it hung."""
        return self.root / "stacks" / str(attempt) / f"rank-{rank}.txt"

    @property
    def recorded(self) -> Path:
        """Folder of what NCCL's flight recorder held at a time-out; torch makes no folder for it."""
        return self.root / "flight-recorder"

    @property
    def resume(self) -> Path:
        """Symlink to the checkpoint in use."""
        return self.root / "resume"

    @property
    def cancelled(self) -> Path:
        """Once this exists nothing starts any more."""
        return self.root / "cancelled"

    @property
    def save_order(self) -> Path:
        """What ``gangrun checkpoint`` asks, as long as it waits for the answer."""
        return self.machine / "save-order.json"

    def resume_order(self, seq: int) -> Path:
        """What ``gangrun resume`` asks of job ``seq``."""
        return self.machine / f"resume-{seq}.json"

    def temporary(self, path: Path, nonce: str) -> Path:
        """A name beside ``path`` that nothing takes for the real one."""
        return path.with_name(f".{path.name}.{nonce}.tmp")


def make_run_id(wall: float, randomness: bytes) -> str:
    """``20261121-065001-k3f9x``: UTC, then a few random letters; sorts by time."""
    when = datetime.fromtimestamp(wall, tz=timezone.utc).strftime("%Y%m%d-%H%M%S")
    return f"{when}-{base64.b32encode(randomness).decode().lower()[:SUFFIX_BYTES]}"


def create_run(disk: Disk, runs_dir: Path, wall: float, randomness: Callable[[int], bytes]) -> RunPaths:
    """Make ``runs_dir`` where needed and a new private run directory in it."""
    _text_or_refuse(runs_dir)
    try:
        os.makedirs(runs_dir, mode=0o755, exist_ok=True)
        check_runs_dir(disk, runs_dir)
        for _ in range(16):
            paths = RunPaths(runs_dir / make_run_id(wall, randomness(SUFFIX_BYTES)))
            try:
                disk.mkdir(paths.root)
            except FileExistsError:
                continue
            try:
                _furnish(disk, paths)
            except OSError:
                shutil.rmtree(paths.root, ignore_errors=True)
                raise
            return paths
    except OSError as error:
        raise no_room(runs_dir, error) from error
    raise RunDirError(f"no free run id in {runs_dir}", "the source of randomness repeats itself")


def _furnish(disk: Disk, paths: RunPaths) -> None:
    for folder in (paths.machine, paths.keys, paths.terms, paths.journals, paths.jobs, paths.logs, paths.recorded):
        disk.mkdir(folder)
    for folder in (paths.machine, paths.root, paths.root.parent):
        disk.fsync_dir(folder)


def no_room(runs_dir: Path, error: OSError) -> RunDirError:
    """Why no run can be made there, and what to do."""
    hints = {
        errno.EROFS: "the file system is mounted read-only; choose another with --runs-dir",
        errno.ENOSPC: "the file system is full; free space there or choose another with --runs-dir",
        errno.EDQUOT: "your quota is used up; free space there or choose another with --runs-dir",
        errno.EACCES: "you may not write there; choose another with --runs-dir",
        errno.EPERM: "you may not write there; choose another with --runs-dir",
        errno.ENOTDIR: "a part of the path is a file; choose another with --runs-dir",
        errno.EEXIST: "a file of that name is in the way; choose another with --runs-dir",
        errno.ENAMETOOLONG: "the path is too long; choose a shorter one with --runs-dir",
    }
    hint = hints.get(error.errno or 0, "choose another place with --runs-dir")
    return RunDirError(f"cannot make a run directory in {runs_dir}: {error.strerror or error}", hint)


def _text_or_refuse(path: Path) -> None:
    try:
        str(path).encode("utf-8")
    except UnicodeEncodeError as error:
        raise RunDirError(f"{path!r} is not valid UTF-8", "choose a runs directory whose name is") from error


def check_runs_dir(disk: Disk, runs_dir: Path) -> None:
    """Refuse a folder in which anybody could swap our run directory for his own."""
    disk.lstat(runs_dir)
    facts = os.stat(runs_dir)
    if not stat.S_ISDIR(facts.st_mode):
        raise RunDirError(f"{runs_dir} is not a directory", "choose another with --runs-dir")
    if facts.st_mode & stat.S_IWOTH and not facts.st_mode & stat.S_ISVTX:
        raise RunDirError(
            f"{runs_dir} is world-writable: anybody could put his own run in place of yours",
            f"chmod o-w {runs_dir}, or choose another with --runs-dir",
        )


def check_private(disk: Disk, paths: RunPaths) -> None:
    """Refuse a run directory, or keys, that others can read or that are not ours."""
    if not disk.is_dir(paths.machine):
        raise RunDirError(f"{paths.root} is not a gangrun run directory", "there is no .gangrun folder in it")
    for folder in (paths.root, paths.machine, paths.keys):
        _private_or_refuse(disk, folder, 0o700)
    for name in disk.names(paths.keys):
        _private_or_refuse(disk, paths.keys / name, 0o600)
    if disk.exists(paths.spec):  # the user's environment is in it
        _private_or_refuse(disk, paths.spec, 0o600)


def _private_or_refuse(disk: Disk, path: Path, mode: int) -> None:
    try:
        facts = disk.lstat(path)
    except OSError as error:
        raise RunDirError(f"cannot look at {path}: {error.strerror}", "is this a gangrun run directory?") from error
    if stat.S_ISLNK(facts.st_mode):
        raise RunDirError(f"{path} is a symbolic link", "somebody may have redirected it; start a new run")
    if facts.st_uid != os.geteuid():
        raise RunDirError(
            f"{path} belongs to uid {facts.st_uid}, not to you (uid {os.geteuid()})",
            "only the owner of a run may steer it",
        )
    if facts.st_mode & 0o077:
        raise RunDirError(
            f"{path} has mode {stat.S_IMODE(facts.st_mode):04o}: others can reach the run's keys or state",
            f"chmod {mode:o} {path}, and take a new run if others may have read it",
        )


def write_spec(disk: Disk, paths: RunPaths, spec: wire_spec.RunSpec) -> None:
    """Once; a second time is refused."""
    try:
        disk.write_new(paths.spec, wire_spec.encode(spec))
        disk.fsync_dir(paths.machine)
    except FileExistsError as error:
        raise RunDirError(f"{paths.spec} is there already", "a spec is written once; start a new run") from error


def read_spec(disk: Disk, paths: RunPaths) -> wire_spec.RunSpec:
    """The spec; ``RunDirError`` if none can be had, ``SpecError`` if it makes no sense, ``OSError``: not known."""
    try:
        return wire_spec.decode(disk.read(paths.spec))
    except REFUSED as error:
        raise RunDirError(f"cannot read {paths.spec}: {error.strerror}", "is this a gangrun run directory?") from error


def write_submission(disk: Disk, paths: RunPaths, submission: wire_submission.Submission) -> None:
    """Once, before the first job is asked for."""
    disk.write_new(paths.submission, wire_submission.encode(submission))
    disk.fsync_dir(paths.machine)


def read_submission(disk: Disk, paths: RunPaths) -> wire_submission.Submission:
    """What Slurm is asked for; ``RunDirError`` where nobody wrote it, ``SubmissionError`` where it is damaged.

    ``OSError``: not known.
    """
    try:
        return wire_submission.decode(disk.read(paths.submission))
    except REFUSED as error:
        hint = "only gangrun submit writes it: was this run started otherwise?"
        raise RunDirError(f"cannot read {paths.submission}: {error.strerror}", hint) from error


class ResumeOrder(msgspec.Struct, frozen=True, kw_only=True):
    """What ``gangrun resume`` asks of the job that it starts."""

    schema: int = 1
    by: str
    request: str = "auto"
    restarts_max_count: int | None = None
    seq: int = 0  # of the job


def leave_resume_order(disk: Disk, paths: RunPaths, order: ResumeOrder) -> None:
    """Write it down for job ``order.seq``, whole or not at all."""
    target = paths.resume_order(order.seq)
    disk.replace(target, msgspec.json.encode(order) + b"\n", paths.temporary(target, "new"))
    disk.fsync_dir(paths.machine)


def read_resume_order(disk: Disk, paths: RunPaths, seq: int) -> ResumeOrder | None:
    """What was asked of this job; None: nothing, or nothing that makes sense. ``OSError``: not known."""
    try:
        return msgspec.json.decode(disk.read(paths.resume_order(seq)), type=ResumeOrder)
    except (FileNotFoundError, msgspec.MsgspecError):
        return None


def resume_order_seqs(paths: RunPaths) -> list[int]:
    """The jobs that ``gangrun resume`` asked something of."""
    numbers = (path.stem.removeprefix("resume-") for path in paths.machine.glob("resume-*.json"))
    return [int(number) for number in numbers if number.isdecimal()]


class SaveOrder(msgspec.Struct, frozen=True):
    """Who asks for a checkpoint now; ``key`` is different for each order. ``drain``: and wants this node left."""

    by: str
    key: str
    drain: str = ""


def leave_save_order(disk: Disk, paths: RunPaths, order: SaveOrder) -> None:
    """Write it down whole; it replaces one that somebody else still waits for."""
    disk.replace(paths.save_order, msgspec.json.encode(order) + b"\n", paths.temporary(paths.save_order, order.key))


def read_save_order(disk: Disk, paths: RunPaths) -> SaveOrder | None:
    """The newest order; None: there is none, or none that makes sense. ``OSError``: not known."""
    try:
        return msgspec.json.decode(disk.read(paths.save_order), type=SaveOrder)
    except (FileNotFoundError, msgspec.MsgspecError):
        return None


class NotificationLog(msgspec.Struct, frozen=True, kw_only=True):
    """What the notifiers of a run have told, one after the other; each news has a key."""

    schema: int = 1
    told: tuple[str, ...] = ()
    promised_end: float | None = None  # by the wall clock, to which a later estimate is compared
    failed: int = 0  # that no service took, however often it was tried
    why: str = ""  # of the newest of them


def note_notifications(disk: Disk, paths: RunPaths, log: NotificationLog) -> None:
    """Write it down whole."""
    target = paths.notifications
    disk.replace(target, msgspec.json.encode(log) + b"\n", paths.temporary(target, "new"))


def read_notifications(disk: Disk, paths: RunPaths) -> NotificationLog:
    """What is there; nothing was told yet if none can be read."""
    try:
        return msgspec.json.decode(disk.read(paths.notifications), type=NotificationLog)
    except (OSError, msgspec.MsgspecError):
        return NotificationLog()


def note_metrics_fault(disk: Disk, paths: RunPaths, why: str) -> None:
    """Write down why the figures are not served; "" if they are."""
    if why:
        disk.replace(paths.metrics_fault, why.encode(), paths.temporary(paths.metrics_fault, "new"))
        return
    with contextlib.suppress(FileNotFoundError):
        disk.unlink(paths.metrics_fault)


def read_metrics_fault(disk: Disk, paths: RunPaths) -> str:
    """Why the figures are not served; "" if nothing is known of that."""
    try:
        return disk.read(paths.metrics_fault).decode()
    except (OSError, UnicodeDecodeError):
        return ""


def write_notify_addresses(disk: Disk, paths: RunPaths, addresses: tuple[str, ...]) -> None:
    """Once, beside the keys, and as private."""
    disk.write_new(paths.notify_addresses, msgspec.json.encode(addresses) + b"\n")


def read_notify_addresses(disk: Disk, paths: RunPaths) -> tuple[str, ...]:
    """Where the run is told. ``OSError``, ``msgspec.MsgspecError``: they cannot be read."""
    return msgspec.json.decode(disk.read(paths.notify_addresses), type=tuple[str, ...])


class CancelMark(msgspec.Struct, frozen=True):
    """Who cancelled the run, and when by the wall clock. ``now``: all ranks are to be killed, without a grace."""

    by: str
    wall: float
    now: bool = False


def mark_cancelled(disk: Disk, paths: RunPaths, by: str, wall: float, *, now: bool = False) -> bool:
    """The first step of any cancel; False: somebody did it before."""
    try:
        fd = disk.create(paths.cancelled)
    except FileExistsError:
        return False
    # The name alone is the mark: what follows may fail on a full disk and it still holds.
    try:
        disk.write_all(fd, msgspec.json.encode(CancelMark(by, wall, now)) + b"\n", paths.cancelled)
        disk.fsync(fd, paths.cancelled)
        disk.fsync_dir(paths.root)
    except OSError:
        return True
    finally:
        disk.close(fd)
    return True


def read_cancelled(disk: Disk, paths: RunPaths) -> CancelMark | None:
    """The mark, or None if it is not there; one that is seen and cannot be read is a mark all the same.

    ``OSError``: nobody knows. Look again, and start nothing meanwhile.
    """
    try:
        return msgspec.json.decode(disk.read(paths.cancelled), type=CancelMark)
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError:
        return CancelMark("unknown", 0.0)
    except OSError:
        if not disk.exists(paths.cancelled):
            raise
        return CancelMark("unknown", 0.0)


def clear_cancelled(disk: Disk, paths: RunPaths) -> None:
    """``gangrun resume`` after a cancel, and nothing else, takes the mark away."""
    try:
        disk.unlink(paths.cancelled)
        disk.fsync_dir(paths.root)
    except FileNotFoundError:
        return

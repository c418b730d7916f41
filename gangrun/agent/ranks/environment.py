"""What a rank is given: its environment, name by name, and its small files in node-local memory.

Environment: torchrun's names, so that its scripts run unmodified; Slurm's names bent to the gang's shape, so that
libraries which read those see the same world; gangrun's own. What the user set stays, unless it would name another
rank. Nothing of it may be written to a disk: names like KEY or TOKEN travel by inheritance alone.

Files: none may be on a shared disk. A rank that dies writes here, the agent reads it at once, and a file server that
stands still must delay neither. What is worth keeping goes into the run directory later. An agent that dies with its
warden leaves its files behind; ``sweep`` finds those by the lock that nobody holds any more.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import shutil
import stat
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path

from gangrun.core.policy import TrendPolicy
from gangrun.core.recovery.gpu_rules import GpuUse
from gangrun.core.text import is_save_time
from gangrun.node import boot
from gangrun.node.boot_signals import SIGNALS_FILE, STACK_FILE
from gangrun.node.boot_standby import IMPORTS_FILE
from gangrun.wire.messages import Launch
from gangrun.wire.spec import (
    LOCAL_RANK,
    MASTER_ADDR,
    MASTER_PORT,
    NNODES,
    NODE_RANK,
    ON_RESIZE_NAMES,
    CheckpointSpec,
    LogSpec,
)

MEMORY = "memory"  # where a step that is in memory only is shown
HELD = ".held"  # locked by whoever uses the directory that it lies in: no lock outlives its process
HOLD_TRIES_COUNT, HOLD_AGAIN_S = 50, 0.02
_SWEPT = ".swept-"
VISIBLE = "CUDA_VISIBLE_DEVICES"
# An option of a launcher's that gangrun wrote, never a word of the user's script.
_PLACED = re.compile(
    r"(?P<option>--(?:local[-_]rank|nnodes|node-rank|machine_rank|num[-_](?:nodes|machines|processes)|main_process_ip"
    r"|(?:main|master)[-_](?:addr|address|port|process_port))=)"
    r"(?P<name>\{(?:LOCAL_RANK|NODE_RANK|MASTER_ADDR|MASTER_PORT|NNODES(?:\*(?P<times>\d+))?)\})"
)


@dataclass(frozen=True, slots=True)
class RankFiles:
    """The files of one rank."""

    slot: Path  # progress, see wire/progress.py
    error: Path  # node/boot.py's account of the exception that ended it
    torchelastic_error: Path  # the same by torch's ``record`` decorator, where the script uses it
    stack: Path  # faulthandler's dumps on request
    signals: Path  # grows when TERM, USR1 or USR2 meets a script without a handler of its own
    orders: Path  # one byte for each signal that the agent sends to the rank: its number
    place: Path  # where it stands, see node/place_page.py
    imports: Path  # installed modules that the script imports, for the rank's standby

    @classmethod
    def below(cls, directory: Path, rank: int) -> RankFiles:
        """Their names; none is created here."""
        stem = directory / f"rank-{rank}"
        return cls(
            slot=stem.with_suffix(".slot"),
            error=stem.with_suffix(".error.json"),
            torchelastic_error=stem.with_suffix(".torchelastic.json"),
            stack=stem.with_suffix(".stack"),
            signals=stem.with_suffix(".signals"),
            orders=stem.with_suffix(".orders"),
            place=stem.with_suffix(".place"),
            imports=stem.with_suffix(".imports"),
        )

    @property
    def script_ended(self) -> Path:
        """What node/boot.py makes once Python has run the script to its end, and all that was to follow it."""
        return Path(f"{self.error}.ended")


class AttemptFiles:
    """The directory of one attempt on one node; created empty, mode 0700."""

    def __init__(self, root: Path, run: str, node: str, attempt: int) -> None:
        top = top_of(root)
        self.base = top / run / node
        self.directory = self.base / str(attempt)
        # Somebody else's directory under our name would let them read and forge what ranks say.
        top.mkdir(mode=0o700, exist_ok=True)
        if not _is_ours(top):
            raise PermissionError(f"{top} belongs to another user: remove it")
        self._held = _hold(self.base)
        try:
            for left in _directories(self.base) if self._held >= 0 else (self.directory,):
                shutil.rmtree(left, ignore_errors=True)
            self.directory.mkdir(mode=0o700, parents=True)
        except OSError:
            self._let_go()
            raise

    def of(self, rank: int) -> RankFiles:
        """The names of one rank's files."""
        return RankFiles.below(self.directory, rank)

    def show(self, paths: Mapping[str, str]) -> Path:
        """A directory that has these files by name."""
        shown = self.directory / MEMORY
        shown.mkdir(mode=0o700)
        for name, path in paths.items():
            (shown / name).symlink_to(path)
        return shown

    def remove(self) -> None:
        """Take the directory away, and its parents if nothing else is in them."""
        shutil.rmtree(self.directory, ignore_errors=True)
        with contextlib.suppress(OSError):
            if self._held >= 0 and os.listdir(self.base) == [HELD]:
                (self.base / HELD).unlink()
            self.base.rmdir()
            self.base.parent.rmdir()
        self._let_go()

    def _let_go(self) -> None:
        held, self._held = self._held, -1
        if held >= 0:
            os.close(held)


def top_of(root: Path) -> Path:
    """Where all small files of this user lie on this node."""
    return root / f"gangrun-{os.getuid()}"


def _is_ours(directory: Path) -> bool:
    status = directory.lstat()
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()


def _hold(base: Path) -> int:
    """Lock ``base`` for as long as this process lives; -1 where another one has it, or locks do not work there."""
    for _ in range(HOLD_TRIES_COUNT):
        try:
            base.mkdir(mode=0o700, parents=True, exist_ok=True)
            fd = os.open(base / HELD, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except (FileNotFoundError, FileExistsError):  # it was there, and was swept meanwhile
            continue
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_still(fd, base / HELD):
                return fd
        except BlockingIOError:
            threading.Event().wait(HOLD_AGAIN_S)  # whoever sweeps has it for a moment only
        except OSError:
            os.close(fd)
            return -1
        os.close(fd)
    return -1


def _is_still(fd: int, path: Path) -> bool:
    """Is what was locked still what lies there?"""
    try:
        return os.path.samestat(os.fstat(fd), path.lstat())
    except OSError:
        return False


def sweep(root: Path) -> list[str]:
    """Remove what agents of this user left here that are gone; the runs' ids. Whatever is not surely left stays."""
    top = top_of(root)
    try:
        if not _is_ours(top):
            return []
        for entry in top.glob(f"{_SWEPT}*"):  # of a sweeper that was killed
            shutil.rmtree(entry, ignore_errors=True)
        bases = [base for run in _directories(top) for base in _directories(run)]
    except OSError:
        return []
    return sorted({base.parent.name for base in bases if _sweep_one(top, base)})


def _directories(parent: Path) -> Iterator[Path]:
    with os.scandir(parent) as entries:
        yield from (Path(entry) for entry in entries if entry.is_dir(follow_symlinks=False))


def _sweep_one(top: Path, base: Path) -> bool:
    try:
        fd = os.open(base / HELD, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False  # nobody says whose it is
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not _is_still(fd, base / HELD):
            return False
        away = top / f"{_SWEPT}{secrets.token_hex(6)}"
        base.rename(away)  # at once and whole: who takes the name now gets an empty directory
    except OSError:
        return False
    finally:
        os.close(fd)
    shutil.rmtree(away, ignore_errors=True)
    with contextlib.suppress(OSError):
        base.parent.rmdir()
    return True


JOB_ID = "SLURM_JOB_ID"
TAG = "GANGRUN_RANK_TAG"
_OF_THIS_RUN = (
    "GANGRUN_RESUME", "GANGRUN_RESUME_STEP", "GANGRUN_SAVE_SIGNAL", "GANGRUN_CHECKPOINT_DIR", "GANGRUN_MEMORY_PARITY",
    "GANGRUN_FLUSH_EVERY", "GANGRUN_PER_NODE", "GANGRUN_SKIP_BATCHES", "GANGRUN_COMPARES_SAVES", "GANGRUN_REPLAY_EVERY",
    "GANGRUN_COMPARES_DATA", "GANGRUN_RESUME_SHARED", IMPORTS_FILE,
)  # fmt: skip
_OF_A_RANK = (
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK",
    "ROLE_WORLD_SIZE", "ROLE_NAME", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS",
    "TORCHELASTIC_USE_AGENT_STORE",
)  # fmt: skip
_OF_A_GANG = (
    "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_ERROR_FILE", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID",
    "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NNODES", "SLURM_JOB_NUM_NODES", "SLURM_STEP_NUM_NODES",
    "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS_PER_NODE", "SLURM_TASKS_PER_NODE", "SLURM_STEP_TASKS_PER_NODE",
    "SLURM_GTIDS", "SLURM_NODELIST", "SLURM_JOB_NODELIST", "SLURM_STEP_NODELIST", "TORCH_FR_DUMP_TEMP_FILE",
    "TORCH_NCCL_DEBUG_INFO_TEMP_FILE",
)  # fmt: skip
BUFFER_SIZES = "TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"
DUMP_PREFIXES = "TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"
RECORDED_COUNT = "2000"  # entries, torch's own default since 2.9
ROLE = "default"
INTERNAL = ("GANGRUN_LEASE_FD", "GANGRUN_WARDEN_FD", "GANGRUN_AGENT_INCARNATION")


@dataclass(frozen=True, slots=True)
class GangSpec:
    """What stays the same over all attempts of a run on this node."""

    run: str
    node: str
    command: tuple[str, ...]
    through_boot: bool  # a Python script or module: starts through node/boot.py in ``interpreter``
    interpreter: str
    working_directory: str
    inherited: Mapping[str, str]  # the agent's own environment
    environment: Mapping[str, str]  # --env and --env-file
    local_root: Path  # node-local memory, see rank_env.shared_memory_root
    run_directory: Path
    log: LogSpec = field(default_factory=LogSpec)
    max_restarts_count: int = 0
    warden_pid: int = 0
    checkpoint: CheckpointSpec = field(default_factory=CheckpointSpec)
    save_signal: int = 0  # what the script saves on, 0: none
    per_node: bool = False  # the command starts the node's ranks
    full_world_size: int = 0
    on_resize: tuple[str, ...] = ()  # words for the command of a gang that is not of that size
    warm: bool = False  # standbys are kept
    shared_imports: Path | None = None  # where nodes tell each other what the script imports
    debug_rank: int | None = None
    terminal: str = ""  # of the person who debugs it, "": there is none on this node
    slots_count: int = 0  # GPUs of which each rank gets one, spare ones included; 0: ranks see what the agent sees
    gpus: Callable[[], tuple[str, ...]] = tuple  # what CUDA calls them, in the order of slots; (): not known
    gpu_use: Callable[[], dict[int, GpuUse]] = dict  # how they are used, by CUDA's number, if it was read since
    hang_watch: bool = True
    compares_saves: bool = False  # ranks look for silent corruption at each save
    replay_every_count: int = 0  # two ranks compute the same batch every so many steps; 0: never
    compares_data: bool = False  # rank 0 looks whether samples changed
    trends: TrendPolicy = field(default_factory=TrendPolicy)

    @property
    def is_warm(self) -> bool:
        """Whether its ranks can have standbys: only Python imports beforehand, and launchers start ranks themselves."""
        return self.warm and self.through_boot and not self.per_node


@dataclass(frozen=True, slots=True)
class RankPlace:
    """One rank of one attempt."""

    spec: GangSpec
    order: Launch
    local_rank: int

    @property
    def rank(self) -> int:
        """Its number in the world."""
        return self.order.ranks[self.local_rank]

    @property
    def is_sampled(self) -> bool:
        """Does a thread in it say where it stands? Of a launcher that would say nothing of its ranks."""
        return self.spec.hang_watch and self.spec.through_boot and not self.spec.per_node

    @property
    def argv(self) -> list[str]:
        """What is executed for it."""
        spec, here = self.spec, boot.__file__
        command = [self._own(word) for word in spec.command]
        if (argument := spec.checkpoint.resume_argument) and (path := self.order.resume_path):
            command += _resume_words(argument, path, self.order.resume_step)
        if spec.on_resize and self.order.world_size != spec.full_world_size:
            command += self._resize_words()
        if spec.through_boot:
            return [spec.interpreter, here, *command]
        return [sys.executable, "-E", "-s", "-S", here, "--exec", *command]

    def _resize_words(self) -> list[str]:
        """What ``--on-resize`` adds. ``factor`` is a whole number: scripts read it as a count of micro batches."""
        full, size = self.spec.full_world_size, self.order.world_size
        values = dict(zip(ON_RESIZE_NAMES, (size, full, self.order.nodes_count, -(-full // size)), strict=True))

        def filled(text: str, name: str) -> str:
            return text.replace(f"{{{name}}}", str(values[name]))

        return [reduce(filled, values, word) for word in self.spec.on_resize]

    def _own(self, word: str) -> str:
        """An option that a launcher adds to each rank's command (``--local_rank=3``), or is itself given per node."""
        told = _PLACED.fullmatch(word)
        if told is None:
            return word
        nodes = self.order.nodes_count
        if told["times"]:
            return f"{told['option']}{nodes * int(told['times'])}"
        values = {
            LOCAL_RANK: self.local_rank, NODE_RANK: self.order.node_rank, NNODES: nodes,
            MASTER_ADDR: self.order.master_addr, MASTER_PORT: self.order.master_port,
        }  # fmt: skip
        return f"{told['option']}{values[told['name']]}"

    @property
    def tag(self) -> str:
        """What marks it and every descendant of it."""
        return f"{tag_prefix(self.spec.run, self.spec.node)}{self.order.attempt}:{self.rank}"


def is_set_at_launch(name: str) -> bool:
    """Whether a variable is gangrun's own to set: it differs between attempts, and no library reads it from C while it
    is loaded. A change of any other one makes a standby stale.
    """
    return name.startswith("GANGRUN_") or name in _OF_A_RANK or name in _OF_A_GANG


def tag_prefix(run: str, node: str) -> str:
    """What all tags of this run on this node begin with."""
    return f"{run}:{node}:"


def inherited() -> dict[str, str]:
    """The agent's own environment, less what its warden gave it."""
    return {name: value for name, value in os.environ.items() if name not in INTERNAL}


def shared_memory_root() -> Path:
    """Where node-local small files go: memory if there is any, else the temporary directory."""
    for candidate in (os.environ.get("GANGRUN_LOCAL_DIR"), "/dev/shm", os.environ.get("TMPDIR"), "/tmp"):  # noqa: S108
        if candidate and os.access(candidate, os.W_OK | os.X_OK):
            return Path(candidate)
    return Path.cwd()


def _resume_words(argument: str, path: str, step: int) -> list[str]:
    """What the script is given to load this checkpoint."""
    if "{" in argument or ("=" in argument and not argument.endswith("=")):
        return [argument.replace("{path}", path).replace("{step}", str(step))]
    return [argument + path] if argument.endswith("=") else [argument, path]


def rank_environment(place: RankPlace, files: RankFiles, agent_pid: int) -> dict[str, str]:
    """All that the rank sees. What the user set with ``--env`` and ``--env-file`` wins over what is inherited."""
    spec, order, local_size = place.spec, place.order, len(place.order.ranks)
    environment = {**spec.inherited, **spec.environment}
    if local_size > 1:
        environment.setdefault("OMP_NUM_THREADS", "1")  # as torchrun: ranks that share a node must not flood it
    environment.setdefault("PYTHONUNBUFFERED", "1")
    environment.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
    _keep_collectives(environment, spec, order.attempt)
    if spec.replay_every_count:
        environment.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # else cuBLAS is not deterministic
    environment.update(_visible_gpus(place, environment))
    environment.update(_node_names(order) if spec.per_node else _torchrun_names(place, local_size))
    if spec.per_node:
        for name in _OF_A_RANK:
            environment.pop(name, None)
    environment["TORCHELASTIC_ERROR_FILE"] = str(files.torchelastic_error)
    if JOB_ID in environment:  # inside a job; SLURM_CONF alone says nothing
        environment.update(_slurm_names(environment, place, local_size))
    environment.update(
        {
            "GANGRUN_RUN": place.spec.run,
            "GANGRUN_ATTEMPT": str(order.attempt),
            "GANGRUN_TERM": str(order.term),
            "GANGRUN_FAILURES": str(order.failures_count),
            "GANGRUN_PROGRESS_SLOT": str(files.slot),
            "GANGRUN_ERROR_FILE": str(files.error),
            STACK_FILE: str(files.stack),
            SIGNALS_FILE: str(files.signals),
            "GANGRUN_ORDERS_FILE": str(files.orders),
            "GANGRUN_AGENT_PID": str(agent_pid),
            TAG: place.tag,
        }
    )
    for name in _OF_THIS_RUN:
        environment.pop(name, None)  # of a run in which this one was started, for all we know
    ours = {
        "GANGRUN_PLACE_PAGE": str(files.place) if place.is_sampled else "",
        "GANGRUN_SKIP_BATCHES": ",".join(f"{after}:{count}" for after, count in order.skip_batches),
        "GANGRUN_COMPARES_SAVES": "1" if spec.compares_saves else "",
        "GANGRUN_REPLAY_EVERY": str(spec.replay_every_count) if spec.replay_every_count else "",
        "GANGRUN_COMPARES_DATA": "1" if spec.compares_data else "",
        "GANGRUN_PER_NODE": "1" if spec.per_node else "",
        IMPORTS_FILE: str(files.imports) if spec.is_warm else "",
        "GANGRUN_MEMORY_PARITY": spec.checkpoint.memory_parity,
        "GANGRUN_FLUSH_EVERY": f"{spec.checkpoint.flushes_every_s:g}" if spec.checkpoint.flushes_every_s else "",
        "GANGRUN_SAVE_SIGNAL": str(spec.save_signal) if spec.save_signal else "",
        # without a resume point, it tells "begin anew" from "the supervisor has not looked"
        "GANGRUN_CHECKPOINT_DIR": spec.checkpoint.directory,
    }
    environment.update({name: value for name, value in ours.items() if value})
    if order.resume_path:
        environment.update(GANGRUN_RESUME=order.resume_path)
        if order.resume_memory is not None and order.resume_memory.is_shared:
            environment.update(GANGRUN_RESUME_SHARED="1")
        if not is_save_time(order.resume_step):
            environment.update(GANGRUN_RESUME_STEP=str(order.resume_step))
    return environment


def _keep_collectives(environment: dict[str, str], spec: GangSpec, attempt: int) -> None:
    """NCCL's flight recorder: on, written when a collective times out, and where the agent reads it. The first name of
    each is torch's from 2.8 on (``node/sampler.py`` gives older ones theirs); what the user set under any name stays.
    """
    prefix = str(spec.run_directory / "flight-recorder" / f"attempt-{attempt}-rank-")
    values = ((BUFFER_SIZES, RECORDED_COUNT), (DUMP_PREFIXES, prefix), (("TORCH_NCCL_DUMP_ON_TIMEOUT",), "1"))
    for names, value in values:
        if not any(name in environment for name in names):
            environment[names[0]] = value


def _visible_gpus(place: RankPlace, environment: Mapping[str, str]) -> dict[str, str]:
    """``CUDA_VISIBLE_DEVICES`` if ranks get some of the GPUs only: ``LOCAL_RANK`` counts the GPUs that it names."""
    spec, slots = place.spec, place.order.slots
    if not spec.slots_count or slots == tuple(range(spec.slots_count)):
        return {}
    given = [word.strip() for word in environment.get(VISIBLE, "").split(",") if word.strip()]
    names = given or list(spec.gpus())
    if len(names) < spec.slots_count or not all(names[slot] for slot in slots):
        names = [str(slot) for slot in range(spec.slots_count)]  # NVML has not told their UUIDs
    return {VISIBLE: ",".join(names[slot] for slot in slots)}


def _node_names(order: Launch) -> dict[str, str]:
    """What a launcher on one of several nodes needs; a rank's names would make it take itself for one."""
    return {
        "MASTER_ADDR": order.master_addr,
        "MASTER_PORT": str(order.master_port),
        "NODE_RANK": str(order.node_rank),
        "NNODES": str(order.nodes_count),
    }


def _torchrun_names(place: RankPlace, local_size: int) -> dict[str, str]:
    order = place.order
    return {
        "RANK": str(place.rank),
        "LOCAL_RANK": str(place.local_rank),
        "WORLD_SIZE": str(order.world_size),
        "LOCAL_WORLD_SIZE": str(local_size),
        "GROUP_RANK": str(order.node_rank),
        "GROUP_WORLD_SIZE": str(order.nodes_count),
        "ROLE_RANK": str(place.rank),
        "ROLE_WORLD_SIZE": str(order.world_size),
        "ROLE_NAME": ROLE,
        "MASTER_ADDR": order.master_addr,
        "MASTER_PORT": str(order.master_port),
        "TORCHELASTIC_RUN_ID": place.spec.run,
        "TORCHELASTIC_RESTART_COUNT": str(order.attempt),
        "TORCHELASTIC_MAX_RESTARTS": str(place.spec.max_restarts_count),
        "TORCHELASTIC_USE_AGENT_STORE": "False",  # rank 0 makes the store: a new one for each attempt
    }


def _slurm_names(environment: Mapping[str, str], place: RankPlace, local_size: int) -> dict[str, str]:
    """Slurm's variables in the gang's shape; what stood there before goes to ``GANGRUN_SLURM_*``."""
    order = place.order
    nodes = ",".join(order.nodes)
    per_node = f"{local_size}(x{order.nodes_count})" if order.nodes_count > 1 else str(local_size)
    ours = {
        "SLURM_PROCID": str(place.rank),
        "SLURM_LOCALID": str(place.local_rank),
        "SLURM_NODEID": str(order.node_rank),
        "SLURM_NTASKS": str(order.world_size),
        "SLURM_NPROCS": str(order.world_size),
        "SLURM_NNODES": str(order.nodes_count),
    }
    where_present = {
        "SLURM_JOB_NUM_NODES": str(order.nodes_count),
        "SLURM_STEP_NUM_NODES": str(order.nodes_count),
        "SLURM_STEP_NUM_TASKS": str(order.world_size),
        "SLURM_NTASKS_PER_NODE": str(local_size),
        "SLURM_TASKS_PER_NODE": per_node,
        "SLURM_STEP_TASKS_PER_NODE": per_node,
        "SLURM_GTIDS": ",".join(map(str, order.ranks)),
        "SLURM_NODELIST": nodes,
        "SLURM_JOB_NODELIST": nodes,
        "SLURM_STEP_NODELIST": nodes,
    }
    ours |= {name: value for name, value in where_present.items() if name in environment and value}
    originals = {f"GANGRUN_{name}": environment[name] for name in ours if name in environment}
    return ours | originals

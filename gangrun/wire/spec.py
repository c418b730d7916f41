"""What the user submitted: ``spec.json`` in the run directory, written once, read by every process."""

from __future__ import annotations

from typing import Any

import msgspec

from gangrun.core.policy import Policy

SCHEMA = 1
LOCAL_RANK = "{LOCAL_RANK}"  # what stands for it in a word that a launcher adds to the command of each rank
# the same in options that gangrun gives to a launcher which it starts once per node; {NNODES*8}: so many on each
NODE_RANK, NNODES, MASTER_ADDR, MASTER_PORT = "{NODE_RANK}", "{NNODES}", "{MASTER_ADDR}", "{MASTER_PORT}"
ON_RESIZE_NAMES = ("world_size", "full_world_size", "nodes", "factor")  # in braces, in what --on-resize adds


class SpecError(ValueError):
    """A spec that cannot be used; the message says why and what to do."""


class LogSpec(msgspec.Struct, frozen=True):
    """How rank output is kept; caps are per file."""

    per_rank: bool = False
    head_max_bytes: int = 64 * 1024 * 1024
    tail_max_bytes: int = 64 * 1024 * 1024


class CheckpointSpec(msgspec.Struct, frozen=True):
    """Where the script keeps its checkpoints; ``directory`` "" means none that gangrun knows of."""

    directory: str = ""
    pattern: str = r"step-(\d+)"
    file: str = ""  # in it, the one that the script overwrites with each save; "": the pattern's directories
    copies_count: int = 0  # of that file, kept by gangrun
    framework: str = ""  # which saves there, by the name of its file in ``frameworks``, or "auto"; "": nobody said
    resume_argument: str = ""  # the option of the script that loads the path after it; "": it has none
    look_every_s: float = 10.0
    validator: tuple[str, ...] = ()  # a command of the user's, as argv
    validator_within_s: float = 600.0
    reading_share_bytes: int = 256 * 1024 * 1024  # what each node reads at least, where several read; 0: one reads all
    memory: bool = False  # steps are kept in the nodes' memory too, and brought to the disk when ranks die
    flush_every_s: float = 300.0  # so long without news on disk, and agents write there what is in memory; 0: never
    memory_limit_bytes: int = 0  # per node; 0: a quarter of what it has
    memory_parity: str = ""  # "8+2": groups of 10 nodes, any 2 of which may be lost; "": each node's part is copied

    @property
    def looks_every_s(self) -> float:
        """How often the supervisor looks for newer checkpoints; 0: there is no directory to look into."""
        return self.look_every_s if self.directory else 0.0

    @property
    def flushes_every_s(self) -> float:
        """``flush_every_s``, or 0 if no steps are kept in memory."""
        return self.flush_every_s if self.memory else 0.0


class HealthSpec(msgspec.Struct, frozen=True):
    """How nodes are watched while the run lives; ``bounds`` are those of the health policy that somebody set."""

    enabled: bool = True
    bounds: dict[str, float | int | tuple[str, ...]] = {}
    off: tuple[str, ...] = ()  # checks that are not made
    commands: dict[str, Any] = {}  # the site's own checks, as ``[health.commands]`` has them


# "attention": a person must do something; such news is never held back
NEWS = ("started", "recovered", "attention", "finished", "eta")


class NotifySpec(msgspec.Struct, frozen=True):
    """What people are told of the run, and by which services; their addresses hold tokens and lie with the keys."""

    services: tuple[str, ...] = ()  # the scheme of each address, such as "slack"
    on: tuple[str, ...] = NEWS
    every_s: float = 300.0  # at most one message of each kind


class MetricsSpec(msgspec.Struct, frozen=True):
    """Where the run's figures are served for Prometheus, beside its owner; ``port`` None: nowhere."""

    port: int | None = None
    address: str = "127.0.0.1"


class JobLine(msgspec.Struct, frozen=True):
    """What the shell of one job makes of the run's command, and where it stood then."""

    directory: str
    words: tuple[str, ...]


class RunSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One run as it was asked for."""

    schema: int = SCHEMA
    run: str
    name: str
    world: str  # "local" | "slurm"
    command: tuple[str, ...]  # argv as the ranks are to run it
    python: bool  # starts through node/boot.py
    shell: bool = False  # a batch script of the user's makes each job's command and directory: here is how it reads
    per_node: bool = False  # a rank is all of its node: the command, mostly a launcher, starts the real ones
    warm: bool = True  # each node keeps standbys: interpreters that have imported the ranks' modules
    debug_rank: int | None = None  # has the terminal of the process that owns the run
    save_signal: str = ""  # what the script saves on ("USR1"), sent to each rank before a stop in which it may save
    working_directory: str
    nodes: tuple[str, ...]  # local hosts by name; under a scheduler each job has its own
    nodes_count: int = 0  # as many as hold ranks; 0: as many as ``nodes`` names
    spares_count: int = 0  # so many more are asked for, and hold none until one is needed
    nodes_min_count: int
    slots_per_node: int
    ranks_per_slot: int
    spare_slots_count: int = 0  # of each node, which hold no rank until one is needed
    slots_min_per_node: int = 0  # so many are enough if slots break; 0: all of them are needed
    world_multiple: int = 1  # the number of ranks is always a multiple of it; nodes that do not fit stay spares
    on_resize: tuple[str, ...] = ()  # what the command gets besides, if there are more or fewer ranks than asked for
    rank_per_gpu: bool = False  # a slot is a GPU: one that breaks is left out, and not its node
    total_steps: int = 0  # of the whole run; 0: as the script tells, if it does
    resume: str = "auto"  # auto | none | a step | a path
    checkpoint: CheckpointSpec = CheckpointSpec()
    log: LogSpec = LogSpec()
    health: HealthSpec = HealthSpec()
    policy: Policy = Policy()
    notify: NotifySpec = NotifySpec()
    metrics: MetricsSpec = MetricsSpec()
    environment: dict[str, str] = {}  # --env and --env-file, secrets left out
    secret_names: tuple[str, ...] = ()  # names whose values travel by inheritance only
    created_wall: float = 0.0
    created_by: str = ""
    gangrun_version: str = ""

    def with_line(self, line: JobLine) -> RunSpec:
        """The spec with what the shell of a job made of command and directory."""
        return msgspec.structs.replace(self, command=line.words, working_directory=line.directory)

    @property
    def full_world_size(self) -> int:
        """How many ranks there are if no node and no slot is missing."""
        return (self.nodes_count or len(self.nodes)) * self.slots_per_node * self.ranks_per_slot

    @property
    def is_scheduled(self) -> bool:
        """Do its nodes come from a scheduler, job by job?"""
        return self.world == "slurm"


def encode(spec: RunSpec) -> bytes:
    """As indented JSON, for people too."""
    return msgspec.json.format(msgspec.json.encode(spec), indent=2) + b"\n"


def decode(data: bytes) -> RunSpec:
    """Read a spec; ``SpecError`` with the reason if it is torn, misshapen or newer."""
    try:
        raw = msgspec.json.decode(data)
        schema = raw.get("schema") if isinstance(raw, dict) else None
        if isinstance(schema, int) and schema > SCHEMA:
            raise SpecError(f"spec has schema {schema}, newer than this gangrun's {SCHEMA}: upgrade gangrun")
        return msgspec.convert(raw, RunSpec)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise SpecError(f"spec.json is not a run's spec: {error}") from error

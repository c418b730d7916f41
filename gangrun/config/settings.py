"""Every setting of a run: its name, its kind of value, its default, where it goes, what it means.

One row makes the flag, the ``GANGRUN_*`` variable, the key in ``gangrun.toml``, the line in ``gangrun config`` and the
row in ``docs/operating.md``. ``into`` names the field of ``RunSpec`` that a value fills, with the same default (a test
keeps them equal: to load those structs would cost every ``--help``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from gangrun.config import parsers
from gangrun.config.environment import RUNS_DIR
from gangrun.config.health_table import HealthTable, health_table

Words = tuple[str, ...] | Callable[[], tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class ValueKind:
    """What values a setting takes."""

    parse: parsers.Parser
    metavar: str = ""
    unit: str = ""
    words: Words = ()  # what may be completed on the command line


SWITCH = ValueKind(parsers.switch)
NAME = ValueKind(parsers.text, "NAME")
DIRECTORY = ValueKind(parsers.text, "DIR")
COMMAND = ValueKind(parsers.command, "COMMAND")
COUNT = ValueKind(parsers.whole(0), "N", "count")
NODES = ValueKind(parsers.whole(1), "K", "nodes")
STEPS = ValueKind(parsers.whole(0), "STEPS", "steps")
TIME = ValueKind(parsers.span_s, "TIME", "s")
SIZE = ValueKind(parsers.size_bytes, "SIZE", "bytes")
POSITIVE_TIME = ValueKind(parsers.positive_span_s, "TIME", "s")
PATTERN = ValueKind(parsers.step_pattern, "REGEX")
RANKS = ValueKind(parsers.ranks_per_node, "N|MIN:MAX|auto|gpu|cpu", "ranks", ("auto", "gpu", "cpu"))
RESUME = ValueKind(parsers.resume_request, "auto|none|STEP|PATH", "", ("auto", "none"))
SIGNAL = ValueKind(parsers.save_signal, "SIG", "", parsers.SAVE_SIGNALS)
PROTECTION = ValueKind(parsers.memory_protection, "copy|K+M", "", ("copy",))
TRAINING, PLACES, CHECKPOINTS = "Training", "Nodes and Slurm", "Checkpoints"
RECOVERY, HEALTH, OUTPUT = "Recovery", "Health", "Output"
NOTIFY_ON = ("started", "recovered", "attention", "finished", "eta")
GROUPS = (TRAINING, PLACES, CHECKPOINTS, RECOVERY, HEALTH, OUTPUT)


@dataclass(frozen=True, slots=True)
class Setting:
    """One row."""

    name: str  # as in gangrun.toml
    kind: ValueKind
    group: str
    about: str  # verb first or a noun phrase, without the default
    default: Any = None
    into: str = ""
    told_default: str = ""  # in words, where the value alone does not say it
    zero: str = ""  # what 0 means
    many: bool = False  # may be given several times
    secret: bool = False  # its value is kept with the keys, and shown nowhere
    flags: tuple[str, ...] = ()  # other spellings of the flag
    in_files_only: bool = False  # a table: no flag and no variable

    @property
    def flag(self) -> str:
        """As on the command line."""
        return "--" + self.name.replace("_", "-")

    @property
    def default_words(self) -> str:
        """The default as help and docs show it, "" where there is nothing to say."""
        if self.told_default or self.default in (None, "", ()) or isinstance(self.default, bool | HealthTable):
            return self.told_default
        value = self.default.value if isinstance(self.default, Enum) else self.default
        if self.kind.unit == "s":
            return f"{value / 60:g}m" if value >= 120 and not value % 60 else f"{value:g}s"
        return f"{value >> 20}M" if self.kind is SIZE else str(value)

    @property
    def help(self) -> str:
        """For ``--help``."""
        notes = [f"default {self.default_words}"] if self.default_words else []
        notes += [f"0 = {self.zero}"] if self.zero else []
        return self.about + (f" ({'; '.join(notes)})." if notes else ".")


SETTINGS: tuple[Setting, ...] = (
    Setting("nproc_per_node", RANKS, TRAINING, "Ranks per node", told_default="one per GPU, else 1"),
    Setting(
        "spare_gpus", COUNT, PLACES, "GPUs of this machine that stay free and replace GPUs that break", 0,
        "spare_slots_count",
    ),
    Setting(
        "total_steps", STEPS, TRAINING, "Steps of the whole run; exit code 0 before them is not the end", 0,
        "total_steps", told_default="as the script prints",
    ),
    Setting(
        "per_node", SWITCH, TRAINING, "Run COMMAND once per node, such as a launcher that starts the ranks", False,
        "per_node",
    ),
    Setting("nodes", NODES, PLACES, "Nodes that hold ranks", 1),
    Setting("min_nodes", NODES, PLACES, "Minimum nodes to continue with after nodes are lost", told_default="all"),
    Setting(
        "world_multiple_of", ValueKind(parsers.whole(1), "K", "ranks"), PLACES,
        "The number of ranks stays a multiple of K, such as TP times PP", 1, "world_multiple",
    ),
    Setting(
        "on_resize", ValueKind(parsers.resize_words, "ARGS"), PLACES,
        "Extra script arguments on fewer ranks than asked; {world_size} and {factor} are filled in", (), "on_resize",
    ),
    Setting("local_hosts", SWITCH, PLACES, "Simulate the nodes on this machine, one agent each", False),
    Setting(
        "max_jobs", COUNT, RECOVERY, "Slurm jobs that the run may use in all, the first one included",
        0, "policy.jobs_max_count", zero="no limit",
    ),
    Setting(
        "total_time", TIME, RECOVERY, "Training time of the run over all jobs; then the ranks save and it ends",
        0.0, "policy.total_time_s", zero="no limit",
    ),
    Setting(
        "refill", ValueKind(parsers.refill, "off|spare|wait:MINUTES", "", (*parsers.REFILLS, "wait:")), RECOVERY,
        "Slurm: replace missing nodes by one-node jobs; wait = hold the other nodes meanwhile",
        None, "policy.refill_wait_s", told_default="off",
    ),
    Setting(
        "max_restarts", COUNT, RECOVERY, "Restarts allowed for the same cause before progress resets the count",
        3, "policy.restarts_max_count",
    ),
    Setting(
        "grow_every", TIME, RECOVERY, "After a start, time until a run on fewer nodes may be stopped to grow",
        600.0, "policy.grow_every_s", zero="grow at restarts only",
    ),
    Setting("checkpoint_dir", DIRECTORY, CHECKPOINTS, "Directory in which the script saves its checkpoints", ""),
    Setting(
        "checkpoint_pattern", PATTERN, CHECKPOINTS, "Pattern of checkpoint directory names; its group is the step",
        r"step-(\d+)", "checkpoint.pattern",
    ),
    Setting(
        "framework", ValueKind(parsers.framework, "auto|NAME", "", parsers.framework_names), CHECKPOINTS,
        "Framework that saves there, such as hf; auto = tell it by the names", "", "checkpoint.framework",
    ),
    Setting(
        "resume_argument", ValueKind(parsers.text, "ARGUMENT"), CHECKPOINTS,
        "Argument of the script that loads a checkpoint; gangrun adds it with the path", "",
        told_default="the framework's",
    ),
    Setting(
        "checkpoint_file", ValueKind(parsers.text, "FILE"), CHECKPOINTS,
        "File that the script overwrites with each save; a path, or a name in --checkpoint-dir", "",
    ),
    Setting(
        "keep_copies", COUNT, CHECKPOINTS, "Older copies of --checkpoint-file to keep, each as large as the file",
        0, "checkpoint.copies_count", zero="none",
    ),
    Setting(
        "reading_share", SIZE, CHECKPOINTS, "Minimum bytes per node when nodes verify a checkpoint in parallel",
        256 << 20, "checkpoint.reading_share_bytes", zero="one node reads all",
    ),
    Setting(
        "memory_checkpoints", SWITCH, CHECKPOINTS, "Keep checkpoints in node memory between saves to disk",
        False, "checkpoint.memory",
    ),
    Setting(
        "flush_every", TIME, CHECKPOINTS, "Write the newest in-memory checkpoint to disk if none reached it for TIME",
        300.0, "checkpoint.flush_every_s", zero="never",
    ),
    Setting(
        "memory_limit", SIZE, CHECKPOINTS, "Memory per node for checkpoints", 0, "checkpoint.memory_limit_bytes",
        told_default="a quarter of the node",
    ),
    Setting(
        "memory_protection", PROTECTION, CHECKPOINTS,
        "Protect in-memory checkpoints with a copy, or with parity such as 8+2", "copy",
    ),
    Setting(
        "validator", COMMAND, CHECKPOINTS, "Command that checks a checkpoint directory; exits 0 if valid, 1 if not",
        (), "checkpoint.validator",
    ),
    Setting(
        "validator_timeout", POSITIVE_TIME, CHECKPOINTS,
        "Time limit for the validator; on timeout its verdict is ignored", 600.0, "checkpoint.validator_within_s",
    ),
    Setting(
        "poison_after", STEPS, RECOVERY, "Suspect the checkpoint if the run fails within STEPS of loading it",
        10, "policy.poison_after_steps", zero="off",
    ),
    Setting(
        "poison_times", ValueKind(parsers.whole(2, "one failure proves nothing"), "N", "count"), RECOVERY,
        "Identical failures before falling back to the previous checkpoint", 2, "policy.poison_times_count",
    ),
    Setting(
        "on_anomaly", ValueKind(parsers.on_anomaly, "alert|checkpoint|rollback", "", parsers.ON_ANOMALY), RECOVERY,
        "Action if the loss stays NaN or far too high; checkpoint saves and stops",
        "alert", "policy.on_anomaly",
    ),
    Setting(
        "skip_batches", COUNT, RECOVERY, "Global batches to leave out around the anomaly after a rollback",
        0, "policy.skip_batches_count", zero="none",
    ),
    Setting(
        "sdc_check", ValueKind(parsers.sdc_check, "off|saves|every=N", "", parsers.SDC_CHECK), RECOVERY,
        "Compare copies of weights at each save; every=N also replays a batch every N steps",
        "off", "policy.sdc_check",
    ),
    Setting(
        "data_checksums", ValueKind(parsers.data_checksums, "off|alert|stop", "", parsers.DATA_CHECKSUMS), RECOVERY,
        "Action if samples changed since the checkpoint that ranks resume from",
        "off", "policy.data_checksums",
    ),
    Setting(
        "trend_window", TIME, RECOVERY, "Alert on slow ranks, slow training or growing memory seen for TIME",
        600.0, "policy.trends.window_s", zero="never",
    ),
    Setting(
        "on_slow_rank", ValueKind(parsers.on_slow_rank, "alert|move", "", parsers.ON_SLOW_RANK), RECOVERY,
        "Action on a rank that slows all down; move takes a spare at a checkpoint",
        "alert", "policy.on_slow_rank",
    ),
    Setting(
        "race_stragglers", SWITCH, RECOVERY, "Move a slow node's ranks to a spare, and compare the speed on both",
        False, "policy.race_stragglers",
    ),
    Setting(
        "memory_within", TIME, RECOVERY, "Alert if memory, /dev/shm, open files or threads run out within TIME",
        3600.0, "policy.trends.full_within_s", zero="never",
    ),
    Setting("runs_dir", DIRECTORY, OUTPUT, "Directory that holds the run directories", RUNS_DIR),
    Setting("profile", NAME, PLACES, "Named group of settings: [profiles.NAME] of a file, or a100, h100 or b200", ""),
    Setting("name", NAME, OUTPUT, "Name of the run", "", told_default="the script's"),
    Setting("resume", RESUME, CHECKPOINTS, "Checkpoint that the first attempt resumes from", "auto", into="resume"),
    Setting(
        "hang_timeout", TIME, RECOVERY, "Treat no progress for TIME as a hang", None, "policy.hang.timeout_s",
        told_default="learned from the run", zero="never",
    ),
    Setting(
        "settle", TIME, RECOVERY, "Once a rank fails, time for others to report their own error before SIGTERM",
        0.3, "policy.settle_s", zero="off",
    ),
    Setting("stop_grace", TIME, RECOVERY, "Time between SIGTERM and SIGKILL", 10.0, "policy.stop_grace_s"),
    Setting(
        "peer_gone_grace", TIME, RECOVERY, "The same once a rank is gone; --stop-grace if the script saves when asked",
        1.0, "policy.peer_gone_grace_s",
    ),
    Setting(
        "checkpoint_grace", TIME, CHECKPOINTS, "Time to save before a stop, for scripts that save when asked",
        60.0, "policy.checkpoint_grace_s",
    ),
    Setting(
        "save_signal", SIGNAL, CHECKPOINTS, "Signal that makes the script save, such as USR1", "", into="save_signal"
    ),
    Setting(
        "save_lead", TIME, CHECKPOINTS, "Ask ranks to save this long before the time limit", None, "policy.save_lead_s",
        told_default="checkpoint_grace",
    ),
    Setting("join_within", TIME, RECOVERY, "Time limit for nodes to connect", told_default="60s; in a Slurm job 5m"),
    Setting(
        "silence_after", TIME, RECOVERY, "Suspect a node without a heartbeat for TIME",
        2.0, "policy.timing.silence_after_s",
    ),
    Setting(
        "fence_after", TIME, RECOVERY, "A node that hears no supervisor for TIME kills its own ranks",
        30.0, "policy.timing.fence_after_s",
    ),
    Setting(
        "replica_ranks", COUNT, RECOVERY, "Consecutive ranks that complete steps without the others, as in local SGD",
        0, "policy.replica_ranks_count", told_default="the whole gang",
    ),
    Setting(
        "saves_with", ValueKind(parsers.savers, "checkpointer|rank0|all", "", parsers.SAVERS), CHECKPOINTS,
        "Which ranks write checkpoints by themselves; checkpointer = none",
        None, "policy.saves_with", told_default="told by the checkpoints",
    ),
    Setting("observe", SWITCH, RECOVERY, "Decide and report, but stop and restart nothing", False, "policy.observe"),
    Setting(
        "no_warm", SWITCH, RECOVERY, "Keep no standby processes; after a failure each rank imports all modules again",
        False,
    ),
    Setting("no_health", SWITCH, HEALTH, "Do not check hardware before and during the run", False),
    Setting(
        "health", ValueKind(health_table), HEALTH, "Table [health]: limits of the checks", HealthTable(),
        in_files_only=True,
    ),
    Setting(
        "notify", ValueKind(parsers.notify_addresses, "URL"), OUTPUT,
        "Address of a service that is told of the run, as apprise has it; repeatable", (), many=True, secret=True,
    ),
    Setting(
        "notify_on", ValueKind(parsers.notify_kinds, "KIND,...", "", parsers.news_names), OUTPUT,
        "News to tell: started, recovered, attention, finished, eta", NOTIFY_ON, "notify.on", told_default="all",
    ),
    Setting(
        "notify_every", TIME, OUTPUT, "Send at most one message per kind in TIME; attention is never held back",
        300.0, "notify.every_s", zero="each at once",
    ),
    Setting(
        "metrics_port", ValueKind(parsers.port, "PORT"), OUTPUT,
        "Serve figures for Prometheus on PORT of this host (`submit`: of the first node)", None, "metrics.port",
        told_default="none",
    ),
    Setting(
        "metrics_address", ValueKind(parsers.word, "ADDRESS"), OUTPUT,
        "Address that --metrics-port listens on; 0.0.0.0 = all of the host's", "127.0.0.1", "metrics.address",
        told_default="127.0.0.1, that host only",
    ),
    Setting("log_per_rank", SWITCH, OUTPUT, "Also write a log file for each rank", False, "log.per_rank"),
)  # fmt: skip

"""What Slurm can be asked for: the rows beside those of every run.

Texts go to Slurm as they are and it judges them; nothing asked means the site's default. ``--sbatch`` and ``--srun``
pass on what has no row here, except what would break a run: each such word is refused with the reason.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from gangrun.config import parsers
from gangrun.config.parsers import BadValue
from gangrun.config.settings import PLACES, RECOVERY, SETTINGS, SWITCH, Setting, ValueKind
from gangrun.wire.submission import Requeue

Pair = tuple[str, str | None]
REQUEUE = tuple(one.value for one in Requeue)
_KEY = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_SHARE = re.compile(r"\d+(\.\d+)?")
_GPU = re.compile(r"(?:gres[:/])?gpu(?::[^:,()]+?)??(?::(\d+))?(?:\(.*\))?")


def _refusals(*rows: tuple[str, str]) -> dict[str, str]:
    """Each option by its name, from (options, why they are not passed on)."""
    return {name: why for names, why in rows for name in names.split()}


_ONE_TASK = "one task on each node starts all ranks there"
_RANKS = f"{_ONE_TASK}; see --nproc-per-node"
_FILES = ("output error open-mode", "gangrun writes the output of jobs to logs/ in the run directory")
_START = ("chdir", "ranks start in the directory from which you call gangrun submit")
_END = "gangrun decides when a job ends and what comes after it"
_BOTH = (_FILES, _START, ("input", "ranks have no standard input"), ("help usage", "see gangrun submit --help"))
SBATCH_REFUSED = _refusals(
    *_BOTH,
    ("array", "a run is one job at a time; submit several runs instead"),
    ("signal", "gangrun tells ranks itself: see --save-signal and --save-lead"),
    ("comment", "gangrun finds its jobs by their comment"),
    ("job-name", "gangrun finds its jobs by this name; use gangrun's own -J to name the run"),
    ("wrap", "give the command at the end instead"),
    ("no-kill kill-on-invalid-dep", _END),
    ("requeue", "use --requeue same-job"),
    ("no-requeue", "use --requeue resubmit, or none"),
    ("ntasks ntasks-per-node ntasks-per-core ntasks-per-socket ntasks-per-gpu tasks-per-node overcommit", _RANKS),
    ("gpus-per-task", f"{_ONE_TASK}; use --gpus-per-node"),
    ("export", "the job gets your environment, the only way by which secrets reach ranks; see --env"),
    ("export-file", "the job gets your environment; see --env-file"),
    ("clusters cluster", "a run stays in one cluster; call gangrun submit there"),
    ("wait", "use gangrun submit --wait"),
    ("parsable", "use gangrun submit --json"),
    ("test-only", "use gangrun submit --dry-run"),
    ("version", "see sbatch --version"),
    ("ignore-pbs", "gangrun writes the batch script"),
)
SRUN_REFUSED = _refusals(
    *_BOTH,
    ("nodes ntasks ntasks-per-node tasks-per-node nodelist exclude relative distribution multi-prog overcommit",
     _ONE_TASK),
    ("label", _FILES[1]),
    ("no-kill kill-on-bad-exit wait signal immediate deadline epilog", _END),
    ("jobid", "gangrun starts the step in its own job"),
    ("overlap", "gangrun sets it if it is needed"),
    ("pty", "ranks have no terminal"),
    ("export", "ranks get the job's environment; see --env"),
    ("job-name comment", "gangrun sets it for the job"),
    ("prolog", "use --setup"),
    ("version", "see srun --version"),
    ("cpu-bind", "gangrun binds no rank to CPUs; do it in your script if you want it"),
)  # fmt: skip


def _cpus(value: object) -> str:
    return "" if value == "" else str(parsers.whole(1)(value))


def _requeue(value: object) -> Requeue:
    return Requeue(parsers.one_of(*REQUEUE)(value))


def sbatch_pairs(value: object) -> tuple[Pair, ...]:
    """What --sbatch passes on; ``BadValue`` if it would break a run, or has an option of its own."""
    own = {row.flag[2:]: f"use {row.flag}" for row in SLURM_SETTINGS if row.name in _FOR_SLURM}
    own |= {"nodes": "use -N", "gpus": "use --gpus-per-node", "dependency": "use -d"}
    return _pairs(value, {**own, **SBATCH_REFUSED})


def srun_pairs(value: object) -> tuple[Pair, ...]:
    """What --srun passes on; ``BadValue`` if it would break a run."""
    return _pairs(value, SRUN_REFUSED)


def _pairs(value: object, refused: dict[str, str]) -> tuple[Pair, ...]:
    """From ["a=b", "c"], "a=b" and, in a file, {a = "b", c = true}."""
    found: dict[str, str | None] = {}
    for key, given in _split(value):
        name = key.strip().lstrip("-").replace("_", "-").lower()
        if not _KEY.fullmatch(name) or len(name) < 2:
            raise BadValue(f"{key!r} is not an option", "write KEY=VALUE with its long name, such as mail-type=END")
        if name in refused:
            raise BadValue(f"{name} is not passed on", refused[name])
        found[name] = given
    return tuple(found.items())


def _split(value: object) -> Iterable[Pair]:
    if isinstance(value, dict):
        for key, given in value.items():
            if given is not False:
                yield str(key), None if given is True else parsers.word(given)
        return
    for one in parsers.shell_lines(value):
        if "\n" in one:
            raise BadValue(f"{one!r} holds a line break")
        key, equals, given = one.partition("=")
        yield key, given if equals else None


def gpus_count(gpus_per_node: str, gres: str) -> int:
    """GPUs of a node as asked for: "8", "a100:4", or "gpu:a100:8,ssd:1"; 0 where none, or where it does not say."""
    total = 0
    for part in gpus_per_node.split(","):
        number = part.rpartition(":")[2].strip()
        total += int(number) if number.isdecimal() and number.isascii() else 0
    if total:
        return total
    for part in gres.split(","):
        match = _GPU.fullmatch(part.strip())
        if match:
            total += int(match.group(1)) if match.group(1) else 1
    return total


def spares(value: object) -> int | str:
    """A number of nodes, or a share of those that hold ranks, such as ``5%``."""
    share = str(value).strip().removesuffix("%").strip()
    if not str(value).strip().endswith("%"):
        return int(parsers.whole(0, "or a share of the nodes, such as 5%")(value))
    if not _SHARE.fullmatch(share) or float(share) > 100:
        hint = "give one from 0% to 100%, such as 5%, or a number of nodes"
        raise BadValue(f"{value!r} is not a share of the nodes", hint)
    return f"{share}%"


def spares_count(asked: int | str, nodes_count: int) -> int:
    """So many spares as ``--spares`` asks for beside so many nodes; a share is rounded up."""
    if isinstance(asked, int):
        return asked
    from fractions import Fraction  # not for --help; exact, since a share is rounded up

    return math.ceil(nodes_count * Fraction(asked.removesuffix("%")) / 100)


def _text(name: str, metavar: str, about: str, *flags: str) -> Setting:
    return Setting(name, ValueKind(parsers.word, metavar), PLACES, about, "", f"submission.{name}", flags=flags)


def _pairs_row(name: str, parse: parsers.Parser) -> Setting:
    about = f"Pass an option on to {name} that gangrun does not have; repeatable"
    return Setting(name, ValueKind(parse, "KEY=VALUE"), PLACES, about, (), f"submission.{name}", many=True)


SPARES = ValueKind(spares, "K|P%", "count or % of the nodes")

SLURM_SETTINGS: tuple[Setting, ...] = (
    Setting("spares", SPARES, PLACES, "Extra nodes of the job that replace broken ones", 0),
    _text("gpus_per_node", "[TYPE:]N", "GPUs to ask Slurm for on each node"),
    _text("gres", "LIST", "Other resources per node, such as gpu:8"),
    _text("partition", "NAMES", "Partitions to queue in", "-p"),
    _text("account", "NAME", "Account that is charged", "-A"),
    _text("qos", "NAME", "Quality of service", "-q"),
    _text("time", "TIME", "Time limit in Slurm's format: 90 (minutes), 1-12:00:00 (days-hours)", "-t"),
    _text("exclude", "NODES", "Nodes never to use, besides those that gangrun excludes", "-x"),
    _text("nodelist", "NODES", "Nodes that the job must include", "-w"),
    _text("constraint", "FEATURES", "Features that nodes must have", "-C"),
    Setting(
        "cpus_per_task", ValueKind(_cpus, "N", "CPUs"), PLACES, "CPUs per node, shared by its ranks", "",
        "submission.cpus_per_task", flags=("-c",),
    ),
    _text("mem", "SIZE", "Memory per node"),
    Setting("exclusive", SWITCH, PLACES, "Do not share nodes with other jobs", False, "submission.exclusive"),
    _text("reservation", "NAME", "Reservation whose nodes to use"),
    _text("dependency", "LIST", "Jobs that the first job waits for, such as afterok:17", "-d"),
    _pairs_row("sbatch", sbatch_pairs),
    _pairs_row("srun", srun_pairs),
    Setting(
        "setup", ValueKind(parsers.shell_lines, "LINE"), PLACES,
        "Shell command to run first in every job, such as module load; repeatable", (), "submission.setup", many=True,
    ),
    Setting(
        "requeue", ValueKind(_requeue, "resubmit|same-job|none", "", REQUEUE), RECOVERY,
        "Get other nodes by a new job, by a requeue of this one, or never", Requeue.RESUBMIT, "submission.requeue",
    ),
)  # fmt: skip
_FOR_SLURM = frozenset(row.name for row in SLURM_SETTINGS) - {"spares", "sbatch", "srun", "setup", "requeue"}
ALL_SETTINGS = SETTINGS + SLURM_SETTINGS

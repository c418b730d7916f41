"""What Slurm can be asked for: the rows beside those of every run.

Texts go to Slurm as they are and it judges them; nothing asked means the site's default. ``--sbatch`` and ``--srun``
pass on what has no row here, except what would break a run: each such word is refused with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from gangrun.config.settings import SETTINGS, Setting, count, switch
from gangrun.wire.submission import Requeue

Pair = tuple[str, str | None]
_KEY = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_GPU = re.compile(r"(?:gres[:/])?gpu(?::[^:,()]+?)??(?::(\d+))?(?:\(.*\))?")

_FILES = "the run directory keeps what jobs say: see logs/"
_NAME = "gangrun finds its jobs by it; name the run with -J"
_END = "gangrun decides when a job ends and what comes after it"
SBATCH_REFUSED = {
    "array": "a run is one job at a time; submit several runs instead",
    "output": _FILES,
    "error": _FILES,
    "open-mode": _FILES,
    "input": "ranks read nothing",
    "signal": "gangrun tells ranks itself: see --save-signal and --save-lead",
    "comment": "gangrun finds its jobs by it",
    "job-name": _NAME,
    "wrap": "give the command at the end instead",
    "no-kill": _END,
    "requeue": "use --requeue same-job",
    "no-requeue": "use --requeue resubmit, or none",
    "kill-on-invalid-dep": _END,
    "chdir": "ranks start where gangrun submit was called; change there first",
    "ntasks": "one task on each node starts all ranks there; see --nproc-per-node",
    "ntasks-per-node": "one task on each node starts all ranks there; see --nproc-per-node",
    "ntasks-per-core": "one task on each node starts all ranks there; see --nproc-per-node",
    "ntasks-per-socket": "one task on each node starts all ranks there; see --nproc-per-node",
    "ntasks-per-gpu": "one task on each node starts all ranks there; see --nproc-per-node",
    "tasks-per-node": "one task on each node starts all ranks there; see --nproc-per-node",
    "gpus-per-task": "one task on each node starts all ranks there; use --gpus-per-node",
    "overcommit": "one task on each node starts all ranks there; see --nproc-per-node",
    "export": "the job gets your environment, and secrets reach ranks by nothing else; see --env",
    "export-file": "the job gets your environment; see --env-file",
    "clusters": "a run stays in one cluster; call gangrun submit there",
    "cluster": "a run stays in one cluster; call gangrun submit there",
    "wait": "use gangrun submit --wait",
    "parsable": "use gangrun submit --json",
    "test-only": "use gangrun submit --dry-run",
    "help": "see gangrun submit --help",
    "usage": "see gangrun submit --help",
    "version": "see sbatch --version",
    "ignore-pbs": "the script is gangrun's",
}
_STEP = "one task on each node starts all ranks there"
SRUN_REFUSED = {
    "nodes": _STEP, "ntasks": _STEP, "ntasks-per-node": _STEP, "tasks-per-node": _STEP, "nodelist": _STEP,
    "exclude": _STEP, "relative": _STEP, "distribution": _STEP, "multi-prog": _STEP, "overcommit": _STEP,
    "output": _FILES, "error": _FILES, "open-mode": _FILES, "input": "ranks read nothing", "label": _FILES,
    "no-kill": _END, "kill-on-bad-exit": _END, "wait": _END, "signal": _END, "immediate": _END, "deadline": _END,
    "jobid": "the step belongs to its job", "overlap": "gangrun sets it where it is needed",
    "pty": "nobody sits before it", "export": "ranks get the job's environment; see --env",
    "chdir": "ranks start where gangrun submit was called; change there first",
    "job-name": "it is the job's", "comment": "it is the job's", "epilog": _END, "prolog": "use --setup",
    "help": "see gangrun submit --help", "usage": "see gangrun submit --help", "version": "see srun --version",
    "cpu-bind": "ranks may use all of the job's CPUs; bind them in your script",
}  # fmt: skip


def word(value: object) -> str:
    """Any text or whole number, as Slurm will read it; ValueError otherwise."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError(f"{value!r} is not text")  # noqa: TRY004 - a user's mistake, not a programmer's
    return str(value).strip()


def whole_number(value: object) -> str:
    """A whole number from 1 up as text, or nothing; ValueError otherwise."""
    if value == "":
        return ""
    if count(value) < 1:
        raise ValueError("must be at least 1")
    return str(count(value))


def shell_lines(value: object) -> tuple[str, ...]:
    """Each one line of shell; one text may hold several. ValueError otherwise."""
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list | tuple) or not all(isinstance(one, str) for one in texts):
        raise ValueError(f"{value!r} is neither a line of shell nor a list of such")
    if any("\0" in one for one in texts):
        raise ValueError("a line of shell cannot hold a NUL")
    return tuple(one for one in texts if one.strip())


def requeue(value: object) -> Requeue:
    """How to get other nodes; ValueError otherwise."""
    try:
        return Requeue(str(value).strip().lower())
    except ValueError:
        raise ValueError(f"{value!r} is none of {', '.join(one.value for one in Requeue)}") from None


def sbatch_pairs(value: object) -> tuple[Pair, ...]:
    """What --sbatch passes on; ValueError where it would break a run, or has an option of its own."""
    own = {row.name.replace("_", "-"): _own_option(row) for row in SLURM_SETTINGS if row.name in _FOR_SLURM}
    own |= {"nodes": "use -N", "gpus": "use --gpus-per-node", "dependency": "use -d"}
    return _pairs(value, "--sbatch", {**own, **SBATCH_REFUSED})


def srun_pairs(value: object) -> tuple[Pair, ...]:
    """What --srun passes on; ValueError where it would break a run."""
    return _pairs(value, "--srun", SRUN_REFUSED)


def _own_option(row: Setting) -> str:
    return f"use --{row.name.replace('_', '-')}"


def _pairs(value: object, what: str, refused: dict[str, str]) -> tuple[Pair, ...]:
    """From ["a=b", "c"], "a=b" and, in a file, {a = "b", c = true}."""
    found: dict[str, str | None] = {}
    for key, given in _split(value, what):
        name = key.strip().lstrip("-").replace("_", "-").lower()
        if not _KEY.fullmatch(name) or len(name) < 2:
            raise ValueError(f"{what} {key!r}: write KEY=VALUE with the long name of an option, such as mail-type=END")
        if name in refused:
            raise ValueError(f"{what} {name} is not passed on: {refused[name]}")
        found[name] = given
    return tuple(found.items())


def _split(value: object, what: str) -> Iterable[Pair]:
    if isinstance(value, dict):
        for key, given in value.items():
            if given is not False:
                yield str(key), None if given is True else word(given)
        return
    for one in shell_lines(value):
        if "\n" in one:
            raise ValueError(f"{what} {one!r} holds a line break")
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


def _text(name: str, metavar: str, words: str, *flags: str) -> Setting:
    return Setting(name, word, "", metavar, words, flags=flags)


SLURM_SETTINGS: tuple[Setting, ...] = (
    Setting("spares", count, 0, "K", "Nodes beside --nodes that wait to take a broken one's place."),
    _text("gpus_per_node", "[TYPE:]N", "GPUs on each node."),
    _text("gres", "LIST", "Other resources on each node, such as gpu:8."),
    _text("partition", "NAMES", "Where to queue.", "-p"),
    _text("account", "NAME", "Who is charged.", "-A"),
    _text("qos", "NAME", "Quality of service.", "-q"),
    _text("time", "TIME", "Time limit as Slurm writes it: 90 is minutes, 1-12:00:00 is a day and a half.", "-t"),
    _text("exclude", "NODES", "Never these nodes; what gangrun excludes comes on top.", "-x"),
    _text("nodelist", "NODES", "These nodes at least.", "-w"),
    _text("constraint", "FEATURES", "Only nodes with these features.", "-C"),
    Setting("cpus_per_task", whole_number, "", "N", "CPUs on each node (all ranks are in one task).", flags=("-c",)),
    _text("mem", "SIZE", "Memory on each node."),
    Setting("exclusive", switch, False, "", "Share nodes with nobody.", flag=True),
    _text("reservation", "NAME", "Use reserved nodes."),
    _text("dependency", "LIST", "What the first job waits for, such as afterok:17.", "-d"),
    Setting("sbatch", sbatch_pairs, (), "KEY=VALUE", "Any other option of sbatch; repeatable.", many=True),
    Setting("srun", srun_pairs, (), "KEY=VALUE", "Any other option of srun; repeatable.", many=True),
    Setting("setup", shell_lines, (), "LINE", "Shell before anything else, e.g. module load; repeatable.", many=True),
    Setting("requeue", requeue, Requeue.RESUBMIT, "resubmit|same-job|none", "How to get other nodes."),
)  # fmt: skip
_FOR_SLURM = frozenset(row.name for row in SLURM_SETTINGS) - {"spares", "sbatch", "srun", "setup", "requeue"}
ALL_SETTINGS = SETTINGS + SLURM_SETTINGS

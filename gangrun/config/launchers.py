"""Launchers' lines as COMMAND: what ``torchrun … train.py`` asks of torchrun, asked of gangrun instead.

The launcher does not run, since gangrun starts each rank itself. The options are those of torch 2.13
(``torch.distributed.run``), deepspeed 0.19 (``deepspeed.launcher.runner``), lightning 2.6 (``lightning.fabric.cli``)
and accelerate 1.15 (``accelerate.commands.launch``). Accelerate also tells its ranks by environment what its options
and its config file say, so accelerate itself is asked what that is.

The command line takes torchrun's options from these tables; so what only a launcher's line needs is imported late.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

from gangrun.errors import UserError

ASKED_WITHIN_S = 120  # accelerate imports torch, perhaps from a busy file system

# What an option becomes: a setting's name, or one of these.
MODULE, NO_PYTHON, NO_LOCAL_RANK = "-m", "--no-python", "no local rank"
NEEDLESS = "gangrun does this itself"
LACKED = "gangrun has nothing like it"
ITS_NODE, NODES, PER_RANK, VARIABLE = "node rank", "nodes", "log_per_rank", "a variable of the ranks"
_AS_GIVEN = ("nproc_per_node", "max_restarts", "stop_grace")

TORCHRUN = {
    "nnodes": NODES, "nproc-per-node": "nproc_per_node", "max-restarts": "max_restarts", "node-rank": ITS_NODE,
    "m module": MODULE, "no-python": NO_PYTHON, "log-dir": PER_RANK, "r redirects": PER_RANK, "t tee": PER_RANK,
    "standalone": NEEDLESS, "rdzv-backend": NEEDLESS, "rdzv-endpoint": NEEDLESS, "rdzv-id": NEEDLESS,
    "rdzv-conf": NEEDLESS, "monitor-interval": NEEDLESS, "start-method": NEEDLESS, "role": NEEDLESS,
    "master-addr": NEEDLESS, "master-port": NEEDLESS, "local-addr": NEEDLESS, "signals-to-handle": NEEDLESS,
    "run-path": NEEDLESS, "shutdown-timeout": "stop_grace", "event-log-handler": LACKED, "local-ranks-filter": LACKED,
    "duplicate-stdout-filters": LACKED, "duplicate-stderr-filters": LACKED, "logs-specs": LACKED,
    "numa-binding": LACKED, "virtual-local-rank": LACKED,
}  # fmt: skip
DEEPSPEED = {
    "num-nodes": NODES, "num-gpus num-accelerators": "nproc_per_node", "node-rank": ITS_NODE, "module": MODULE,
    "no-python": NO_PYTHON, "no-local-rank": NO_LOCAL_RANK, "enable-each-rank-log": PER_RANK, "H hostfile": NEEDLESS,
    "i include": LACKED, "e exclude": LACKED, "master-port": NEEDLESS, "master-addr": NEEDLESS, "launcher": NEEDLESS,
    "launcher-args": NEEDLESS, "no-ssh": NEEDLESS, "no-ssh-check": NEEDLESS, "force-multi": NEEDLESS,
    "ssh-port": NEEDLESS, "log-level": NEEDLESS, "q quiet": NEEDLESS, "save-pid": LACKED, "autotuning": LACKED,
    "bind-cores-to-rank": LACKED, "bind-core-list": LACKED, "venv-script": LACKED,
}  # fmt: skip
LIGHTNING = {
    "devices": "nproc_per_node", "num-nodes": NODES, "node-rank": ITS_NODE, "accelerator": VARIABLE,
    "strategy": VARIABLE, "precision": VARIABLE, "main-address": NEEDLESS, "main-port": NEEDLESS,
}  # fmt: skip
VALUELESS = {
    "m module", "module", "no-python", "standalone", "run-path", "virtual-local-rank", "no-local-rank", "no-ssh",
    "no-ssh-check", "force-multi", "q quiet", "save-pid", "bind-cores-to-rank", "use-env",
}  # fmt: skip
# Programs that start another one, in an environment or on some cores: a launcher behind them would run in each rank.
WRAPPERS = (
    "uv", "poetry", "pdm", "pixi", "hatch", "rye", "pipenv", "conda", "mamba", "micromamba",
    "env", "numactl", "taskset", "nice", "ionice", "time", "stdbuf", "nsys", "ncu",
)  # fmt: skip
CONTAINERS = ("singularity", "apptainer", "podman-hpc", "shifter", "enroot")
_MODULES = (
    "torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch", "deepspeed.launcher.runner",
)  # fmt: skip
COPIERS = ("srun", "mpirun", "mpiexec", "mpiexec.hydra", "horovodrun", "prun", "jsrun", "aprun")

# Run by the user's python. Port 0: accelerate looks for a free one instead of refusing a busy one.
ASK_ACCELERATE = """
import json, os, sys
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils import launch
args = launch_command_parser().parse_args(sys.argv[1:])
if (args.num_machines or 1) > 1:
    args.main_process_ip = args.main_process_ip or "localhost"
args, defaults, precision_from_file = _validate_launch_command(args)
args.main_process_port, args.machine_rank = 0, args.machine_rank or 0
sets = args.use_fsdp or args.use_megatron_lm or args.multi_gpu
if args.use_deepspeed and not args.cpu:
    fields = list(defaults.deepspeed_config) if defaults else []
    args.deepspeed_fields_from_accelerate_config = ",".join(fields + ["mixed_precision"] * precision_from_file)
    told = launch.prepare_deepspeed_cmd_env(args)[1]
elif sets and not args.cpu:
    told = launch.prepare_multi_gpu_env(args)
else:
    told = launch.prepare_simple_launcher_cmd_env(args)[1]
told = {name: value for name, value in told.items() if os.environ.get(name) != value}
print(json.dumps({
    "variables": told, "processes": args.num_processes or 0, "machines": args.num_machines or 1, "rank":
    int(args.machine_rank), "module": bool(args.module), "no_python": bool(args.no_python),
    "words": [args.training_script, *args.training_script_args], "tpu": bool(args.tpu or args.tpu_use_cluster),
}))
"""
# Of torchrun's options those that no script has for itself
ONLY_TORCHRUNS = (
    "--nnodes", "--standalone", "--rdzv-backend", "--rdzv-endpoint", "--rdzv-id", "--redirects",
    "--local-ranks-filter", "--numa-binding",
)  # fmt: skip
AMBIGUOUS = {"--name", "--resume", "--nodes", "--health", "--config", "--validator"}  # many scripts have their own
# Put behind a launcher's own options, so they win: gangrun makes the rendezvous and the restarts. The agent fills in
# what stands in braces.
RENDEZVOUS = {
    "torchrun": (
        ("nnodes", "{NNODES}"), ("node-rank", "{NODE_RANK}"), ("master-addr", "{MASTER_ADDR}"),
        ("master-port", "{MASTER_PORT}"),
        ("max-restarts", "0"), ("rdzv-backend", "static"), ("rdzv-endpoint", ""),
    ),
    "fabric": (
        ("num-nodes", "{NNODES}"), ("node-rank", "{NODE_RANK}"), ("main-address", "{MASTER_ADDR}"),
        ("main-port", "{MASTER_PORT}"),
    ),
    "accelerate": (
        ("num_machines", "{NNODES}"), ("machine_rank", "{NODE_RANK}"), ("main_process_ip", "{MASTER_ADDR}"),
        ("main_process_port", "{MASTER_PORT}"), ("max_restarts", "0"), ("rdzv_backend", "static"),
    ),
}  # fmt: skip
PORTS = ("MASTER_ADDR", "MASTER_PORT", "PYTHONPATH")  # the gang's own; the rest of what accelerate tells stays


@dataclass(frozen=True, slots=True)
class LauncherLine:
    """A launcher's line taken apart."""

    launcher: str
    words: tuple[str, ...]  # the script or command, with its own arguments
    module: str = ""
    no_python: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)  # by name, as their flags take them
    variables: Mapping[str, str] = field(default_factory=dict)  # for the ranks
    needless: tuple[str, ...] = ()
    lacked: tuple[str, ...] = ()
    script_count: int = 0  # so many words at the end are the script and its arguments
    family: str = ""  # whose options it takes: a key of ``RENDEZVOUS``, or "deepspeed"
    per_node: bool = False  # the launcher itself runs, once on each node

    @property
    def told(self) -> str:
        """What is run instead, in one line."""
        import shlex

        flags = [word for name, value in self.settings.items() for word in _flag(name, value)]
        module = ("-m", self.module) if self.module else ()
        bare = ("--no-python",) if self.no_python else ()
        line = shlex.join(("gangrun", "run", *flags, *bare, *module, *(_shown(word) for word in self.words)))
        if self.per_node:
            words = shlex.join(map(_shown, self.words)).replace("'", "")
            return f"gangrun starts {self.launcher} once per node and makes the restarts itself: {words}"
        told = f"gangrun starts the ranks instead of {self.launcher}, as by: {line}"
        if self.variables:
            told += f"; with {', '.join(sorted(self.variables))} as {self.launcher} sets them"
        if self.needless:
            told += f"; not needed: {', '.join(self.needless)}"
        if self.lacked:
            told += f"; ignored, since gangrun has nothing like it: {', '.join(self.lacked)}"
            told += f" (with --per-node {self.launcher} does it)" if self.family in RENDEZVOUS else ""
        return told


def taken_apart(words: tuple[str, ...], python: str | None) -> LauncherLine | None:
    """The launcher's line that ``words`` are; None if they begin with no launcher that gangrun knows.

    Args:
        words: COMMAND as it was typed.
        python: The python to ask accelerate with; None if there is none on this machine.

    Raises:
        UserError: The line cannot be understood, or its launcher cannot be replaced.
    """
    if not words:
        return None
    first, rest = Path(words[0]).name, words[1:]
    if first in COPIERS:
        way = "leave it out, as in: gangrun run --nproc-per-node 8 train.py"
        raise UserError(
            "usage", f"{first} starts a copy of the command for each task, and gangrun starts the ranks", way
        )
    if (at := launcher_behind(words)) > 0:
        launcher, before = launcher_words(words, at), " ".join(words[:at])
        way = f"let {first} start gangrun, as in: {before} gangrun run {launcher} ..."
        if first in CONTAINERS:
            way = f"start python there instead of {launcher}, as in: gangrun run {before} python train.py"
        raise UserError("usage", f"{first} would start {launcher} in each rank, and each of them all ranks", way)
    interpreter: tuple[str, ...] = ()
    if re.fullmatch(r"python[0-9.]*", first) and rest[:1] == ("-m",) and len(rest) > 1:
        interpreter, first, rest = (words[0],), rest[1], rest[2:]
    match first, *rest[:1]:
        case (("torchrun" | "torch.distributed.run"), *_):
            return replace(_torchrun(first, TORCHRUN, rest, interpreter), family="torchrun")
        case "torch.distributed.launch", *_:
            table = {**TORCHRUN, "use-env": NO_LOCAL_RANK}
            line = _torchrun(first, table, rest, interpreter, local_rank="--local-rank=")
            return replace(line, family="torchrun")
        case (("deepspeed" | "deepspeed.launcher.runner"), *_):
            return _read(first, DEEPSPEED, rest, interpreter, local_rank="--local_rank=")
        case (("fabric" | "lightning" | "lightning.fabric.cli" | "lightning_fabric.cli"), "run"):
            line = _lightning(first, rest[2:] if rest[1:2] == ("model",) else rest[1:], interpreter)
            return replace(line, family="fabric")
        case "accelerate", "launch":
            return replace(_accelerate("accelerate launch", rest[1:], interpreter, python), family="accelerate")
        case (("accelerate-launch" | "accelerate.commands.launch"), *_):
            return replace(_accelerate(first, rest, interpreter, python), family="accelerate")
        case _:
            return None


def launcher_behind(words: tuple[str, ...]) -> int:
    """Where a launcher begins behind a wrapper such as ``uv run``, or in a container; 0 if there is none."""
    if Path(words[0]).name not in (*WRAPPERS, *CONTAINERS):
        return 0
    for at, word in enumerate(words[1:], 1):
        first, second = Path(word).name, words[at + 1 : at + 3]
        if first in ("torchrun", "accelerate-launch") or (first == "accelerate" and second[:1] == ("launch",)):
            return at
        if first == "deepspeed" and not words[at - 1].startswith("-"):  # a package: uv run --with deepspeed
            return at
        if re.fullmatch(r"python[0-9.]*", first):
            return at if second[:1] == ("-m",) and second[1:2] and second[1] in _MODULES else 0
        if word.endswith(".py"):
            break
    return 0


def launcher_words(words: tuple[str, ...], at: int) -> str:
    """The name of the launcher that begins there, as it is typed."""
    count = 3 if words[at + 1 : at + 2] == ("-m",) else 2 if Path(words[at]).name == "accelerate" else 1
    return " ".join(words[at : at + count])


def launched_per_node(words: tuple[str, ...], python: str | None) -> LauncherLine | None:
    """The line with gangrun's rendezvous in it, to be run once on each node; None for a command that is no launcher.

    Raises:
        UserError: As ``taken_apart``; or the launcher reaches the other nodes only by its own means.
    """
    line = None if words and launcher_behind(words) else taken_apart(words, python)  # behind another it runs as it is
    if line is None:
        return None
    if line.family not in RENDEZVOUS:
        way = "leave --per-node out: gangrun then starts the ranks with the options of this line"
        raise UserError("usage", f"--per-node: {line.launcher} starts the other nodes itself, by ssh", way)
    at = len(words) - line.script_count
    options = tuple(word for word in words[:at] if not word.startswith("--stand"))  # --standalone knows one node only
    ours = [f"--{name}={value}" for name, value in RENDEZVOUS[line.family]]
    settings = {name: value for name, value in line.settings.items() if name not in ("nproc_per_node", PER_RANK)}
    count = line.settings.get("nproc_per_node")
    if line.family == "accelerate" and count:
        ours.append(f"--num_processes={{NNODES*{count}}}")
    return LauncherLine(
        line.launcher, (*options, *ours, *words[at:]), settings=settings, script_count=line.script_count, per_node=True
    )


def _shown(word: str) -> str:
    return re.sub(r"\{((?:LOCAL_RANK|NODE_RANK|NNODES|MASTER_ADDR|MASTER_PORT)(?:\*\d+)?)\}", r"$\1", word)


def _flag(name: str, value: str) -> tuple[str, ...]:
    flag = "--" + name.replace("_", "-")
    return (flag,) if value == "true" else (flag, value)


def option_words(
    launcher: str, table: Mapping[str, str], words: tuple[str, ...]
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """(value by option as the table spells it, the script and its arguments), read as argparse in the launcher does."""
    import argparse

    class Parser(argparse.ArgumentParser):
        def error(self, message: str) -> NoReturn:
            raise UserError("usage", f"{launcher}: {message}", f"{launcher} --help names its options")

    parser = Parser(prog=launcher, add_help=False, argument_default=argparse.SUPPRESS)
    for spelled in table:
        names = [f"-{one}" if len(one) == 1 else f"--{one}" for one in spelled.split()]
        names += [name.replace("-", "_").replace("__", "--", 1) for name in names if "-" in name[2:]]
        parser.add_argument(*names, dest=spelled, action="store_true" if spelled in VALUELESS else "store")
    parser.add_argument("script")
    parser.add_argument("rest", nargs=argparse.REMAINDER)
    found = vars(parser.parse_args(words))
    return found, (found.pop("script"), *found.pop("rest"))


def nodes_of(asked: str) -> dict[str, str]:
    """The settings for ``N`` nodes, or for torchrun's ``MIN:MAX``."""
    least, _, most = asked.rpartition(":")
    return {"nodes": most, **({"min_nodes": least} if least and least != most else {})}


def settings_of(launcher: str, table: Mapping[str, str], given: Mapping[str, Any]) -> dict[str, str]:
    """The settings that options mean; one that starts a second node's part is a ``UserError``."""
    settings: dict[str, str] = {}
    for spelled, value in given.items():
        match table[spelled]:
            case "nodes" if value != "-1":
                settings |= nodes_of(value)
            case "node rank":
                _refuse_second(launcher, value)
            case "log_per_rank":
                settings["log_per_rank"] = "true"
            case name if name in _AS_GIVEN and value != "-1":
                settings[name] = value
    return settings


def named(given: Iterable[str], table: Mapping[str, str], meaning: str) -> tuple[str, ...]:
    """The options given that mean this, as they are typed."""
    return tuple("--" + spelled.split()[-1] for spelled in given if table[spelled] == meaning)


def _refuse_second(launcher: str, rank: str) -> None:
    if rank not in ("0", "-1"):
        way = "run it once for all nodes: gangrun submit, or gangrun run in your allocation"
        raise UserError("usage", f"{launcher} --node-rank {rank}: gangrun starts the ranks of all nodes itself", way)


def _read(
    launcher: str, table: Mapping[str, str], words: tuple[str, ...], interpreter: tuple[str, ...], local_rank: str = ""
) -> LauncherLine:
    from gangrun.wire.spec import LOCAL_RANK

    given, command = option_words(launcher, table, words)
    script_count = len(command)
    meanings = {table[spelled] for spelled in given}
    if local_rank and NO_LOCAL_RANK not in meanings:
        command = (command[0], local_rank + LOCAL_RANK, *command[1:])
    return _line(
        launcher, command, interpreter, MODULE in meanings, NO_PYTHON in meanings,
        settings=settings_of(launcher, table, given),
        needless=named(given, table, NEEDLESS), lacked=named(given, table, LACKED), script_count=script_count,
    )  # fmt: skip


def _line(
    launcher: str, command: tuple[str, ...], interpreter: tuple[str, ...], module: bool, bare: bool, **more: Any
) -> LauncherLine:
    """``interpreter`` is the python that was to start the launcher: it starts the script, too."""
    if module and interpreter:
        return LauncherLine(launcher, (*interpreter, "-m", *command), **more)
    if module:
        return LauncherLine(launcher, command[1:], command[0], **more)
    return LauncherLine(launcher, command if bare else (*interpreter, *command), no_python=bare, **more)


def _torchrun(
    launcher: str, table: Mapping[str, str], words: tuple[str, ...], interpreter: tuple[str, ...], local_rank: str = ""
) -> LauncherLine:
    line = _read(launcher, table, words, interpreter, local_rank)
    return replace(line, settings={"nproc_per_node": "1", **line.settings})  # torchrun's default, GPUs or not


def _lightning(launcher: str, words: tuple[str, ...], interpreter: tuple[str, ...]) -> LauncherLine:
    """Fabric reads the options as ``LT_*``; ``--devices`` counts ranks, or lists the GPUs of a node."""
    given, _ = option_words(launcher, LIGHTNING, words)
    devices = given.get("devices", "1")
    if not re.fullmatch(r"[1-9]\d*|auto", devices):
        way = "give their number, and choose GPUs with CUDA_VISIBLE_DEVICES"
        raise UserError("usage", f"{launcher} run --devices {devices}: gangrun takes a number of devices", way)
    line = _read(launcher, LIGHTNING, words, interpreter)
    told = {f"LT_{name.upper()}": given[name] for name in ("accelerator", "strategy", "precision") if name in given}
    told |= {"LT_CLI_USED": "1", "LT_DEVICES": devices, "LT_NUM_NODES": given.get("num-nodes", "1")}
    ranks = "1" if devices == "auto" else devices  # as Fabric's command line understands it
    return replace(line, settings={**line.settings, "nproc_per_node": ranks}, variables=told)


def _accelerate(
    launcher: str, words: tuple[str, ...], interpreter: tuple[str, ...], python: str | None
) -> LauncherLine:
    """Its options alone would lose FSDP, DeepSpeed and the precision: those travel by environment."""
    if (asked := interpreter[0] if interpreter else python) is None:
        way = "submit from inside the environment, without --setup"
        raise UserError("usage", f"{launcher}: accelerate is not here to be asked what its options mean", way)
    told = _told_by_accelerate(launcher, asked, words)
    _refuse_second(launcher, str(told["rank"]))
    if told["tpu"]:
        raise UserError("usage", f"{launcher}: gangrun starts no ranks on TPUs", "use accelerate itself")
    machines = told["machines"]
    settings = {"nproc_per_node": str(told["processes"] // machines)} if told["processes"] else {}
    if machines > 1:
        settings["nodes"] = str(machines)
    variables = {name: value for name, value in told["variables"].items() if name not in PORTS}
    return _line(
        launcher, tuple(told["words"]), interpreter, told["module"], told["no_python"], settings=settings,
        variables=variables, script_count=len(told["words"]),
    )  # fmt: skip


def _told_by_accelerate(launcher: str, python: str, words: tuple[str, ...]) -> dict[str, Any]:
    import json
    import subprocess

    try:
        asked = subprocess.run(
            [python, "-c", ASK_ACCELERATE, *words], capture_output=True, text=True, timeout=ASKED_WITHIN_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        way = "run its script with gangrun run instead"
        raise UserError("usage", f"{launcher}: {python} did not tell what its options mean: {error}", way) from error
    if asked.returncode:
        last = (asked.stderr.strip().splitlines() or [f"exit code {asked.returncode}"])[-1]
        raise UserError("usage", f"{launcher}: {last}", f"gangrun asked the accelerate of {python}")
    answer: dict[str, Any] = json.loads(asked.stdout.splitlines()[-1])
    return answer


def meant_for_gangrun(words: tuple[str, ...], flags: Iterable[str]) -> tuple[str, ...]:
    """Options of gangrun's that stand after the script, which therefore gets them."""
    known = {*flags, *ONLY_TORCHRUNS} - AMBIGUOUS
    later = [word.partition("=")[0] for word in words[1:] if word.startswith("--")]
    return tuple(dict.fromkeys(word for word in later if word.replace("_", "-") in known))

"""The ``gangrun`` command: finds the subcommand, and turns what went wrong into words.

Subcommands are imported only when they are called, so that none pays for another's imports.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import io
import os
import sys
from collections.abc import Iterator
from typing import Any

import click

from gangrun import __version__
from gangrun.display.text import clean, let_go
from gangrun.errors import DONE, INTERRUPTED, UNKNOWN, USAGE, UserError, did_you_mean

# name -> (module, one line for --help), in the order in which --help shows them
COMMANDS: dict[str, tuple[str, str]] = {
    "run": ("gangrun.cli.train", "Train on this machine and recover from failures."),
    "submit": ("gangrun.cli.submit", "Submit a training run to Slurm."),
    "convert": ("gangrun.cli.submit", "Print a batch script with a gangrun run line in it."),
    "status": ("gangrun.cli.view", "Show a run: its state, nodes, step and checkpoint."),
    "explain": ("gangrun.cli.view", "Show every decision: what was seen, concluded, done."),
    "events": ("gangrun.cli.tell", "Print events as they happen, for people or as JSON lines."),
    "metrics": ("gangrun.cli.tell", "Print or serve figures of a run for Prometheus."),
    "attach": ("gangrun.cli.control", "Show a run as gangrun run does, until it ends."),
    "logs": ("gangrun.cli.view", "Show what the ranks printed; --errors shows who failed first."),
    "checkpoint": ("gangrun.cli.control", "Have all ranks save a checkpoint now, and train on."),
    "drain": ("gangrun.cli.control", "Move the ranks of a run off a node."),
    "cancel": ("gangrun.cli.control", "End a run for good."),
    "resume": ("gangrun.cli.control", "Continue a run that failed, was cancelled or lost its processes."),
    "wait": ("gangrun.cli.control", "Wait until a run has ended; exit with its code."),
    "report": ("gangrun.cli.report", "Show where the time and money of a run went; --all: of all runs."),
    "plan": ("gangrun.cli.plan", "Forecast failures, checkpoint interval, spares, time and cost."),
    "simulate": ("gangrun.cli.simulate", "Simulate months of failures, policy by policy."),
    "chaos": ("gangrun.cli.chaos", "Rehearse failures, and score the recovery against an SLA."),
    "checkpoints": ("gangrun.cli.manage", "List checkpoints: which are valid, and why others are not."),
    "health": ("gangrun.cli.health", "Check this node, other nodes, or the nodes of a run."),
    "nodes": ("gangrun.cli.manage", "List nodes excluded by your runs, with the reason."),
    "config": ("gangrun.cli.manage", "Show every setting, its value, and where that was set."),
    "prune": ("gangrun.cli.manage", "Remove the run directories of runs that have ended."),
    "help": (__name__, "Show the help of gangrun or of one command."),
}
# what people type who know other tools -> what it is called here
MEANT = {
    "status --all": "list ls ps runs jobs queue",
    "status --watch": "top watch monitor",
    "status": "show info state describe",
    "run": "start launch train exec torchrun",
    "run --detach": "detach background bg nohup daemon",
    "attach": "reattach join fg foreground connect",
    "submit": "batch schedule enqueue",
    "convert": "migrate sbatch port",
    "drain": "cordon evict offline evacuate",
    "cancel": "stop kill abort end terminate delete",
    "resume": "restart continue retry requeue",
    "logs": "log tail output stdout errors",
    "explain": "why history journal story debug",
    "events": "stream subscribe webhook",
    "metrics": "prometheus grafana exporter monitoring",
    "checkpoints": "ckpt ckpts saves",
    "health": "check doctor diagnose test",
    "nodes": "node hosts excluded",
    "plan": "forecast estimate mtbf",
    "simulate": "sim simulation whatif",
    "chaos": "drill drills rehearse rehearsal inject fault faults gameday",
    "report": "goodput ettr cost usage ledger bill",
    "config": "settings options set get env",
    "prune": "rm remove clean cleanup gc purge",
    "--version": "version",
}


class ReaderLeft(Exception):
    """Who read our output has gone (| head). Click would make it exit code 1, as if something were wrong."""


@contextlib.contextmanager
def _noticing_who_leaves() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError as error:
        raise ReaderLeft from error


@contextlib.contextmanager
def _nothing_collected() -> Iterator[None]:
    """What modules make at import stays: looking through it for garbage costs a tenth of a start, and finds none."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


class LazyGroup(click.Group):
    """A group that imports a command when it is called, not when it is listed."""

    def make_context(self, *args: Any, **more: Any) -> click.Context:
        """Read the words; --help and --version print here."""
        with _noticing_who_leaves():
            return super().make_context(*args, **more)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        with _noticing_who_leaves():
            return super().invoke(ctx)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in reading order."""
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the module of one command."""
        if cmd_name not in COMMANDS or cmd_name in self.commands:
            return super().get_command(ctx, cmd_name)
        with _nothing_collected():
            command: click.Command = getattr(importlib.import_module(COMMANDS[cmd_name][0]), cmd_name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that was named; if there is none, the nearest by meaning or spelling as a hint."""
        if args and not args[0].startswith("-") and args[0] not in COMMANDS:
            meant = next((f"did you mean gangrun {it}?" for it, words in MEANT.items() if args[0] in words.split()), "")
            hint = meant or did_you_mean(args[0], COMMANDS, before="gangrun ", like=0.5) or "see gangrun help"
            raise UserError("usage", f"no such command: {args[0]}", hint)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list for --help, from the table alone."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])


@click.group(cls=LazyGroup, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-V", "--version", prog_name="gangrun")
@click.pass_context
def group(ctx: click.Context) -> int:
    """Run distributed training that survives dead ranks, hangs and broken nodes.

    \b
    gangrun run --nproc-per-node 4 train.py      train here, recover from failures
    gangrun status                               show how the run goes
    gangrun explain                              show what happened, and why
    """  # noqa: D301 - click reads the backspace
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help(), err=True)  # who types the bare word wants to read; a script that does made a mistake
    return USAGE


def _commands(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    del ctx, param
    return [name for name in COMMANDS if name.startswith(incomplete)]


@group.command("help")
@click.argument("command", required=False, metavar="[COMMAND]", shell_complete=_commands)
@click.pass_context
def help_command(ctx: click.Context, command: str | None) -> int:
    """Show the help of gangrun or of one command."""
    assert ctx.parent is not None
    if command is None:
        click.echo(ctx.parent.get_help())
        return DONE
    name, found, _ = group.resolve_command(ctx.parent, [command])
    assert found is not None
    click.echo(found.get_help(click.Context(found, ctx.parent, name, **found.context_settings)))
    return DONE


def main(argv: list[str] | None = None) -> None:
    """Entry point. Exits 0 done, 1 run failed, 2 usage, 3 unknown, 4 Slurm, 5 no such run, 130/143 stopped."""
    words = sys.argv[1:] if argv is None else argv
    _streams()
    try:
        code = group.main(args=words, prog_name="gangrun", standalone_mode=False)
        _flush()
        sys.exit(code if isinstance(code, int) else 0)
    except UserError as error:
        _tell(words, error.kind, error.message, error.hint)
        sys.exit(error.code)
    except click.ClickException as error:
        _tell(words, "usage", error.format_message().rstrip("."), _usage_hint(error, words))
        sys.exit(USAGE)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(INTERRUPTED)
    except (ReaderLeft, BrokenPipeError):
        let_go(sys.stdout)  # nothing is wrong, and python must not complain at its exit either
        sys.exit(0)
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        hint = "check that the file system responds, and that you may read and write there"
        _tell(words, "system", f"{error.strerror or error}{where}", hint)
        let_go(sys.stdout)  # it may be the one that cannot be written
        sys.exit(UNKNOWN)


def _usage_hint(error: click.ClickException, words: list[str]) -> str:
    path = " ".join(("gangrun", *(word for word in words[:1] if word in COMMANDS)))
    if isinstance(error, click.UsageError) and error.ctx:
        path = error.ctx.command_path
    return f"see {path} --help"


def _streams() -> None:
    """A name that the terminal's encoding does not have is spelled out; a stream that was closed takes all."""
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - until the process ends
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _flush() -> None:
    sys.stdout.flush()


def _wants_json(words: list[str]) -> bool:
    """Does the command line ask for JSON? What comes after the user's own command begins is not ours."""
    if words[:1] in (["run"], ["submit"]):
        return "--json" in _before_command(words[0], words[1:])
    return "--json" in (words[: words.index("--")] if "--" in words else words)


def _before_command(name: str, words: list[str]) -> list[str]:
    """Options of ``run`` or ``submit``, up to the first word that is no option and no option's value."""
    command: click.Command = getattr(importlib.import_module(COMMANDS[name][0]), name)
    options = [param for param in command.params if isinstance(param, click.Option)]
    with_value = {name for option in options if not option.is_flag for name in option.opts}
    own: list[str] = []
    for word in words:
        if word == "--" or not (word.startswith("-") or (own and own[-1].replace("_", "-") in with_value)):
            break
        own.append(word)
    return own


def _tell(words: list[str], kind: str, message: str, hint: str) -> None:
    with contextlib.suppress(OSError):  # it may be the output that cannot be written: the exit code tells all the same
        if _wants_json(words):
            import json

            error: dict[str, Any] = {"error": {"kind": kind, "message": message, "hint": hint}}
            click.echo(json.dumps(error))
            return
        click.echo(
            "\n".join([f"gangrun: {clean(message)}", *(f"  {clean(line)}" for line in hint.splitlines())]), err=True
        )

"""What commands share: arguments, a flag for each setting, help in groups."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from gangrun.config.parsers import Parser, span_s
from gangrun.errors import UserError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from gangrun.adapters.fs.index import IndexEntry
    from gangrun.config.settings import Words

F = TypeVar("F", bound=Callable[..., Any])
TYPED = "gangrun.typed"  # the words of a command line, in ``click.Context.meta``


def file_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The shell completes the name of a file or directory."""
    from click.shell_completion import CompletionItem

    del ctx, param
    return [CompletionItem(incomplete, type="file")]


def run_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Ids and names of runs that begin like this, the newest first."""
    from click.shell_completion import CompletionItem

    del param
    known = _entries(ctx)
    found = {one.run: one.name for one in known} | {one.name: "the newest run of this name" for one in reversed(known)}
    return [CompletionItem(word, help=told) for word, told in found.items() if word.startswith(incomplete)]


def run_or_file_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Runs, and files if no run begins like this."""
    return (run_names(ctx, param, incomplete) if incomplete else []) or file_names(ctx, param, incomplete)


def profile_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Profiles: built in, and of the files of settings, --config's too."""
    from click.shell_completion import CompletionItem

    from gangrun.config import environment, layers

    del param
    named = ctx.params.get("config_file")
    files = ((named,) if named else ()) + environment.config_files()
    return [CompletionItem(name) for name in layers.profile_names(files) if name.startswith(incomplete)]


def node_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Nodes of the run that is named before."""
    from click.shell_completion import CompletionItem

    from gangrun.runs.locate import find
    from gangrun.runs.snapshot import read

    del param
    run, nodes = ctx.params.get("run"), list[str]()
    entry = next((one for one in _entries(ctx) if run in (one.run, one.name)), None)
    if entry is not None:
        with contextlib.suppress(UserError, OSError):
            reading = read(find(entry.run, ctx.params.get("runs_dir")))
            nodes = [*(reading.state.roster.nodes if reading.state is not None else reading.spec.nodes)]
    return [CompletionItem(node) for node in nodes if node.startswith(incomplete)]


def _entries(ctx: click.Context) -> Sequence[IndexEntry]:
    from gangrun.runs.locate import entries_of

    try:
        return entries_of(ctx.params.get("runs_dir"))
    except (UserError, OSError):
        return ()


def run_argument(function: F) -> F:
    """``[RUN]``."""
    return click.argument("run", required=False, metavar="[RUN]", shell_complete=run_names)(function)


def runs_dir_option(function: F) -> F:
    """``--runs-dir``."""
    words = "Search only DIR for runs (default your index and ./gangrun_runs)."
    return click.option("--runs-dir", metavar="DIR", help=words, shell_complete=file_names)(function)


def json_option(function: F) -> F:
    """``--json``."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")(function)


def asks() -> bool:
    """Is there a person to ask? Both ends must be a terminal."""
    return sys.stdin.isatty() and sys.stderr.isatty()


class Typed(click.ParamType[Any]):
    """A value that a parser of ours checks; ``raw`` leaves it as it was typed, for the layers of settings."""

    def __init__(self, parse: Parser, words: Words = (), *, raw: bool = False, name: str = "value") -> None:
        self.name = name  # in capitals it stands for the value in --help
        self._parse, self._words, self._raw = parse, words, raw

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The value, or a ``UserError`` that names the option."""
        del ctx
        try:
            found = self._parse(value)
        except ValueError as error:
            option = max(param.opts, key=len) if param is not None else ""
            raise UserError("usage", f"{option}: {error}", getattr(error, "hint", "")) from error
        return value if self._raw else found

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """The words that start like this."""
        from click.shell_completion import CompletionItem

        del ctx, param
        words = self._words() if callable(self._words) else self._words
        return [CompletionItem(word) for word in words if word.startswith(incomplete)]


TIME = Typed(span_s, name="time")


class Grouped(click.Option):
    """An option with the group under which ``--help`` shows it."""

    def __init__(self, *args: Any, group: str, **more: Any) -> None:
        super().__init__(*args, **more)
        self.group = group


class GroupedCommand(click.Command):
    """``--help`` shows the ``common`` options in their groups, ``--help-all`` shows every one."""

    def __init__(self, *args: Any, groups: Iterable[str], common: Collection[str], **more: Any) -> None:
        super().__init__(*args, **more)
        self._groups, self._common = tuple(groups), common
        self.params.append(
            click.Option(
                ["--help-all"], is_flag=True, is_eager=True, expose_value=False, callback=_help_all,
                help="Show every option.",
            )
        )  # fmt: skip

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keep the words as they were typed: a batch script may bring more options."""
        ctx.meta[TYPED] = tuple(args)
        return super().parse_args(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Behind the first word of COMMAND stand that command's own words: the shell completes files."""
        if ctx.params.get("words"):
            return file_names(ctx, self.params[0], incomplete)
        return super().shell_complete(ctx, incomplete)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """One section for each group."""
        everything = ctx.meta.get("help_all", False)
        options = [param for param in self.get_params(ctx) if isinstance(param, click.Option) and not param.hidden]
        left = 0
        for group in (*self._groups, "Help"):
            mine = [param for param in options if getattr(param, "group", "Help") == group]
            shown = [one for one in mine if everything or group == "Help" or one.name in self._common]
            left += len(mine) - len(shown)
            if rows := [row for one in shown if (row := one.get_help_record(ctx)) is not None]:
                with formatter.section(group):
                    formatter.write_dl(rows)
        if left:
            formatter.write_paragraph()
            formatter.write_text(f"{left} more options: {ctx.command_path} --help-all")


def _help_all(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    del param
    if value and not ctx.resilient_parsing:
        ctx.meta["help_all"] = True
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()

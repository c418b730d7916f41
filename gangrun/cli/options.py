"""What commands share: arguments, a flag for each setting, help in groups."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from gangrun.config.parsers import Parser, span_s
from gangrun.errors import UserError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

F = TypeVar("F", bound=Callable[..., Any])
TYPED = "gangrun.typed"  # the words of a command line, in ``click.Context.meta``


def run_argument(function: F) -> F:
    """``[RUN]``."""
    return click.argument("run", required=False, metavar="[RUN]")(function)


def runs_dir_option(function: F) -> F:
    """``--runs-dir``."""
    words = "Search only DIR for runs (default your index and ./gangrun_runs)."
    return click.option("--runs-dir", metavar="DIR", help=words)(function)


def json_option(function: F) -> F:
    """``--json``."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")(function)


def asks() -> bool:
    """Is there a person to ask? Both ends must be a terminal."""
    return sys.stdin.isatty() and sys.stderr.isatty()


class Typed(click.ParamType[Any]):
    """A value that a parser of ours checks; ``raw`` leaves it as it was typed, for the layers of settings."""

    def __init__(self, parse: Parser, words: tuple[str, ...] = (), *, raw: bool = False, name: str = "value") -> None:
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
        return [CompletionItem(word) for word in self._words if word.startswith(incomplete)]


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

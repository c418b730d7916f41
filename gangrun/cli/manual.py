"""Man pages from the help: ``python -m gangrun.cli.manual DIR`` writes ``gangrun.1`` and ``gangrun-COMMAND.1`` there.

One source for both: what ``--help-all`` shows of a command is its page. Pages are troff with the macros of man(7), in
which a backslash, and a dot or a quote at the start of a line, mean something: all text is escaped here.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import click

from gangrun import __version__
from gangrun.cli.main import COMMANDS, group
from gangrun.errors import DONE, INTERRUPTED, NO_SUCH_RUN, RUN_FAILED, SCHEDULER, TERMINATED, UNKNOWN, USAGE

EXIT_CODES = (
    (str(DONE), "The command did its work; for run, resume, attach and wait: the run succeeded."),
    (str(RUN_FAILED), "The run failed, or a check did."),
    (str(USAGE), "A word or a setting is wrong, or something that you can change was refused."),
    (str(UNKNOWN), "Nobody can tell: a time limit passed, or a file system does not answer."),
    (str(SCHEDULER), "The scheduler refused, or could not be reached."),
    (str(NO_SUCH_RUN), "There is no such run, or several fit."),
    (str(INTERRUPTED), "The run was cancelled, or Ctrl-C was pressed."),
    (str(TERMINATED), "SIGTERM ended the command."),
)
SEE = "The pages in docs/ of the source explain each command and what to do when."


def escaped(text: str) -> str:
    """Text as troff shows it unchanged."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace("`", "\\(ga")
    return re.sub(r"^\.", "\\\\&.", text, flags=re.MULTILINE)


def pages() -> Iterator[tuple[str, str]]:
    """(file name, text) of every page."""
    above = click.Context(group, info_name="gangrun")
    names = [name for name in COMMANDS if name != "help"]
    rows = [(f"gangrun-{name}(1)", COMMANDS[name][1]) for name in names]
    yield "gangrun.1", _page("gangrun", "resilient launcher for PyTorch training", "COMMAND [ARGS]...", [
        *_section("DESCRIPTION", _paragraphs(group.help or "")),
        *_section("COMMANDS", _terms(rows)),
        *_section("EXIT STATUS", _terms(EXIT_CODES)),
    ])  # fmt: skip
    for name in names:
        command = group.get_command(above, name)
        assert command is not None
        yield f"gangrun-{name}.1", _page_of(name, command, click.Context(command, info_name=name, parent=above))


def _page_of(name: str, command: click.Command, ctx: click.Context) -> str:
    usage = " ".join(command.collect_usage_pieces(ctx))
    sections: dict[str, list[tuple[str, str]]] = {}
    for param in command.get_params(ctx):
        if isinstance(param, click.Option) and (row := param.get_help_record(ctx)) is not None:
            sections.setdefault(getattr(param, "group", "Options").upper(), []).append(row)
    body = _section("DESCRIPTION", _paragraphs(command.help or ""))
    for title, rows in sections.items():
        body += _section(title, _terms(rows))
    return _page(f"gangrun {name}", COMMANDS[name][1].rstrip("."), usage, body)


def _page(name: str, about: str, usage: str, body: list[str]) -> str:
    title = name.replace(" ", "-")
    return "\n".join([
        f'.TH "{escaped(title.upper())}" "1" "" "gangrun {__version__}" "gangrun"',
        ".SH NAME", f"{escaped(title)} \\- {escaped(about)}",
        ".SH SYNOPSIS", f".B {escaped(name)}", escaped(usage),
        *body,
        ".SH SEE ALSO", ".BR gangrun (1)", ".PP", escaped(SEE), "",
    ])  # fmt: skip


def _section(title: str, lines: list[str]) -> list[str]:
    return [f'.SH "{escaped(title)}"', *lines]


def _terms(rows: Iterable[tuple[str, str]]) -> list[str]:
    return [line for term, text in rows for line in (".TP", f"\\fB{escaped(term)}\\fR", escaped(text))]


def _paragraphs(text: str) -> list[str]:
    """Paragraphs of a docstring; one that begins with a backspace is kept line by line, as click does."""
    lines: list[str] = []
    for part in re.split(r"\n\s*\n", inspect.cleandoc(text)):
        if part.startswith("\b"):
            lines += [".PP", ".nf", *(escaped(line) for line in part.splitlines()[1:]), ".fi"]
        else:
            lines += [".PP", escaped(" ".join(part.split()))]
    return lines


def main(folder: str) -> None:
    """Write all pages into ``folder``."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    for name, text in pages():
        (Path(folder) / name).write_text(text, "utf-8")


if __name__ == "__main__":
    main(sys.argv[1])

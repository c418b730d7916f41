"""The reference of the commands from their help: man pages, and pages for the site.

``python -m gangrun.cli.manual DIR`` writes ``gangrun.1`` and ``gangrun-COMMAND.1``; ``docs/site_hook.py`` takes
``markdown_pages``. One source for both: what ``--help-all`` shows of a command is its page. Man pages are troff with
the macros of man(7), in which a backslash, and a dot or a quote at the start of a line, mean something: all text is
escaped here. So is what means something in Markdown or HTML.
"""

from __future__ import annotations

import html
import inspect
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import click

from gangrun import __version__
from gangrun.cli.main import COMMANDS, group
from gangrun.errors import DONE, INTERRUPTED, NO_SUCH_RUN, RUN_FAILED, SCHEDULER, TERMINATED, TIME_UP, UNKNOWN, USAGE

Terms = Iterable[tuple[str, str]]  # an option or a number, and what it means

EXIT_CODES = (
    (str(DONE), "The command did its work; for run, resume, attach and wait: the run succeeded."),
    (str(RUN_FAILED), "The run failed, or a check did."),
    (str(USAGE), "A word or a setting is wrong, or something that you can change was refused."),
    (str(UNKNOWN), "Nobody can tell: a time limit passed, or a file system does not answer."),
    (str(SCHEDULER), "The scheduler refused, or could not be reached."),
    (str(NO_SUCH_RUN), "There is no such run, or several fit."),
    (str(TIME_UP), "The run used its total time (--total-time): it is saved, and not finished."),
    (str(INTERRUPTED), "The run was cancelled, or Ctrl-C was pressed."),
    (str(TERMINATED), "SIGTERM ended the command."),
)
SEE = "The pages in docs/ of the source explain each command and what to do when."


@dataclass(frozen=True, slots=True)
class CommandPage:
    """What the reference says of one command; of ``gangrun`` itself if ``name`` is empty.

    ``text``: paragraphs; those to be kept line by line begin with a newline. ``sections``: title -> terms.
    """

    name: str
    about: str
    usage: str
    text: tuple[str, ...]
    sections: Mapping[str, tuple[tuple[str, str], ...]]

    @property
    def title(self) -> str:
        """As the name of a man page."""
        return f"gangrun-{self.name}" if self.name else "gangrun"


def command_pages() -> Iterator[CommandPage]:
    """Of gangrun itself, then of each command, in the order in which --help shows them."""
    above = click.Context(group, info_name="gangrun")
    names = [name for name in COMMANDS if name != "help"]
    rows = tuple((name, COMMANDS[name][1]) for name in names)
    top = {"Commands": rows, "Exit status": EXIT_CODES}
    about = "resilient launcher for PyTorch training"
    yield CommandPage("", about, "COMMAND [ARGS]...", _paragraphs(group.help or ""), top)
    for name in names:
        command = group.get_command(above, name)
        assert command is not None
        ctx = click.Context(command, info_name=name, parent=above)
        usage = " ".join(command.collect_usage_pieces(ctx))
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in command.get_params(ctx):
            if isinstance(param, click.Option) and (row := param.get_help_record(ctx)) is not None:
                sections.setdefault(getattr(param, "group", "Options"), []).append(row)
        found = {title: tuple(terms) for title, terms in sections.items()}
        yield CommandPage(name, COMMANDS[name][1].rstrip("."), usage, _paragraphs(command.help or ""), found)


def _paragraphs(text: str) -> tuple[str, ...]:
    """Paragraphs of a docstring; one that begins with a backspace is kept line by line, as click does."""
    parts = re.split(r"\n\s*\n", inspect.cleandoc(text))
    return tuple(part[1:] if part.startswith("\b\n") else " ".join(part.split()) for part in parts)


# ---- man pages -------------------------------------------------------------------------------------------------------


def pages() -> Iterator[tuple[str, str]]:
    """(file name, text) of every man page."""
    for page in command_pages():
        yield f"{page.title}.1", _troff(page)


def escaped(text: str) -> str:
    """Text as troff shows it unchanged."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace("`", "\\(ga")
    return re.sub(r"^\.", "\\\\&.", text, flags=re.MULTILINE)


def _troff(page: CommandPage) -> str:
    body = ['.SH "DESCRIPTION"']
    for part in page.text:
        kept = part.startswith("\n")
        lines = [escaped(line) for line in part.strip("\n").splitlines()]
        body += [".PP", ".nf", *lines, ".fi"] if kept else [".PP", *lines]
    for title, rows in page.sections.items():
        terms = [(f"gangrun-{term}(1)", about) for term, about in rows] if title == "Commands" else rows
        body += [f'.SH "{escaped(title.upper())}"', *_terms(terms)]
    words = f"gangrun {page.name}".rstrip()
    return "\n".join([
        f'.TH "{escaped(page.title.upper())}" "1" "" "gangrun {__version__}" "gangrun"',
        ".SH NAME", f"{escaped(page.title)} \\- {escaped(page.about)}",
        ".SH SYNOPSIS", f".B {escaped(words)}", escaped(page.usage),
        *body,
        ".SH SEE ALSO", ".BR gangrun (1)", ".PP", escaped(SEE), "",
    ])  # fmt: skip


def _terms(rows: Terms) -> list[str]:
    return [line for term, text in rows for line in (".TP", f"\\fB{escaped(term)}\\fR", escaped(text))]


# ---- pages of the site -----------------------------------------------------------------------------------------------


def markdown_pages() -> Iterator[tuple[str, str]]:
    """(file name, text) of a page for each command, and of ``gangrun.md`` for what they share."""
    for page in command_pages():
        yield f"{page.title}.md", _markdown(page)


def _markdown(page: CommandPage) -> str:
    words = f"gangrun {page.name}".rstrip()
    lines = [f"# {words}", "", f"{_plain(page.about)}.", "", "```text", f"{words} {page.usage}", "```", ""]
    for part in page.text:
        lines += ["```text", *part.strip("\n").splitlines(), "```", ""] if part.startswith("\n") else [_plain(part), ""]
    for title, rows in page.sections.items():
        kind = {"Commands": "command", "Exit status": "code"}.get(title, "option")
        lines += [f"## {title}", "", f"| {kind} | meaning |", "|---|---|"]
        for term, about in rows:
            shown = f"[{term}](gangrun-{term}.md)" if title == "Commands" else f"<code>{_cell(term)}</code>"
            lines.append(f"| {shown} | {_cell(about)} |")
        lines.append("")
    return "\n".join(lines)


def _plain(text: str) -> str:
    """Text as Markdown shows it unchanged, but for what stands in backquotes: that is code there too."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else _cell(part) for part in parts)


def _cell(text: str) -> str:
    return re.sub(r"[\\`*_{}\[\]|#]", lambda found: f"&#{ord(found[0])};", html.escape(text, quote=False))


def main(folder: str) -> None:
    """Write all pages into ``folder``."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    for name, text in pages():
        (Path(folder) / name).write_text(text, "utf-8")


if __name__ == "__main__":
    main(sys.argv[1])

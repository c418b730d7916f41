"""Man pages: one for each command, with all that --help-all shows, in troff without a mistake."""

from __future__ import annotations

import re
import shutil
import subprocess

import click
import pytest

from gangrun.cli.main import COMMANDS, group
from gangrun.cli.manual import escaped, pages

PAGES = dict(pages())


def options_of(name: str) -> set[str]:
    """Every option that is not hidden."""
    command = group.get_command(click.Context(group), name)
    assert command is not None
    shown = [one for one in command.params if isinstance(one, click.Option) and not one.hidden]
    return {option for one in shown for option in one.opts}


def test_every_command_has_a_page_with_every_option() -> None:
    assert PAGES.keys() == {"gangrun.1", *(f"gangrun-{name}.1" for name in COMMANDS if name != "help")}
    for name in COMMANDS.keys() - {"help"}:
        page = PAGES[f"gangrun-{name}.1"].replace("\\-", "-")
        assert all(re.search(rf"\\fB.*{re.escape(option)}\b", page) for option in options_of(name)), name
        assert f"gangrun-{name}(1)" in PAGES["gangrun.1"].replace("\\-", "-")


def test_examples_keep_their_lines() -> None:
    page = PAGES["gangrun-run.1"].replace("\\-", "-")
    lines = page[page.index(".nf") : page.index(".fi")].splitlines()
    assert len(lines) == 4 and all(line.lstrip().startswith("gangrun run ") for line in lines[1:])


def test_what_means_something_to_troff_is_escaped() -> None:
    assert escaped(".SH \\n -x 'a'\n.py") == "\\&.SH \\en \\-x \\(aqa\\(aq\n\\&.py"


@pytest.mark.skipif(shutil.which("groff") is None, reason="groff is not installed here")
@pytest.mark.parametrize("name", PAGES)
def test_groff_takes_a_page_without_a_warning(name: str) -> None:
    done = subprocess.run(
        ["groff", "-man", "-Tutf8", "-ww"], input=PAGES[name], capture_output=True, text=True, timeout=60, check=True
    )
    assert (done.stderr, "GANGRUN" in done.stdout) == ("", True)

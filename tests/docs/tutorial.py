"""A tutorial as its reader follows it: files saved under the names that the page gives, commands typed in order."""

from __future__ import annotations

import re
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "docs" / "tutorials"
_FILE = re.compile(r"^Save this as `(?P<name>[^`]+)`[^\n]*\n\n```\w+\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_COMMANDS = re.compile(r"(?<=\n\n)((?:    [^\n]*\n)+)")


def files_of(name: str) -> dict[str, str]:
    """The files that the page has its reader save."""
    page = (FOLDER / f"{name}.md").read_text("utf-8")
    found = {one["name"]: one["text"] for one in _FILE.finditer(page)}
    assert len(found) == page.count("\n```") // 2, "each block is a file with a name"
    return found


def commands_of(name: str) -> str:
    """All commands of the page, as a shell script that stops at the first one that fails."""
    page = re.sub(r"^```.*?^```$", "", (FOLDER / f"{name}.md").read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    return "set -e -o pipefail\n" + "".join(
        re.sub("^    ", "", part, flags=re.MULTILINE) for part in _COMMANDS.findall(page)
    )

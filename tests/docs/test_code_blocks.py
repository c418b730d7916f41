"""Every block of code in README and docs works: commands parse with the real options, scripts run as ranks, files load.

A block that cannot run here has a comment before it that readers of the page do not see: ``<!-- not run: WHY -->``.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click
import pytest

from gangrun.cli.main import group
from gangrun.errors import UserError
from tests.command_line import Call
from tests.faults.inject import PLAIN

ROOT = Path(__file__).parents[2]
# tests/docs/test_tutorials.py follows the tutorials from the first line to the last
DOCS = [page for page in sorted((ROOT / "docs").rglob("*.md")) if page.parent.name != "tutorials"]
PAGES = [ROOT / "README.md", *DOCS, ROOT / "examples" / "README.md"]
NOT_RUN = {
    "README.md": 1,
    "docs/architecture.md": 5,
    "docs/drill.md": 1,
    "docs/health.md": 1,
    "docs/lifecycle.md": 1,
    "docs/planning.md": 1,
    "docs/telling.md": 3,
    "docs/training-loop.md": 8,
}
_BLOCK = re.compile(
    r"(?:^<!-- not run: (?P<why>[^\n]+) -->\n+)?"
    r"(?:^```(?P<language>\w*)\n(?P<fenced>.*?)^```$|(?<=\n\n)(?P<indented>(?:    [^\n]*\n|\n(?=    ))+))",
    re.MULTILINE | re.DOTALL,
)
_INLINE = re.compile(r"`(gangrun [a-z][^`]*)`")
_NO_OPTION = re.compile(r"\[\w+\]|\[\w+\|\w+\]|\[\w+\.\.\.\]")  # RUN that may be left out
# What a page takes for granted around its block, by page and number of the block.
MADE_UP = {
    ("README.md", 0): "",
    ("README.md", 1): "step, loss = 0, 0.5\ndef save(step): raise AssertionError('nobody asked')\n",
    ("docs/checkpoints.md", 0): """
import torch
from torch.utils.data import DataLoader
dataset, steps, loss = torch.arange(4096.0), 3, 0.5
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer)
torch.distributed.init_process_group("gloo")
""",
}


@dataclass(frozen=True)
class Block:
    """One block of a page."""

    page: str
    line: int
    language: str
    text: str
    why_not: str
    fenced: bool

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks() -> Iterator[Block]:
    """All of them, page by page."""
    for path in PAGES:
        page = path.read_text("utf-8")
        for found in _BLOCK.finditer(page):
            text = found["fenced"] or "\n".join(line[4:] for line in (found["indented"] or "").split("\n"))
            language = found["language"] or ("toml" if text.lstrip().startswith("[") else "console")
            line = page.count("\n", 0, found.start()) + 1
            yield Block(
                str(path.relative_to(ROOT)), line, language, text, found["why"] or "", found["fenced"] is not None
            )


BLOCKS = list(blocks())
RUN = [block for block in BLOCKS if not block.why_not]


def of(language: str) -> list[Block]:
    return [block for block in RUN if block.language == language]


def test_no_block_is_left_out_and_those_that_cannot_run_are_counted() -> None:
    assert {block.language for block in RUN} == {"bash", "console", "json", "python", "toml"}
    marked = [block.page for block in BLOCKS if block.why_not]
    assert {page: marked.count(page) for page in marked} == NOT_RUN
    fences = sum(page.read_text("utf-8").count("\n```") for page in PAGES)
    assert 2 * sum(block.fenced for block in BLOCKS) == fences


def parse(words: list[str]) -> None:
    """As ``gangrun WORDS...`` would understand them, up to the moment at which it would begin."""
    above = click.Context(group, info_name="gangrun", **group.context_settings)
    name, command, rest = group.resolve_command(above, words)
    assert command is not None
    try:
        command.make_context(name, list(rest), parent=above)
    except click.exceptions.Exit as done:
        if done.exit_code != 0:
            raise


def commands_of(text: str) -> Iterator[list[str]]:
    """The words of each command, one a line or several with && or |."""
    for line in text.splitlines():
        words: list[str] = []
        for word in [*shlex.split(line, comments=True), "&&"]:
            if word not in ("&&", "|"):
                words.append(word)
            elif words:
                yield words
                words = []


@pytest.mark.parametrize("block", of("console"), ids=str)
def test_a_command_of_a_block_parses(home: Path, block: Block) -> None:
    for words in commands_of(block.text):
        match words:
            case ["gangrun", *rest]:
                parse([word for word in rest if not word.startswith(">")])
            case ["make", target]:
                assert f"\n{target}:" in (ROOT / "Makefile").read_text()
            case ["pip", "install", "."] | ["source"]:
                pass
            case ["eval", completion] | [completion, "gangrun"]:
                shell = re.search(r"_GANGRUN_COMPLETE=(\w+)", completion)
                assert shell is not None
                environment = {**os.environ, "_GANGRUN_COMPLETE": shell[1]}
                done = subprocess.run(PLAIN, env=environment, capture_output=True, text=True, timeout=60, check=False)
                assert "gangrun" in done.stdout, done.stderr
            case _:
                raise AssertionError(f"{block}: what is {shlex.join(words)}?")


def test_a_command_in_a_sentence_parses(home: Path) -> None:
    count = 0
    for path in PAGES:
        for text in _INLINE.findall(path.read_text("utf-8")):
            plain = _NO_OPTION.sub("", text.replace("[options]", "").replace(" COMMAND...", " train.py"))
            for words in commands_of(plain):
                if words[0] == "gangrun" and "…" not in words and words != ["gangrun", "prune"]:
                    count += 1
                    incomplete = len(words) == 2 and words[1] in ("run", "submit", "help")
                    parse([*words[1:], *(["train.py"] if incomplete or words[-1].startswith("--memory") else [])])
    assert count > 50


def test_a_wrong_option_is_seen() -> None:
    with pytest.raises((click.UsageError, UserError)):
        parse(["cancel", "--politely"])
    with pytest.raises((click.UsageError, UserError)):
        parse(["run", "--nproc-per-node", "many", "train.py"])


@pytest.mark.parametrize("block", of("json"), ids=str)
def test_an_object_loads(block: Block) -> None:
    json.loads(block.text)


@pytest.mark.parametrize("block", of("toml"), ids=str)
def test_a_file_of_settings_is_taken_without_a_warning(home: Path, gangrun: Call, block: Block) -> None:
    Path("gangrun.toml").write_text(block.text)
    told = gangrun("config", "--json")
    assert (told.code, told.json["warnings"]) == (0, []), told.out


@pytest.mark.parametrize("block", of("bash"), ids=str)
def test_a_batch_script_would_be_submitted(home: Path, gangrun: Call, block: Block) -> None:
    Path("train.sbatch").write_text(block.text)
    told = gangrun("submit", "--dry-run", "train.sbatch")
    assert (told.code, "gangrun.entry.slurm_job" in told.out) == (0, True), told.out


@pytest.mark.processes
@pytest.mark.parametrize("number", range(len(MADE_UP)), ids=[f"{page}-{n}" for page, n in MADE_UP])
def test_a_script_runs_as_ranks(tmp_path: Path, number: int) -> None:
    (page, nth), before = list(MADE_UP.items())[number]
    scripts = [block for block in of("python") if "import submitit" not in block.text]
    assert len(scripts) == len(MADE_UP)
    script = tmp_path / "train.py"
    script.write_text(before + [block for block in scripts if block.page == page][nth].text)
    words = [*PLAIN, "run", "--no-health", "--nproc-per-node", "2", "--runs-dir", str(tmp_path / "runs"), str(script)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_STATE_HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.processes
def test_a_script_of_submitits_runs(tmp_path: Path) -> None:
    (block,) = [block for block in of("python") if "import submitit" in block.text]
    smaller = {
        'cluster="gangrun"': 'cluster="gangrun", gangrun_here=True',
        "nodes=2, tasks_per_node=8": "tasks_per_node=2",
    }
    text = block.text
    for old, new in smaller.items():
        assert old in text
        text = text.replace(old, new)
    (tmp_path / "work.py").write_text(text)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_STATE_HOME": str(tmp_path), "GANGRUN_NO_HEALTH": "1"}
    done = subprocess.run(
        [PLAIN[0], "work.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[(0, 0.0003), (1, 0.0003)]" in done.stdout

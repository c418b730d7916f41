"""What TAB completes in the shell: runs, nodes, files and words."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from gangrun.cli.main import group
from tests.runs.stories import running, succeeded

FILES = "a file"
RUN, OLDER = "20261118-110640-abcde", "20251118-110640-other"


def completed(*words: str) -> list[str]:
    """What is offered for the last word."""
    shell = ShellComplete(group, {}, "gangrun", "_GANGRUN_COMPLETE")
    found = shell.get_completions(list(words[:-1]), words[-1])
    return [FILES if one.type == "file" else one.value for one in found]


@pytest.mark.parametrize(
    "words",
    [
        ("run", "tr"), ("run", "--max-restarts", "3", ""), ("run", "train.py", "--d"), ("submit", "train.s"),
        ("submit", "-N", "2", "python", "tr"), ("run", "--checkpoint-dir", "c"), ("run", "--checkpoint-file", "c"),
        ("run", "--env-file", ""), ("run", "--validator", "v"), ("convert", ""), ("status", "--runs-dir", ""),
        ("chaos", "--html", ""), ("report", "--html", ""), ("checkpoints", "ck"), ("health", "--path", ""),
    ],
)  # fmt: skip
def test_commands_and_options_that_take_a_file_complete_files(words: tuple[str, ...], home: Path) -> None:
    assert completed(*words) == [FILES]


def test_runs_are_completed_by_id_and_name_the_newest_first(runs: Path) -> None:
    assert completed("status", "") == []
    running(runs)
    succeeded(runs, run=OLDER, name="other")
    for command in ("status", "explain", "logs", "events", "metrics", "attach", "checkpoint", "cancel", "resume",
                    "wait", "report", "health", "prune", "drain"):  # fmt: skip
        assert completed(command, "") == [RUN, OLDER, "other", "train"], command
    assert completed("logs", "2026") == completed("checkpoints", "2026") == completed("plan", "--from", "2026") == [RUN]
    assert completed("drain", "train", "n") == ["n0", "n1"]
    assert completed("drain", "nothing", "n") == []
    assert completed("status", "--runs-dir", str(runs / "elsewhere"), "") == []


def test_profiles_are_completed_from_all_places_where_they_are_read(home: Path) -> None:
    (home / "gangrun.toml").write_text("[profiles.night]\nspares = 1\n[profiles.h100]\nspares = 1\n")
    (home / "more.toml").write_text("[profiles.nightly]\nspares = 1\n")
    assert completed("run", "--profile", "") == ["a100", "b200", "h100", "night"]
    assert completed("submit", "--profile", "n") == ["night"]
    assert completed("run", "--config", "more.toml", "--profile", "n") == ["night", "nightly"]
    assert completed("run", "--config", "gone.toml", "--profile", "n") == ["night"]
    (home / "gangrun.toml").write_text("no TOML")
    assert completed("run", "--profile", "h") == ["h100"]


def test_options_with_a_choice_complete_their_words(home: Path) -> None:
    assert {"auto", "hf", "lightning"} <= set(completed("run", "--framework", ""))
    assert completed("checkpoints", "--framework", "h") == ["hf"]
    assert completed("run", "--refill", "") == ["off", "spare", "wait:"]
    assert completed("resume", "--resume", "") == ["auto", "none"]
    assert "started" in completed("run", "--notify-on", "")
    assert completed("help", "stat") == completed("stat") == ["status"]
    assert completed("run", "--det") == ["--detach"]

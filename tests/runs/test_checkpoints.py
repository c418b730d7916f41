"""``gangrun checkpoints``: what is valid, what is not and why, on checkpoints that torch wrote."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.command_line import Call
from tests.local import saves
from tests.runs.builder import Builder

pytest.importorskip("torch")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("written")
    saves.write(root, (10, 20))
    return root


@pytest.fixture
def ckpt(written: Path, home: Path) -> Path:
    """Two good ones, and an unfinished newer one."""
    shutil.copytree(written, home / "ckpt")
    (home / "ckpt" / "step-30").mkdir()
    return home / "ckpt"


def test_newest_first_with_the_one_that_would_be_taken(ckpt: Path, gangrun: Call) -> None:
    found = gangrun("checkpoints", "ckpt", "--json").json
    assert [one["step"] for one in found["checkpoints"]] == [30, 20, 10]
    assert found["checkpoints"][0]["committed"] is False
    assert found["resume_from"]["step"] == 20
    assert found["checkpoints"][1]["size_bytes"] > 8000
    said = gangrun("checkpoints", "./ckpt")
    assert said.code == 0
    assert "step-20" in said.out
    assert "unfinished" in said.out


def test_without_verify_no_data_is_read_and_that_is_said(ckpt: Path, gangrun: Call) -> None:
    saves.flip(ckpt / "step-20")
    found = gangrun("checkpoints", "ckpt", "--json").json
    assert found["checkpoints"][1]["level"] == "complete"
    assert found["checkpoints"][1]["valid"] is None
    assert "not checked" in found["reason"]
    assert "were not checked" in found["checkpoints"][1]["why_not"]


def test_verify_finds_the_damage_and_exits_1(ckpt: Path, gangrun: Call) -> None:
    assert gangrun("checkpoints", "ckpt", "--verify").code == 0
    saves.flip(ckpt / "step-20")
    said = gangrun("checkpoints", "ckpt", "--verify", "--json")
    assert said.code == 1
    assert said.json["checkpoints"][1]["valid"] is False
    assert said.json["checkpoints"][1]["why_not"]
    assert said.json["resume_from"]["step"] == 10
    assert (ckpt / "step-20").exists()  # nothing is moved by looking


def test_a_checkpoint_is_not_taken_for_the_directory_of_checkpoints(ckpt: Path, gangrun: Call) -> None:
    said = gangrun("checkpoints", "ckpt/step-20")
    assert said.code == 2 and "is itself a checkpoint" in said.err and f"gangrun checkpoints {ckpt}" in said.err
    said = gangrun("checkpoints", str(ckpt / "nowhere"))
    assert said.code == 5 and "neither a directory nor a run" in said.err
    said = gangrun("run", "--checkpoint-dir", "ckpt/step-20", "true")
    assert said.code == 2 and "is itself a checkpoint" in said.err


def test_a_step_in_memory_is_listed_with_its_tier(ckpt: Path, runs: Path, gangrun: Call) -> None:
    story = Builder(runs, checkpoint_dir=str(ckpt)).supervisor().up().live(kept_step=37)

    def tiers() -> list[tuple[str, str]]:
        rows = [line.split() for line in gangrun("checkpoints", "train").out.splitlines()]
        return [(row[0], " ".join(row[3:5]).removesuffix(" -")) for row in rows if row and row[0].isdecimal()]

    assert [step for step, _ in tiers()] == ["37", "30", "20", "10"]
    assert tiers()[0] == ("37", "memory")
    assert gangrun("checkpoints", "train", "--json").json["memory_step"] == 37
    story.live(kept_step=20)
    assert [step for step, tier in tiers() if "memory" in tier] == ["20"]
    story.finished().stopped()
    assert not [step for step, tier in tiers() if "memory" in tier], "it went with the ranks"


def test_of_a_run_by_its_own_pattern(ckpt: Path, runs: Path, gangrun: Call) -> None:
    Builder(runs, checkpoint_dir=str(ckpt)).supervisor()
    said = gangrun("checkpoints", "train", "--json").json
    assert said["run"] == "20261118-110640-abcde"
    assert said["resume_from"]["step"] == 20
    assert gangrun("checkpoints", "--json").json["directory"] == str(ckpt)
    assert gangrun("checkpoints", "train", "--checkpoint-pattern", r"other-(\d+)", "--json").json["checkpoints"] == []


def test_a_run_without_a_checkpoint_directory(runs: Path, gangrun: Call) -> None:
    Builder(runs)
    said = gangrun("checkpoints", "train")
    assert said.code == 2
    assert "gangrun checkpoints DIR" in said.err


def test_bad_patterns_and_places(ckpt: Path, gangrun: Call) -> None:
    assert gangrun("checkpoints", "ckpt", "--checkpoint-pattern", "(").code == 2
    assert gangrun("checkpoints", "nowhere").code == 5
    assert gangrun("checkpoints", "ckpt/step-30", "--verify").code == 1  # nothing there that is valid


@pytest.mark.processes
def test_a_command_of_ones_own_judges_too(ckpt: Path, runs: Path, gangrun: Call) -> None:
    refuse = "sh -c 'case $1 in */step-20) echo too hot; exit 1;; esac' check"
    said = gangrun("checkpoints", "ckpt", "--verify", "--validator", refuse, "--json")
    assert said.code == 1
    found = {one["step"]: one for one in said.json["checkpoints"]}
    assert (found[20]["valid"], found[20]["why_not"]) == (False, "the validator refuses it: too hot")
    assert said.json["resume_from"]["step"] == 10
    assert gangrun("checkpoints", "ckpt", "--validator", refuse).code == 0, "nothing is read, so nobody is asked"
    Path("gangrun.toml").write_text('validator = ["false"]\n')
    assert gangrun("checkpoints", "ckpt", "--verify", "--json").json["resume_from"] is None
    wrong = gangrun("checkpoints", "ckpt", "--validator", "'half")
    assert wrong.code == 2 and "is not a command" in wrong.err


def test_what_is_shared_with_another_is_shown(ckpt: Path, gangrun: Call) -> None:
    assert {one["shared_bytes"] for one in gangrun("checkpoints", "ckpt", "--json").json["checkpoints"]} == {0}
    shard = next((ckpt / "step-10").glob("*.distcp"))
    (ckpt / "step-20" / shard.name).unlink()
    (ckpt / "step-20" / shard.name).hardlink_to(shard)
    for one in gangrun("checkpoints", "ckpt", "--json").json["checkpoints"][1:]:
        assert (one["shared_bytes"], one["tier"]) == (shard.stat().st_size, "disk")
    lines = gangrun("checkpoints", "ckpt").out.splitlines()
    assert lines[2].split()[:7] == ["step", "valid", "level", "tier", "size", "shared", "changed"]
    assert sum(" % " in line for line in lines) == 2

"""What an attempt resumes from: real DCP checkpoints, some of them damaged, and ranks that only write down what they
were told.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.local import saves
from tests.local.evidence import journal
from tests.local.harness import Box

pytest.importorskip("torch")

# Writes down what it was told; dies in the attempts named by DIE_IN; reports steps to gangrun if FIRST_STEP is set.
TOLD = """
import json, os, shutil, signal, time
from pathlib import Path
attempt = int(os.environ["GANGRUN_ATTEMPT"])
link = Path(os.environ["RUN_ROOT"]) / os.environ["GANGRUN_RUN"] / "resume"
told = {
    "path": os.environ.get("GANGRUN_RESUME", ""), "step": os.environ.get("GANGRUN_RESUME_STEP", ""),
    "link": os.readlink(link) if link.is_symlink() else None,
}
Path(f"told-{attempt}.json").write_text(json.dumps(told))
if os.environ.get("FIRST_STEP"):
    import gangrun
    first = int(os.environ["FIRST_STEP"])
    for step in range(first, first + int(os.environ.get("STEPS", "200"))):
        gangrun.step(step)
        time.sleep(0.05)
if str(attempt) in os.environ.get("DIE_IN", "").split():
    exec(os.environ.get("BEFORE_DEATH", ""))
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """step-10 ... step-50."""
    root = tmp_path_factory.mktemp("written")
    saves.write(root, (10, 20, 30, 40, 50))
    return root


class Resuming:
    """A run over a checkpoint directory."""

    def __init__(self, box: Box, written: Path) -> None:
        self.box, self.written = box, written
        self.directory = box.work / "its ckpt"  # a name that careless quoting would break
        self.directory.mkdir()

    def put(self, *steps: int) -> Resuming:
        saves.put(self.written, self.directory, *steps)
        return self

    def save(self, step: int) -> Path:
        return self.directory / f"step-{step}"

    def start(self, *options: str | Path, **environment: str) -> None:
        script = self.box.script(TOLD)
        environment = {"RUN_ROOT": str(self.box.runs), **environment}
        self.box.start("--checkpoint-dir", self.directory, *options, script, environment=environment)

    def run(self, *options: str | Path, expect: int = 0, **environment: str) -> dict[str, Any]:
        """To its end; the status."""
        self.start(*options, **environment)
        assert self.box.end() == expect, self.box.told()
        return self.box.status()

    def told(self, attempt: int = 0) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.box.work / f"told-{attempt}.json").read_text())
        return found

    def ran(self) -> bool:
        return bool(list(self.box.work.glob("told-*.json")))


@pytest.fixture
def resuming(box: Box, written: Path) -> Resuming:
    """Nothing saved yet."""
    return Resuming(box, written)


def test_the_newest_valid_one_is_found_and_told_in_three_ways(resuming: Resuming) -> None:
    status = resuming.put(10, 20).run()
    newest = str(resuming.save(20))
    assert resuming.told() == {"path": newest, "step": "20", "link": newest}
    assert status["attempts"][0]["resumed_from_step"] == 20
    assert status["checkpoint"]["step"] == 20
    assert status["checkpoint"]["path"] == newest
    assert status["checkpoint"]["level"] == "verified"
    assert "verified, every checksum holds" in resuming.box.explain()


def test_a_damaged_one_is_passed_over_with_the_reason_and_set_aside(resuming: Resuming) -> None:
    resuming.put(10, 20, 30)
    saves.flip(resuming.save(30))
    resuming.run()
    assert resuming.told()["step"] == "20"
    story = resuming.box.explain()
    assert "passed over: step 30: " in story
    assert "checksum" in story.partition("passed over: step 30: ")[2][:400]
    assert not resuming.save(30).exists()
    aside = [path for path in (resuming.directory / ".gangrun/set-aside").glob("*/step-30") if path.is_dir()]
    assert len(aside) == 1
    # the command that is printed brings it back as it was
    reason = next(r for r in journal_reasons(resuming.box) if "undo with: " in r)
    undo = reason.partition("undo with: ")[2]
    subprocess.run(shlex.split(undo), check=True)
    assert resuming.save(30).is_dir()
    assert not aside[0].exists()


def journal_reasons(box: Box) -> list[str]:
    """Every reason, as it stands in the journal."""
    return [record.reason for record in journal(box)]


def test_none_valid_stops_the_run_and_never_starts_from_zero(resuming: Resuming) -> None:
    resuming.put(10, 20)
    saves.flip(resuming.save(10))
    saves.lose_shard(resuming.save(20))
    status = resuming.run(expect=1)
    assert status["state"] == "FAILED"
    assert status["failure"] == "storage"
    assert "none of 2 committed checkpoints" in status["reason"]
    assert "not starting again from zero" in status["reason"]
    assert not resuming.ran()
    assert resuming.save(10).exists()  # a run that stops moves nothing


def test_what_gangrun_cannot_judge_is_named_wherever_a_checkpoint_is_spoken_of(box: Box) -> None:
    folder = box.work / "saves"
    (folder / "checkpoint-20").mkdir(parents=True)
    (folder / "latest.pt").write_bytes(b"weights")
    (folder / "epoch=0-step=500.ckpt").write_bytes(b"weights")
    box.start("--checkpoint-dir", "saves", "--no-health", "sh", "-c", "exit 3")
    box.end()
    where = ("--runs-dir", str(box.runs))
    resumed = box.gangrun("resume", *where, "--resume", "40", check=False)
    said = {
        "run": box.err.read_text(),
        "explain": box.explain(),
        "status": box.gangrun("status", *where).stdout,
        "status --json": box.status()["unjudged"],
        "checkpoints RUN": box.gangrun("checkpoints", *where).stdout,
        "checkpoints DIR": box.gangrun("checkpoints", "saves").stdout,
        "resume": resumed.stdout + resumed.stderr,
    }
    for place, text in said.items():
        words = " ".join(text.split())
        for told in (
            "gangrun cannot judge checkpoint-20 (looks like Hugging Face Trainer; --framework hf lets",
            "nor epoch=0-step=500.ckpt (looks like Lightning; --checkpoint-file FILE lets",
            "nor latest.pt (looks like torch.save; --checkpoint-file FILE lets",
        ):
            assert told in words, (place, text)
        for wrong in ("ever committed", "no checkpoints here", "none known"):
            assert wrong not in words, (place, text)


def test_resume_step_takes_that_one(resuming: Resuming) -> None:
    resuming.put(10, 20, 30).run("--resume", "20", DIE_IN="0")
    assert [resuming.told(attempt)["step"] for attempt in (0, 1)] == ["20", "20"]


def test_a_run_that_lost_all_its_processes_resumes_from_the_step_that_is_asked_for(resuming: Resuming) -> None:
    box = resuming.box
    resuming.put(10, 20).start(FIRST_STEP="20", STEPS="100000")
    box.until_status("that it trains", lambda found: found["step"] is not None and found["step"] > 25)
    for pid in box.left():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    box.end()
    run = box.status()["run"]
    box.environment["RUN_ROOT"] = str(box.runs)
    words = ("--resume", "10", "--detach", "--json", "--runs-dir", str(box.runs))
    done = box.gangrun("resume", run, *words, check=False)
    assert done.returncode == 0, done.stderr + box.told()
    assert json.loads(done.stdout)["run"] == run
    assert box.gangrun("wait", run, "--runs-dir", str(box.runs)).returncode == 0
    assert resuming.told(1)["step"] == "10"
    assert [one["resumed_from_step"] for one in box.status()["attempts"]] == [20, 10]


def test_a_script_that_starts_over_is_stopped(resuming: Resuming) -> None:
    status = resuming.put(10, 20).run(expect=1, FIRST_STEP="1", STEPS="100000")
    assert status["state"] == "FAILED"
    assert status["failure"] == "script"
    assert "it started over" in status["reason"]
    assert "20" in status["reason"]
    assert len(status["attempts"]) == 1


@pytest.mark.timeout(600)
def test_newer_ones_show_while_it_runs_and_refill_the_budget(resuming: Resuming) -> None:
    """Five deaths with two restarts allowed: each attempt saves more than the one before."""
    resuming.put(10)
    grow = (
        f"source, target = {str(resuming.written)!r}, {str(resuming.directory)!r}\n"
        "name = f'/step-{10 * (attempt + 2)}'\n"
        "if os.path.exists(source + name): shutil.copytree(source + name, target + name)\n"
        "if attempt == 0:\n    while not os.path.exists('seen'): time.sleep(0.05)"
    )
    resuming.start("--max-restarts", "2", DIE_IN="0 1 2 3 4", BEFORE_DEATH=grow)
    status = resuming.box.until_status("the newer one", lambda s: (s["checkpoint"] or {}).get("step") == 20, 60.0)
    assert status["state"] == "RUNNING"
    (resuming.box.work / "seen").touch()
    assert resuming.box.end() == 0, resuming.box.told()
    assert resuming.box.status()["restarts"] == 5
    assert [resuming.told(attempt)["step"] for attempt in range(6)] == ["10", "20", "30", "40", "50", "50"]


SHARDS_COUNT = 12


def test_agents_of_all_nodes_read_it_and_damage_in_any_share_is_found(box: Box) -> None:
    directory = box.work / "its ckpt"
    for step in (10, 20, 30):
        saves.own(directory, step, SHARDS_COUNT)
    saves.flip(directory / "step-30", f"__{SHARDS_COUNT - 1}_0.distcp")  # the last reader's
    saves.flip(directory / "step-20", f"__{SHARDS_COUNT // 2}_0.distcp")  # the second one's
    script = box.script("")
    box.start(
        "--nodes", "3", "--local-hosts", "--no-health", "--reading-share", "1K", "--checkpoint-dir", directory, script
    )  # fmt: skip
    assert box.end(deadline_s=120.0) == 0, box.told()
    assert box.status()["attempts"][0]["resumed_from_step"] == 10
    told = box.explain()  # on a busy machine one of them may be too late
    assert re.search(r"read by [23] nodes, 72\.0 kB in \d+\.\d s", told), told
    for step, shard in ((30, SHARDS_COUNT - 1), (20, SHARDS_COUNT // 2)):
        assert f"step {step}: __{shard}_0.distcp is damaged" in told


def test_agents_read_a_plain_checkpoint_too(box: Box) -> None:
    directory = box.work / "its ckpt"
    for step in (10, 20, 30):
        save = saves.plain(directory, step, SHARDS_COUNT)
        shards = saves.files_of(save)
        if step > 10:
            saves.flip(save, shards[0 if step == 20 else -1])  # the one's share, and the other's
    script = box.script("")
    box.start(
        "--nodes", "2", "--local-hosts", "--no-health", "--reading-share", "1K", "--checkpoint-dir", directory, script
    )  # fmt: skip
    assert box.end(deadline_s=120.0) == 0, box.told()
    assert box.status()["attempts"][0]["resumed_from_step"] == 10
    told = box.explain()
    # on a busy machine the other one may be too late, but it does not refuse
    assert re.search(r"read by (2 nodes, \d+|1 node, [^;]*\(([^:;]+: )?no answer\))", told), told
    assert all(re.search(rf"step {step}: \w+ in \w+\.distcp is damaged", told) for step in (20, 30)), told

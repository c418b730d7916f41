"""The README's two lines: a script that reads ``asked.checkpoint`` is asked to save at every stop that leaves time."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.health.test_nvml import Library, build, library  # noqa: F401 - fixtures
from tests.local.harness import Box
from tests.waiting import until

pytestmark = pytest.mark.no_warm

# All ranks take part in a save, as with a collective: two that save different steps wait for each other until the grace
# is over. The ranks meet before each step, so that none is ahead of another by more than one.
SAVES = """
import gangrun
def hook(step):
    done = step - 1
    if done < 0 or not gangrun.step(done, 0.5).checkpoint:
        return
    (folder / f"saving-{done}.{rank}").touch()
    while not all((folder / f"saving-{done}.{r}").exists() for r in range(world)):
        time.sleep(0.01)
    (folder / f"saved-{done}.{rank}").touch()
"""
GRACE_S = 300  # nothing here waits for its end
OPTIONS = ("--checkpoint-grace", str(GRACE_S))


def train(box: Box, *options: str, pace: float = 0.02, until_step: int = 5) -> None:
    """Two ranks on each node that save when they are asked to."""
    box.step(2, *OPTIONS, *options, steps=10_000, pace=pace, hook=SAVES)
    box.wait_for_step(until_step, deadline_s=60)


def saved(box: Box) -> dict[int, set[int]]:
    """Step -> the ranks that saved it."""
    found: dict[int, set[int]] = {}
    for path in (box.work / "steps").glob("saved-*"):
        step, rank = path.name.removeprefix("saved-").split(".")
        found.setdefault(int(step), set()).add(int(rank))
    return found


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_a_signal_to_the_launcher(box: Box, number: signal.Signals) -> None:
    train(box)
    assert box.process is not None
    box.process.send_signal(number)
    assert box.end(60) == (130 if number is signal.SIGINT else 143), box.told()
    ((step, ranks),) = saved(box).items()
    assert ranks == {0, 1}, box.told()
    assert box.status()["state"] == "CANCELLED"
    assert f"the script saved step {step} first" in box.status()["reason"]


def test_the_step_that_a_script_saved_before_it_left_its_loop_is_told(box: Box) -> None:
    leaves = """
import sys, gangrun
def hook(step):
    asked = gangrun.step(step, 0.5)
    if asked.checkpoint:
        (folder / f"saved-{step}.{rank}").touch()
    if asked.stop:
        sys.exit(0)
"""
    box.step(1, *OPTIONS, steps=10_000, hook=leaves)
    box.wait_for_step(5, deadline_s=60)
    box.interrupt(deadline_s=60)
    (step,) = saved(box)
    assert f"the script saved step {step} first" in box.status()["reason"]


@pytest.mark.parametrize("pace", [0.005, 1.0])
def test_ranks_on_two_nodes_save_one_step_at_once(box: Box, pace: float) -> None:
    """Before anybody knows how fast they are."""
    train(box, "--nodes", "2", "--local-hosts", pace=pace, until_step=1)
    assert box.process is not None
    box.process.send_signal(signal.SIGINT)
    assert box.end(60) == 130, box.told()
    assert list(saved(box).values()) == [{0, 1, 2, 3}], box.told()


def test_gangrun_cancel_of_ranks_on_two_nodes_that_save_one_step(box: Box) -> None:
    train(box, "--nodes", "2", "--local-hosts")
    assert box.gangrun("cancel", "-y", "--runs-dir", str(box.runs)).returncode == 0, box.told()
    assert box.end(60) == 130, box.told()
    assert list(saved(box).values()) == [{0, 1, 2, 3}], box.told()


def test_a_script_that_never_asks_is_not_waited_for(box: Box) -> None:
    box.step(2, *OPTIONS, steps=10_000, hook="import gangrun\ndef hook(step): gangrun.step(step, 0.5)")
    box.wait_for_step(5, deadline_s=60)
    box.interrupt(deadline_s=60)  # on a busy machine, too, far sooner than after the grace


@pytest.mark.compiler
def test_a_gpu_that_is_about_to_fail(box: Box, library: Callable[..., Library]) -> None:  # noqa: F811
    driver = library()
    driver.say()
    (box.work / "gangrun.toml").write_text("[health]\npreflight_within_s = 60\n")  # however busy the machine is
    hardware = {name: driver.environment[name] for name in ("LD_LIBRARY_PATH", "FAKE_NVML")}
    box.environment.update({**hardware, "GANGRUN_NO_HEALTH": "0"})
    train(box)
    driver.say(changes={"event0": "1 8 64"})
    until(lambda: saved(box), 60, lambda: f"a save\n{box.told()}")
    box.until_status("the cause", lambda found: found["attempts"][0]["outcome"] != "running", 60)
    assert list(saved(box).values()) == [{0, 1}], box.told()
    assert "the ranks save first, because the GPU still works" in box.explain()


def test_gangrun_checkpoint_saves_now_and_ranks_train_on(box: Box) -> None:
    train(box, "--nodes", "2", "--local-hosts")
    told: dict[str, Any] = {}
    for count in (1, 2):
        told = json.loads(box.gangrun("checkpoint", "--json", "--runs-dir", str(box.runs)).stdout)
        assert len(saved(box)) == count
        assert saved(box)[told["step"]] == {0, 1, 2, 3}
        assert f"the script saved at step {told['step']}; gangrun knows no checkpoint directory" in told["message"]
    box.wait_for_step(told["step"] + 5)
    story = box.explain()
    assert "(gangrun checkpoint) asked for a checkpoint; asking all ranks to save and to train on" in story
    box.interrupt(deadline_s=60)
    assert len(saved(box)) == 3
    ended = box.gangrun("checkpoint", box.run_dir().name, "--runs-dir", str(box.runs), check=False)
    assert ended.returncode == 2 and "has ended: CANCELLED" in ended.stderr


def test_gangrun_checkpoint_tells_why_nothing_is_saved(box: Box) -> None:
    box.step(2, *OPTIONS, steps=10_000, hook=SAVES.replace(".checkpoint", ".stop"))
    box.wait_for_step(5, deadline_s=60)
    told = box.gangrun("checkpoint", "--runs-dir", str(box.runs), check=False)
    assert told.returncode == 2 and "the script reads no request to save" in told.stderr
    box.interrupt(deadline_s=60)


CHECKPOINTER = """
import os, sys, time, torch, torch.distributed as dist, gangrun
dist.init_process_group("gloo")
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
with gangrun.Checkpointer(sys.argv[1], model=model, optimizer=optimizer, every_steps=100_000) as saver:
    step = saver.resume()
    while not saver.step(step, 0.5).stop:
        step += 1
        time.sleep(0.02)
"""


def test_gangrun_checkpoint_of_a_checkpointer_is_verified(box: Box) -> None:
    saves = box.work / "saves"
    box.start("--nproc-per-node", "2", "--checkpoint-dir", saves, box.script(CHECKPOINTER), saves)
    box.until_status("steps", lambda found: (found["step"] or 0) > 5, 120)
    told = json.loads(box.gangrun("checkpoint", "--json", "--runs-dir", str(box.runs)).stdout)
    assert told["path"] == str(saves / f"step-{told['step']}")
    assert f"step {told['step']} is saved (verified)" in told["message"] and Path(told["path"]).is_dir()
    box.interrupt(deadline_s=120)

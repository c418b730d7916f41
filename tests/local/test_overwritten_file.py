"""A script that knows nothing of gangrun overwrites one file with torch.save, and is killed in the middle of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.local.harness import Box

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.no_warm]
LONG_S = 150.0

SCRIPT = """
    import gc; gc.disable()  # torch is imported in three quarters of the time
    import os, signal, sys, time
    import torch

    path, kill_at = sys.argv[1], int(sys.argv[2])
    killed, may_go_on = path + "-killed", path + "-may-go-on"
    torch.manual_seed(0)
    model = torch.nn.Linear(50, 50)
    optimizer = torch.optim.Adam(model.parameters())
    done = 0
    if os.path.exists(path):
        state = torch.load(path)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        done = state["done"]
    print("begins after step", done, flush=True)

    class Dying:
        '''A file whose writer is killed half way.'''
        def __init__(self, file):
            self.file = file
        def write(self, data):
            count = self.file.write(data)
            self.file.flush()
            if self.file.tell() > 8000:
                open(killed, "w").close()
                os.kill(os.getpid(), signal.SIGKILL)
            return count
        def flush(self):
            self.file.flush()

    for step in range(done + 1, 31):
        batch = torch.randn(8, 50, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        dies = step == kill_at and not os.path.exists(killed)
        while dies and not os.path.exists(may_go_on):
            time.sleep(0.01)
        if step % 5 == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "done": step}
            with open(path, "wb") as file:
                torch.save(state, Dying(file) if dies else file)
"""


def weights(path: Path) -> list[object]:
    state = torch.load(path)
    assert state["done"] == 30
    return [*state["model"].values(), *(one["exp_avg"] for one in state["optimizer"]["state"].values())]


def assert_as_undisturbed(box: Box, script: Path) -> None:
    """The weights are those of a run that nothing disturbed."""
    alone = box.work / "alone.pt"
    subprocess.run([sys.executable, script, alone, "0"], check=True, env=box.environment, timeout=LONG_S)
    pairs = zip(weights(box.work / "latest.pt"), weights(alone), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


def begun_after(box: Box) -> list[int]:
    return [int(line.split()[-1]) for line in box.out.read_text().splitlines() if "begins after step" in line]


def test_the_run_goes_on_from_the_copy(box: Box) -> None:
    script = box.script(SCRIPT)
    box.start(
        "--nproc-per-node", "1", "--checkpoint-file", "latest.pt", "--keep-copies", "2", script, "latest.pt", "20"
    )
    copy = box.work / "latest.pt.1"
    box.until(lambda: copy.exists() and torch.load(copy)["done"] == 15, "a copy of the save of step 15")
    box.work.joinpath("latest.pt-may-go-on").touch()
    assert box.end(LONG_S) == 0, box.told()
    assert begun_after(box) == [0, 15]
    told = box.explain()
    assert (
        "latest.pt (" in told and "is torn or damaged" in told and "gangrun put latest.pt.1 back as latest.pt" in told
    )
    assert "undo with: mv -nT" in told and "(step not known)" in told
    assert_as_undisturbed(box, script)
    status = box.status()
    assert status["checkpoint"]["step"] is None and status["checkpoint"]["path"] == str(box.work / "latest.pt")
    assert [one["resumed_from_save"] is None for one in status["attempts"]] == [True, False]
    listed = json.loads(box.gangrun("checkpoints", "latest.pt", "--json").stdout)["checkpoints"]
    assert {os.path.basename(one["path"]): one["valid"] for one in listed} == {"latest.pt": None, "latest.pt.1": True}


def test_without_a_copy_the_run_stops_and_says_why(box: Box) -> None:
    script = box.script(SCRIPT)
    box.start("--nproc-per-node", "1", "--checkpoint-file", "latest.pt", script, "latest.pt", "20")
    box.until_status("a whole save is seen", lambda seen: seen.get("checkpoint") is not None, LONG_S)
    box.work.joinpath("latest.pt-may-go-on").touch()
    assert box.end(LONG_S) not in (0, 130), box.told()
    assert begun_after(box) == [0], "it does not begin again at step 0"
    reason = box.status()["reason"]
    assert "the only committed checkpoint may not be resumed from" in reason and "latest.pt (" in reason
    assert "not starting again from zero; to begin anew, move latest.pt away" in reason
    assert os.path.getsize(box.work / "latest.pt") > 0 and not box.work.joinpath("latest.pt.1").exists()


def test_a_run_that_dies_in_its_first_save_begins_anew(box: Box) -> None:
    script = box.script(SCRIPT)
    box.work.joinpath("latest.pt-may-go-on").touch()
    box.start("--nproc-per-node", "1", "--checkpoint-file", "latest.pt", script, "latest.pt", "5")
    assert box.end(LONG_S) == 0, box.told()
    assert begun_after(box) == [0, 0]
    told = box.explain()
    assert "latest.pt (" in told and "is torn or damaged" in told and "undo with: mv -nT" in told
    assert_as_undisturbed(box, script)

"""``gangrun drain``: the ranks of a node save when asked, and move off it."""

from __future__ import annotations

import json

import pytest

from tests.contract.real_driver import TINY
from tests.local.harness import Box

# All ranks meet at the step that is saved; rank 0 writes it.
SAVES = """
import gangrun
def hook(step):
    done = step - 1
    if done < start or not gangrun.step(done, 0.5).checkpoint:
        return
    (folder / f"saving-{attempt}-{done}.{rank}").touch()
    while not all((folder / f"saving-{attempt}-{done}.{r}").exists() for r in range(world)):
        time.sleep(0.01)
    if rank == 0 and not (saves / f"step-{done}").exists():
        shutil.copytree(os.environ["TINY"], saves / f"unfinished-{done}")
        (saves / f"unfinished-{done}").rename(saves / f"step-{done}")
"""


@pytest.mark.timeout(120)
def test_ranks_save_and_move_off_a_drained_node(box: Box) -> None:
    box.environment["TINY"] = str(TINY)
    saves = box.work / "steps" / "saves"
    saves.mkdir(parents=True)
    box.step(
        1, "--nodes", "3", "--local-hosts", "--min-nodes", "2", "--checkpoint-dir", str(saves), "--no-health",
        steps=10_000, pace=0.02, hook=SAVES,
    )  # fmt: skip
    box.wait_for_step(5, deadline_s=60)
    run, node = box.run_dir().name, box.status()["nodes"][1]
    refused = box.gangrun("drain", run, "elsewhere", "--runs-dir", str(box.runs), check=False)
    assert refused.returncode != 0 and "is not in this job" in refused.stderr, refused
    done = box.gangrun("drain", run, node, "--json", "--timeout", "60", "--runs-dir", str(box.runs))
    assert json.loads(done.stdout)["moved"], done.stdout
    box.wait_for_step(1, attempt=1, deadline_s=60)
    status = box.status()
    assert status["world_size"] == 2
    assert [one["node"] for one in status["excluded"]] == [node]
    assert status["attempts"][1]["resumed_from_step"] >= 5, "what they saved when asked"
    box.interrupt()
    ended = box.gangrun("drain", run, node, "--runs-dir", str(box.runs), check=False)
    assert ended.returncode == 2 and f"{run} has ended: CANCELLED" in ended.stderr
    assert f"no rank of it is on {node}; gangrun resume {run} continues it" in ended.stderr

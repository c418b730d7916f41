"""A weight that one rank corrupts, in real runs with real torch: DDP on gloo, saves by ``gangrun.Checkpointer``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from tests.local.harness import Box

pytestmark = pytest.mark.no_warm

# In attempt 0 the ranks in ``FLIPS`` flip one bit of a weight before step 33, each another one. BatchNorm has
# statistics that differ between ranks by design.
TRAINS = """
    import gc; gc.disable()  # torch is imported in three quarters of the time
    import os, signal, sys
    import torch, torch.distributed as dist
    import gangrun
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    layers = torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1)
    # else DDP packs gradients anew after its first step, and a resumed run adds them in another order
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers), find_unused_parameters=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    flips = [int(one) for one in os.environ["FLIPS"].split()] if os.environ["GANGRUN_ATTEMPT"] == "0" else []
    with gangrun.Checkpointer(sys.argv[1], model=model, optimizer=optimizer, every_steps=10) as saver:
        for step in range(saver.resume(), 60):
            if step == 33 and rank in flips:
                layers[2].weight.data.view(torch.int32)[0, 3] ^= 1 << 10 + rank
            x = torch.randn(8, 6, generator=torch.Generator().manual_seed(step * world + rank))
            loss = ((model(x) - x.sum(1, keepdim=True)) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 10 == 9:
                saver.save(step, wait=True)  # steps take so little that a slow disk would have this save left out
            if saver.step(step, loss).stop:
                break
            while flips and step == 45: signal.pause()
"""


def start(box: Box, nodes_count: int, flips: str, *, text: str = TRAINS, check: str = "saves") -> Path:
    saves = box.work / "saves"
    script = box.script(text)
    box.start(
        *("--local-hosts", "--nodes", str(nodes_count), "--nproc-per-node", "1"),
        *("--checkpoint-dir", saves, "--sdc-check", check, script, saves),
        environment={"FLIPS": flips, "GANGRUN_NO_HEALTH": "0"},
    )
    return saves


def weights(save: Path, into: Path) -> dict[str, torch.Tensor]:
    dcp_to_torch_save(save, into)
    found: dict[str, torch.Tensor] = torch.load(into, weights_only=False)["model"]
    return found


def replicas(saves: Path) -> dict[int, str]:
    """What each checkpoint says of its copies."""
    bodies = [json.loads(path.read_bytes())["body"] for path in saves.glob("step-*/gangrun.json")]
    return {body["step"]: body["replicas"] for body in bodies}


ALL_AGREED = dict.fromkeys((9, 19, 29, 39, 49, 59), "agreed")


@pytest.mark.slow
def test_the_odd_rank_is_named_all_go_back_and_the_weights_end_as_without_it(boxes: Callable[[str], Box]) -> None:
    box, healthy_box = boxes("flipped"), boxes("healthy")
    saves, healthy_saves = start(box, 3, "1"), start(healthy_box, 3, "")
    assert (box.end(180), healthy_box.end(180)) == (0, 0), box.told() + healthy_box.told()
    status, healthy = box.status(), healthy_box.status()
    assert (status["state"], status["restarts"], status["excluded"]) == ("SUCCEEDED", 1, []), box.told()
    first, second = status["attempts"]
    assert first["outcome"] == "silent corruption" and second["resumed_from_step"] == 29
    node = status["nodes"][1]
    assert (
        f"silent corruption: rank 1 on {node} differs at step 39 from 2 of 3 ranks that hold the same"
        in first["reason"]
    )
    assert "(1 tensor, 2.weight first); they agreed at step 29" in first["reason"]
    (one,) = status["divergences"]
    assert (one["odd_ranks"], one["step"], one["agreed_step"], one["copies"]) == ([1], 39, 29, 3)
    explained = " ".join(box.gangrun("explain", "--runs-dir", str(box.runs)).stdout.split())
    assert f"the devices of {node} are tested first" in explained, explained
    assert "set aside step 39" in explained and "undo with: mv -nT" in explained, explained
    assert [path.name for path in (saves / ".gangrun" / "set-aside").glob("*/step-*")] == ["step-39"]
    assert replicas(saves) == ALL_AGREED
    assert (healthy["restarts"], healthy["divergences"], healthy["warning"]) == (0, [], "")
    assert replicas(healthy_saves) == ALL_AGREED
    mine, its = weights(saves / "step-59", box.work / "w"), weights(healthy_saves / "step-59", healthy_box.work / "w")
    names = {name for name in mine if "running" not in name}  # of BatchNorm: whose statistics are saved is not defined
    assert names and all(torch.equal(mine[name], its[name]) for name in names)


# In attempt 0 the ranks in ``FLIPS`` compute a wrong gradient from step 33 on. All ranks add it up, so all copies of
# the weights stay equal.
COMPUTES = """
    import gc; gc.disable()  # torch is imported in three quarters of the time
    import os, signal, sys
    import torch, torch.distributed as dist
    import gangrun
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(6, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    flips = [int(one) for one in os.environ["FLIPS"].split()] if os.environ["GANGRUN_ATTEMPT"] == "0" else []
    def compute(module, batch):
        loss = ((module(batch) - batch.sum(1, keepdim=True)) ** 2).mean()
        return loss * 1.001 if rank in flips and step >= 33 else loss
    check = gangrun.ReplayCheck(model, compute)
    with gangrun.Checkpointer(sys.argv[1], model=model, optimizer=optimizer, every_steps=10) as saver:
        for step in range(saver.resume(), 60):
            batch = torch.randn(8, 6, generator=torch.Generator().manual_seed(step * world + rank))
            optimizer.zero_grad()
            compute(model, batch).backward()
            optimizer.step()
            check.step(step, batch)
            if step % 10 == 9:
                saver.save(step, wait=True)
            if saver.step(step).stop:
                break
            while flips and step == 45: signal.pause()
"""


@pytest.mark.slow
def test_a_rank_that_computes_wrong_is_named_although_all_weights_are_equal(box: Box) -> None:
    saves = start(box, 3, "1", text=COMPUTES, check="every=15")
    assert box.end(180) == 0, box.told()
    status = box.status()
    assert (status["state"], status["restarts"], status["excluded"]) == ("SUCCEEDED", 1, []), box.told()
    first, second = status["attempts"]
    node = status["nodes"][1]
    told = f"silent corruption: rank 1 on {node} differs at step 44 from ranks that computed the same batches"
    assert told in first["reason"], first["reason"]
    assert (first["outcome"], second["resumed_from_step"]) == ("silent corruption", 29)
    assert [path.name for path in (saves / ".gangrun" / "set-aside").glob("*/step-*")] == ["step-39"]
    assert replicas(saves) == ALL_AGREED

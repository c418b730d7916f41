"""Data that change between two attempts of a run, with real torch and ``GlobalBatchSampler``."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.local.harness import Box

pytestmark = pytest.mark.no_warm

# Attempt 0 dies after step 15, having done to the data what ``CHANGE`` says.
TRAINS = """
    import gc; gc.disable()  # torch is imported in three quarters of the time
    import os, sys, torch, gangrun
    torch.set_num_threads(1)
    torch.manual_seed(0)
    class Lines(torch.utils.data.Dataset):
        def __len__(self): return 100
        def __getitem__(self, index):
            line = open("data.txt").read().split()[index]
            return torch.tensor([float(line)]), line
    if not os.path.exists("data.txt"):
        open("data.txt", "w").write(" ".join(f"{n}.5" for n in range(100)))
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    sampler = gangrun.GlobalBatchSampler(Lines(), 4)
    loader = torch.utils.data.DataLoader(Lines(), batch_sampler=sampler, num_workers=1)
    with gangrun.Checkpointer(sys.argv[1], model=model, optimizer=optimizer, data=sampler, every_steps=5) as saver:
        step = saver.resume()
        while step < 40:
            for x, _ in loader:
                loss = model(x).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                saver.step(step, loss)
                step += 1
                if step == 16 and os.environ["GANGRUN_ATTEMPT"] == "0":
                    lines = open("data.txt").read().split()
                    for index in map(int, os.environ["CHANGE"].split()): lines[index] = "7.0"
                    open("data.txt", "w").write(" ".join(lines))
                    saver.save(15, wait=True)
                    os._exit(3)
                if step == 40: break
"""


def start(box: Box, change: str, action: str) -> None:
    saves = box.work / "saves"
    options = ("--data-checksums", action, "--checkpoint-dir", saves)
    box.start(*options, box.script(TRAINS), saves, environment={"CHANGE": change})


def test_an_alert_names_the_samples_and_unchanged_data_are_none(boxes: Callable[[str], Box]) -> None:
    changed, healthy = boxes("changed"), boxes("healthy")
    start(changed, "31 62", "alert")
    start(healthy, "", "stop")
    assert (changed.end(120), healthy.end(120)) == (0, 0), changed.told() + healthy.told()
    status = changed.status()
    assert (status["state"], status["restarts"]) == ("SUCCEEDED", 1), changed.told()
    (one,) = status["data_changes"]
    assert (one["attempt"], one["changed"], one["compared"], one["samples"]) == (1, 2, 100, [31, 62])
    explained = " ".join(changed.gangrun("explain", "--runs-dir", str(changed.runs)).stdout.split())
    assert "2 of 100 samples differ (indices 31, 62); training goes on" in explained, explained
    status = healthy.status()
    assert (status["state"], status["restarts"], status["data_changes"]) == ("SUCCEEDED", 1, []), healthy.told()


@pytest.mark.slow
def test_the_run_ends_if_that_was_asked_for(box: Box) -> None:
    start(box, "31", "stop")
    assert box.end(120) != 0, box.told()
    status = box.status()
    assert (status["state"], status["attempts"][-1]["outcome"]) == ("FAILED", "data"), box.told()
    assert "1 of 100 samples differ (index 31)" in status["reason"] and "--data-checksums stop" in status["reason"]

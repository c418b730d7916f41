"""Losses and gradient norms that go bad, in real runs with real torch."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.local.harness import Box

pytestmark = pytest.mark.no_warm

# Plain regression. ``RATE_AT`` names the step from which on the learning rate is absurd.
TRAINS = """
    import gc; gc.disable()  # torch is imported in three quarters of the time
    import os, torch, gangrun
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(int(os.environ["STEPS"])):
        x = torch.randn(16, 4)
        loss = ((model(x) - x.sum(1, keepdim=True)) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), float('inf'))
        if step >= int(os.environ.get("RATE_AT", 10**9)):
            optimizer.param_groups[0]["lr"] = 1e8
        optimizer.step()
        gangrun.step(step, loss, norm)
"""


def test_a_loss_that_became_nan_is_in_the_last_word_and_in_the_json(box: Box) -> None:
    box.start(box.script(TRAINS), environment={"STEPS": "300", "RATE_AT": "100"})
    assert box.end() == 0, box.told()
    status = box.status()
    assert status["state"] == "SUCCEEDED"
    assert ", but the loss was NaN from step 1" in status["reason"], status["reason"]
    assert (status["loss"], status["grad_norm"]) == ("NaN", "NaN")
    kinds = {(one["kind"], one["what"]) for one in status["anomalies"]}
    assert kinds >= {("not finite", "loss"), ("not finite", "gradient norm")}
    assert all(one["since_step"] > 100 for one in status["anomalies"])


def test_a_healthy_training_shows_no_anomaly(box: Box) -> None:
    box.start(box.script(TRAINS), environment={"STEPS": "1000"})
    assert box.end() == 0, box.told()
    status = box.status()
    assert status["anomalies"] == []
    assert "but" not in status["reason"]


# The weights stay, so loss and gradient norm change only with the noise of the target. With ``FAULTS`` each rule but
# the first has a stretch of its own, and 60 good steps before it. The agent must read the ring of 256 reports in time.
RULES = """
    import os, time, torch, gangrun
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model, x, faults = torch.nn.Linear(4, 1), torch.randn(16, 4), os.environ["FAULTS"] == "1"
    for step in range(900):
        high, steep, broken = (faults and first <= step < first + 20 for first in (60, 140, 220))
        if step <= 300 or not faults: target = x.sum(1, keepdim=True) + 0.1 * torch.randn(16, 1)
        loss = ((model(x) - target) ** 2).mean() + 50 * high
        model.zero_grad()
        (loss * (30 if steep else float("inf") if broken else 1)).backward()
        gangrun.step(step, loss, torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0))
        time.sleep(0.01)
"""
STRETCHES = {("blow-up", "loss"): 60, ("gradient", "gradient norm"): 140, ("not finite", "gradient norm"): 220}


def test_each_rule_tells_of_its_own_stretch_and_none_of_a_healthy_run(boxes: Callable[[str], Box]) -> None:
    faulty, healthy = boxes("faulty"), boxes("healthy")
    for box in (faulty, healthy):
        box.start(box.script(RULES), environment={"FAULTS": "1" if box is faulty else ""})
    assert (faulty.end(120), healthy.end(120)) == (0, 0), faulty.told() + healthy.told()
    status = faulty.status()
    assert (status["state"], status["restarts"]) == ("SUCCEEDED", 0)
    told = {(one["kind"], one["what"]): one["since_step"] for one in status["anomalies"]}
    assert told == {**STRETCHES, ("flat", "loss"): 301}, status["anomalies"]
    assert healthy.status()["anomalies"] == []


# The batch of step 60 is poison: its loss is not finite, and so are the weights from then on.
SAVES = """
    import gc; gc.disable()  # torch is imported in three quarters of the time
    import math, os, sys, time, torch, gangrun
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    sampler = gangrun.GlobalBatchSampler(100, 1, shuffle=False)
    with gangrun.Checkpointer(
        sys.argv[1], model=model, optimizer=optimizer, data=sampler, every_steps=10
    ) as saver:
        step = saver.resume()
        batches = iter(sampler)
        for step in range(step, 85):
            index = next(batches)[0]
            with open("met", "a") as met: print(os.environ["GANGRUN_ATTEMPT"], step, index, file=met)
            x = torch.full((4, 1), math.inf if index == 60 else index / 100)
            loss = ((model(x) - x) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            saver.step(step, loss)
            while step == 75 and os.environ["GANGRUN_ATTEMPT"] == "0": time.sleep(1)
            time.sleep(0.01)
"""


def test_a_rollback_goes_to_before_the_anomaly_and_never_meets_its_batches_again(box: Box) -> None:
    saves = box.work / "saves"
    options = ("--on-anomaly", "rollback", "--skip-batches", "4", "--checkpoint-dir", saves)
    box.start(*options, box.script(SAVES), saves)
    assert box.end() == 0, box.told()
    status = box.status()
    assert (status["state"], status["restarts"]) == ("SUCCEEDED", 1), box.told()
    assert status["attempts"][0]["outcome"] == "numerical"
    assert status["attempts"][1]["resumed_from_step"] < 59
    assert "at step 60 " in status["attempts"][0]["reason"], status["attempts"][0]["reason"]
    assert "but" not in status["reason"]
    again = [line.split() for line in (box.work / "met").read_text().splitlines() if line.startswith("1 ")]
    indices = [int(index) for _, _, index in again]
    assert not {59, 60, 61, 62} & set(indices)
    assert {58, 63} <= set(indices)
    assert any((saves / ".gangrun" / "set-aside").glob("*/step-*")), "what was saved since then can be put back"


def test_a_batch_that_blows_the_loss_up_again_after_a_rollback_ends_the_run_as_the_datas(box: Box) -> None:
    """It comes two steps after the resume point: what is usual is known from the attempt before."""
    saves = box.work / "saves"
    script = SAVES.replace("math.inf if index == 60", "10.0 if index >= 60")
    script = script.replace('step == 75 and os.environ["GANGRUN_ATTEMPT"] == "0"', "step == 84")  # until it is stopped
    box.start("--on-anomaly", "rollback", "--checkpoint-dir", saves, box.script(script), saves)
    assert box.end() == 1, box.told()
    status = box.status()
    assert [one["outcome"] for one in status["attempts"]] == ["numerical", "data"], status
    assert all("the loss rose far above its median" in one["reason"] for one in status["attempts"]), [
        one["reason"] for one in status["attempts"]
    ]
    assert " at step 60," in status["attempts"][1]["reason"], status["attempts"][1]["reason"]
    assert "the data of this step is at fault" in status["reason"], status["reason"]

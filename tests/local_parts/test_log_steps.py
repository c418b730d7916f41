"""The step that a script prints: which lines tell it, and which do not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gangrun.agent.ranks.log_steps import LogSteps


def read(*lines: str) -> LogSteps:
    steps = LogSteps()
    for line in lines:
        steps.read(line.encode())
    return steps


FORMS: dict[str, Callable[[int], str]] = {
    "plain": lambda n: f"step {n}/1000",
    "iter": lambda n: f"iter {n}",
    "nanoGPT": lambda n: f"iter {n}: loss 2.31, time 120.11ms, mfu 12.00%",
    "Megatron": lambda n: f" iteration {n:8d}/  500000 | consumed samples: {n * 8} | lm loss: 2.31E+00 |",
    "colon": lambda n: f"Step: {n} | loss 2.31",
    "global_step": lambda n: f"global_step={n} loss=2.31",
    "dict": lambda n: f"{{'loss': 2.31, 'step': {n}}}",
    "logging": lambda n: f"2025-01-02 10:11:12,345 INFO train: [step {n}] loss=2.31",
    "torchtitan": lambda n: f"\x1b[31mstep: {n:2d}  \x1b[32mloss:  2.31\x1b[39m  tps: 3,120",
    "HF": lambda n: f" {n / 10:.0f}%|##   | {n}/1000 [00:10<05:00,  1.50it/s]",
    "Lightning": lambda n: f"Epoch 3: {n}%|####  | {n}/267 [00:10<00:12, 11.90it/s, v_num=3, train_loss=2.31]",
}


@pytest.mark.parametrize("form", FORMS)
def test_a_form_that_grows_is_a_step(form: str) -> None:
    line = FORMS[form]
    steps = read(*(line(n) for n in (10, 20, 30)))
    assert steps.step == -1, "three lines are too few"
    steps.read(line(40).encode())
    assert steps.step == (3 * 267 + 40 if form == "Lightning" else 40)
    has_loss = "2.31" in line(1)
    assert steps.loss == (2.31 if has_loss else None)


OTHERS: dict[str, Callable[[int], str]] = {
    "checkpoint shards": lambda n: f"Loading checkpoint shards: {n}%|## | {n}/40 [00:10<00:12,  1.90it/s]",
    "download": lambda n: f"model.safetensors: Downloading: {n}%|## | {n}/40 [00:10<00:12,  1.90it/s]",
    "map": lambda n: f"Map: {n}%|## | {n}/40 [00:10<00:12, 1.90it/s]",
    "evaluation": lambda n: f"Evaluating: {n}%|## | {n}/40 [00:10<00:12, 1.90it/s]",
    "eval step": lambda n: f"eval step {n}/40",
    "limit": lambda n: f"max_steps={n} warmup_steps: {n}",
    "time": lambda n: f"step time {n} ms, per step 0.{n} s",
    "fraction": lambda n: f"step 0.{n} of the way, iter {n}.5",
    "rate": lambda n: f"{n} it/s, 8 steps",
    "epoch": lambda n: f"{{'loss': 2.3, 'epoch': 0.{n}}}",
    "constant": lambda n: "step 100" if n else "",
    "falling": lambda n: f"step {1000 - n}",
    "far out": lambda n: "." * 500 + f"step {n}",
}


@pytest.mark.parametrize("form", OTHERS)
def test_what_is_no_step_or_does_not_grow_is_none(form: str) -> None:
    assert read(*(OTHERS[form](n) for n in range(10, 40))).step == -1


def test_a_counter_counts_more_than_a_bar_and_none_ever_falls() -> None:
    steps = read(*(FORMS["HF"](n) for n in range(500, 520)), *(FORMS["plain"](n) for n in range(10)))
    assert steps.step == 9
    steps.read(b"step 3/1000")
    assert steps.step == 9


def test_bars_of_epochs_add_up() -> None:
    steps = read(*(f"Epoch {e}: 1%| | {n}/100 [00:10<00:12, 1it/s]" for e in range(2) for n in range(1, 101)))
    assert steps.step == 200


def test_nothing_was_printed() -> None:
    assert (LogSteps().step, LogSteps().loss) == (-1, None)

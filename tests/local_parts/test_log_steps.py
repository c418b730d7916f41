"""The step that a script prints: which lines tell it, and which do not."""

from __future__ import annotations

import math
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
    assert steps.step == (3 * 267 + 40 if form.startswith("Lightning") else 40)
    has_loss = "2.31" in line(1)
    assert steps.loss == (2.31 if has_loss else None)


FORMS["Lightning with rich"] = lambda n: f"Epoch 3/-2 ━━━╸   {n}/267 0:00:15 • 0:00:27 9.71it/s train_loss: 2.31"
TOTALS = {"plain": 1000, "Megatron": 500000, "HF": 1000, "tutorial": 600 * 11, "Lightning of some epochs": 267 * 10}
FORMS_OF_TOTALS = {
    **FORMS,
    "tutorial": lambda n: f"Epoch [2/10], Step [{n}/600], Loss: 2.31",
    "Lightning of some epochs": lambda n: f"Epoch 3/9: {n}%|## | {n}/267 [00:10<00:12, 11.90it/s, v_num=0]",
}


@pytest.mark.parametrize("form", FORMS_OF_TOTALS)
def test_the_line_tells_how_many_steps_there_are(form: str) -> None:
    steps = read(*(FORMS_OF_TOTALS[form](n) for n in (10, 20, 30)))
    assert steps.total == -1, "no step is believed yet"
    steps.read(FORMS_OF_TOTALS[form](40).encode())
    assert steps.total == TOTALS.get(form, -1)


MEGATRON = (
    " [2026-08-22 10:11:12.000000] iteration       {n}/     100 | consumed samples:          160 | elapsed time per"
    " iteration (ms): 410.1 | learning rate: 1.5E-04 | global batch size:    16 | lm loss: 1.2E+00 | loss scale: 1.0"
    " | grad norm: 0.412 | number of skipped iterations:   0 | number of nan iterations:   0 |"
)
NOT_FINITE = ("step 12 loss nan", "{'loss': nan, 'epoch': 0.1}", "{'loss': 'nan'}", "loss: NaN", "lm loss: -inf |")
LOSSES: dict[str, tuple[float | None, tuple[str, ...]]] = {
    "the Trainer's": (2.3, ("{'loss': 2.3, 'grad_norm': 0.5, 'learning_rate': 1e-05, 'epoch': 0.1}",)),
    "the new Trainer's": (2.3, ("{'loss': '2.3', 'grad_norm': '0.5', 'epoch': '0.1'}",)),
    "its evaluation's": (2.3, ("{'loss': 2.3, 'epoch': 0.1}", "{'eval_loss': 9.0, 'epoch': 0.1}")),
    "its last line's": (2.3, ("{'loss': 2.3, 'epoch': 0.1}", "{'train_runtime': 4.2, 'train_loss': 9.0}")),
    "in a bar": (2.3, (" 40%|####      | 40/100 [00:10<00:15,  3.99it/s, loss=2.3]",)),
    "Lightning's": (0.2, ("Epoch 1:  40%|####  | 40/100 [00:10<00:15, 3.99it/s, v_num=0, train_loss=0.2]",)),
    "beside that of validation": (0.2, ("Epoch 1: 40%|# | 40/100 [00:10<00:15, val_loss=9, train_loss=0.2]",)),
    "Megatron's": (1.2, (MEGATRON.format(n=10),)),
    "DeepSpeed's": (2.3, ("steps: 10 loss: 2.3 iter time (s): 0.5 samples/sec: 12.0",)),
    "torchtune's": (2.3, ("Step 12 | loss:2.3 lr:1e-05 tokens_per_second_per_gpu:812.5",)),
    "Composer's": (2.3, ("[epoch=1][batch=10/100]:", "\t Train loss/train/total: 2.3000")),
    "in words": (2.3, ("step 10 loss 2.3",)),
    "a tensor's": (2.3, ("step 10, loss: tensor(2.3, device='cuda:0')",)),
    "the second line's of a step": (2.3, ("step 10 begins", "step 10 loss 2.3")),
    "an old one's": (2.3, ("step 10 loss 2.3", "step 3 loss 9.0")),
    "of another thing": (None, ("loss scale: 65536", "loss_scale=65536", "packet loss: 3.5%", "loss function 3")),
    "of evaluations": (None, ("val loss: 2", "eval/loss 2", "validation loss=2", "eval step 1 loss 2", "test_loss: 1")),
}  # fmt: skip


@pytest.mark.parametrize("form", LOSSES)
def test_a_loss_is_read_wherever_it_stands(form: str) -> None:
    loss, lines = LOSSES[form]
    assert read(*lines).loss == loss


NORMS = {
    "the Trainer's": (0.5, LOSSES["the Trainer's"][1][0]),
    "the new Trainer's": (0.5, LOSSES["the new Trainer's"][1][0]),
    "Megatron's": (0.412, MEGATRON.format(n=10)),
    "torchtitan's": (1.25, "step: 10  loss:  2.3000  grad_norm:  1.2500  memory: 1.00GiB(2%)"),
    "infinite": (math.inf, "step 10 loss=2.3 grad_norm=inf"),
    "large": (1e9, "step 10 loss=nan, gradient norm = 1e9"),
    "none": (None, "step 10 loss 2.3 layernorm: 3 norm=4 grad norm clipped"),
}


@pytest.mark.parametrize("form", NORMS)
def test_a_gradient_norm_is_read_beside_a_loss_and_nowhere_else(form: str) -> None:
    norm, line = NORMS[form]
    steps = read(line, "clipped, grad_norm: 7")
    assert steps.grad_norm == norm
    assert [one.grad_norm for one in steps.losses] == [norm]


@pytest.mark.parametrize("form", NOT_FINITE)
def test_a_loss_that_is_not_finite_is_told(form: str) -> None:
    loss = read("step 11 loss 2.3", form).loss
    assert loss is not None
    assert not math.isfinite(loss)


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


def test_how_far_it_may_have_come_is_as_far_as_its_lines_are_apart() -> None:
    assert read(*(f"step {n}/1000" for n in (1, 50, 150, 200, 250))).reach == 350
    assert read(*(f"step {n}/1000" for n in (900, 901, 902))).reach == -1, "three lines are too few"
    assert read(*(f"step {n}/1000" for n in (900, 901, 902, 903))).reach == 904, "the first value is no distance"


def test_bars_of_epochs_add_up() -> None:
    steps = read(*(f"Epoch {e}: 1%| | {n}/100 [00:10<00:12, 1it/s]" for e in range(2) for n in range(1, 101)))
    assert steps.step == 200


def test_nothing_was_printed() -> None:
    assert (LogSteps().step, LogSteps().total, LogSteps().loss) == (-1, -1, None)


@pytest.mark.parametrize(
    ("lines", "first"),
    [
        ([f"step {n}/60" for n in range(1, 6)], 1),
        ([f"step {n}/60" for n in range(0, 50, 10)], 10),
        ([f"step {n}/60" for n in (0, 41, 42, 43)], 41),  # a line before the checkpoint was loaded
        ([f"step {n}/60" for n in (1, 2, 3)], -1),  # not believed yet
        ([f"{n}/60 [00:10<05:00,  1.50it/s]" for n in range(1, 6)], -1),  # of anything
    ],
)
def test_the_first_step_of_a_counter(lines: list[str], first: int) -> None:
    assert read(*lines).first == first

"""The frameworks' callbacks: what they report, and that they save and stop when asked.

transformers and accelerate are the real ones. Lightning, torchtitan and the loggers are stand-ins with the interface
that their documentation gives (docs/assumptions.md).
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

import gangrun
from gangrun.training import integrations
from gangrun.training import step as progress
from gangrun.wire.progress import ProgressPage, StepRequest, TrainingPhase

SAVE = StepRequest.CHECKPOINT_NOW
STOP = StepRequest.CHECKPOINT_NOW | StepRequest.STOP_AFTER_STEP


@pytest.fixture
def slot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ProgressPage]:
    made = ProgressPage(str(tmp_path / "slot"), 0)
    monkeypatch.setenv("GANGRUN_PROGRESS_SLOT", str(tmp_path / "slot"))
    monkeypatch.setattr(progress, "_state", None)
    yield made
    made.close()


# ---- the Hugging Face Trainer ----


def trained(tmp_path: Path, at_step: Callable[[int], None], **arguments: Any) -> Any:
    """A Trainer of 8 steps that would not save before the last; ``at_step`` is called before each step."""
    from transformers import PretrainedConfig, PreTrainedModel, Trainer, TrainerCallback, TrainingArguments

    class Tiny(PreTrainedModel):
        config_class = PretrainedConfig

        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.linear = torch.nn.Linear(2, 1)
            self.post_init()

        def _init_weights(self, module: Any) -> None:
            pass

        def forward(self, x: Any = None, labels: Any = None) -> Any:
            return {"loss": ((self.linear(x).squeeze(-1) - labels) ** 2).mean()}

    class Asker(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            at_step(state.global_step)

    data = [{"x": torch.ones(2) * k, "labels": torch.tensor(float(k))} for k in range(8)]
    given = {"max_steps": 8, "save_steps": 100, "logging_steps": 1, "report_to": "none", **arguments}
    args = TrainingArguments(str(tmp_path / "out"), use_cpu=True, disable_tqdm=True, **given)
    trainer = Trainer(
        Tiny(PretrainedConfig()), args, train_dataset=data, callbacks=[Asker(), gangrun.HuggingFaceCallback()]
    )
    trainer.train()
    return trainer


def test_the_trainer_reports_saves_when_asked_and_stops_when_stopped(slot: ProgressPage, tmp_path: Path) -> None:
    generations = []

    def at_step(step: int) -> None:
        if step == 2:
            generations.append(slot.ask(SAVE))
        if step == 4:
            read = slot.read()
            assert (read.step, read.total_steps, read.saves_on_stop) == (4, 8, True)
            assert read.loss is not None and read.grad_norm is not None
            assert read.handled_generation == generations[0], "it said when the checkpoint was written"
            generations.append(slot.ask(STOP))

    trainer = trained(tmp_path, at_step)
    assert trainer.state.global_step == 5
    assert sorted(os.listdir(tmp_path / "out")) == ["checkpoint-3", "checkpoint-5"]
    assert slot.read().handled_generation == generations[1]


def test_without_gangrun_the_callback_does_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GANGRUN_PROGRESS_SLOT", raising=False)
    monkeypatch.setattr(progress, "_state", None)
    assert trained(tmp_path, lambda step: None, save_strategy="no").state.global_step == 8
    assert not list((tmp_path / "out").glob("checkpoint-*"))


# ---- Accelerate ----


def test_accelerate_reports_what_a_script_logs_and_tells_what_is_asked(slot: ProgressPage) -> None:
    from accelerate import Accelerator  # type: ignore[import-untyped]
    from accelerate.tracking import GeneralTracker  # type: ignore[import-untyped]

    class Other(GeneralTracker):  # type: ignore[misc]
        name, requires_logging_directory, tracker = "other", False, None

        def log(self, values: dict[str, Any], step: int | None = None, **more: Any) -> None:
            others.append((values, step, more))

    others: list[Any] = []
    accelerator = Accelerator(cpu=True, log_with=Other())
    tracker = gangrun.AccelerateTracker(accelerator)
    accelerator.init_trackers("run", config={"max_train_steps": 100, "lr": 0.1})
    accelerator.log({"lr": 0.1})
    assert slot.read().step == -1
    accelerator.log({"train_loss": torch.tensor(2.5), "grad_norm": float("nan"), "note": "x"}, step=3)
    read = slot.read()
    assert (read.step, read.loss, read.total_steps) == (3, 2.5, 100)
    assert read.grad_norm is not None and read.grad_norm != read.grad_norm
    assert not tracker.asked.checkpoint
    slot.ask(STOP)
    accelerator.log({"loss": 2.0}, 4, {"other": {"commit": False}})
    assert tracker.asked.checkpoint and tracker.asked.stop
    assert others[0] == ({"lr": 0.1}, None, {}), "the script's own trackers get what they got before"
    assert others[-1] == ({"loss": 2.0}, 4, {"commit": False})
    accelerator.end_training()


# ---- Lightning ----


class LightningTrainer:
    """As much of ``lightning.pytorch.Trainer`` as a callback sees."""

    def __init__(self, tmp_path: Path) -> None:
        self.default_root_dir, self.checkpoint_callback = str(tmp_path), None
        self.estimated_stepping_batches, self.log_every_n_steps = 100, 2
        self.global_step = self.current_epoch = 0
        self.should_stop = False
        self.saved: list[str] = []

    def save_checkpoint(self, path: str) -> None:
        self.saved.append(path)


@pytest.fixture
def lightning(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    callbacks = ModuleType("pytorch_lightning.callbacks")
    callbacks.Callback = type("Callback", (), {})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pytorch_lightning", ModuleType("pytorch_lightning"))
    monkeypatch.setitem(sys.modules, "pytorch_lightning.callbacks", callbacks)
    yield (module := importlib.reload(importlib.import_module("gangrun.training.integrations.trainers")))
    monkeypatch.undo()
    importlib.reload(module)


def test_lightning_reports_saves_and_stops(slot: ProgressPage, tmp_path: Path, lightning: Any) -> None:
    callback, trainer = lightning.LightningCallback(), LightningTrainer(tmp_path)
    assert type(callback).__mro__[1].__name__ == "Callback"
    callback.on_train_start(trainer, None)
    for batch in range(6):
        trainer.global_step = batch // 2 + 1  # two batches make a step
        if batch == 2:
            slot.ask(SAVE)
        if batch == 4:
            slot.ask(STOP)
        callback.on_train_batch_end(trainer, None, {"loss": torch.tensor(float(batch))}, None, batch)
    read = slot.read()
    assert (read.step, read.writes_count, read.loss, read.total_steps) == (3, 3, 2.0, 100)
    assert trainer.saved == [str(tmp_path / "checkpoints" / f"epoch=0-step={step}.ckpt") for step in (2, 3)]
    assert trainer.should_stop
    callback.on_validation_start(trainer, None)
    assert slot.read().phase == TrainingPhase.EVAL


# ---- torchtitan ----


class TitanTrainer:
    """The loop of torchtitan 0.3's ``Trainer.train``, with what it calls."""

    def __init__(self, steps: int) -> None:
        self.config = SimpleNamespace(training=SimpleNamespace(steps=steps))
        self.step, self.interval = 0, 100
        self.checkpointer = self.metrics_processor = self
        self.saved: list[int] = []
        self.logged: list[tuple[Any, ...]] = []

    def should_continue_training(self) -> bool:
        return self.step < self.config.training.steps

    def save(self, curr_step: int, last_step: bool = False) -> None:
        if curr_step % self.interval == 0 or last_step:
            self.saved.append(curr_step)

    def log(self, *words: Any) -> None:
        self.logged.append(words)

    def train(self, at_step: Callable[[int], None]) -> None:
        while self.should_continue_training():
            self.step += 1
            at_step(self.step)
            self.log(self.step, 2.5, 2.6, 0.5, {"n_tokens_seen": 1000 * self.step})
            self.save(self.step, last_step=self.step == self.config.training.steps)


def test_torchtitan_reports_saves_and_stops(slot: ProgressPage) -> None:
    trainer = TitanTrainer(20)
    gangrun.torchtitan_hook(trainer)
    asked = {3: SAVE, 7: STOP}
    trainer.train(lambda step: asked.get(step) and slot.ask(asked[step]))  # type: ignore[arg-type,func-returns-value]
    read = slot.read()
    assert (trainer.step, trainer.saved, trainer.interval, len(trainer.logged)) == (7, [3, 7], 100, 7)
    assert (read.step, read.loss, read.grad_norm, read.total_steps, read.tokens_count) == (7, 2.5, 0.5, 20, 7000)


# ---- what is not installed ----


@pytest.mark.parametrize(
    ("module", "name", "package", "base"),
    [
        ("hugging_face", "HuggingFaceCallback", "transformers", "TrainerCallback"),
        ("trainers", "LightningCallback", "lightning", "Callback"),
    ],
)
def test_a_missing_package_is_said_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, module: str, name: str, package: str, base: str
) -> None:
    found = importlib.import_module(f"gangrun.training.integrations.{module}")
    monkeypatch.setattr(found, base, object)
    with pytest.raises(ImportError, match=f"gangrun.{name} needs {package}, which .*pip install {package}"):
        getattr(found, name)()


# ---- marks of restarts ----


def test_loggers_in_use_get_a_mark_at_the_first_step_after_a_restart(
    slot: ProgressPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []

    class SummaryWriter:
        def add_scalar(self, *words: Any) -> None:
            told.append(words)

        def flush(self) -> None:
            told.append("flushed")

    wandb, mlflow, tensorboard = ModuleType("wandb"), ModuleType("mlflow"), ModuleType("tensorboardX")
    run = SimpleNamespace(log=lambda row, commit: told.append((row, commit)), summary={})
    wandb.run = run  # type: ignore[attr-defined]
    mlflow.active_run = lambda: "one"  # type: ignore[attr-defined]
    mlflow.log_metric = lambda *words, step: told.append((*words, step))  # type: ignore[attr-defined]
    tensorboard.SummaryWriter = SummaryWriter  # type: ignore[attr-defined]
    for module in (wandb, mlflow, tensorboard):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    writer = SummaryWriter()
    monkeypatch.setenv("GANGRUN_ATTEMPT", "2")
    for step in (40, 41):
        gangrun.step(step)
    name = integrations.NAME
    assert told == [({name: 2}, False), (name, 2, 40), (name, 2, 40), "flushed"]
    assert run.summary == {"gangrun/restarts": 2}
    mlflow.active_run = lambda: 1 / 0  # type: ignore[attr-defined]
    with pytest.warns(UserWarning, match="could not mark the restart: ZeroDivisionError"):
        integrations.mark_restart(3, 50)
    assert told[-2:] == [(name, 3, 50), "flushed"], "one logger's trouble is not another's"
    del writer


def test_lightnings_logger_for_mlflow_gets_a_mark_though_it_makes_no_run_the_active_one(
    slot: ProgressPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []

    class Made(importlib.import_module("lightning.pytorch.loggers.mlflow").MLFlowLogger):  # type: ignore[misc]
        def __init__(self) -> None:
            """The real one wants mlflow."""

        def log_metrics(self, *words: Any) -> None:
            told.append(words)

    mlflow = ModuleType("mlflow")
    mlflow.active_run = lambda: None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    logger = Made()
    integrations.mark_restart(1, 7)
    assert told == [({integrations.NAME: 1}, 7)]
    del logger


def test_the_first_attempt_is_no_restart(slot: ProgressPage, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    wandb = ModuleType("wandb")
    wandb.run = SimpleNamespace(log=lambda *row, **more: told.append(row), summary={})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    monkeypatch.setenv("GANGRUN_ATTEMPT", "0")
    gangrun.step(0)
    assert told == []

"""Trainers that own their loop: Lightning's, as ``lightning.pytorch`` or ``pytorch_lightning``, and torchtitan's.

torchtitan has no callbacks: three methods of its trainer are wrapped, as version 0.3 calls them.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gangrun.training import step as progress
from gangrun.training.integrations import missing


def _callback_class() -> type:
    """Of the package that the script uses; of the first that is installed if it has imported neither."""
    names = ["lightning.pytorch", "pytorch_lightning"]
    if "torchtitan" in sys.modules and sys.modules.keys().isdisjoint(names):
        return object  # its script shall not wait for another's package
    for name in sorted(names, key=lambda name: name not in sys.modules):
        try:
            found: type = import_module(f"{name}.callbacks").Callback
        except ImportError:
            continue
        return found
    return object


if TYPE_CHECKING:
    Callback = object
else:
    Callback = _callback_class()


class LightningCallback(Callback):
    """Reports a Lightning Trainer's progress, saves when gangrun asks, and stops when gangrun stops.

        trainer = Trainer(..., callbacks=[gangrun.LightningCallback()])

    The loss is that which ``training_step`` returns, once in ``log_every_n_steps``. A checkpoint that gangrun asks for
    goes where ModelCheckpoint's go, as ``epoch=E-step=N.ckpt``.

    Raises:
        ImportError: Lightning is not installed.
    """

    def __init__(self) -> None:
        if Callback is object:
            raise missing("LightningCallback", "lightning")
        self._step = -1

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """From here on a stop waits for a save."""
        progress.save_on_stop()
        total = trainer.estimated_stepping_batches
        progress.report_figures(total_steps=int(total) if 0 < total < 2**62 else None)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """After each batch; a step may take several."""
        if trainer.global_step == self._step:
            return
        self._step = trainer.global_step
        if self._step % max(1, trainer.log_every_n_steps) == 0:
            progress.report_logged(outputs if isinstance(outputs, dict) else {"loss": outputs})
        asked = progress.step(self._step)
        if asked.checkpoint:
            with progress.phase("checkpoint"):
                trainer.save_checkpoint(self._path(trainer))
            progress.checkpoint_saved()
        if asked.stop:
            trainer.should_stop = True

    @staticmethod
    def _path(trainer: Any) -> str:
        keeper = trainer.checkpoint_callback
        folder = getattr(keeper, "dirpath", None) or Path(trainer.default_root_dir, "checkpoints")
        return str(Path(folder, f"epoch={trainer.current_epoch}-step={trainer.global_step}.ckpt"))

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """A long evaluation is no hang."""
        progress.mark_phase("eval")

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """The next step may take long, but as a step."""
        progress.mark_phase("train")


def torchtitan_hook(trainer: Any) -> None:
    """Report a torchtitan Trainer's progress, save when gangrun asks, and stop when gangrun stops.

        trainer = config.build()
        gangrun.torchtitan_hook(trainer)
        trainer.train()

    Args:
        trainer: A ``torchtitan.trainer.Trainer``. If it saves asynchronously, ``trainer.close()`` waits for the last.
    """
    _Hook(trainer)
    progress.save_on_stop()
    progress.report_figures(total_steps=trainer.config.training.steps)


class _Hook:
    """Holds what it wraps."""

    def __init__(self, trainer: Any) -> None:
        self._checkpointer, self._stops = trainer.checkpointer, False
        self._save, self._log = trainer.checkpointer.save, trainer.metrics_processor.log
        self._goes_on = trainer.should_continue_training
        trainer.checkpointer.save = self.save
        trainer.metrics_processor.log = self.log
        trainer.should_continue_training = self.goes_on

    def save(self, curr_step: int, last_step: bool = False, **more: Any) -> Any:
        """Torchtitan calls it after each step, and it decides by ``interval`` whether to save."""
        asked = progress.step(curr_step)
        self._stops = self._stops or asked.stop
        with progress.phase("checkpoint"):
            if not asked.checkpoint:
                return self._save(curr_step, last_step=last_step, **more)
            interval, self._checkpointer.interval = self._checkpointer.interval, 1
            try:
                saved = self._save(curr_step, last_step=last_step, **more)
            finally:
                self._checkpointer.interval = interval
        progress.checkpoint_saved()
        return saved

    def log(
        self,
        step: int,
        global_avg_loss: float,
        global_max_loss: float,
        grad_norm: float,
        extra_metrics: dict[str, Any] | None = None,
    ) -> Any:
        """Torchtitan calls it every ``metrics.log_freq`` steps."""
        tokens = (extra_metrics or {}).get("n_tokens_seen")
        progress.report_figures(
            loss=float(global_avg_loss), grad_norm=float(grad_norm), tokens=None if tokens is None else int(tokens)
        )
        return self._log(step, global_avg_loss, global_max_loss, grad_norm, extra_metrics)

    def goes_on(self) -> bool:
        """Whether there is another step."""
        return not self._stops and bool(self._goes_on())

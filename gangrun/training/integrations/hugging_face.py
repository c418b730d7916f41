"""The Hugging Face Trainer, and Accelerate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gangrun.training import step as progress
from gangrun.training.integrations import missing
from gangrun.training.step import NOTHING, Requests

if TYPE_CHECKING:
    from transformers import TrainerCallback
else:
    try:
        from transformers import TrainerCallback
    except ImportError:
        TrainerCallback = object


class HuggingFaceCallback(TrainerCallback):
    """Reports a Trainer's progress, saves when gangrun asks, and stops when gangrun stops.

        trainer = Trainer(..., callbacks=[gangrun.HuggingFaceCallback()])

    Raises:
        ImportError: transformers is not installed.
    """

    def __init__(self) -> None:
        if TrainerCallback is object:
            raise missing("HuggingFaceCallback", "transformers")

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """From here on a stop waits for a save."""
        progress.save_on_stop()
        progress.report_figures(total_steps=state.max_steps)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """After each optimizer step."""
        asked = progress.step(state.global_step)
        if asked.checkpoint:
            control.should_save = True
        if asked.stop:
            control.should_training_stop = True

    def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, Any] | None = None, **_: Any) -> None:
        """Every ``logging_steps``."""
        progress.report_logged(logs or {}, getattr(state, "num_input_tokens_seen", None))

    def on_prediction_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """A long evaluation is no hang."""
        progress.mark_phase("eval")

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """The evaluation is over."""
        progress.mark_phase("train")

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """The checkpoint is written."""
        progress.checkpoint_saved()


class AccelerateTracker:
    """Reports what a script logs through Accelerate, and tells it what gangrun asks.

        accelerator = Accelerator(log_with="tensorboard", project_dir="out")
        tracker = gangrun.AccelerateTracker(accelerator)
        accelerator.init_trackers("run")
        ...
        accelerator.log({"loss": loss}, step=step)
        if tracker.asked.checkpoint:
            accelerator.save_state()

    Each rank must make it and log each step, outside ``if accelerator.is_main_process``. Accelerate calls its own
    trackers on the main process alone, so this one wraps ``accelerator.log`` and ``accelerator.init_trackers``
    instead; they do what they did before. Log a number that you have anyway: a tensor on a GPU makes the call wait for
    the GPU.

    Args:
        accelerator: An ``accelerate.Accelerator``; it needs no other tracker.
    """

    def __init__(self, accelerator: Any) -> None:
        self.asked: Requests = NOTHING  # after the step that was logged last
        self._log, self._init_trackers = accelerator.log, accelerator.init_trackers
        accelerator.log, accelerator.init_trackers = self.log, self.init_trackers

    def init_trackers(self, project_name: str, config: Mapping[str, Any] | None = None, *rest: Any, **more: Any) -> Any:
        """The end, if the script's configuration names it."""
        names = ("max_train_steps", "max_steps", "total_steps")
        total = next((config[name] for name in names if name in config), None) if config else None
        if isinstance(total, int):
            progress.report_figures(total_steps=total)
        return self._init_trackers(project_name, config, *rest, **more)

    def log(self, values: Mapping[str, Any], step: int | None = None, *rest: Any, **more: Any) -> Any:
        """What the script logs; without ``step`` only figures."""
        progress.report_logged(values)
        if step is not None:
            self.asked = progress.step(step)
        return self._log(values, step, *rest, **more)

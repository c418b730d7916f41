"""The Hugging Face Trainer, and Accelerate, which it needs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gangrun.training import step as progress
from gangrun.training.integrations import missing
from gangrun.training.step import NOTHING, Requests

if TYPE_CHECKING:
    from transformers import TrainerCallback

    GeneralTracker = object
else:
    try:
        from transformers import TrainerCallback
    except ImportError:
        TrainerCallback = object
    try:
        from accelerate.tracking import GeneralTracker
    except ImportError:
        GeneralTracker = object


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


class AccelerateTracker(GeneralTracker):
    """Reports what a script logs through Accelerate, and tells it what gangrun asks.

        accelerator = Accelerator(log_with=gangrun.AccelerateTracker())
        accelerator.init_trackers("run")
        ...
        accelerator.log({"loss": loss}, step=step)
        if accelerator.get_tracker("gangrun").asked.checkpoint:
            accelerator.save_state()

    Each rank must log each step. Log a number that you have anyway: a tensor on a GPU makes the call wait for the GPU.

    Raises:
        ImportError: accelerate is not installed.
    """

    name = "gangrun"
    requires_logging_directory = False
    main_process_only = False  # each rank reports

    def __init__(self) -> None:
        if GeneralTracker is object:
            raise missing("AccelerateTracker", "accelerate")
        super().__init__()
        self.asked: Requests = NOTHING  # after the step that was logged last

    @property
    def tracker(self) -> AccelerateTracker:
        """Accelerate asks for it."""
        return self

    def store_init_configuration(self, values: Mapping[str, Any]) -> None:
        """The end, if the script's configuration names it."""
        total = next((values[name] for name in ("max_train_steps", "max_steps", "total_steps") if name in values), None)
        if isinstance(total, int):
            progress.report_figures(total_steps=total)

    def log(self, values: Mapping[str, Any], step: int | None = None, **_: Any) -> None:
        """What the script logs; without ``step`` only figures."""
        progress.report_logged(values)
        if step is not None:
            self.asked = progress.step(step)

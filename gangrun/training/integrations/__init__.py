"""What training frameworks call: each file subclasses or wraps what they offer, and needs no package but theirs.

They report step, loss, gradient norm and tokens as a script does with ``gangrun.step``, have the framework save when
gangrun asks for it, and end its training when gangrun stops it.

Here is what needs no framework: a mark at each restart in W&B, MLflow and TensorBoard, if the script uses them. It is
made at the first step that is reported after a restart, when the script has begun its loggers.
"""

from __future__ import annotations

import gc
import sys
import warnings
from collections.abc import Callable
from typing import Any

NAME = "gangrun/attempt"


def mark_restart(attempt: int, step: int) -> None:
    """Say in each logger of this process that ``attempt`` began at ``step``."""
    for marks in (_wandb, _mlflow, _tensorboard):
        try:
            marks(attempt, step)
        except Exception as error:  # noqa: BLE001 - another's library: training goes on whatever it does
            warnings.warn(f"gangrun could not mark the restart: {type(error).__name__}: {error}", stacklevel=2)


def _wandb(attempt: int, _: int) -> None:
    run = getattr(sys.modules.get("wandb"), "run", None)
    if run is not None:
        run.log({NAME: attempt}, commit=False)  # with the script's next row: its numbers of steps stay its own
        run.summary["gangrun/restarts"] = attempt


def _mlflow(attempt: int, step: int) -> None:
    active: Callable[[], Any] | None = getattr(sys.modules.get("mlflow"), "active_run", None)
    if active is None:
        return
    if active() is not None:
        sys.modules["mlflow"].log_metric(NAME, attempt, step=step)
    for logger in _made_of("MLFlowLogger", "lightning.pytorch.loggers.mlflow", "pytorch_lightning.loggers.mlflow"):
        logger.log_metrics({NAME: attempt}, step)  # Lightning's, which makes no run the active one


def _tensorboard(attempt: int, step: int) -> None:
    for writer in _made_of("SummaryWriter", "torch.utils.tensorboard.writer", "tensorboardX"):
        writer.add_scalar(NAME, attempt, step)
        writer.flush()


def _made_of(name: str, *modules: str) -> list[Any]:
    """All objects of the class of that name in modules that are imported: nothing else lists them."""
    classes = tuple(getattr(one, name) for one in map(sys.modules.get, modules) if hasattr(one, name))
    return [one for one in gc.get_objects() if issubclass(type(one), classes)] if classes else []


def missing(name: str, package: str) -> ImportError:
    """For a class whose framework is not installed."""
    return ImportError(f"gangrun.{name} needs {package}, which is not installed: pip install {package}")

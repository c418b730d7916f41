"""Refuses what a script's author gave by mistake, in words and before anything is made of it.

A mistake that is found here costs a second; found at the first save it costs the time until then, and found when a
checkpoint is to be loaded, the run.
"""

from __future__ import annotations

import math
import numbers
import operator
import os
from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn

from gangrun.core.checkpoints.retention import Keep
from gangrun.training.save.schedule import Every


def directory(given: Any) -> str:
    """The absolute path."""
    path = os.fspath(given) if isinstance(given, os.PathLike) else given
    if not isinstance(path, str) or not path:
        raise TypeError(f"directory is the path under which checkpoints are saved, a str or a Path, not {given!r}")
    return os.path.abspath(path)


def model(given: Any) -> nn.Module:
    """The model itself."""
    if not isinstance(given, nn.Module):
        raise TypeError(f"model is a torch.nn.Module, not {_kind(given)}; give one that holds all that is trained")
    return given


def named(given: Any) -> Mapping[str, Any]:
    """What more is to be saved, by name."""
    if given is None:
        return {}
    if not isinstance(given, Mapping) or not all(isinstance(name, str) and name for name in given):
        raise TypeError(f'extra must map names to what is saved under them, as {{"ema": ema}}, not {_kind(given)}')
    return given


def every(steps: Any, seconds: Any, prefix: str = "") -> Every | None:
    """How often to save, from ``every_steps`` and ``every_s``, or those with a prefix; None: not by itself."""
    every_steps, every_s = f"{prefix}every_steps", f"{prefix}every_s"
    auto = isinstance(seconds, str) and seconds == "auto"
    if steps is not None:
        count = _whole(steps, every_steps)
        if count < 1:
            raise ValueError(f"{every_steps} must be a positive number, not {steps!r}")
        if seconds is not None and not auto:
            raise ValueError(f"give {every_steps} or {every_s}, not both")
        return Every(steps=count)
    if seconds is None or auto:
        return Every() if auto else None
    return Every(seconds=_seconds(seconds, every_s, f'{every_s} is seconds or "auto"'))


def keep(given: Any) -> Keep:
    """What stays; all where nothing is said."""
    return given if isinstance(given, Keep) else Keep(0 if given is None else _whole(given, "keep"))


def mtbf_s(given: Any) -> float | None:
    """Seconds between failures of the whole job; None: nothing is known."""
    what = "mtbf_s is seconds between failures of the whole job, or None"
    return None if given is None else _seconds(given, "mtbf_s", what)


def full_every(given: Any) -> int | None:
    """How many checkpoints may share a file, as a number."""
    return None if given is None else _whole(given, "full_every")


def step(given: Any) -> int:
    """The number of a step."""
    value = _whole(given, "step")
    if value < 0:
        raise ValueError(f"steps are counted from 0 up, and this one is {value}")
    return value


def later_step(given: Any, before: int, resumed: int) -> int:
    """The number of a step that comes after another one."""
    value = step(given)
    if value > before:
        return value
    if before == resumed:
        raise ValueError(
            f"step {value} is done already: a checkpoint of step {resumed} was resumed from. Go on with the number "
            "that resume() returned"
        )
    raise ValueError(
        f"step {value} comes after step {before}: steps count up over the whole run, over the ends of epochs too, and "
        "step() is called once for each"
    )


def optimized(optimizers: Iterable[Any], trained: nn.Module) -> None:
    """That optimizers have no parameters but the model's: torch would fail at the first save, with a bare number."""
    known = {id(one) for one in trained.parameters()}
    for group in (group for optimizer in optimizers for group in optimizer.param_groups):
        for one in group["params"]:
            if id(one) not in known and not hasattr(one, "to_local"):  # those of FSDP2 are others between two uses
                raise ValueError(
                    f"optimizer has a parameter of shape {tuple(one.shape)} that is not the model's: make the "
                    "optimizer after the model has its final form (fully_shard, to_empty), and give the model that it "
                    "trains; several as one torch.nn.ModuleDict"
                )


def _seconds(given: Any, name: str, what: str) -> float:
    if isinstance(given, bool) or not isinstance(given, numbers.Real):
        raise TypeError(f"{what}, not {given!r}")
    if not 0 < float(given) < math.inf:
        raise ValueError(f"{name} is a positive number of seconds, not {given!r}")
    return float(given)


def _whole(given: Any, name: str) -> int:
    if not isinstance(given, bool):
        try:
            return operator.index(given)
        except TypeError:
            pass
    raise TypeError(f"{name} is a whole number, not {given!r}")


def _kind(given: Any) -> str:
    return "None" if given is None else f"a {type(given).__name__}"

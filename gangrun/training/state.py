"""What a checkpoint holds: model, optimizer, schedule, data cursor, random numbers of every rank.

Models and optimizers go through torch's ``get_state_dict``, so that their names and shards are the same under DDP,
FSDP2 and one process. Everything small is one object of rank 0. Each rank's random state (Python, NumPy if it is
loaded, torch on CPU and GPU) is one object of its own. Both are plain numbers and tensors and are read back with
``weights_only``, so a checkpoint never executes anything.
"""

from __future__ import annotations

import io
import random
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_state_dict,
)

STATE_KEY = "gangrun.state"
RANDOM_KEY = "gangrun.random."
SCHEMA = 1
_INSTEAD = ". Give a gangrun.GlobalBatchSampler, which the loader has as its batch_sampler, or a StatefulDataLoader"
_OPTIONS = StateDictOptions(strict=True)


class CheckpointError(RuntimeError):
    """A checkpoint could not be written, found or loaded. The message says why, and what to do."""


@runtime_checkable
class Stateful(Protocol):
    """Whatever can give its state and take it back, as torch's schedulers and samplers do."""

    def state_dict(self) -> dict[str, Any]:
        """The state, of plain values and tensors."""

    def load_state_dict(self, state: dict[str, Any]) -> Any:
        """Continue from a state."""


@dataclass(slots=True)
class Parts:
    """What the user handed over."""

    model: nn.Module
    optimizers: tuple[torch.optim.Optimizer, ...] = ()
    modules: dict[str, nn.Module] = field(default_factory=dict)  # of ``extra``: saved tensor by tensor
    small: dict[str, Stateful] = field(default_factory=dict)  # schedule, data, the rest of ``extra``

    @classmethod
    def of(cls, model: nn.Module, optimizer: Any, scheduler: Any, data: Any, extra: Mapping[str, Any] | None) -> Parts:
        """Sort what was given by how it is saved; TypeError for what has no state."""
        optimizers = () if optimizer is None else _several(optimizer)
        parts = cls(model, optimizers)
        given = {"scheduler": scheduler, "data": data, **{f"extra.{name}": one for name, one in (extra or {}).items()}}
        _refuse_loader(data)
        for name, one in given.items():
            if one is None:
                continue
            if isinstance(one, nn.Module):
                parts.modules[name] = one
            elif isinstance(one, Stateful):
                parts.small[name] = one
            else:
                raise TypeError(
                    f"{name} has no state_dict() and load_state_dict(), so it cannot be saved: it is a "
                    f"{type(one).__name__}{_INSTEAD if name == 'data' else ''}"
                )
        return parts


def _refuse_loader(data: Any) -> None:
    """Of a loader around ``GlobalBatchSampler`` only the sampler knows what was trained on."""
    if hasattr(getattr(data, "batch_sampler", None), "trained"):
        raise TypeError(
            "data is a loader, whose position counts batches that were fetched ahead; give its batch_sampler instead"
        )


def _several(optimizer: Any) -> tuple[torch.optim.Optimizer, ...]:
    found = tuple(optimizer) if isinstance(optimizer, Iterable) else (optimizer,)
    for one in found:
        if not isinstance(one, torch.optim.Optimizer):
            raise TypeError(f"optimizer is a torch.optim.Optimizer or several of them, not a {type(one).__name__}")
    return found


def tensors_of(parts: Parts) -> dict[str, Any]:
    """The state that is saved tensor by tensor; its tensors are the live ones, nothing is copied."""
    state: dict[str, Any] = {}
    if parts.optimizers:
        state["model"], state["optimizer"] = get_state_dict(parts.model, parts.optimizers, options=_OPTIONS)
    else:
        state["model"] = get_model_state_dict(parts.model, options=_OPTIONS)
    for name, module in parts.modules.items():
        state[name] = get_model_state_dict(module, options=_OPTIONS)
    return state


def frozen_storages(parts: Parts) -> frozenset[int]:
    """Where the parameters lie that want no gradient: a hint at what will not change, and no proof."""
    modules = (parts.model, *parts.modules.values())
    frozen = (one for module in modules for one in module.parameters() if not one.requires_grad)
    return frozenset(storage_of(one.to_local() if hasattr(one, "to_local") else one) for one in frozen) - {0}


def storage_of(tensor: torch.Tensor) -> int:
    """Which memory a tensor is a view of; 0 for those that have none of their own."""
    try:
        return int(tensor.untyped_storage().data_ptr())
    except (NotImplementedError, RuntimeError):  # a subclass that wraps others
        return 0


def small_state(parts: Parts, step: int, world_size: int, trained_s: float) -> dict[str, Any]:
    """Rank 0's one object: everything that is the same for all ranks."""
    return {
        "schema": SCHEMA,
        "step": step,
        "world_size": world_size,
        "trained_s": trained_s,
        "parts": {name: one.state_dict() for name, one in parts.small.items()},
    }


def demand_readable(value: Any) -> None:
    """That what is about to be saved can be read back without executing it; TypeError says what cannot."""
    stream = io.BytesIO()
    torch.save(value, stream)
    stream.seek(0)
    try:
        torch.load(stream, weights_only=True)
    except Exception as error:
        first = str(error).splitlines()[0]
        raise TypeError(
            "the state of scheduler, data or extra holds an object that could not be read back without executing "
            f"code; keep it to numbers, texts, lists, dictionaries and tensors ({first})"
        ) from error


def put_back(parts: Parts, state: dict[str, Any]) -> None:
    """Give models and optimizers what was loaded into ``tensors_of``'s result."""
    if parts.optimizers:
        set_state_dict(
            parts.model, parts.optimizers, model_state_dict=state["model"], optim_state_dict=state["optimizer"],
            options=_OPTIONS,
        )  # fmt: skip
    else:
        set_model_state_dict(parts.model, state["model"], options=_OPTIONS)
    for name, module in parts.modules.items():
        set_model_state_dict(module, state[name], options=_OPTIONS)


def put_back_small(parts: Parts, saved: dict[str, Any]) -> list[str]:
    """Give schedule, data and the rest their state; the names of those that the checkpoint does not know."""
    known = saved["parts"]
    for name, one in parts.small.items():
        if name in known:
            one.load_state_dict(known[name])
    return [name for name in parts.small if name not in known]


def restore_random(mine: dict[str, Any] | None, first: dict[str, Any], rank: int) -> None:
    """This rank's chance as it was; one of its own for a rank that there was not."""
    if mine is not None:
        _restore_random(mine)
    else:
        _seed_by(rank, first)


def random_numbers() -> dict[str, Any]:
    """All of it, of this process."""
    version, words, gauss = random.getstate()
    state: dict[str, Any] = {
        "python": [version, torch.tensor(words, dtype=torch.int64), gauss],
        "torch": torch.get_rng_state(),
    }
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        name, keys, position, has_gauss, cached = numpy.random.get_state()
        state["numpy"] = [str(name), torch.tensor(keys.tolist()), int(position), int(has_gauss), float(cached)]
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def _restore_random(state: dict[str, Any]) -> None:
    """Continue with chance where it stood."""
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words.tolist()), gauss))
    torch.set_rng_state(state["torch"])
    numpy = sys.modules.get("numpy")
    if numpy is not None and "numpy" in state:
        name, keys, position, has_gauss, cached = state["numpy"]
        numpy.random.set_state((name, numpy.array(keys.tolist(), dtype="uint32"), position, has_gauss, cached))
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])


def _seed_by(rank: int, first: dict[str, Any]) -> None:
    """Chance for a rank that had none when the state was saved: a pure function of rank 0's and of the rank."""
    seed = int(first["torch"].to(torch.int64).sum()) * 1_000_003 + rank
    random.seed(seed)
    torch.manual_seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)

"""What chance there is in a process, taken and given back: Python, NumPy if it is loaded, torch on CPU and GPU.

Room: training. Stored as plain numbers and tensors, so that reading it back executes nothing.
"""

from __future__ import annotations

import random
import sys
from typing import Any

import torch


def take() -> dict[str, Any]:
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


def give_back(state: dict[str, Any]) -> None:
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


def differ_by(rank: int, first: dict[str, Any]) -> None:
    """Chance for a rank that had none when the state was saved: a pure function of rank 0's and of the rank."""
    seed = int(first["torch"].to(torch.int64).sum()) * 1_000_003 + rank
    random.seed(seed)
    torch.manual_seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)

"""Accelerate's ``save_state`` with automatic names: ``PROJECT/checkpoints/checkpoint_N``, as accelerate 1.15 writes it.

The number counts saves from 0, and is no step. Order of a save by rank 0: weights, optimizers, schedulers, samplers,
scaler, its random state, and then what the script registered. Other ranks write their random states beside that. No
barrier follows. ``load_state`` takes the highest number and never steps back; a torn random state it passes over in
silence. With ``total_limit`` the oldest directory goes before the new one is written. Any other name in that folder
makes it fail, so nothing may be left there.

Signals: none. Its scripts keep what they keep in memory.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from gangrun.frameworks.framework import Facts, Framework

_WEIGHTS = re.compile(r"(?:model|pytorch_model)(?:_\d+)?\.(?:safetensors|bin)(?:\.index\.json)?|pytorch_model.*")
_RANDOM = re.compile(r"random_states_(\d+)\.pkl")


def _flaw(paths: Collection[str], _facts: Facts) -> str:
    if not any(_WEIGHTS.fullmatch(path) for path in paths):
        return "it has no weights (model.safetensors or the like)"
    ranks = {int(match[1]) for path in paths if (match := _RANDOM.fullmatch(path))}
    absent = sorted(set(range(max(ranks) + 1)) - ranks)
    return f"it has no random_states_{absent[0]}.pkl: rank {absent[0]} had not finished its save" if absent else ""


def _remark(paths: Collection[str], _facts: Facts) -> str:
    optimizer = (
        "" if any(path.startswith(("optimizer", "pytorch_model/")) for path in paths) else "no optimizer state; "
    )
    again = "after load_state() the next save_state() fails unless the script sets project_configuration.iteration"
    return f"{optimizer}its number counts saves; {again}"


FRAMEWORK = Framework(
    name="accelerate",
    title="Accelerate",
    names=re.compile(r"checkpoint_(\d{1,18})"),
    counts_saves=True,
    marker="random_states_0.pkl",
    file_suffixes=(".safetensors", ".bin", ".pt", ".pkl", ".index.json"),
    signs=re.compile(r"(?:model|pytorch_model|optimizer|scheduler|sampler|random_states).*"),
    flaw=_flaw,
    remark=_remark,
)

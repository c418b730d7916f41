"""Hugging Face Trainer: ``OUT/checkpoint-N``, as transformers 4.40 to 5.23 write it.

Order of a save: weights, ``training_args.bin``, optimizer and scheduler, random state of each rank, and then
``trainer_state.json`` by rank 0. No barrier follows, so the random state of another rank may come later. The Trainer
loads weights without a look at their bytes. If ``optimizer.pt`` or ``scheduler.pt`` is missing, it begins with a fresh
optimizer and says nothing. It saves into a directory of the same name in place. It deletes old ``checkpoint-*`` by
the time of their directories, so nothing may be written or renamed among them.

Signals: none by default. With ``--enable_jit_checkpoint``, each rank saves 3 s after its own SIGTERM and exits with 0.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection

from gangrun.core.evidence import StateFigures
from gangrun.frameworks.framework import Facts, Framework

_WEIGHTS = (
    "model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json",
    "adapter_model.safetensors", "adapter_model.bin", "pytorch_model_fsdp.bin", "pytorch_model_fsdp_0",
)  # fmt: skip
_OPTIMIZERS = ("optimizer.pt", "optimizer.bin", "optimizer_0")
_UNFINISHED = "checkpoint-is-incomplete.txt"
_RANDOM = re.compile(r"rng_state_(\d+)\.pth")


def _flaw(names: Collection[str], facts: Facts) -> str:
    engine = any(name.startswith("global_step") for name in names)  # DeepSpeed's: weights and optimizer in one
    if _UNFINISHED in names:
        return f"its save was cut off: {_UNFINISHED} is there"
    if not engine and not any(name in names for name in _WEIGHTS):
        return "it has no weights (model.safetensors or the like)"
    if facts.get("save_only_model") is True:
        return ""
    if not engine and not any(name in names for name in _OPTIMIZERS):
        return "it has no optimizer.pt: the Trainer would begin with a fresh optimizer and not say so"
    if not engine and "scheduler.pt" not in names:
        return "it has no scheduler.pt: the Trainer would begin with a fresh optimizer and not say so"
    ranks = {int(match[1]) for name in names if (match := _RANDOM.fullmatch(name))}
    absent = sorted(set(range(max(2, max(ranks) + 1))) - ranks) if ranks else []  # a rank alone writes rng_state.pth
    return f"it has no rng_state_{absent[0]}.pth: rank {absent[0]} had not finished its save" if absent else ""


def _remark(names: Collection[str], facts: Facts) -> str:
    if facts.get("save_only_model") is True:
        return "it holds no optimizer state (save_only_model), so the Trainer begins with a fresh optimizer"
    has_random = any(name.startswith("rng_state") for name in names)
    return "" if has_random else "it holds no random state, so the data order may differ after the resume"


def _step(state: bytes) -> int | None:
    try:
        step = json.loads(state)["global_step"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return step if isinstance(step, int) else None


def _figures(state: bytes) -> StateFigures | None:
    step = _step(state)
    if step is None:
        return None
    told = json.loads(state)
    total, history = told.get("max_steps"), told.get("log_history")
    rows = history if isinstance(history, list) else []
    losses = [row["loss"] for row in rows if isinstance(row, dict) and isinstance(row.get("loss"), int | float)]
    return StateFigures(step, total if isinstance(total, int) else -1, losses[-1] if losses else None)


FRAMEWORK = Framework(
    name="hf",
    title="Hugging Face Trainer",
    names=re.compile(r"checkpoint-(\d{1,18})"),
    marker="trainer_state.json",
    file_suffixes=(".pt", ".pth", ".bin", ".safetensors", ".index.json"),
    facts_file=re.compile(r"training_args\.bin"),
    facts_keys=("save_only_model",),
    flaw=_flaw,
    remark=_remark,
    step_of_marker=_step,
    state_files=("checkpoint-*/trainer_state.json",),
    figures_of_state=_figures,
    resume_argument="--resume_from_checkpoint",
    taken_if=("resume_from_checkpoint", "HfArgumentParser"),
)

"""DeepSpeed: ``DIR/global_stepN/`` and the tracker ``DIR/latest``, as 0.19.8 writes them.

Order of a save: weights (of a pipeline by layer, of experts one by one), model states by the first data-parallel rank
or, with ZeRO-3, by all, then each rank's ZeRO shard. Nothing in the directory tells that it is finished. Rank 0 writes
``latest`` as soon as itself is done, while other ranks still write, and in place: a kill may leave it empty. So gangrun
counts the files. Model states tell how many ranks saved (``dp_world_size`` and ``mp_world_size``) and the step.

DeepSpeed loads what ``latest`` names. If that is missing or torn, it raises; if ``latest`` itself is missing, it
warns, and most scripts begin at step 0. A world of another size is refused by ZeRO.

Signals: none are handled.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from gangrun.frameworks.framework import Facts, Framework, Tracker

_NAMES = re.compile(r"global_step(\d{1,18})")
_MODEL = re.compile(r"(?:zero_pp_rank_\d+_)?mp_rank_\d+_model_states\.pt")
_SHARD = re.compile(r"(?:bf16_)?zero_pp_rank_(\d+)_mp_rank_(\d+)_optim_states\.pt")
_PARTITIONED = re.compile(r"zero_pp_rank_(\d+)_mp_rank_(\d+)_model_states\.pt")  # of ZeRO-3
_EXPERT = re.compile(r"layer_(\d+)_expert_(\d+)_mp_rank_(\d+)_model_states\.pt")
_LAYER = re.compile(r"layer_(\d+)-(?:model_(\d+)-)?model_states\.pt")  # of a pipeline


def _flaw(paths: Collection[str], facts: Facts) -> str:
    if not any(_MODEL.fullmatch(path) for path in paths):
        return "it has no model states (mp_rank_00_model_states.pt or the like)"
    ranks, parts = facts.get("dp_world_size"), facts.get("mp_world_size")
    if not isinstance(ranks, int) or not isinstance(parts, int):
        return ""  # that file is torn, or nobody can tell
    partitioned = any(_PARTITIONED.fullmatch(path) for path in paths)
    # stages 1 to 3 keep the optimizer in shards, and what their shards must cover in the model states
    sharded = partitioned or ("optimizer" in facts and facts["optimizer"] is None and facts.get("param_shapes") == "")
    shards = _pairs(_SHARD, paths)
    for rank in range(ranks):
        for part in range(parts):
            if partitioned and f"zero_pp_rank_{rank}_mp_rank_{part:02d}_model_states.pt" not in paths:
                return _absent(f"zero_pp_rank_{rank}_mp_rank_{part:02d}_model_states.pt", ranks * parts)
            if (sharded or shards) and (rank, part) not in shards:
                return _absent(f"zero_pp_rank_{rank}_mp_rank_{part:02d}_optim_states.pt", ranks * parts)
    for part in range(0 if partitioned else parts):
        if f"mp_rank_{part:02d}_model_states.pt" not in paths:
            return _absent(f"mp_rank_{part:02d}_model_states.pt", ranks * parts)
    return _absent_part(paths, parts)


def _absent_part(paths: Collection[str], parts: int) -> str:
    """Experts are numbered from 0 in each layer, and each layer of a pipeline is cut into the same parts."""
    experts = {tuple(map(int, match.groups())) for path in paths if (match := _EXPERT.fullmatch(path))}
    for layer in sorted({layer for layer, _, _ in experts}):
        for expert in range(1 + max(number for one, number, _ in experts if one == layer)):
            for part in sorted({number for _, _, number in experts}):
                if (layer, expert, part) not in experts:
                    return f"it has no layer_{layer}_expert_{expert}_mp_rank_{part:02d}_model_states.pt"
    layers = {(match[1], int(match[2] or 0)) for path in paths if (match := _LAYER.fullmatch(path))}
    for name in sorted({name for name, _ in layers}):
        for part in range(parts):
            if (name, part) not in layers:
                return f"it has no layer_{name}-model_{part:02d}-model_states.pt"
    return ""


def _absent(name: str, ranks: int) -> str:
    return f"it has no {name}: {ranks} ranks saved, and one of them had not finished, or its file is lost"


def _pairs(pattern: re.Pattern[str], paths: Collection[str]) -> set[tuple[int, int]]:
    return {(int(match[1]), int(match[2])) for path in paths if (match := pattern.fullmatch(path))}


def _remark(paths: Collection[str], facts: Facts) -> str:
    if _pairs(_SHARD, paths):
        return ""
    if any(_LAYER.fullmatch(path) for path in paths):
        return "nothing in it tells how many layers its pipeline has"
    experts = any(path.startswith("expp_rank_") for path in paths)
    if facts.get("optimizer", "") is None and not experts:
        return "it holds no optimizer state, so the script begins with a fresh optimizer"
    return ""


def _tracked(text: str) -> int | None:
    match = _NAMES.fullmatch(text)
    return int(match[1]) if match else None


FRAMEWORK = Framework(
    name="deepspeed",
    title="DeepSpeed",
    names=_NAMES,
    file_suffixes=(".pt",),
    facts_file=_MODEL,
    facts_keys=("global_steps", "dp_world_size", "mp_world_size", "optimizer", "param_shapes"),
    facts_needed=("dp_world_size", "mp_world_size"),
    step_key="global_steps",
    flaw=_flaw,
    remark=_remark,
    leaves=("zero_to_fp32.py", "zero_to_torch.py"),
    tracker=Tracker("latest", _tracked, lambda name, step: name),
)

"""torchtune: ``OUT/epoch_N/`` with ``OUT/recipe_state/recipe_state.pt``, or ``OUT/dist_epoch_N/``.

By the sources of 0.6.1. Order of a save: shards of the weights, their index, and then one file beside all epochs,
which each save writes over: it has the optimizer state, and ``epochs_run``, which is N + 1. So only one epoch has its
optimizer state, and weights without it would be trained on with that of another epoch. The last epoch of a run saves
none. With ``enable_async_checkpointing``, epochs but the last are directories of torch.distributed.checkpoint instead.

With ``resume_from_checkpoint=True``, a recipe loads the epoch of the highest number. Signals: none are handled.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from gangrun.frameworks.framework import Facts, Framework

_WEIGHTS = re.compile(r"(?:ft-)?model-\d+-of-(\d+)\.(?:safetensors|bin)|adapter_model\.(?:safetensors|pt|bin)")


def _flaw(paths: Collection[str], _facts: Facts) -> str:
    found = [match for path in paths if (match := _WEIGHTS.fullmatch(path))]
    if not found:
        return "it has no weights (model-00001-of-0000N.safetensors, or an adapter_model)"
    shards = {match[0] for match in found if match[1]}
    wanted = max((int(match[1]) for match in found if match[1]), default=0)
    if len(shards) < wanted:
        return f"it has {len(shards)} of {wanted} shards of its weights"
    is_indexed = any(path.endswith(".index.json") for path in paths)
    return "it has no index of its weights: its save was cut off" if shards and not is_indexed else ""


FRAMEWORK = Framework(
    name="torchtune",
    title="torchtune",
    names=re.compile(r"(?:dist_)?epoch_(\d{1,18})"),
    signs=_WEIGHTS,
    dcp_names=re.compile(r"dist_epoch_\d+"),
    file_suffixes=(".pt", ".bin", ".safetensors", ".index.json"),
    flaw=_flaw,
    state_beside="recipe_state/recipe_state.pt",
    facts_keys=("epochs_run",),
    facts_needed=("epochs_run",),
    step_key="epochs_run",
    steps_ahead=1,
    leaves=("recipe_state",),
    resume_argument="resume_from_checkpoint=True",
    taken_if=("torchtune",),
)

"""torch.distributed.checkpoint directories of any script: ``step-N``, ``checkpoint_N``, ``iter-N`` and the like.

Order of a save: each rank's ``__RANK_FILE.distcp`` in place, a barrier, and then ``.metadata`` by rank 0. Without
``.metadata``, nothing can be loaded. A save into the same directory writes over the files in place.

torchtitan: ``DUMP/checkpoint/step-N/``, directories of torch.distributed.checkpoint, as 0.3.0 writes them.

It loads the highest step that has ``.metadata`` or ``model.safetensors.index.json``, unless ``--checkpoint.load_step``
names one. It searches names for ``step-N`` anywhere, so a torn one may not stay in its folder under such a name, and
counts torn ones as kept when it deletes old ones. The last save of a run holds the model alone by default.

Signals: none are handled.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from gangrun.frameworks.framework import Facts, Framework

_NAMES = re.compile(r"(?:(?:global_?)?step|checkpoint|iter|iteration|epoch|ckpt)[-_=]?(\d{1,18})")
_TITAN_NAMES = re.compile(r"step-(\d{1,18})")

DCP = Framework(name="dcp", title="torch.distributed.checkpoint", names=_NAMES, dcp_names=_NAMES)


def _remark(keys: Collection[str], _facts: Facts) -> str:
    """By the first words of its keys; step 0 holds the model alone on purpose, and is loaded so."""
    if "train_state" in keys:
        return ""
    return (
        "it holds the model alone, as torchtitan's last save of a run does (last_save_model_only): "
        "torchtitan cannot continue from it, unless its step is 0"
    )


TORCHTITAN = Framework(
    name="torchtitan",
    title="torchtitan",
    names=_TITAN_NAMES,
    dcp_names=_TITAN_NAMES,
    remark=_remark,
    resume_argument="--checkpoint.load_step={step}",
    taken_if=("torchtitan", "checkpoint.load_step"),
    modules=("torchtitan.train",),
)

"""Megatron-LM and NeMo 2. Megatron-LM: ``DIR/iter_0000500/`` and the tracker ``DIR/latest_checkpointed_iteration.txt``.

Order of a save with ``--ckpt-format torch_dist`` (megatron-core 0.16.1): ``common.pt``, each rank's ``.distcp``,
``.metadata``, ``metadata.json``, a barrier, and the tracker, which is written in place: a kill may leave it empty.
``torch_dcp`` and ``fsdp_dtensor`` write ``.distcp`` and ``.metadata`` only. The old format, ``torch``, has one
directory for each part of the model (``mp_rank_TT_PPP_EEE``), and no file that comes last; the arguments in it tell how
many parts there are.

Megatron loads what the tracker names and never steps back. If the tracker is torn, it exits with status 0; if there is
none, it begins with random weights and a warning, unless ``--exit-on-missing-checkpoint`` is given.

Signals: with ``--exit-signal-handler``, SIGTERM to any rank makes all ranks save after the step and exit with 0.

NeMo 2 (by its sources of 2025-09): ``checkpoints/NAME--val_loss=2.3-step=N-consumed_samples=S.0[-last]/`` holds
``weights/``, a directory of megatron-core's distributed format, and ``context/``. An empty file beside it,
``DIRECTORY-unfinished``, is there while it is written or removed; NeMo deletes directories with that mark when it
starts. N is one less than the steps that are done. It resumes from the directory ``*-last`` that was changed last, and
if there is none, begins anew, unless ``resume_from_path`` names one. With PreemptionCallback, SIGTERM to rank 0 makes
all ranks save and exit with 0.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from itertools import product

from gangrun.frameworks.framework import Facts, Framework, Tracker

_PART = re.compile(r"(mp_rank_(\d{2,})(?:_(\d{3,}))?(?:_(\d{3,}))?)(/.*)?")
_SIZES = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "expert_model_parallel_size")
_MODEL, _OPTIMIZER = "model_optim_rng.pt", "distrib_optim.pt"


def _torch_dist_flaw(paths: Collection[str], prefix: str = "") -> str:
    """What a directory of megatron-core's distributed format lacks."""
    if f"{prefix}.metadata" not in paths:
        return f"it has no {prefix}.metadata: its save was cut off"
    if f"{prefix}common.pt" in paths and f"{prefix}metadata.json" not in paths:
        return f"it has no {prefix}metadata.json, which comes last"
    return ""


def _torch_dist_remark(paths: Collection[str], prefix: str = "") -> str:
    """What megatron-core may miss in a whole one."""
    if f"{prefix}metadata.json" in paths and f"{prefix}common.pt" not in paths:
        return f"it has no {prefix}common.pt, without which megatron-core up to 0.16 does not load it"
    return ""


def _parts(paths: Collection[str]) -> dict[tuple[int, ...], str]:
    """By its numbers: the directory of each part of the old format."""
    found = (match for path in paths if (match := _PART.fullmatch(path)))
    return {tuple(int(one) for one in match.groups()[1:4] if one is not None): match[1] for match in found}


def _flaw(paths: Collection[str], facts: Facts) -> str:
    parts = _parts(paths)
    if not parts:
        return _torch_dist_flaw(paths)
    if len({len(numbers) for numbers in parts}) > 1:
        return "its parts (mp_rank_*) are named in two ways: two saves are mixed in it"
    for numbers in product(*(range(max(ranks) + 1) for ranks in zip(*parts, strict=True))):
        if f"{parts.get(numbers, '')}/{_MODEL}" not in paths:
            part = "_".join(map(str, numbers))
            return f"it has no {_MODEL} of part {part}: a rank had not finished, or its file is lost"
    has_shards = {name for name in parts.values() if f"{name}/{_OPTIMIZER}" in paths}
    without = sorted(set(parts.values()) - has_shards)
    if has_shards and without:
        return f"it has no {without[0]}/{_OPTIMIZER}, and other parts have theirs"
    wanted = 1
    for size in map(facts.get, _SIZES):
        wanted *= size if isinstance(size, int) and size > 0 else 1
    if len(parts) < wanted:
        return f"it has {len(parts)} of {wanted} parts (mp_rank_*): a rank had not finished, or its files are lost"
    return ""


def _remark(paths: Collection[str], facts: Facts) -> str:
    if not _parts(paths):
        return _torch_dist_remark(paths)
    told = isinstance(facts.get(_SIZES[0]), int)
    return "" if told else "nothing in it tells how many parts (mp_rank_*) its model has"


def _tracked(text: str) -> int | None:
    """``release`` names weights without a step."""
    return int(text) if text.isdecimal() and len(text) <= 18 else None


MEGATRON = Framework(
    name="megatron",
    title="Megatron",
    names=re.compile(r"iter_(\d{7,18})"),
    file_suffixes=(".pt", ".json"),
    facts_file=re.compile(rf"mp_rank_00(?:_000)*/{re.escape(_MODEL)}|\.metadata"),
    facts_keys=_SIZES,
    flaw=_flaw,
    remark=_remark,
    leaves=("progress.txt",),
    tracker=Tracker("latest_checkpointed_iteration.txt", _tracked, lambda name, step: str(step)),
)


def _nemo_flaw(paths: Collection[str], _facts: Facts) -> str:
    if "weights" not in paths:
        return "it has no weights/"
    missing = _torch_dist_flaw(paths, "weights/")
    return missing or ("" if "context" in paths else "it has no context/, from which NeMo builds the model")


def _nemo_remark(paths: Collection[str], _facts: Facts) -> str:
    return _torch_dist_remark(paths, "weights/")


def _nemo_name_remark(name: str) -> str:
    if name.endswith("-last"):
        return ""
    return "its name does not end in -last, so NeMo loads it only if resume.resume_from_path names it"


NEMO = Framework(
    name="nemo",
    title="NeMo",
    names=re.compile(r".*[-_]step=(\d{1,18})-.*?consumed_samples=[\d.]+(?:-last)?"),
    file_suffixes=(".pt", ".json"),
    facts_file=re.compile(r"weights/\.metadata"),
    flaw=_nemo_flaw,
    remark=_nemo_remark,
    name_remark=_nemo_name_remark,
    unfinished_suffix="-unfinished",
    resume_argument="resume.resume_from_path={path}",
    taken_if=("resume.resume_from_path", "nemo_run", "run.cli"),
)

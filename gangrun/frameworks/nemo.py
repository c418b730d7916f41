"""NeMo 2: ``checkpoints/NAME--val_loss=2.3-step=N-consumed_samples=S.0[-last]/`` with ``weights/`` and ``context/``.

By its sources of 2025-09. ``weights/`` is a directory of megatron-core's distributed format. An empty file beside it,
``DIRECTORY-unfinished``, is there while it is written or removed; NeMo deletes directories with that mark when it
starts. N is one less than the steps that are done. It resumes from the directory ``*-last`` that was changed last, and
if there is none, begins anew, unless ``resume_from_path`` names one.

Signals: with PreemptionCallback, SIGTERM to rank 0 makes all ranks save and exit with 0.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from gangrun.frameworks.framework import Facts, Framework
from gangrun.frameworks.megatron import torch_dist_flaw, torch_dist_remark


def _flaw(paths: Collection[str], _facts: Facts) -> str:
    if "weights" not in paths:
        return "it has no weights/"
    missing = torch_dist_flaw(paths, "weights/")
    return missing or ("" if "context" in paths else "it has no context/, from which NeMo builds the model")


def _remark(paths: Collection[str], _facts: Facts) -> str:
    return torch_dist_remark(paths, "weights/")


def _name_remark(name: str) -> str:
    if name.endswith("-last"):
        return ""
    return "its name does not end in -last, so NeMo loads it only if resume.resume_from_path names it"


FRAMEWORK = Framework(
    name="nemo",
    title="NeMo",
    names=re.compile(r".*[-_]step=(\d{1,18})-.*?consumed_samples=[\d.]+(?:-last)?"),
    file_suffixes=(".pt", ".json"),
    facts_file=re.compile(r"weights/\.metadata"),
    flaw=_flaw,
    remark=_remark,
    name_remark=_name_remark,
    unfinished_suffix="-unfinished",
    resume_argument="resume.resume_from_path={path}",
    taken_if=("nemo_run", "run.cli"),
)

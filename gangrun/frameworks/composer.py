"""Composer: files ``SAVE/epE-baN-rank0.pt``, or directories ``SAVE/epE-baN/``, and the link ``SAVE/latest-rank0.pt``.

By the sources of 0.32.1. Rank 0 writes the file in place, or all ranks a directory of torch.distributed.checkpoint
(sharded FSDP); after a barrier, rank 0 removes the link and makes it anew. With ``autoresume=True``, a script loads
what the link names, and begins at 0 if there is none. It refuses to begin before files that are newer than what it
loads, unless ``save_overwrite`` is set. Compressed files (``.pt.zstd`` and the like) are not known here.

Signals: SIGTERM ends it with status 143; nothing is saved.
"""

from __future__ import annotations

import re

from gangrun.frameworks.framework import Framework, Tracker

_NAMES = re.compile(r"ep\d+-ba(\d{1,18})(?:-rank0\.pt)?")


def _linked(target: str) -> int | None:
    match = _NAMES.fullmatch(target.rpartition("/")[2])
    return int(match[1]) if match else None


FRAMEWORK = Framework(
    name="composer",
    title="Composer",
    names=_NAMES,
    dcp_names=re.compile(r"ep\d+-ba\d+"),
    file_names=re.compile(r"ep\d+-ba\d+-rank0\.pt"),
    tracker=Tracker("latest-rank0.pt", _linked, lambda name, step: name, is_link=True),
)

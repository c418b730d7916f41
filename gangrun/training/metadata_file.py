"""What describes a checkpoint: its manifest, and torch's ``.metadata``, written as torch writes it.

``.metadata`` is read so that nothing in it is executed.

torch reads it with an unrestricted ``pickle.load``: opening a stranger's checkpoint would run the stranger's code. Here
only the dozen classes that a description is made of can be built.
"""

from __future__ import annotations

import io
import pickle  # noqa: TID251 - the format is torch's; what is read passes the list below
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta

from gangrun.checkpoint.commit import Staging
from gangrun.checkpoint.formats.dcp_metadata import ALLOWED, METADATA_NAME, MetadataRefused, parse_metadata
from gangrun.training.save.delta import WrittenPart
from gangrun.training.save.plan import SavePlan
from gangrun.training.save.shard_file import row_of
from gangrun.wire.manifest import SAVE_ID_PREFIX, Manifest


def describe(
    staging: Staging,
    step: int,
    nonce: str,
    plan: SavePlan,
    parts: Sequence[WrittenPart],
    *,
    world_size: int,
    wall: float,
    replicas: str = "",
    is_sharable: bool = False,
) -> tuple[bytes, Manifest]:
    """The content of ``.metadata`` and the manifest of a save whose parts all ranks have written. Rank 0 alone."""
    metadata = dump_metadata(plan, parts, nonce)
    rows = chain.from_iterable(part.rows for part in parts)
    manifest = Manifest(
        step=step, nonce=nonce, run=staging.run, term=staging.term, attempt=staging.attempt, world_size=world_size,
        made_by=f"torch {torch.__version__}", written_wall=wall, replicas=replicas,
        is_sharable=is_sharable,
        files=(*rows, row_of(METADATA_NAME, metadata)),
    )  # fmt: skip
    return metadata, manifest


def dump_metadata(plan: SavePlan, parts: Iterable[WrittenPart], nonce: str) -> bytes:
    """The content of ``.metadata``: what rank 0 planned, and where every rank's part stands."""
    planned = plan.metadata
    assert planned is not None, "rank 0 has the plan of all"
    places = chain(plan.all_places, *(part.objects for part in parts))
    storage = {index: _StorageInfo(name, at, length) for name, index, at, length in places}
    meta = StorageMeta(save_id=SAVE_ID_PREFIX + nonce)
    return pickle.dumps(Metadata(planned.state_dict_metadata, planned.planner_data, storage, meta))


def load_metadata(data: bytes) -> Metadata:
    """Read a ``.metadata``; ``MetadataRefused`` for whatever is no description of a checkpoint."""
    parse_metadata(data)
    try:
        metadata = _Restricted(io.BytesIO(data)).load()
    except (pickle.UnpicklingError, AttributeError, ImportError, TypeError, ValueError, IndexError, KeyError) as error:
        raise MetadataRefused(f".metadata refused: {error}") from None
    if not isinstance(metadata, Metadata):
        raise MetadataRefused(".metadata describes no checkpoint")
    if metadata.storage_meta is None:
        metadata.storage_meta = StorageMeta()
    return metadata


class _Restricted(pickle.Unpickler):
    """Builds what a description is made of, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        """One of the listed classes; a member of an enumeration where the pickle asks for an attribute."""
        if (module, name) in (("builtins", "getattr"), ("__builtin__", "getattr")):
            return _member
        if f"{module}.{name}" not in ALLOWED:
            raise pickle.UnpicklingError(
                f"{module}.{name} is not a class that a .metadata file may hold, so gangrun does not load the file"
            )
        return super().find_class(module, name)


def _member(of: Any, name: str) -> Any:
    """``getattr``, for enumerations only."""
    if not hasattr(of, "__members__"):
        raise pickle.UnpicklingError("a .metadata file may look up attributes of enumerations only")
    return of.__members__[name]

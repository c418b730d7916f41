"""torch's ``.metadata``, written as torch writes it and read so that nothing in it is executed.

torch reads it with an unrestricted ``pickle.load``: opening a stranger's checkpoint would run the stranger's code. Here
only the dozen classes that a description is made of can be built.
"""

from __future__ import annotations

import io
import pickle  # noqa: TID251 - the format is torch's; what is read passes the list below
from typing import Any

from torch.distributed.checkpoint.metadata import Metadata, StorageMeta

from gangrun.checkpoint.formats.dcp_metadata import ALLOWED, MetadataRefused, parse_metadata


def dump_metadata(metadata: Metadata) -> bytes:
    """The content of ``.metadata``."""
    return pickle.dumps(metadata)


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
            raise pickle.UnpicklingError(f"{module}.{name} is no part of a checkpoint's description")
        return super().find_class(module, name)


def _member(of: Any, name: str) -> Any:
    """``getattr``, for enumerations only."""
    if not hasattr(of, "__members__"):
        raise pickle.UnpicklingError("only members of enumerations may be asked for")
    return of.__members__[name]

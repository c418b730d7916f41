"""Which checkpoint to resume from, verified before a byte reaches the model, and its tensors loaded.

Under gangrun the supervisor has chosen before this process began. Elsewhere rank 0 chooses by the same rules and tells
the others. All ranks then verify a share of the bytes each. Only what rank 0 finds damaged itself is damaged: what
another rank could not read or check, or found wrong, rank 0 reads again, as it may be that node's memory or mount.

Loading goes shard by shard into tensors that exist, whatever wrote the checkpoint. torch's own planner says which bytes
belong where, so another number of ranks is no different from the same one. Each rank reads alone: no collective is
needed. Types are compared before a byte is read, as torch would convert them in silence. Where a whole shard is read
its checksum is compared once more: storage can rot between a verification that was remembered and now.
"""

from __future__ import annotations

import io
import math
import os
import warnings
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import groupby
from types import TracebackType
from typing import Any

import torch
from torch.distributed._shard._utils import narrow_tensor_by_index
from torch.distributed.checkpoint import DefaultLoadPlanner
from torch.distributed.checkpoint.default_planner import set_element
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadItemType, ReadItem

from gangrun.checkpoint.formats.dcp_metadata import METADATA_NAME, MetadataRefused
from gangrun.checkpoint.formats.manifest import verification_of
from gangrun.checkpoint.formats.torch_zip import Damaged, Source, data_place
from gangrun.checkpoint.scan import StorageUnreadable
from gangrun.checkpoint.store import CheckpointRoom
from gangrun.checkpoint.verification import Tick, Verification, verify_share
from gangrun.core.checkpoints.resume import Chosen, NothingValid, ResumeRequest, far_share
from gangrun.training import environment
from gangrun.training.memory.loading import ByteRange, CheckpointFiles
from gangrun.training.metadata_file import load_metadata
from gangrun.training.ranks import RankGroup
from gangrun.training.save.plan import OWN_PREFIX
from gangrun.training.save.snapshot import bytes_of
from gangrun.training.state import (
    RANDOM_KEY,
    STATE_KEY,
    CheckpointError,
    Parts,
    put_back,
    put_back_small,
    restore_random,
    tensors_of,
)
from gangrun.wire.manifest import SAVE_ID_PREFIX, is_inside


def find(directory: str, ranks: RankGroup, nonce: str) -> environment.ResumePoint | None:
    """The checkpoint to load, the same on all ranks; None: begin at the beginning. ``CheckpointError`` in words."""
    told = environment.resume_info()
    known = environment.checkpoint_directory()
    if told is not None or (known and os.path.realpath(known) == os.path.realpath(directory)):
        return told
    path, step, trouble = "", -1, ""
    together = SharedVerification(ranks)
    if ranks.rank != 0:
        together.help()
    else:
        try:
            with together:
                room = CheckpointRoom(directory, verify_all=together.verify_all)
                choice = room.choose_and_set_aside(ResumeRequest(), f"unmanaged-{nonce}").choice
            if isinstance(choice, NothingValid):
                trouble = choice.reason
            elif isinstance(choice, Chosen):
                path, step = choice.checkpoint.path, choice.checkpoint.step
        except StorageUnreadable as error:
            trouble = str(error)
    path, step, trouble = ranks.from_first((path, step, trouble))
    if trouble:
        raise CheckpointError(trouble)
    return environment.ResumePoint(path, step) if path else None


def load(
    point: environment.ResumePoint, parts: Parts, data: Any, ranks: RankGroup, files: CheckpointFiles
) -> tuple[int, float]:
    """Load everything; the step that the checkpoint was taken after, and the seconds that were trained up to it.

    A plain DCP checkpoint gives model and optimizer, under the keys "model" and "optimizer", and a warning.
    """
    reading = CheckpointReader(point.path, files)
    state, rank, world_size = tensors_of(parts), ranks.rank, ranks.world_size
    objects = (STATE_KEY, f"{RANDOM_KEY}0", f"{RANDOM_KEY}{rank}")
    reading.fill(state, objects)
    saved = reading.object_of(STATE_KEY)
    put_back(parts, state)
    if saved is None:
        warnings.warn(
            f"{point.path} was not written by gangrun: model and optimizer are loaded, and schedule, data position and "
            "random numbers begin anew",
            stacklevel=3,
        )
        return point.step, 0.0
    absent = put_back_small(parts, saved)
    if absent:
        warnings.warn(f"{point.path} has no state of {', '.join(absent)}: they begin anew", stacklevel=3)
    first = reading.object_of(f"{RANDOM_KEY}0")
    # with another number of ranks each draws other samples: chance of its own is as good, and is repeatable
    same = saved["world_size"] == world_size
    chance = partial(restore_random, reading.object_of(f"{RANDOM_KEY}{rank}") if same else None, first, rank)
    chance()
    if same and hasattr(data, "at_first_batch"):
        data.at_first_batch(chance)
    return int(saved["step"]), float(saved["trained_s"])


_THREADS_COUNT = 4


class SharedVerification:
    """On rank 0 a context, within which ``verify_all`` may be called; all others ``help`` until it is left."""

    def __init__(self, ranks: RankGroup) -> None:
        self._ranks = ranks

    def __enter__(self) -> SharedVerification:  # noqa: PYI034 - Self is of Python 3.11
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ranks.from_first(("", ""))

    def verify_all(self, verification: Verification, tick: Tick, threads_count: int) -> Sequence[str]:
        """What ``verify_share`` does for the whole, and raises."""
        count = self._ranks.world_size
        self._ranks.from_first((verification.directory, verification.save))
        mine: Exception | None = None
        unverified: list[str] = []
        try:
            unverified = verify_share(verification, tick, threads_count, far_share(0, count), count)
        except Exception as found:  # noqa: BLE001 - whatever it is, the others wait for the answer to theirs
            mine = found
        verified = self._ranks.to_first(mine is None)
        if mine is not None:
            raise mine
        for rank in (rank for rank in range(1, count) if not verified[rank]):
            unverified += verify_share(verification, tick, threads_count, far_share(rank, count), count)
        return unverified

    def help(self) -> None:
        """Read this rank's shares, until there are no more."""
        while True:
            directory, save = self._ranks.from_first(("", ""))
            if not directory:
                return
            self._ranks.to_first(self._verified(directory, save))

    def _verified(self, directory: str, save: str) -> bool:
        count, share = self._ranks.world_size, far_share(self._ranks.rank, self._ranks.world_size)
        try:
            return not verify_share(verification_of(directory, save), lambda _: None, _THREADS_COUNT, share, count)
        except Exception:  # noqa: BLE001 - rank 0 reads it instead, and says what it finds
            return False


_TURN_BYTES = 32 * 1024 * 1024  # worth a thread's turn

_Turn = list[tuple[ReadItem, Any]]  # what is wanted, and where it lies: neighbours in one file


class _Planner(DefaultLoadPlanner):  # type: ignore[misc]  # torch has no types here
    """torch's, but what it reads back executes nothing."""

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        set_element(self.original_state_dict, self.mappings[read_item.dest_index.fqn], _inert(value.getvalue()))


class CheckpointReader:
    """One checkpoint directory, opened for reading. Raises ``CheckpointError`` where it cannot be used."""

    def __init__(self, directory: str, files: CheckpointFiles | None = None) -> None:
        self.directory = directory
        self._files = files or CheckpointFiles(directory)
        try:
            with self._files.opened(METADATA_NAME) as descriptor, open(descriptor, "rb", closefd=False) as file:
                self._metadata: Metadata = load_metadata(file.read())
        except (OSError, MetadataRefused) as error:
            raise CheckpointError(f"{directory} cannot be loaded: {error}") from None
        meta = self._metadata.storage_meta
        self._ours = bool(meta and (meta.save_id or "").startswith(SAVE_ID_PREFIX))
        self._chunks: dict[str, dict[tuple[int, ...], tuple[int, ...]]] = {}
        self._objects: dict[str, Any] = {}

    def object_of(self, key: str) -> Any:
        """One of the small objects that ``fill`` has read; None where the checkpoint has none of this name."""
        return self._objects.get(key)

    def _read_object(self, info: Any) -> Any:
        source = Source()
        with self._files.opened(_inside(info.relative_path)) as source.descriptor:
            return _inert(_bytes(source, info))

    def fill(self, state: dict[str, Any], objects: Iterable[str] = ()) -> None:
        """Read into the tensors of this nested state, in place; what is no tensor is replaced. ``objects``: small ones
        that will be asked for; they are read first.
        """
        planner = _Planner()
        planner.set_up_planner(state, self._metadata)
        self._demand_same(planner.state_dict)
        try:
            items = planner.finish_plan(planner.create_local_plan()).items
        except (RuntimeError, ValueError) as error:
            raise CheckpointError(f"{self.directory} does not fit this model and optimizer: {error}") from None
        stored = self._metadata.storage_data or {}
        places = [stored[item.storage_index] for item in items]
        small = {key: stored[MetadataIndex(key)] for key in objects if MetadataIndex(key) in stored}
        places += small.values()
        self._files.bring(ByteRange(_inside(at.relative_path), at.offset, at.offset + at.length) for at in places)
        self._objects = {key: self._read_object(info) for key, info in small.items()}
        with ThreadPoolExecutor(_THREADS_COUNT, thread_name_prefix="load") as pool:
            jobs = [pool.submit(self._read_turn, planner, path, turn) for path, turn in self._turns(items)]
            try:
                for job in jobs:
                    job.result()
            finally:
                pool.shutdown(wait=True, cancel_futures=True)

    def _demand_same(self, wanted: dict[str, Any]) -> None:
        """Names and types, before any byte is read."""
        described = self._metadata.state_dict_metadata
        roots = {name.split(".", 1)[0] for name in wanted}
        unknown = [
            name
            for name in described
            if name not in wanted and not name.startswith(OWN_PREFIX) and name.split(".", 1)[0] in roots
        ]
        if unknown:
            raise CheckpointError(
                f"{self.directory} holds {len(unknown)} entries that this model and optimizer do not have, "
                f"{unknown[0]!r} for one"
            )
        for name, value in wanted.items():
            found = described.get(name)
            if isinstance(value, torch.Tensor) != isinstance(found, TensorStorageMetadata) and found is not None:
                raise CheckpointError(f"{name!r} is not in {self.directory} what it is in this model and optimizer")
            if isinstance(found, TensorStorageMetadata) and found.properties.dtype != value.dtype:
                raise CheckpointError(
                    f"{name!r} is {found.properties.dtype} in {self.directory} and {value.dtype} here; "
                    "torch would convert it silently"
                )

    def _turns(self, items: list[ReadItem]) -> Iterator[tuple[str, _Turn]]:
        places = [(item, self._metadata.storage_data[item.storage_index]) for item in items]
        places.sort(key=lambda one: (one[1].relative_path, one[1].offset))
        for path, neighbours in groupby(places, key=lambda one: one[1].relative_path):
            turn: _Turn = []
            size = 0
            for item, info in neighbours:
                if turn and size + info.length > _TURN_BYTES:
                    yield path, turn
                    turn, size = [], 0
                turn.append((item, info))
                size += info.length
            yield path, turn

    def _read_turn(self, planner: DefaultLoadPlanner, path: str, turn: _Turn) -> None:
        source, name = Source(), ""
        try:
            with self._files.opened(_inside(path)) as source.descriptor:
                for item, info in turn:
                    name = item.storage_index.fqn
                    self._read(planner, source, item, info)
        except (Damaged, OSError) as error:
            why = os.strerror(error.errno or 0) if isinstance(error, OSError) else error
            raise CheckpointError(
                f"{name!r} in {os.path.join(self.directory, path)} cannot be loaded: {why}. Model and optimizer are "
                "partly overwritten: do not train with them"
            ) from None

    def _read(self, planner: DefaultLoadPlanner, source: Source, item: ReadItem, info: Any) -> None:
        if item.type == LoadItemType.BYTE_IO:
            planner.load_bytes(item, io.BytesIO(_bytes(source, info)))
            return
        target = planner.resolve_tensor(item).detach()
        if not self._ours or not self._straight(source, info, item, target):
            stored = torch.load(io.BytesIO(_bytes(source, info)), map_location="cpu", weights_only=True)
            target.copy_(narrow_tensor_by_index(stored, item.storage_offsets, item.lengths))
        planner.commit_tensor(item, target)

    def _straight(self, source: Source, info: Any, item: ReadItem, target: torch.Tensor) -> bool:
        """Read the wanted rows from the file into the tensor, with nothing in between; False if they are not rows."""
        sizes = self._sizes_of(item.storage_index)
        first, wanted = tuple(item.storage_offsets), tuple(item.lengths)
        if first[1:] != (0,) * len(first[1:]) or wanted[1:] != sizes[1:]:
            return False
        place = data_place(source, info.offset, info.length)
        if place is None:
            return False
        whole = target if not target.is_cuda and target.is_contiguous() else torch.empty(wanted, dtype=target.dtype)
        row_bytes = math.prod(sizes[1:]) * target.element_size()
        start, crc = place
        found = source.into(bytes_of(whole), start + (first[0] * row_bytes if first else 0))
        if wanted == sizes and found != crc:
            raise Damaged("its checksum is wrong, so it has changed since it was verified whole")
        if whole is not target:
            target.copy_(whole)
        return True

    def _sizes_of(self, index: MetadataIndex) -> tuple[int, ...]:
        known = self._chunks.get(index.fqn)
        if known is None:
            described = self._metadata.state_dict_metadata[index.fqn]
            known = self._chunks[index.fqn] = {tuple(c.offsets): tuple(c.sizes) for c in described.chunks}
        return known[tuple(index.offset or ())]


def _inside(path: str) -> str:
    if not is_inside(path):
        raise CheckpointError(f"the checkpoint's .metadata file names a file outside its directory: {path!r}")
    return path


def _bytes(source: Source, info: Any) -> bytearray:
    data = bytearray(info.length)
    source.into(memoryview(data), info.offset)
    return data


def _inert(data: bytes | bytearray) -> Any:
    return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)

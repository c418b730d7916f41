"""Do ranks that hold copies of the same numbers hold the same bytes? Compared at each save (``--sdc-check saves``).

Each rank makes one 64-bit checksum of each parameter and of each tensor of its optimizers, where the tensor lies, in
the moment of the save. Ranks whose names, shapes and parts of tensors are the same hold copies: all of them under DDP,
those with the same shard under HSDP, and nobody under plain FSDP. With a save's own messages rank 0 learns one sum of
each rank. Only if these differ it asks for all checksums, and has ``core.recovery.self_checks`` vote.

Buffers are left out, since the statistics of BatchNorm differ by design; so are parameters that DDP is told to ignore,
and small numbers of an optimizer such as its count of steps. Bytes are compared: a NaN equals the same NaN.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec
import torch
from torch import nn

from gangrun.core.evidence import Divergence
from gangrun.core.recovery.self_checks import vote
from gangrun.training import step as progress
from gangrun.training.ranks import RankGroup
from gangrun.training.state import Parts
from gangrun.wire.manifest import AGREED, DIFFER

WORD_BYTES = 8
BLOCK_WORDS = 4096
_GOLDEN = 0x1E3779B97F4A7C15
_WRAPPERS = ("module.", "_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")


def checksum(tensor: torch.Tensor) -> torch.Tensor:
    """64 bits of a tensor's bytes, as a number on its device: a sum in which the place counts of each block of words.
    Any single flipped bit changes it, as all factors are odd. One pass over the memory, and no copy of it.
    """
    data = tensor.detach().contiguous().view(-1).view(torch.uint8)
    if data.storage_offset() % WORD_BYTES or data.data_ptr() % WORD_BYTES:
        data = data.clone()
    words_count, rest_bytes = divmod(data.numel(), WORD_BYTES)
    blocks, rest_words = divmod(words_count, BLOCK_WORDS)
    words = (data[: words_count * WORD_BYTES] if rest_bytes else data).view(torch.int64)
    found = torch.zeros((), dtype=torch.int64, device=data.device)
    if blocks:
        whole = words[: blocks * BLOCK_WORDS] if rest_words else words
        found = (whole.view(blocks, BLOCK_WORDS).sum(1) * _factors(blocks, data.device)).sum()
    if rest_words:
        found = found + words[blocks * BLOCK_WORDS :].sum()
    if rest_bytes:
        found = found + data[words_count * WORD_BYTES :].sum(dtype=torch.int64) * _GOLDEN
    return found


@lru_cache(maxsize=64)  # a model has few sizes of tensors
def _factors(count: int, device: torch.device) -> torch.Tensor:
    """Odd numbers, the same on each machine and with each version of torch."""
    return torch.arange(1, count + 1, device=device) * (2 * _GOLDEN) + 1


class Copies(NamedTuple):
    """One kind of tensors of one rank at one save. Ranks with the same ``group`` hold copies."""

    group: int
    total: int
    names: tuple[str, ...]
    checksums: tuple[int, ...]


class Summary(NamedTuple):
    """What rank 0 learns of it in each save."""

    group: int
    total: int


def copies_of(parts: Parts) -> tuple[Copies, ...]:
    """The weights, and the state of the optimizers, as they are now. They are two kinds: an optimizer may be sharded
    where weights are not.
    """
    weights = dict(_weights(parts.model))
    for name, module in parts.modules.items():
        weights |= {f"{name}.{inner}": one for inner, one in _weights(module)}
    names = {id(one): name for name, one in weights.items()}
    return _copies(weights.items()), _copies(_optimizer_state(parts.optimizers, names))


def _weights(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    ignored = getattr(module, "_ddp_params_and_buffers_to_ignore", ())
    for name, one in module.named_parameters():
        plain = name
        for wrapper in _WRAPPERS:
            plain = plain.replace(wrapper, "")
        if plain not in ignored:
            yield plain, one


def _optimizer_state(
    optimizers: Sequence[torch.optim.Optimizer], names: dict[int, str]
) -> Iterator[tuple[str, torch.Tensor]]:
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for one in group["params"]:
                for key, value in sorted(optimizer.state.get(one, {}).items()):
                    if id(one) in names and isinstance(value, torch.Tensor) and value.numel() > 1:
                        yield f"{names[id(one)]} ({key})", value


def _copies(tensors: Any) -> Copies:
    names, sums, identity = [], [], []
    for name, tensor in tensors:
        local, shard = local_part(tensor)
        if type(local) not in (torch.Tensor, nn.Parameter) or local.layout is not torch.strided or local.is_quantized:
            continue  # its bytes lie elsewhere; alike on all ranks
        sums.append(checksum(local))
        names.append(name)
        identity.append(f"{name} {local.dtype} {tuple(local.shape)} {shard}")
    numbers = numbers_of(sums)
    total = int.from_bytes(blake2b(repr(numbers).encode(), digest_size=8).digest(), "big")
    group = int.from_bytes(blake2b("\n".join(identity).encode(), digest_size=8).digest(), "big")
    return Copies(group if names else 0, total, tuple(names), numbers)


def local_part(tensor: Any) -> tuple[torch.Tensor, tuple[int, ...]]:
    """This rank's part, and which part that is: a DTensor's place on the dimensions of its mesh that shard it."""
    placements = getattr(tensor, "placements", None)
    if placements is None:
        return tensor, ()
    place = tensor.device_mesh.get_coordinate() or ()
    return tensor.to_local(), tuple(at for at, one in zip(place, placements, strict=True) if not one.is_replicate())


def numbers_of(sums: list[torch.Tensor]) -> tuple[int, ...]:
    """Those of one device together: a GPU is waited for once."""
    found: dict[int, int] = {}
    for device in {one.device for one in sums}:
        places = [n for n, one in enumerate(sums) if one.device == device]
        found.update(zip(places, torch.stack([sums[n] for n in places]).tolist(), strict=True))
    return tuple(found[n] for n in range(len(sums)))


@dataclass(slots=True)
class Comparison:
    """The saver's: compares what ranks tell at each save. All ranks call it alike."""

    ranks: RankGroup
    agreed_step: int = -1  # rank 0's
    stopped: bool = False  # no majority: it would only be told again
    told_alone: bool = False

    def of(self, step: int, copies: tuple[Copies, ...] | None) -> str:
        """What the manifest is to say, on rank 0; "" elsewhere, and if nothing was compared."""
        summaries = self.ranks.to_first(tuple(Summary(one.group, one.total) for one in copies or ()))
        differing = self.ranks.from_first(self._differing(summaries) if self.ranks.rank == 0 else ())
        if not differing:
            return self._same(step, summaries)
        kind, group, _ = differing
        mine = copies[kind] if copies is not None and copies[kind].group == group else None
        told = self.ranks.to_first(mine)
        if self.ranks.rank:
            return ""
        found = self._voted(step, told)
        self.stopped = not found.odd
        progress.report_finding("divergence", msgspec.json.encode(found))
        return DIFFER

    def _differing(self, summaries: list[tuple[Summary, ...]]) -> tuple[int, int, int] | tuple[()]:
        """(kind, group, its lowest rank) of the first copies that are not equal."""
        if self.stopped:
            return ()
        first: dict[tuple[int, int], tuple[int, int]] = {}  # (kind, group) -> rank, total
        for rank, kinds in enumerate(summaries):
            for kind, one in enumerate(kinds):
                known = first.setdefault((kind, one.group), (rank, one.total))
                if one.group and known[1] != one.total:
                    return kind, one.group, known[0]
        return ()

    def _same(self, step: int, summaries: list[tuple[Summary, ...]]) -> str:
        if self.ranks.rank or self.stopped:
            return ""
        held = [(kind, one.group) for kinds in summaries for kind, one in enumerate(kinds) if one.group]
        if len(held) > len(set(held)):
            self.agreed_step = step
            return AGREED
        if not self.told_alone:
            self.told_alone = True
            warnings.warn("--sdc-check compares nothing: no two ranks hold copies of the same weights", stacklevel=2)
        return ""

    def _voted(self, step: int, told: list[Copies | None]) -> Divergence:
        sums = {rank: one.checksums for rank, one in enumerate(told) if one is not None}
        names = next(one.names for one in told if one is not None)
        found = vote(sums, names, step=step, agreed_step=self.agreed_step)
        assert found is not None, "their totals differ"
        return found

"""Does another device get the same numbers out of the same batch? (``--sdc-check every=N``)

A gradient that one device computes wrong spoils all copies of the weights alike, once ranks have added it up: comparing
copies cannot show it. So every N steps the ranks stand in a ring. Each gives its batch to the next one, computes its
own batch and the one it got, without a word to others, and all gradients are compared bit for bit.

The same bytes can only be expected of the same kind of device, of whole weights (sharded ones cannot be computed with
alone), and of deterministic operators, which are asked for. What cannot be compared is said once, and then left alone.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec
import torch
import torch.distributed as dist
from torch import nn
from torch.utils._pytree import tree_map

from gangrun.core.evidence import Divergence
from gangrun.core.recovery.self_checks import vote_of_ring
from gangrun.training import environment
from gangrun.training import step as progress
from gangrun.training.ranks import RankGroup, ScriptCall
from gangrun.training.save.replicas import checksum, numbers_of

LOSS = "loss"
_NOT_DETERMINISTIC = "determinis"  # in each of torch's warnings about an operator that is not


class ReplayNumbers(NamedTuple):
    """A checksum of the loss and of each gradient of one batch; ``trouble``: why they may differ anyway."""

    total: int
    checksums: tuple[int, ...]
    trouble: str = ""


class ReplaySums(NamedTuple):
    """What rank 0 learns of each rank: of its own batch, and of the batch of the rank before it."""

    own: int
    other: int
    trouble: str


class ReplayCheck:
    """Compare what neighbouring ranks compute for the same batch, every N steps of ``--sdc-check every=N``.

    All ranks make one, after the process group, and call ``step`` at each step. Without the option it does nothing.
    """

    def __init__(self, model: nn.Module, compute: Callable[[nn.Module, Any], torch.Tensor]) -> None:
        """Make a group of all ranks for the check, if the option asks for it.

        Args:
            model: The model that trains, plain or in DistributedDataParallel. Its weights must not be sharded.
            compute: Gives the loss, a tensor of one number, of the module and a batch that it is called with. It must
                use this module, not ``model``: ranks compute alone, without DistributedDataParallel.
        """
        self._every = environment.replay_every()
        self._module = model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model
        self._compute = compute
        self._ring: tuple[int, ...] | None = None
        self._agreed_step = -1
        if self._every:
            resumed = environment.resume_info()
            self._agreed_step = resumed.step if resumed is not None else -1
            self._ranks = RankGroup()

    def step(self, step: int, batch: Any) -> None:
        """Compare, if it is time to. Call it before or after the training step, on all ranks at the same steps.

        Args:
            step: The number of the step, as given to ``gangrun.step``.
            batch: This rank's batch as ``compute`` takes it: tensors, in lists, tuples or dicts.

        Raises:
            ValueError: The ranks are at different steps.
            RankGone: Another rank has ended.
        """
        if not self._every or (step + 1) % self._every:
            return
        self._ranks.called(ScriptCall.STEP, step)
        self._ranks.largest()
        if self._ring is None:
            self._ring = self._stand_in_ring()
        if not self._ring:
            self._every = 0
            return
        here = self._ranks.rank in self._ring
        own, other = self._computed(step, batch) if here else (None, None)
        self._compare(step, own, other)

    # ---- who computes with whom ----

    def _stand_in_ring(self) -> tuple[int, ...]:
        """The largest number of ranks whose weights and devices are alike, in order; () if nobody has a neighbour."""
        told = self._ranks.from_first(self._ranks.to_first(_likeness(self._module)))
        rings: dict[int, list[int]] = {}
        for rank, likeness in enumerate(told):
            if likeness:
                rings.setdefault(likeness, []).append(rank)
        ring = max(rings.values(), key=len, default=[])
        if len(ring) < 2:
            self._say("compares nothing: no two ranks have all weights, in the same shapes, on the same kind of device")
            return ()
        if len(ring) < len(told):
            self._say(f"compares {len(ring)} of {len(told)} ranks: the others have other weights or devices")
        return tuple(ring)

    def _say(self, words: str) -> None:
        if self._ranks.rank == 0:
            warnings.warn(f"--sdc-check every={self._every} {words}", stacklevel=4)

    # ---- the same batch twice ----

    def _computed(self, step: int, batch: Any) -> tuple[ReplayNumbers, ReplayNumbers]:
        device = next(self._module.parameters()).device
        theirs = tree_map(lambda one: one.to(device) if isinstance(one, torch.Tensor) else one, self._passed_on(batch))
        return self._numbers(step, batch, device), self._numbers(step, theirs, device)

    def _passed_on(self, batch: Any) -> Any:
        """Give the batch to the next rank of the ring, and take that of the rank before."""
        assert self._ring is not None
        place, count = self._ring.index(self._ranks.rank), len(self._ring)
        after, before = self._ring[(place + 1) % count], self._ring[place - 1]
        given = [tree_map(lambda one: one.detach().cpu() if isinstance(one, torch.Tensor) else one, batch)]
        taken: list[Any] = [None]
        group, cpu = self._ranks.group, torch.device("cpu")
        if place % 2 == 0:
            dist.send_object_list(given, dst=after, group=group, device=cpu)
        dist.recv_object_list(taken, src=before, group=group, device=cpu)
        if place % 2:
            dist.send_object_list(given, dst=after, group=group, device=cpu)
        return taken[0]

    def _numbers(self, step: int, batch: Any, device: torch.device) -> ReplayNumbers:
        weights = [one for one in self._module.parameters() if one.requires_grad]
        with _undisturbed(self._module), _alike(step, device) as trouble:
            loss = self._compute(self._module, batch)
            gradients = torch.autograd.grad(loss, weights, allow_unused=True)
        found = [loss.detach(), *(one if one is not None else loss.new_zeros(()) for one in gradients)]
        checksums = numbers_of([checksum(one) for one in found])
        total = int.from_bytes(blake2b(repr(checksums).encode(), digest_size=8).digest(), "big")
        return ReplayNumbers(total, checksums, trouble[0] if trouble else "")

    # ---- what they say ----

    def _compare(self, step: int, own: ReplayNumbers | None, other: ReplayNumbers | None) -> None:
        assert self._ring is not None
        mine = ReplaySums(own.total, other.total, own.trouble or other.trouble) if own and other else None
        heard = self._ranks.to_first(mine)
        trouble, differing = self._ranks.from_first(self._judged(heard) if self._ranks.rank == 0 else ("", []))
        if trouble:
            self._say(f"compares nothing: {trouble}")
            self._every = 0
        elif not differing:
            self._agreed_step = step
        else:
            told = self._ranks.to_first((own.checksums, other.checksums) if own and other else None)
            if self._ranks.rank == 0:
                self._tell(step, differing, told)

    def _judged(self, heard: list[ReplaySums | None]) -> tuple[str, list[int]]:
        """Why nothing can be compared, "" if it can; and the places in the ring whose batch came out differently."""
        assert self._ring is not None
        ring = [one for one in (heard[rank] for rank in self._ring) if one is not None]
        trouble = next((one.trouble for one in ring if one.trouble), "")
        count = len(ring)
        return trouble, [place for place in range(count) if ring[place].own != ring[(place + 1) % count].other]

    def _tell(
        self, step: int, differing: list[int], told: list[tuple[tuple[int, ...], tuple[int, ...]] | None]
    ) -> None:
        assert self._ring is not None
        names = [LOSS, *(name for name, one in self._module.named_parameters() if one.requires_grad)]
        wrong: set[int] = set()
        for place in differing:
            own, other = told[self._ring[place]], told[self._ring[(place + 1) % len(self._ring)]]
            assert own is not None
            assert other is not None
            wrong |= {at for at, (one, two) in enumerate(zip(own[0], other[1], strict=True)) if one != two}
        found: Divergence | None = vote_of_ring(
            self._ring, differing, [names[at] for at in sorted(wrong)], step=step, agreed_step=self._agreed_step
        )
        progress.report_finding("divergence", msgspec.json.encode(found))


def _likeness(module: nn.Module) -> int:
    """The same number on ranks that must compute the same; 0: this rank cannot compute alone."""
    weights = list(module.named_parameters())
    if not weights or any(hasattr(one, "placements") for _, one in weights):
        return 0
    device = weights[0][1].device
    kind = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    shapes = "\n".join(f"{name} {one.dtype} {tuple(one.shape)} {one.requires_grad}" for name, one in weights)
    return int.from_bytes(blake2b(f"{kind} {torch.__version__}\n{shapes}".encode(), digest_size=8).digest(), "big") or 1


@contextlib.contextmanager
def _undisturbed(module: nn.Module) -> Iterator[None]:
    """Buffers, such as the statistics of BatchNorm, are afterwards what they were."""
    kept = [(one, one.detach().clone()) for one in module.buffers()]
    try:
        yield
    finally:
        with torch.no_grad():
            for one, was in kept:
                one.copy_(was)


@contextlib.contextmanager
def _alike(step: int, device: torch.device) -> Iterator[list[str]]:
    """The same random numbers on each rank, and deterministic operators; what torch says of those that are not."""
    was = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    trouble: list[str] = []
    with torch.random.fork_rng([device] if device.type == "cuda" else []), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        torch.manual_seed(step)
        torch.use_deterministic_algorithms(True, warn_only=True)
        try:
            with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True):
                yield trouble
        finally:
            torch.use_deterministic_algorithms(was[0], warn_only=was[1])
            told = [str(one.message).partition("\n")[0] for one in said]
            trouble += [words for words in told if _NOT_DETERMINISTIC in words]
    for one in said:
        if _NOT_DETERMINISTIC not in str(one.message):
            warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)

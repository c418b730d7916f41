"""Codes the shards of a group and rebuilds lost ones, piece by piece over open files or memory.

What is rebuilt counts only when ``rebuild`` returns: by then every byte that was read and every byte that was written
had the CRC32 that the layout tells. A shard that is there but damaged counts as lost. Otherwise the places that were to
be filled are left empty. Memory: one piece for every shard.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from gangrun.checkpoint.parity.field import Row, Sums, parity_rows, rebuild_rows
from gangrun.checkpoint.parity.isa_l import sums_for
from gangrun.checkpoint.parity.places import PIECE_BYTES, Place, Stream, empty, size_of
from gangrun.wire.code_layout import SHARDS_MAX_COUNT, CodeLayout, LayoutRefused, ShardSum, check

Arithmetic = Callable[[Sequence[Row]], Sums]


class CannotRebuild(Exception):
    """The shards that are wanted cannot be had from those that are there; the message says why."""


class GivenUp(Exception):
    """By whoever is told of each piece. What was to be filled is thrown away with it, and left as it is."""


def encode(data: Sequence[Place], parity: Sequence[Place], arithmetic: Arithmetic = sums_for) -> CodeLayout:
    """Fill ``parity`` from ``data``; memory for parity must be as long as the longest data shard.

    Returns the layout, whose sizes and CRC32s are of what was read and written here. OSError where a file fails.
    """
    if not data or not parity or len(data) + len(parity) > SHARDS_MAX_COUNT:
        raise LayoutRefused(
            f"{len(data)} data and {len(parity)} parity shards: a code needs one of each at least, and "
            f"{SHARDS_MAX_COUNT} together at most"
        )
    sizes = [size_of(place) for place in data]
    inputs = [Stream(place, size) for place, size in zip(data, sizes, strict=True)]
    outputs = [Stream(place, max(sizes)) for place in parity]
    try:
        _run(inputs, outputs, arithmetic(parity_rows(len(data), len(parity))), max(sizes))
        short = [number for number, stream in enumerate(inputs) if stream.failed]
        if short:
            raise OSError(f"data shard {short[0]} could not be read to its end")
        return CodeLayout(data=tuple(s.sum() for s in inputs), parity=tuple(s.sum() for s in outputs))
    except BaseException:
        _empty(parity)
        raise


def rebuild(
    layout: CodeLayout,
    held: Mapping[int, Place],
    wanted: Mapping[int, Place],
    arithmetic: Arithmetic = sums_for,
    tick: Callable[[], None] = lambda: None,
) -> frozenset[int]:
    """Fill ``wanted`` (by the shard's number) from what is ``held`` (likewise). ``tick`` is called before each piece,
    and may raise ``GivenUp``.

    Returns which of the held shards are damaged or cannot be read, as far as that was seen; they were not used, and to
    mend them ask again with them wanted. Raises ``CannotRebuild`` or ``LayoutRefused``; then what was wanted is empty.
    """
    check(layout)
    shards = layout.shards
    alien = sorted(number for number in {*held, *wanted} if not 0 <= number < len(shards))
    if alien:
        raise LayoutRefused(f"there is no shard {alien[0]} in a code of {len(shards)} shards")
    order = sorted(wanted)
    offered = {number for number in held if number not in wanted}
    usable = {number for number in offered if _is_long(held[number], shards[number])}
    try:
        while order:
            plan = rebuild_rows(len(layout.data), usable, order)
            if plan is None:
                raise CannotRebuild(_too_few_words(layout, usable, offered - usable))
            inputs = {number: Stream(held[number], shards[number].size) for number in plan[0]}
            outputs = {number: Stream(wanted[number], shards[number].size) for number in order}
            _run(list(inputs.values()), list(outputs.values()), arithmetic(plan[1]), layout.span_bytes, tick)
            bad = {number for number, stream in inputs.items() if stream.failed or stream.sum() != shards[number]}
            if not bad:
                _demand_right(outputs, shards)
                break
            usable -= bad
    except GivenUp:
        raise
    except BaseException:
        _empty(list(wanted.values()))
        raise
    return frozenset(offered - usable)


def _run(
    inputs: list[Stream], outputs: list[Stream], sums: Sums, span_bytes: int, tick: Callable[[], None] = lambda: None
) -> None:
    """All bytes of the inputs through the sums into the outputs."""
    for stream in outputs:
        stream.begin()
    for offset in range(0, span_bytes, PIECE_BYTES):
        tick()
        count = min(PIECE_BYTES, span_bytes - offset)
        sources = [stream.read(count) for stream in inputs]
        targets = [stream.room(count) for stream in outputs]
        sums.fill(targets, sources)
        for stream, target in zip(outputs, targets, strict=True):
            stream.write(target)


def _demand_right(outputs: Mapping[int, Stream], shards: Sequence[ShardSum]) -> None:
    wrong = [number for number, stream in outputs.items() if stream.sum() != shards[number]]
    if wrong:
        raise CannotRebuild(
            f"shard {wrong[0]} was rebuilt from whole shards and its checksum is wrong all the same: "
            "the layout is not of these shards"
        )


def _is_long(place: Place, shard: ShardSum) -> bool:
    try:
        return size_of(place) == shard.size
    except OSError:
        return False


def _empty(places: Sequence[Place]) -> None:
    for place in places:
        empty(place)


def _too_few_words(layout: CodeLayout, usable: set[int], damaged: set[int]) -> str:
    total, parity = len(layout.shards), len(layout.parity)
    hurt = f" ({', '.join(map(str, sorted(damaged)))} there but damaged)" if damaged else ""
    return (
        f"{total - len(usable)} of {total} shards are lost{hurt}, and {parity} parity "
        f"{'shard gives' if parity == 1 else 'shards give'} back {parity} at most"
    )

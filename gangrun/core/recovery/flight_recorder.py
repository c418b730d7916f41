"""torch's flight recorder, read over all ranks: which collective hangs, who did not enter it, who entered another one.

Each rank keeps the newest collectives of each process group. gloo never says that one is done, so the newest counts;
NCCL does, so the first that is not done counts: the host may have entered many more after it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from gangrun.core.evidence import Collective, RankExit, RankStack
from gangrun.core.text import counted, listed

GROUPS_MAX_COUNT = 2  # of each rank, the newest: 16,384 ranks write theirs into the journal
RANKS_NAMED_COUNT = 4
SIZES_MAX_CHARS = 60
COMPLETED = "completed"


def newest(entries: Sequence[Any]) -> tuple[Collective, ...]:
    """One rank's, of the groups in which it was last; whatever is not of the known format is left out."""
    of_group: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for entry in entries:
        match entry:
            case {"process_group": [str(name), *_], "collective_seq_id": int(), "profiling_name": str()} if (
                not entry.get("is_p2p")
            ):
                of_group[name].append(entry)
    latest = sorted(of_group.items(), key=lambda item: _made_at(item[1][-1]), reverse=True)
    return tuple(_of_group(name, told) for name, told in latest[:GROUPS_MAX_COUNT])


def _made_at(entry: Mapping[str, Any]) -> int:
    at = entry.get("time_created_ns", 0)
    return at if isinstance(at, int) else 0


def _of_group(name: str, entries: Sequence[Mapping[str, Any]]) -> Collective:
    last = max(entries, key=lambda entry: entry["collective_seq_id"])
    undone = [entry for entry in entries if entry.get("state") != COMPLETED]
    first = last if _is_gloo(last["profiling_name"]) or not undone else undone[0]
    sizes = ", ".join("x".join(map(str, size)) for size in first.get("input_sizes", ()) if isinstance(size, list))
    return Collective(
        name, first["collective_seq_id"], first["profiling_name"], sizes[:SIZES_MAX_CHARS],
        last["collective_seq_id"], first.get("state") != COMPLETED,
    )  # fmt: skip


def _is_gloo(op: str) -> bool:
    return op.startswith("gloo:")


def sentence(stacks: Sequence[RankStack | RankExit]) -> str:
    """What all ranks' recorders say together; "" if that is nothing."""
    groups: dict[str, dict[int, Collective]] = defaultdict(dict)
    for stack in stacks:
        for one in stack.collectives:
            groups[one.group][stack.rank] = one
    told = [words for name in sorted(groups) if (words := _group(name, groups[name]))]
    return "; ".join(told[:GROUPS_MAX_COUNT])


def _group(name: str, ranks: Mapping[int, Collective]) -> str:
    opened = [one for one in ranks.values() if one.is_open]
    if not opened or len(ranks) == 1:
        return ""
    at = max(one.seq for one in opened) if _is_gloo(opened[0].op) else min(one.seq for one in opened)
    inside = {rank: one for rank, one in ranks.items() if one.is_open and one.seq == at}
    absent = {rank: one.newest_seq for rank, one in ranks.items() if one.newest_seq < at}
    (op, sizes), count = Counter((one.op, one.sizes) for one in inside.values()).most_common(1)[0]
    others = {rank: one for rank, one in inside.items() if (one.op, one.sizes) != (op, sizes)}
    what = f"collective {at} of group {name} is {_words(op, sizes)}"
    if absent:
        behind = "; ".join(sorted({f"newest {seq}" for seq in absent.values()})[:2])
        return f"{what}, which {_names(absent)} did not enter ({behind})"
    if others and count > 1:
        rank, other = min(others.items())
        return f"{what}, but {_names({rank: 0})} entered {_words(other.op, other.sizes)}"
    if others:
        rank, other = min(others.items())
        return f"ranks differ in collective {at} of group {name}: {_words(op, sizes)}, {_words(other.op, other.sizes)}"
    return ""


def _names(ranks: Mapping[int, int]) -> str:
    if len(ranks) > RANKS_NAMED_COUNT:
        return counted(len(ranks), "rank")
    return listed([f"rank {rank}" for rank in sorted(ranks)])


def _words(op: str, sizes: str) -> str:
    return f"{op.partition(':')[2] or op} of {sizes}" if sizes else op.partition(":")[2] or op

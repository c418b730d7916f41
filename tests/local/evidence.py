"""What the ranks themselves wrote down, as proof: which attempt stepped when, and that no two ever stepped at once."""

from __future__ import annotations

import json
from pathlib import Path

from gangrun.adapters.fs.disk import Disk
from gangrun.adapters.fs.journal import read_history
from gangrun.adapters.fs.run_dir import RunPaths
from gangrun.wire.record import Record
from tests.local.harness import Box


def alive(pid: int) -> bool:
    """Does it live, stopped or not (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def never_two_gangs(box: Box, ranks: int) -> list[int]:
    """No rank did a step of an older attempt after any rank's first step of a newer one; the attempts that stepped."""
    rows = sorted((at, attempt, step, rank) for rank in range(ranks) for attempt, step, at, _ in box.rows(rank))
    newest = -1
    for at, attempt, step, rank in rows:
        assert attempt >= newest, (
            f"rank {rank} did step {step} of attempt {attempt} at {at}, after attempt {newest} began"
        )
        newest = attempt
    return sorted({attempt for _, attempt, _, _ in rows})


def each_step_once(box: Box, attempt: int, rank: int = 0) -> None:
    """Within an attempt the steps of a rank go up one by one: it was never restarted behind our back."""
    steps = [step for number, step, _, _ in box.rows(rank) if number == attempt]
    assert steps == list(range(steps[0], steps[0] + len(steps))), steps


def journal(box: Box) -> list[Record]:
    """Every record of every term, in order."""
    return list(read_history(Disk(), RunPaths(box.run_dir()), 100).records)


def kinds(box: Box) -> list[str]:
    """The kinds of all records."""
    return [record.kind for record in journal(box)]


def each_second_in_one_class(box: Box) -> None:
    """What ``gangrun report`` says of a run on one machine that has ended sums to what its journal lasted."""
    report = json.loads(box.gangrun("report", "--json", "--runs-dir", str(box.runs)).stdout)
    records, created = journal(box), box.status()["created"]
    taken = next(record.at for record in records if record.kind == "TermTaken")
    ended = next(record.at for record in records if record.phase in {"SUCCEEDED", "FAILED", "CANCELLED"})
    began = min(created, records[0].at)
    assert abs(sum(one["run_s"] for one in report["uses"]) - (ended - began)) < 0.003
    assert report["nodes"]
    for node in report["nodes"]:
        assert abs(sum(node["uses_s"].values()) - (ended - taken)) < 0.003

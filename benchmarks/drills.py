"""Drills in numbers: which cause gangrun concludes of which fault, how soon, and how often it names the right node.

Most drills are simulated: the real core and supervisor loop in the simulated world. Each kind that works on one machine
is also done to real processes. Both use the kinds, the conclusions and the scoring of ``gangrun chaos``.
Run:  python benchmarks/drills.py [--each 15] [--json FILE]      simulated drills only
      python benchmarks/drills.py --real                         one real drill of each kind besides (20 minutes)
      python benchmarks/drills.py --real --page docs/drill.md    also write the matrix into that page
"""

import argparse
import json
import multiprocessing
import os
import random
import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import msgspec

from gangrun.core.model import Shape
from gangrun.core.policy import TrendPolicy
from gangrun.launch.chaos.kinds import DISK_KINDS, KINDS, LOCAL_KINDS, NOTHING, DrillKind
from gangrun.launch.chaos.plan import Drill, Sla
from gangrun.launch.chaos.score import LeftBehind, Struck, concluded, scored
from gangrun.sim import FaultPlan, InvariantBroken, Kind, Script, Setup, World
from gangrun.wire.record import replay

NODES, SPARES, RANKS_PER_NODE = 6, 2, 2
LASTS_S = 20.0  # of faults that pass
AMOUNTS = {"SLOW_RANK": 1.5, "DELAY": 0.5, "WALL_JUMP": 21600.0}
SETTLED_S, CLOCKS_DIFFER_S = 0.4, 0.05
BEGIN, END = "<!-- matrix: written by benchmarks/drills.py -->", "<!-- end of the matrix -->"
SIMULATED = tuple(kind for kind, row in KINDS.items() if row.simulated)


def setup_of(kind: DrillKind) -> Setup:
    """A job of six nodes with two spares; for GPUs one machine; a slow rank needs a window of time."""
    script = Script(steps_count=400, checkpoint_every_count=10, victims_after_s=3.0)
    if kind is DrillKind.XID:
        usual = Setup.of(1, script=script)
        return replace(usual, shape=Shape(1, 1, 4, 1, slots_min_per_node=3), spare_slots_count=1)
    usual = replace(Setup.of(NODES, ranks_per_node=RANKS_PER_NODE, script=script, requeue=True), spares_count=SPARES)
    trends = TrendPolicy(window_s=100.0)
    return replace(usual, policy=replace(usual.policy, trends=trends), pool_count=NODES + SPARES + 2)


def simulated(job: tuple[str, int]) -> dict:
    """One drill in the simulated world, scored."""
    kind, seed = DrillKind(job[0]), job[1]
    row, chance = KINDS[kind], random.Random(f"{job[0]} {seed}")
    setup, at_s = setup_of(kind), chance.uniform(35.0, 60.0)
    begins_s = 150.0 if kind is DrillKind.SLOW_RANK else at_s
    world = World(setup, seed=seed)
    world.start()
    world.run_until(begins_s - 0.001)
    state = world.newest_state()
    assert state is not None, job
    assert state.attempt.placement is not None, (job, world.story())
    seat = chance.choice(state.attempt.placement.seats)
    node = seat.slot.node
    index = next(one.index for one in world.nodes if one.name == node)
    amount = float(seat.slot.index) if kind is DrillKind.XID else AMOUNTS.get(row.simulated, 0.0)
    where = None if row.simulated in ("FS_FULL", "FS_READ_ONLY", "FS_STALL") else index
    if kind in (DrillKind.KILL_SUPERVISOR, DrillKind.STOP_SUPERVISOR):
        where = -1  # wherever the supervisor is
    lasts_s = 300.0 if kind is DrillKind.SLOW_RANK else 100.0 if kind is DrillKind.STOP_RANK else LASTS_S
    fault = Kind[row.simulated]
    hits_saves = kind in (DrillKind.TORN_CHECKPOINT, DrillKind.FLIPPED_CHECKPOINT)
    at = SETTLED_S if hits_saves else 0.0  # a save that is on its way may still be committed
    plan = FaultPlan().fail_at(at, fault, node=where, rank=seat.first_rank, for_s=lasts_s, amount=amount)
    if hits_saves or kind in DISK_KINDS:
        plan = plan.fail_at(0.0, Kind.KILL_RANK, rank=seat.first_rank)
    broken = ""
    try:
        world.arm(plan, seed)
        world.run_until(begins_s + lasts_s + 150.0)
    except InvariantBroken as error:
        broken = str(error).splitlines()[0]
    # the run clock instead of the wall clock, which a drill may set
    records = [msgspec.structs.replace(record, wall=record.at) for record in world.checker.records]
    last = replay(world.checker.records)
    assert last is not None
    struck = Struck(world.began_at + begins_s - CLOCKS_DIFFER_S, state.attempt.number, node, seat.first_rank)
    found = concluded(records, last, struck)
    drill = Drill(kind, sla=Sla(noticed_s=300.0, recovery_s=300.0))
    one = scored(seed, world.run_id, drill, struck, found, LeftBehind())
    return {**msgspec.to_builtins(one), "broken": broken}


def real(kinds: list[DrillKind]) -> list[dict]:
    """One drill of each kind, on real processes of this machine."""
    rows = []
    for number, kind in enumerate(kinds):
        command = [sys.executable, "-m", "gangrun", "chaos", "--local", "--json", "--kind", kind.value]
        done = subprocess.run(
            [*command, "--seed", str(number)], capture_output=True, text=True, timeout=900, check=False
        )
        answer = json.loads(done.stdout)
        if "error" in answer:
            print(f"{kind.value}: {answer['error']['message']}", file=sys.stderr)
            continue
        rows += answer["drills"]
        print(f"{kind.value}: {rows[-1]['concluded']}, {'holds' if rows[-1]['holds'] else 'MISSED'}", file=sys.stderr)
    return rows


def matrix(rows: list[dict]) -> str:
    """Fault by cause concluded, as a table in Markdown: every fault that was drilled and every cause that came up."""
    counts = Counter((row["kind"], row["concluded"]) for row in rows)
    kinds = [kind.value for kind in DrillKind if any(row["kind"] == kind.value for row in rows)]
    causes = sorted({cause for _, cause in counts}, key=lambda one: (one == NOTHING, one))
    head = ["fault", "drills", *causes, "right cause", "right node", "noticed (median)", "recovery (median)"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for kind in kinds:
        mine = [row for row in rows if row["kind"] == kind]
        cells = [_cell(counts[kind, cause], cause in KINDS[DrillKind(kind)].conclusions) for cause in causes]
        held = [_share(mine, name) for name in ("right cause", "right node")]
        spans = [_median(mine, name) for name in ("noticed_s", "recovery_s")]
        lines.append("| " + " | ".join([f"`{kind}`", str(len(mine)), *cells, *held, *spans]) + " |")
    return "\n".join(lines)


def _cell(count: int, right: bool) -> str:
    return "" if not count else f"**{count}**" if right else str(count)


def _share(rows: list[dict], name: str) -> str:
    points = [point for row in rows for point in row["points"] if point["name"] == name]
    return f"{sum(point['holds'] is True for point in points)} of {len(points)}" if points else "-"


def _median(rows: list[dict], name: str) -> str:
    found = sorted(row[name] for row in rows if row[name] is not None)
    return f"{found[len(found) // 2]:.1f} s" if found else "-"


def page_text(simulated_rows: list[dict], real_rows: list[dict]) -> str:
    """What stands between the marks of the page."""
    total = len(simulated_rows) + len(real_rows)
    broken = sum(bool(row["broken"]) for row in simulated_rows)
    counts = f"{len(simulated_rows)} simulated and {len(real_rows)} on real processes"
    world = (
        f"{NODES} nodes of {RANKS_PER_NODE} ranks with {SPARES} spares (`xid`: one machine of four slots and a spare)"
    )
    parts = [
        f"{total} drilled faults: {counts}. A bold number is a conclusion that counts as right.",
        f"### Simulated\n\nThe real core, supervisor loop and agents' decisions in the simulated world: {world}.",
        f"{broken} of these drills broke an invariant of the protocol.",
        matrix(simulated_rows),
    ]
    if real_rows:
        parts += ["### Real processes\n\n`gangrun chaos --local`, the sample script, one drill of each kind.",
                  matrix(real_rows)]  # fmt: skip
    return "\n\n".join(parts)


def write_page(path: Path, text: str) -> None:
    """Put it between the marks."""
    page = path.read_text("utf-8")
    pattern = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.DOTALL)
    if not pattern.search(page):
        raise SystemExit(f"{path} has no marks {BEGIN} and {END}")
    path.write_text(pattern.sub(lambda _: f"{BEGIN}\n\n{text}\n\n{END}", page), "utf-8")


def main() -> None:
    """Drill, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--each", type=int, default=15, help="simulated drills of each kind")
    parser.add_argument("--kind", action="append", choices=[kind.value for kind in DrillKind])
    parser.add_argument("--real", action="store_true")
    parser.add_argument("--real-from", type=Path, help="real drills of an earlier run with --json")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--page", type=Path)
    args = parser.parse_args()
    kinds = [DrillKind(name) for name in args.kind] if args.kind else list(DrillKind)
    jobs = [(kind.value, seed) for kind in kinds if kind in SIMULATED for seed in range(args.each)]
    with multiprocessing.get_context("fork").Pool(min(2, os.cpu_count() or 1)) as pool:
        simulated_rows = pool.map(simulated, jobs, chunksize=2)
    real_rows = json.loads(args.real_from.read_text())["real"] if args.real_from else []
    if args.real:
        real_rows += real([kind for kind in kinds if kind in LOCAL_KINDS])
    print(page_text(simulated_rows, real_rows))
    for row in simulated_rows:
        if row["broken"]:
            print(f"{row['kind']} seed {row['number']}: {row['broken']}", file=sys.stderr)
    if args.json:
        args.json.write_text(json.dumps({"simulated": simulated_rows, "real": real_rows}, indent=1) + "\n")
    if args.page:
        write_page(args.page, page_text(simulated_rows, real_rows))


if __name__ == "__main__":
    main()

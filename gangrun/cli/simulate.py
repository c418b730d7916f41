"""``gangrun simulate``: what each way to train would make of the failures of a cluster, by the real decisions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import click
import msgspec

from gangrun.cli.options import TIME, Typed, json_option
from gangrun.config.failure_file import failure_table
from gangrun.config.parsers import BadValue, positive_span_s
from gangrun.display.account_page import simulation_page
from gangrun.display.status_page import look_now
from gangrun.display.text import echo_json
from gangrun.errors import DONE
from gangrun.planning.cadence import INTERVAL_MAX_S, Cadence, cadence
from gangrun.planning.plan import STALL_MIN_S, spares_needed
from gangrun.runs.status import SCHEMA
from gangrun.sim.failure_tables import DAY_S, TABLES, TAKES_NODE, FailureTable, RecoverySeconds
from gangrun.sim.forecast import Ground, Way, WayResult, compared

WAYS = ("gangrun", "no-spares", "hourly", "by-hand")
HOURLY_S = 3600.0
NODES_MAX_COUNT, DAYS_MAX, ROUNDS_MAX_COUNT = 20_000, 1000, 1000


class SimulationReport(msgspec.Struct, frozen=True, kw_only=True):
    """What ``simulate --json`` prints."""

    schema: int = SCHEMA
    failures: str
    source: str
    nodes_count: int
    gpus_per_node: int
    days: float
    rounds_count: int
    seed: int
    mtbf_s: float | None  # of the whole run; null: nothing fails
    stall_s: float
    persist_s: float
    interval_reason: str
    queue_wait_s: float
    recovery_s: RecoverySeconds
    policies: tuple[WayResult, ...]


def _interval_s(value: object) -> float | None:
    return None if str(value).strip() == "auto" else positive_span_s(value)


def _days(value: object) -> float:
    try:
        days = float(str(value))
    except ValueError:
        days = 0.0
    if not 0 < days <= DAYS_MAX:
        raise BadValue(f"{value!r} is not a number of days up to {DAYS_MAX}")
    return days


@click.command("simulate")
@click.option(
    "--nodes",
    type=click.IntRange(1, NODES_MAX_COUNT),
    default=2048,
    metavar="N",
    help="Nodes that train (default 2048).",
)
@click.option("--gpus-per-node", type=click.IntRange(min=1), default=8, metavar="N", help="GPUs of a node (default 8).")
@click.option("--days", type=Typed(_days, name="days"), default="54", help="Days to simulate (default 54).")
@click.option(
    "--failures", default="llama3", metavar="NAME", help=f"{', '.join(TABLES)}, or FILE.toml (default llama3)."
)
@click.option(
    "--policy",
    "ways",
    type=click.Choice(WAYS),
    multiple=True,
    help="Compare this; repeat it (default gangrun, by-hand).",
)
@click.option("--spares", type=click.IntRange(0, 1000), metavar="K", help="Spare nodes (default as many as P99 needs).")
@click.option(
    "--interval", type=Typed(_interval_s, name="time"), default="auto", help="Time between saves (default auto)."
)
@click.option("--stall", type=TIME, default=STALL_MIN_S, help="Pause of the training for each save (default 0.1s).")
@click.option("--persist", type=TIME, default=0.0, help="Time until a save is of use (default 0s).")
@click.option("--restart", type=TIME, help="From the stop of the ranks to the next step.")
@click.option("--queue-wait", type=TIME, help="Mean wait of the next job for its nodes.")
@click.option(
    "--rounds", type=click.IntRange(1, ROUNDS_MAX_COUNT), default=1, metavar="R", help="Repeat so often (default 1)."
)
@click.option("--seed", type=int, default=0, metavar="S", help="Seed of the failures (default 0).")
@json_option
def simulate(
    nodes: int, gpus_per_node: int, days: float, failures: str, ways: Sequence[str], spares: int | None,
    interval: float | None, stall: float, persist: float, restart: float | None, queue_wait: float | None,
    rounds: int, seed: int, as_json: bool,
) -> int:  # fmt: skip
    """Simulate a training on a cluster that fails, policy by policy.

    gangrun's real decisions meet the failures of the table: who is excluded, which spare takes over, when another job
    is asked for. by-hand meets the same failures with torchrun and a person.

    \b
      gangrun simulate --nodes 2048 --failures llama3
      gangrun simulate --nodes 256 --failures rsc --policy gangrun --policy no-spares --rounds 5
      gangrun simulate --nodes 64 --failures failures.toml --restart 3m --stall 1s
    """  # noqa: D301 - click reads the backspace
    table = failure_table(failures)
    if restart is not None:
        table = replace(table, recovery=replace(table.recovery, choose=0.0, start=0.0, first_step=restart))
    if queue_wait is not None:
        table = replace(table, queue_wait_s=queue_wait)
    mtbf_s = table.mtbf_s(nodes)
    best = Cadence(interval, "as you asked") if interval else _best(stall, persist, mtbf_s)
    spares = _spares_count(table, nodes) if spares is None else spares
    ground = Ground(table, nodes, gpus_per_node, days * DAY_S, stall, persist, seed)
    named = {
        "gangrun": Way("gangrun", spares, best.interval_s),
        "no-spares": Way("no-spares", 0, best.interval_s),
        "hourly": Way("hourly", spares, HOURLY_S),
        "by-hand": Way("by-hand", 0, HOURLY_S, by_hand=True),
    }
    chosen = [named[name] for name in dict.fromkeys(ways or ("gangrun", "by-hand"))]
    mtbf = mtbf_s if mtbf_s < float("inf") else None
    found = compared(ground, chosen, rounds)
    if not as_json:
        click.echo("\n".join(simulation_page(ground, mtbf, best.reason, found, rounds, look_now())))
        return DONE
    report = SimulationReport(
        failures=table.name, source=table.source, nodes_count=nodes, gpus_per_node=gpus_per_node, days=days,
        rounds_count=rounds, seed=seed, mtbf_s=mtbf,
        stall_s=stall, persist_s=persist, interval_reason=best.reason, queue_wait_s=table.queue_wait_s,
        recovery_s=table.recovery, policies=found,
    )  # fmt: skip
    echo_json(report)
    return DONE


def _best(stall_s: float, persist_s: float, mtbf_s: float) -> Cadence:
    if mtbf_s == float("inf"):
        return Cadence(INTERVAL_MAX_S, "nothing stops the run")
    return cadence(stall_s, persist_s, mtbf_s)


def _spares_count(table: FailureTable, nodes_count: int) -> int:
    """As many as P99 needs: each failure that takes a node takes it for its own mean time."""
    rows = [one for one in table.causes if one.kind in TAKES_NODE]
    per_day = sum(one.per_1000_node_days * one.nodes_count for one in rows) / 1000
    if not per_day:
        return 0
    away_days = sum(one.per_1000_node_days * one.nodes_count * one.lasts_s for one in rows) / 1000 / DAY_S
    return spares_needed(nodes_count, DAY_S / per_day, away_days / per_day * DAY_S)

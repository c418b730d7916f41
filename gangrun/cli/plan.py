"""``gangrun plan``: what failures will cost, before a run or from one that has trained for a while."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import click
import msgspec

from gangrun.cli.options import TIME, Typed, json_option, run_names, runs_dir_option
from gangrun.config.parsers import BadValue, positive_span_s
from gangrun.display.account_page import plan_page
from gangrun.display.status_page import look_now
from gangrun.display.text import clean, echo_json, size_words
from gangrun.display.times import span_words
from gangrun.errors import DONE, UserError
from gangrun.planning.cadence import NODE_MTBF_S, expected_mtbf_s, observed_mtbf_s
from gangrun.planning.plan import (
    BY_HAND_S,
    OPTIMIZER_NUMBERS,
    REPAIR_S,
    WEIGHTS_BYTES,
    Forecast,
    Scenario,
    checkpoint_bytes,
    forecast,
    mtbf_at,
    usual_stall_s,
    usual_write_bytes_per_s,
)
from gangrun.runs.status import SCHEMA

GPUS_PER_NODE_COUNT = 8
TRAIN_S = 30 * 86400.0
NOTICING_S, PROCESSES_S = 5.0, 60.0  # a silent node counts as gone; processes, imports, the first collective
NODE_WAIT_S = 1800.0
_AMOUNT = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgtp]?)(i?)b?", re.IGNORECASE)
_BILLIONS = re.compile(r"^(\d+(?:\.\d+)?)B$")


class PlanReport(msgspec.Struct, frozen=True, kw_only=True):
    """What ``plan --json`` prints."""

    schema: int = SCHEMA
    run: str | None
    assumed: tuple[str, ...]
    forecast: Forecast


def amount(value: object) -> float:
    """A count or bytes: 560GB, 512GiB, or 70B parameters. Powers of 1000, except with an i."""
    text = _BILLIONS.sub(r"\1G", str(value).strip())
    match = _AMOUNT.fullmatch(text)
    if match is None:
        raise BadValue(f"{value!r} is not an amount", "write 560GB, 512GiB or 70B")
    found: float = float(match.group(1)) * (1024 if match.group(3) else 1000) ** " kmgtp".index(
        match.group(2).lower() or " "
    )
    if not found > 0:
        raise BadValue(f"{value!r} must be more than 0")
    return found


AMOUNT = Typed(amount, name="amount")
SPAN = Typed(positive_span_s, name="time")


@dataclass(slots=True)
class Given:
    """The options, what a run says, and what had to be assumed."""

    options: dict[str, Any]
    run: str | None = None
    seen: tuple[float, int, int] | None = None  # by the run: seconds of training, failures, on how many nodes
    persist_s: float | None = None
    assumed: list[str] = field(default_factory=list)

    def get(self, name: str, usual: float, words: str) -> float:
        """The option, or the usual value, which is then listed as assumed."""
        value = self.options.get(name)
        if value is None:
            self.assumed.append(words)
            return usual
        return float(value)


@click.command("plan")
@click.option("--gpus", type=click.IntRange(min=1), metavar="N", help="GPUs that train.")
@click.option("--gpus-per-node", type=click.IntRange(min=1), metavar="N", help="GPUs of a node (default 8).")
@click.option("--mtbf", type=SPAN, help="Time between failures of the whole job.")
@click.option("--gpu-mtbf", type=SPAN, help="Time between failures of one GPU, in place of --mtbf.")
@click.option("--state", type=AMOUNT, help="Bytes of a checkpoint, such as 560GB.")
@click.option("--params", type=AMOUNT, help="Parameters, such as 70B, in place of --state.")
@click.option(
    "--optimizer", type=click.Choice(sorted(OPTIMIZER_NUMBERS)), default="adamw", help="With --params (default adamw)."
)
@click.option(
    "--precision", type=click.Choice(sorted(WEIGHTS_BYTES)), default="mixed", help="With --params (default mixed)."
)
@click.option("--train", type=SPAN, help="Training needed if nothing failed (default 30d).")
@click.option("--stall", type=SPAN, help="Pause of the training for each save.")
@click.option("--write-speed", type=AMOUNT, help="Bytes per second to the checkpoint directory, all nodes together.")
@click.option("--restart", type=SPAN, help="From the stop of the ranks to the next new step.")
@click.option("--by-hand", type=SPAN, help="The same without gangrun (default 30m).")
@click.option("--repair", type=SPAN, help="Until a failed node is back (default 24h).")
@click.option("--node-wait", type=TIME, help="Wait for another node if no spare is left (default 30m).")
@click.option("--spares", type=click.IntRange(min=0), metavar="N", help="Spare nodes (default as many as P99 needs).")
@click.option("--interval", type=SPAN, help="Also compare saving this often.")
@click.option("--gpu-hour-price", type=click.FloatRange(min=0), metavar="PRICE", help="Price of a GPU for an hour.")
@click.option(
    "--from", "source", metavar="RUN", shell_complete=run_names, help="Take size, failures and save times from RUN."
)
@json_option
@runs_dir_option
def plan(as_json: bool, runs_dir: str | None, source: str | None, **options: Any) -> int:
    """Forecast failures, checkpoint interval, spares, time and cost of a training.

    What you leave out is taken from RUN, or assumed and listed at the end.

    \b
      gangrun plan --gpus 1024 --mtbf 49h --state 560GB --gpu-hour-price 3
      gangrun plan --gpus 512 --params 70B
      gangrun plan --from my-run --gpus 4096
    """  # noqa: D301 - click reads the backspace
    given = Given(options)
    if source is not None:
        _take_from(given, source, runs_dir)
    report = PlanReport(run=given.run, forecast=forecast(scenario_of(given)), assumed=tuple(given.assumed))
    if as_json:
        echo_json(report)
    else:
        click.echo("\n".join(plan_page(report.forecast, report.assumed, look_now())))
    return DONE


def scenario_of(given: Given) -> Scenario:
    """Everything that the arithmetic needs."""
    options = given.options
    if options["gpus"] is None:
        raise UserError("usage", "the number of GPUs is not known", "give --gpus N, or --from RUN")
    gpus = int(options["gpus"])
    per_node = int(
        given.get("gpus_per_node", GPUS_PER_NODE_COUNT, f"{GPUS_PER_NODE_COUNT} GPUs per node (--gpus-per-node)")
    )
    nodes = -(-gpus // per_node)
    state = _state_bytes(options)
    stall_s = usual_stall_s(state, gpus)
    speed = usual_write_bytes_per_s(nodes)
    speed = given.get(
        "write_speed", speed, f"{size_words(int(speed))}/s to and from the checkpoint directory (--write-speed)"
    )
    persist_s = given.persist_s or state / speed
    restart_s = PROCESSES_S + state / speed
    return Scenario(
        gpus_count=gpus,
        gpus_per_node=per_node,
        mtbf_s=_mtbf_s(given, gpus, nodes),
        train_s=given.get("train", TRAIN_S, f"{span_words(TRAIN_S)} of training (--train)"),
        state_bytes=state,
        stall_s=given.get("stall", stall_s, f"a pause of {stall_s:.1f} s for each save (--stall)"),
        persist_s=persist_s,
        noticing_s=NOTICING_S,
        restart_s=given.get("restart", restart_s, f"a restart in {span_words(restart_s)} (--restart)"),
        by_hand_s=given.get("by_hand", BY_HAND_S, f"a restart by hand in {span_words(BY_HAND_S)} (--by-hand)"),
        repair_s=given.get(
            "repair", REPAIR_S, f"every failure takes its node away for {span_words(REPAIR_S)} (--repair)"
        ),
        node_wait_s=given.get(
            "node_wait", NODE_WAIT_S, f"{span_words(NODE_WAIT_S)} until the queue gives another node (--node-wait)"
        ),
        gpu_hour_price=float(options["gpu_hour_price"] or 0),
        spares_count=options["spares"],
        interval_s=options["interval"],
    )


def _state_bytes(options: dict[str, Any]) -> float:
    if options["state"] is not None and options["params"] is not None:
        raise UserError("usage", "--state and --params exclude each other", "leave one out")
    if options["params"] is not None:
        return checkpoint_bytes(options["params"], options["optimizer"], options["precision"])
    if options["state"] is None:
        raise UserError("usage", "the size of a checkpoint is not known", "give --state 560GB or --params 70B")
    return float(options["state"])


def _mtbf_s(given: Given, gpus_count: int, nodes_count: int) -> float:
    options = given.options
    if options["mtbf"] is not None and options["gpu_mtbf"] is not None:
        raise UserError("usage", "--mtbf and --gpu-mtbf exclude each other", "leave one out")
    if options["gpu_mtbf"] is not None:
        return mtbf_at(options["gpu_mtbf"], gpus_count)
    if options["mtbf"] is not None:
        return float(options["mtbf"])
    if given.seen is not None:  # of the run's nodes, then of as many as are planned
        trained_s, failures_count, there_count = given.seen
        of_the_run = observed_mtbf_s(trained_s, failures_count, expected_mtbf_s(there_count))
        return of_the_run * there_count / nodes_count
    words = f"each node fails every {span_words(NODE_MTBF_S)}, as in the training of Llama 3 (--mtbf)"
    return given.get("mtbf", mtbf_at(NODE_MTBF_S, nodes_count), words)


def _take_from(given: Given, source: str, runs_dir: str | None) -> None:
    """What RUN knows, where no option says otherwise."""
    from gangrun.runs.checkpoints import place_of, surveyed
    from gangrun.runs.locate import find
    from gangrun.runs.report import report_of
    from gangrun.runs.saves import read_saves
    from gangrun.runs.snapshot import read

    paths = find(source, runs_dir)
    reading, options = read(paths, timeline=True), given.options
    spec = reading.spec
    nodes_count = max(1, spec.nodes_count or len(spec.nodes))
    given.run = spec.run
    options["gpus_per_node"] = options["gpus_per_node"] or spec.slots_per_node * spec.ranks_per_slot
    options["gpus"] = options["gpus"] or nodes_count * options["gpus_per_node"]
    if reading.state is not None:
        told = report_of(reading, None, None)
        failures_count = sum(told.failures.values())
        given.seen = told.trained_s, failures_count, nodes_count
        if options["mtbf"] is None and options["gpu_mtbf"] is None:
            many = f"{failures_count} failure{'s' * (failures_count != 1)}"
            where = f"{nodes_count} node{'s' * (nodes_count != 1)}"
            given.assumed.append(f"{many} in {span_words(told.trained_s)} on {where}, from run {clean(spec.run)}")
    saves = read_saves(spec.checkpoint.directory, spec.run)
    given.persist_s = saves.persist_s or None if saves is not None else None
    if options["state"] is None and options["params"] is None and spec.checkpoint.directory:
        place = place_of(str(paths.root), None, None, None, None)
        sizes = [one.size_bytes for one in surveyed(place, None, None, verify=False).checkpoints if one.committed]
        options["state"] = next((size for size in sizes if size), None)

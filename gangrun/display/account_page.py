"""Pages about time and money: what a training will cost, and what it has cost."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from gangrun.core.model import TERMINAL, Rung
from gangrun.display.status_page import PageFormat
from gangrun.display.text import clean, size_words, styled, table, wrapped
from gangrun.display.times import span_words
from gangrun.planning.accounts import TimeUse
from gangrun.planning.cadence import NODE_MTBF_S, STALL_GUESS_S, cadence, expected_mtbf_s
from gangrun.planning.plan import BY_HAND_S, NOTICING_BY_HAND_S, REPAIR_S, Forecast, PolicyForecast, spares_needed
from gangrun.runs.report import ClusterReport, MfuReport, RunReport, WindowReport

if TYPE_CHECKING:
    from gangrun.sim.forecast import Ground, WayResult

_CLASSES = (  # of ``simulate``'s second table; what is not named here is gangrun's own time, or that of the script
    TimeUse.SAVING, TimeUse.LOST, TimeUse.NOTICING, TimeUse.QUEUE, TimeUse.WAITING,
)  # fmt: skip


def share_words(share: float) -> str:
    """``99.5 %``; with more digits where all of them are nines."""
    digits = 3 if 0.9995 <= share < 1 else 1
    return f"{share * 100:.{digits}f} %"


def money_words(amount: float) -> str:
    """``$3,072``; cents only below 100."""
    return f"${amount:,.0f}" if amount >= 100 else f"${amount:,.2f}"


def plan_page(found: Forecast, assumed: Iterable[str], look: PageFormat) -> list[str]:
    """What ``gangrun plan`` prints."""
    given = found.scenario
    nodes = f"{given.nodes_count} node{'s' * (given.nodes_count != 1)}"
    price = f", {money_words(found.gpus_cost_per_h)} an hour" if given.gpu_hour_price else ""
    expected = f"{found.failures_count:.1f} in {span_words(given.train_s)} of training"
    day, whole = share_words(found.no_failure_day), share_words(found.no_failure_run)
    facts = (
        ("machine", f"{given.gpus_count} GPUs on {nodes}{price}"),
        ("failures", f"one every {span_words(given.mtbf_s)}, {expected}"),
        ("", f"probability of a day without failure: {day}; of the whole training: {whole}"),
        ("checkpoint", f"{size_words(int(given.state_bytes))}, written in {span_words(given.persist_s)}"),
        ("interval", f"{span_words(found.best.interval_s)}: {found.best.reason}"),
        ("spares", _spares(found)),
    )
    lines = _facts(facts, look)
    head: tuple[str, ...] = ("policy", "saves every", "lost per failure", "useful", "ends after", "GPU-hours lost")
    if given.gpu_hour_price:
        head = (*head, "they cost")
    rows = [_row(one, bool(given.gpu_hour_price)) for one in found.policies]
    first, *rest = table(head, rows, look.columns, "")
    lines += ["", styled(first, "dim", look.color), *rest]
    if told := [line for words in assumed for line in wrapped(clean(words), look.columns, "  ", "    ")]:
        lines += ["", "assumed, because no option says otherwise:", *told]
    return lines


def submitted_words(nodes_count: int, spares_count: int) -> str:
    """What ``gangrun submit`` expects of so many nodes, and what follows for the interval and the spares."""
    mtbf_s = expected_mtbf_s(nodes_count)
    interval = span_words(cadence(STALL_GUESS_S, 0.0, mtbf_s).interval_s)
    needed = spares_needed(nodes_count, NODE_MTBF_S, REPAIR_S)
    enough = "enough at" if spares_count >= needed else f"but --spares {needed} is enough at"
    return (
        f"expects a failure every {span_words(mtbf_s)} on {nodes_count} node{'s' * (nodes_count != 1)}, so "
        f'every_s="auto" saves every {interval} until it has measured; {spares_count} '
        f"spare{'s' * (spares_count != 1)}, {enough} 99 % of all moments"
    )


def _spares(found: Forecast) -> str:
    needed, count = found.spares_needed_count, found.spares_count
    given = found.scenario
    share = f" ({needed / given.nodes_count * 100:.1f} % of the nodes)" if needed else ""
    moments = f"{given.confidence * 100:.0f} % of all moments"
    words = f"{needed}{share} are enough at {moments}, if a failed node is back after {span_words(given.repair_s)}"
    return words if count == needed else f"{count} as you asked; {words}"


def _row(one: PolicyForecast, priced: bool) -> tuple[str, ...]:
    cells = (one.name, span_words(one.interval_s), span_words(one.lost_per_failure_s))
    if one.finish_s is None or one.downtime_gpu_h is None or one.downtime_cost is None:
        return (*cells, "0 %", "never", "all", *(["all"] * priced))
    ends = (share_words(one.useful_share), span_words(one.finish_s), f"{one.downtime_gpu_h:,.0f}")
    return (*cells, *ends, *([money_words(one.downtime_cost)] * priced))


# ---- what a run has cost ----

NODES_SHOWN_COUNT = 12


def report_page(found: RunReport, look: PageFormat) -> list[str]:
    """What ``gangrun report RUN`` prints."""
    price = "" if found.cost is None else f", {money_words(found.cost)}"
    causes = ", ".join(f"{count} {cause}" for cause, count in found.failures.items())
    failures = sum(found.failures.values())
    facts = [
        ("run", f"{found.run} ({found.name}), {found.state}"),
        ("useful", f"{_share(found.ettr)} of {span_words(found.whole_s)}{_recently(found.window)}"),
        ("machine", f"{found.gpu_h:,.1f} GPU-hours{price}"),
        ("failures", f"{failures} ({causes})" if failures else "none"),
    ]
    if found.recoveries:
        many = f"{found.recoveries} recover{'y' if found.recoveries == 1 else 'ies'}"
        by_hand = span_words(NOTICING_BY_HAND_S + BY_HAND_S)
        facts.append(
            ("saved", f"{many} took {found.saved_gpu_h:,.1f} GPU-hours less than restarts by hand ({by_hand} each)")
        )
    if found.mfu is not None:
        facts.insert(2, ("MFU", _mfu_words(found.mfu, found.window)))
    lines = _facts(facts, look)
    priced = found.cost is not None
    head: tuple[str, ...] = ("the time went to", "of the run", "share", "node-hours", "GPU-hours")
    rows: list[tuple[str, ...]] = [
        (
            one.use, span_words(one.run_s), _part(one.run_s, found.whole_s), f"{one.node_s / 3600:,.2f}",
            f"{one.gpu_h:,.2f}", *([money_words(one.cost or 0.0)] if priced else ()),
        )
        for one in found.uses
    ]  # fmt: skip
    first, *rest = table((*head, "cost") if priced else head, rows, look.columns, "")
    lines += ["", styled(first, "dim", look.color), *rest]
    bad = sorted(found.nodes, key=lambda one: -one.uses_s.get("unusable", 0.0))
    told = [(clean(one.node), span_words(one.uses_s["unusable"])) for one in bad if one.uses_s.get("unusable")]
    if told:
        first, *rest = table(("node", "lost or excluded for"), told[:NODES_SHOWN_COUNT], look.columns, "")
        lines += ["", styled(first, "dim", look.color), *rest]
    if found.state not in {phase.value for phase in TERMINAL}:
        lines += [
            "",
            *wrapped("The run goes on: what it trained since the newest checkpoint counts as useful.", look.columns),
        ]
    return lines


def cluster_page(found: ClusterReport, look: PageFormat) -> list[str]:
    """What ``gangrun report --all`` prints."""
    price = "" if found.cost is None else f", {money_words(found.cost)}"
    node_days = f"{found.node_s / 86400:,.1f} node-days"
    failures = sum(one.failures for one in found.causes)
    mtbf = "no failure" if found.node_mtbf_s is None else f"one failure of a node in {span_words(found.node_mtbf_s)}"
    lines = _facts(
        [
            ("runs", f"{len(found.runs)}: {node_days}, {found.gpu_h:,.1f} GPU-hours{price}"),
            ("failures", f"{failures}; {mtbf}"),
            ("saved", _saved_words(found)),
        ],
        look,
    )
    causes = [(one.cause, str(one.failures), span_words(one.node_mtbf_s)) for one in found.causes]
    kinds = [(one.kind, str(one.failures), span_words(one.node_mtbf_s)) for one in found.kinds]
    nodes = [
        (clean(one.node), str(one.times), span_words(one.mtbf_s), clean("; ".join(one.reasons))) for one in found.nodes
    ]
    runs = [
        (
            clean(one.run), clean(one.name), one.state, _share(one.ettr), span_words(one.whole_s),
            f"{one.gpu_h:,.1f}", str(one.failures),
        )
        for one in found.runs
    ]  # fmt: skip
    tables: list[tuple[tuple[str, ...], Sequence[tuple[str, ...]]]] = [
        (("whose", "failures", "one per node in"), kinds),
        (("cause", "failures", "one per node in"), causes),
        (("node", "times", "once in", "lost or excluded, because"), nodes[:NODES_SHOWN_COUNT]),
        (("run", "name", "state", "useful", "of", "GPU-hours", "failures"), runs),
    ]
    for head, rows in tables:
        if rows:
            first, *rest = table(head, rows, look.columns, "")
            lines += ["", styled(first, "dim", look.color), *rest]
    if found.unreadable:
        lines += ["", "not counted, because they cannot be read:"]
        lines += [line for words in found.unreadable for line in wrapped(clean(words), look.columns, "  ", "    ")]
    return lines


def _saved_words(found: ClusterReport) -> str:
    """What recoveries took less than what people do without gangrun: notice, find the node, submit again."""
    if not found.recoveries:
        return "nothing yet: no recovery was needed, or none succeeded"
    many = f"{found.recoveries} recover{'y' if found.recoveries == 1 else 'ies'}"
    by_hand = span_words(NOTICING_BY_HAND_S + BY_HAND_S)
    price = "" if found.saved_cost is None else f", {money_words(found.saved_cost)}"
    return f"{found.saved_gpu_h:,.1f} GPU-hours{price}: {many}, compared with restarts by hand ({by_hand} each)"


def simulation_page(
    ground: Ground, mtbf_s: float | None, interval: str, found: Sequence[WayResult], rounds: int, look: PageFormat
) -> list[str]:
    """What ``gangrun simulate`` prints. ``interval``: why gangrun saves as often as it does."""
    table_of, nodes = ground.table, ground.nodes_count
    times = "" if rounds == 1 else f", {rounds} times"
    fails = "nothing stops the run" if mtbf_s is None else f"one that stops the run in {span_words(mtbf_s)}"
    lines = _facts(
        (
            ("machine", f"{nodes * ground.gpus_per_node} GPUs on {nodes} node{'s' * (nodes != 1)}"),
            ("simulated", f"{span_words(ground.span_s)}{times}, seed {ground.seed}"),
            ("failures", f"{table_of.name}: {fails}"),
            ("", table_of.source),
            ("interval", interval),
        ),
        look,
    )
    head: tuple[str, ...] = ("policy", "spares", "saves every", "useful", "95 % sure", "failures", "GPU-hours lost")
    rows = [
        (
            one.way.name, str(one.way.spares_count), span_words(one.way.interval_s), share_words(one.useful.share),
            _bounds(one), str(one.failures_count), f"{one.lost_gpu_h:,.0f}",
        )
        for one in found
    ]  # fmt: skip
    uses = [
        (
            one.way.name,
            *(_share_of(one.shares.get(use.value, 0.0)) for use in _CLASSES),
            _share_of(sum(one.shares.get(use.value, 0.0) for use in TimeUse if use not in (*_CLASSES, TimeUse.USEFUL))),
        )
        for one in found
    ]
    means = [
        (one.way.name, *(str(one.recoveries.get(rung.value, 0)) for rung in _RUNGS), str(one.excluded_count))
        for one in found
    ]
    told: list[tuple[tuple[str, ...], Sequence[tuple[str, ...]]]] = [
        (head, rows),
        (("policy", *(use.value for use in _CLASSES), "the rest"), uses),
        (("policy", *(_RUNGS[rung] for rung in _RUNGS), "nodes excluded"), means),
    ]
    for titles, cells in told:
        first, *rest = table(titles, cells, look.columns, "")
        lines += ["", styled(first, "dim", look.color), *rest]
    return lines


_RUNGS = {Rung.RESTART: "in place", Rung.SWAP: "by a spare", Rung.REQUEUE: "by another job", Rung.END: "by a person"}


def _bounds(one: WayResult) -> str:
    low, high = one.useful.low, one.useful.high
    return "-" if low is None or high is None else f"{low * 100:.2f}-{high * 100:.2f} %"


def _share_of(share: float) -> str:
    return f"{share * 100:.2f} %"


def _facts(facts: Iterable[tuple[str, str]], look: PageFormat) -> list[str]:
    return [line for label, words in facts for line in wrapped(clean(words), look.columns, f"{label:<12}", " " * 12)]


def _share(share: float | None) -> str:
    return "-" if share is None else share_words(share)


def _part(part: float, whole: float) -> str:
    return share_words(part / whole) if whole else "-"


def _mfu_words(mfu: MfuReport, window: WindowReport | None) -> str:
    recently = "" if window is None else f"; {_share(mfu.window)} of the last {span_words(window.seconds)}"
    steps = f"{mfu.steps:,} step{'s' * (mfu.steps != 1)}"
    return f"{_share(mfu.whole)} of all time{recently}; {_share(mfu.useful)} of useful time ({steps} kept)"


def _recently(window: WindowReport | None) -> str:
    return "" if window is None else f"; {_share(window.ettr)} of the last {span_words(window.seconds)}"

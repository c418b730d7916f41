"""What ``gangrun report`` prints of a run, and of many: time by class, cost, failures, MFU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from gangrun.adapters.fs.index import IndexEntry
from gangrun.adapters.fs.run_dir import RunPaths
from gangrun.core.model import Cause, RunState
from gangrun.errors import UserError
from gangrun.planning.accounts import TimeUse
from gangrun.planning.plan import BY_HAND_S, NOTICING_BY_HAND_S
from gangrun.runs.ledger import TRAINING, Ledger, ledger_of, run_account, stalled_ms, steps_kept, to_ms, until_ms
from gangrun.runs.recoveries import Recovery, recoveries_of
from gangrun.runs.snapshot import RunSnapshot, read
from gangrun.runs.state import run_state
from gangrun.runs.status import SCHEMA, newest_step
from gangrun.runs.times import wall_now
from gangrun.wire.record import Record

_KIND = {  # whose failure a cause is most often; the rest is the program's
    Cause.HARDWARE: "node", Cause.NODE_SILENT: "node", Cause.AGENT_DIED: "node", Cause.GPU_MEMORY: "node",
    Cause.FOREIGN_PROCESS: "node", Cause.LOCAL_DISK: "node", Cause.CPU: "node",
    Cause.NETWORK: "network", Cause.STORAGE: "storage", Cause.SERVICE: "service",
    Cause.SIGNAL: "not known", Cause.KILLED: "not known", Cause.VICTIMS_ONLY: "not known", Cause.HANG: "not known",
}  # fmt: skip
_KIND_OF = {cause.value: _KIND.get(cause, "program") for cause in Cause} | {"failed": "not known"}
FAILURE_OUTCOMES = frozenset({*(cause.value for cause in Cause), "failed"})  # moves and preemptions are none


class UseTotal(msgspec.Struct, frozen=True, kw_only=True):
    """One class: of the run's time, of all its nodes, and what that cost."""

    use: str
    run_s: float
    node_s: float
    gpu_h: float
    cost: float | None


class NodeTotal(msgspec.Struct, frozen=True, kw_only=True):
    """One node: seconds by class."""

    node: str
    whole_s: float
    uses_s: dict[str, float]


class WindowReport(msgspec.Struct, frozen=True, kw_only=True):
    """The newest part of a run."""

    seconds: float
    ettr: float | None


class MfuReport(msgspec.Struct, frozen=True, kw_only=True):
    """Model FLOPs utilization: FLOPs of steps that were kept, over what the GPUs of all ranks could have done."""

    step_flops: float
    gpu_flops: float
    steps: int  # that were kept; each counts once
    whole: float | None  # of all of the run's time; None: no time has passed
    window: float | None  # of the window's time
    useful: float | None  # of useful time only


class RunReport(msgspec.Struct, frozen=True, kw_only=True):
    """What ``report --json`` prints of one run; the classes sum to the whole."""

    schema: int = SCHEMA
    run: str
    name: str
    state: str
    whole_s: float
    ettr: float | None
    window: WindowReport | None
    mfu: MfuReport | None = None  # if the FLOPs of a step and of a GPU were given
    gpus_per_node: int
    node_s: float
    gpu_h: float
    cost: float | None
    failures: dict[str, int]  # by cause
    recoveries: int  # that succeeded
    saved_gpu_h: float
    uses: tuple[UseTotal, ...]
    nodes: tuple[NodeTotal, ...]

    @property
    def trained_s(self) -> float:
        """All training, with its stalls and with what was lost."""
        return sum(one.run_s for one in self.uses if one.use in TRAINING)


@dataclass(frozen=True, slots=True)
class Flops:
    """Of one step of all ranks together, and of one GPU in a second at best."""

    step_flops: float
    gpu_flops: float


def report_of(
    reading: RunSnapshot, window_s: float | None, price: float | None, flops: Flops | None = None
) -> RunReport:
    """The report of one run, whose snapshot has all records."""
    spec, state = reading.spec, reading.state
    assert state is not None
    gpus = spec.slots_per_node * spec.ranks_per_slot
    wanted = (spec.nodes_count or len(spec.nodes)) + spec.spares_count

    def made(window_ms: int | None) -> Ledger:
        return ledger_of(
            reading.records, state, wanted_count=wanted, window_ms=window_ms, created_ms=to_ms(spec.created_wall),
            until_ms=until_ms(reading), stalled_ms=stalled_ms(reading),
        )  # fmt: skip

    found, now = made(None), run_state(reading, wall_now()).state
    recent = None if window_s is None else WindowReport(seconds=window_s, ettr=made(to_ms(window_s)).useful_share)
    uses = tuple(_total(use, found, gpus, price) for use in TimeUse if found.run_ms.get(use) or found.node_ms[use])
    held_ms = sum(found.node_ms.values()) - found.node_ms[TimeUse.QUEUE]
    recoveries = [one for one in recoveries_of(reading.records) if one.next_attempt is not None]
    return RunReport(
        run=spec.run, name=spec.name, state=now, whole_s=found.whole_ms / 1000, ettr=found.useful_share,
        window=recent, mfu=None if flops is None else _mfu_report(reading, flops, window_s), gpus_per_node=gpus,
        node_s=held_ms / 1000, gpu_h=_gpu_h(held_ms, gpus), failures=failures_by_cause(state),
        cost=None if price is None else _gpu_h(held_ms, gpus) * price, recoveries=len(recoveries), uses=uses,
        saved_gpu_h=saved_gpu_h(recoveries, spec.nodes_count or len(spec.nodes), gpus),
        nodes=tuple(_of_one(node, times) for node, times in found.nodes_ms.items()),
    )  # fmt: skip


def _mfu_report(reading: RunSnapshot, flops: Flops, window_s: float | None) -> MfuReport:
    spec, state = reading.spec, reading.state
    assert state is not None
    account, kept = run_account(reading), steps_kept(state, newest_step(reading, state))
    wanted = (spec.nodes_count or len(spec.nodes)) * spec.slots_per_node * spec.ranks_per_slot
    began, ended, steps_count = account.began_ms, account.until_ms, sum(kept.values())

    def share(steps: float, since_ms: int, uses: Collection[TimeUse] = tuple(TimeUse)) -> float | None:
        could = flops.gpu_flops * account.gpu_ms(since_ms, ended, uses, wanted) / 1000
        return steps * flops.step_flops / could if could else None

    window = None
    if window_s is not None:
        since = max(began, ended - to_ms(window_s))
        window = share(account.steps_since(since, kept), since)
    return MfuReport(
        step_flops=flops.step_flops, gpu_flops=flops.gpu_flops, steps=steps_count, whole=share(steps_count, began),
        window=window, useful=share(steps_count, began, (TimeUse.USEFUL,)),
    )  # fmt: skip


def _gpu_h(node_ms: int, gpus: int) -> float:
    return node_ms * gpus / 3.6e6


def _total(use: TimeUse, found: Ledger, gpus: int, price: float | None) -> UseTotal:
    """Of the queue nobody pays."""
    gpu_h = 0.0 if use is TimeUse.QUEUE else _gpu_h(found.node_ms[use], gpus)
    return UseTotal(
        use=use.value, run_s=found.run_ms.get(use, 0) / 1000, node_s=found.node_ms[use] / 1000, gpu_h=gpu_h,
        cost=None if price is None else gpu_h * price,
    )  # fmt: skip


def _of_one(node: str, times: dict[TimeUse, int]) -> NodeTotal:
    uses = {use.value: times[use] / 1000 for use in TimeUse if times.get(use)}
    return NodeTotal(node=node, whole_s=sum(times.values()) / 1000, uses_s=uses)


def failures_by_cause(state: RunState) -> dict[str, int]:
    """How many attempts ended in a failure, by cause; those that were moved, requeued or preempted did not."""
    found: dict[str, int] = {}
    for one in state.attempts:
        if one.outcome in FAILURE_OUTCOMES:
            found[one.outcome] = found.get(one.outcome, 0) + 1
    return found


def saved_gpu_h(recoveries: Iterable[Recovery], nodes_count: int, gpus: int) -> float:
    """GPU-hours that a person who requeues the job by hand would have lost more."""
    by_hand_ms = to_ms(NOTICING_BY_HAND_S + BY_HAND_S)
    saved_ms = sum(by_hand_ms - one.whole_ms for one in recoveries)
    return _gpu_h(saved_ms * nodes_count, gpus)


# ---- over many runs ----


class CauseTotal(msgspec.Struct, frozen=True, kw_only=True):
    """How often attempts failed for one cause, and the time between such failures of one node."""

    cause: str
    failures: int
    node_mtbf_s: float


class KindTotal(msgspec.Struct, frozen=True, kw_only=True):
    """How often attempts failed for causes of one kind: node, network, storage, service, program, or not known."""

    kind: str
    failures: int
    node_mtbf_s: float


class NodeFailures(msgspec.Struct, frozen=True, kw_only=True):
    """A node, how often runs lost or excluded it, and for how long they held it."""

    node: str
    times: int
    reasons: tuple[str, ...]
    held_s: float = 0.0

    @property
    def mtbf_s(self) -> float:
        """Time held for each failure."""
        return self.held_s / self.times


class RunLine(msgspec.Struct, frozen=True, kw_only=True):
    """One run, in one line."""

    run: str
    name: str
    state: str
    whole_s: float
    ettr: float | None
    gpu_h: float
    failures: int


class ClusterReport(msgspec.Struct, frozen=True, kw_only=True):
    """What ``report --all --json`` prints."""

    schema: int = SCHEMA
    runs: tuple[RunLine, ...]
    unreadable: tuple[str, ...]
    node_s: float
    gpu_h: float
    cost: float | None
    node_mtbf_s: float | None
    causes: tuple[CauseTotal, ...]
    nodes: tuple[NodeFailures, ...]
    saved_gpu_h: float
    kinds: tuple[KindTotal, ...] = ()
    recoveries: int = 0  # that succeeded
    saved_cost: float | None = None


@dataclass(slots=True)
class ClusterTotals:
    """Adds up runs, one after the other: all of their records would not fit into memory at once."""

    price: float | None = None
    runs: list[RunReport] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    nodes: dict[str, list[str]] = field(default_factory=dict)
    held_s: dict[str, float] = field(default_factory=dict)  # of each node, over all runs

    def take(self, entry: IndexEntry) -> None:
        """One more run; if it cannot be read, why."""
        try:
            self.add(read(RunPaths(Path(entry.path)), timeline=True))
        except UserError as error:
            self.unreadable.append(f"{entry.run}: {error.message}")
        except OSError as error:
            self.unreadable.append(f"{entry.run}: {error.strerror or error} ({error.filename or entry.path})")

    def add(self, reading: RunSnapshot) -> None:
        """One more run."""
        if reading.state is None:
            return
        found = report_of(reading, None, self.price)
        self.runs.append(msgspec.structs.replace(found, nodes=()))
        for one in found.nodes:
            self.held_s[one.node] = self.held_s.get(one.node, 0.0) + one.whole_s
        for node, why in node_failures(reading.records):
            self.nodes.setdefault(node, []).append(why)

    def report(self) -> ClusterReport:
        """What they tell together."""
        node_s = sum(one.node_s for one in self.runs)
        causes, kinds = Counter[str](), Counter[str]()
        for one in self.runs:
            for cause, count in one.failures.items():
                causes[cause] += count
                kinds[_KIND_OF[cause]] += count
        total = sum(causes.values())
        worst = sorted(self.nodes.items(), key=lambda item: (-len(item[1]), item[0]))
        saved_gpu_h = sum(one.saved_gpu_h for one in self.runs)
        return ClusterReport(
            runs=tuple(
                RunLine(
                    run=one.run, name=one.name, state=one.state, whole_s=one.whole_s, ettr=one.ettr, gpu_h=one.gpu_h,
                    failures=sum(one.failures.values()),
                )
                for one in self.runs
            ),
            unreadable=tuple(self.unreadable), node_s=node_s, gpu_h=sum(one.gpu_h for one in self.runs),
            cost=None if self.price is None else sum(one.cost or 0.0 for one in self.runs),
            node_mtbf_s=node_s / total if total else None,
            causes=tuple(
                CauseTotal(cause=cause, failures=count, node_mtbf_s=node_s / count)
                for cause, count in _most(causes)
            ),
            nodes=tuple(
                NodeFailures(
                    node=node, times=len(why), reasons=tuple(dict.fromkeys(why)), held_s=self.held_s.get(node, 0.0)
                )
                for node, why in worst
            ),
            saved_gpu_h=saved_gpu_h,
            kinds=tuple(KindTotal(kind=k, failures=n, node_mtbf_s=node_s / n) for k, n in _most(kinds)),
            recoveries=sum(one.recoveries for one in self.runs),
            saved_cost=None if self.price is None else saved_gpu_h * self.price,
        )  # fmt: skip


def _most(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def node_failures(records: Iterable[Record]) -> Iterator[tuple[str, str]]:
    """Each time that a node was excluded or lost, and why; a lost node that is then excluded counts once."""
    out: dict[str, str] = {}
    for record in records:
        if record.outcome != "applied" or record.kind == "Snapshot":
            continue
        match record.kind, record.event:
            case (("AgentJoined" | "AgentRejoined" | "NodeHeard"), {"node": str(node)}):
                out.pop(node, None)
            case "NodeLost", {"node": str(node), "why": str(why)} if node not in out:
                out[node] = why
                yield node, why
            case _:
                pass
        changed = record.patch.get("excluded")
        for node, why in (changed if isinstance(changed, dict) else {}).items():
            if isinstance(why, dict) and node not in out:
                out[node] = str(why.get("reason", ""))
                yield node, out[node]

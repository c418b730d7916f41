"""``gangrun health``: what this node's checks read, and what it means. It repairs nothing: an administrator does.

A check that could not look is unknown, and is no failure: a box without GPUs is as healthy as the rest of it.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gangrun.cli.options import json_option
from gangrun.config import environment
from gangrun.display.health_page import as_plain, exit_code, page, reason_of
from gangrun.display.text import clean, echo_json, welcomes_color, width, wrapped
from gangrun.errors import DONE, UserError

if TYPE_CHECKING:
    from gangrun.health.framework.check import CheckVerdict, HealthPolicy
    from gangrun.health.framework.rounds import Surroundings

WAIT_MAX_S = 600.0


@click.command("health")
@click.argument("run", required=False, metavar="[RUN]")
@click.option("--nodes", metavar="LIST", help="Look there instead, through srun: n[1-4],n7.")
@click.option("-p", "--partition", default="", metavar="NAME", help="With --nodes, outside a job: where to queue.")
@click.option("-A", "--account", default="", metavar="NAME", help="With --nodes, outside a job: who is charged.")
@click.option("--gpus", type=click.IntRange(min=0), metavar="N", help="GPUs that must be here (default: Slurm's word).")
@click.option("--ib", "devices", multiple=True, metavar="DEVICE", help="A network device the job uses, as mlx5_0.")
@click.option("--path", "paths", multiple=True, metavar="DIR", help="A directory to write to (default: here and tmp).")
@click.option("--peer", "peers", multiple=True, metavar="HOST", help="A name that must resolve.")
@click.option(
    "--over",
    type=click.FloatRange(0.0, WAIT_MAX_S),
    default=0.0,
    metavar="SECONDS",
    help="Look twice, this far apart: counters are judged by how they grow.",
)
@click.option("--network", is_flag=True, help="Nodes in pairs, twice: which one is slow? Of --nodes, or of this job.")
@click.option("--active", is_flag=True, help="Put devices to work, too: under a minute. Not beside a training.")
@click.option("--deep", is_flag=True, help="The same for minutes, with most of the memory.")
@click.option("-a", "--all", "everything", is_flag=True, help="A row for each check that could not look, too.")
@click.option("-q", "--quiet", is_flag=True, help="Only what is wrong.")
@click.option("--reason", is_flag=True, help="One line of what failed, for Slurm's reason; nothing where nothing did.")
@click.option("--fs-root", default="/", hidden=True, help="Where /sys and /proc are looked for.")
@json_option
def health(
    run: str | None,
    nodes: str | None,
    partition: str,
    account: str,
    network: bool,
    everything: bool,
    quiet: bool,
    reason: bool,
    as_json: bool,
    active: bool,
    deep: bool,
    **asked: object,
) -> int:
    """Whether this node can be trusted: GPUs, network ports, memory, clock, names, file systems.

    With RUN (an id, a name, a job id) the nodes of that run, worst first; with --nodes any nodes of the cluster.
    Exits 0 where nothing failed, 1 where something did, 3 where nothing at all could be measured. What is unknown is
    no failure.
    """
    here = Here(active=active or deep, deep=deep, **asked)  # type: ignore[arg-type]
    variables = environment.all_variables()
    if run is not None and nodes is not None:
        raise UserError("usage", "RUN and --nodes both say where to look", "give one of them")
    if run is not None and network:
        raise UserError(
            "usage", "--network takes nodes that nothing else uses", "give --nodes, or call it inside a job"
        )
    if nodes is None and (partition or account):
        raise UserError("usage", "-p and -A say how to queue for the nodes of --nodes", "name nodes, or leave them out")
    if run is not None or nodes is not None or network:
        return _elsewhere(run, nodes, (partition, account), here, network=network, as_json=as_json)
    from gangrun.launch.node_history import reminder

    verdicts, names = looked(here, variables)
    if reason:
        click.echo(reason_of(verdicts), nl=bool(reason_of(verdicts)))
    elif as_json:
        echo_json(as_plain(verdicts, node_name(variables)))
    else:
        shown = [one for one in verdicts if not quiet or one.severity.value in ("warn", "fail")]
        color = welcomes_color(variables)
        lines = page(shown, verdicts, width(), color=color, everything_told=everything, names=names)
        word = reminder([node_name(variables)]) if exit_code(verdicts) == DONE else ""
        lines += wrapped(word, width(), "", "  ") if word else []
        click.echo("\n".join(lines))
    return exit_code(verdicts)


def node_name(variables: Mapping[str, str]) -> str:
    """As Slurm calls this host, which need not be what it calls itself."""
    from gangrun.node.processes import host_name

    return variables.get("SLURMD_NODENAME") or host_name()


def _elsewhere(
    run: str | None, nodes: str | None, queueing: tuple[str, str], here: Here, *, network: bool, as_json: bool
) -> int:
    from gangrun.display import health_fold
    from gangrun.display.health_consistency import compared
    from gangrun.launch import health_nodes
    from gangrun.launch.node_history import reminder
    from gangrun.launch.slurm_ask import tools_of
    from gangrun.runs.times import wall_now

    variables = environment.all_variables()
    tools, note, more = tools_of(variables), "", {}
    if run is not None:
        from gangrun.launch.health_run import look as look_at_run

        name, said, note = look_at_run(run, here, tools, wall_now())
        more = {"run": name}
    else:
        where = health_nodes.where_to_ask(nodes, variables, tools, health_nodes.Queueing(*queueing))
        if network:
            from gangrun.launch.health_network import measured

            said, found = measured(where, tools)
            note, more = found.sentence, {"test": "network"}
        else:
            said = health_nodes.ask(where, here, tools)
    said = compared(said)
    if run is None:
        note = "; ".join(filter(None, (note, reminder(one.node for one in said if one.word in ("ok", "warn")))))
    if as_json:
        echo_json(health_fold.as_plain(said, note=note, **more))
    else:
        head = ": ".join(clean(part) for part in (*more.values(), note) if part)
        lines = [*wrapped(head, width(), "", "  "), ""] if head else []
        click.echo("\n".join([*lines, *health_fold.page(said, width(), color=welcomes_color(variables))]))
    return health_fold.exit_code(said)


@dataclass(frozen=True, slots=True)
class Here:
    """What is asked of one node."""

    gpus: int | None = None
    devices: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    peers: tuple[str, ...] = ()
    over: float = 0.0
    fs_root: str = "/"
    active: bool = False
    deep: bool = False


def look(here: Here, variables: dict[str, str]) -> tuple[CheckVerdict, ...]:
    """Every check, and the tests of devices where they are asked for."""
    return looked(here, variables)[0]


def looked(here: Here, variables: dict[str, str]) -> tuple[tuple[CheckVerdict, ...], dict[str, str]]:
    """The same, and what the GPUs are called that were seen."""
    from gangrun.adapters.clock import SystemClock
    from gangrun.config.layers import layered, usual_files
    from gangrun.entry.health_watch import families_of
    from gangrun.health.framework.rounds import Rounds, Surroundings
    from gangrun.health.gpu.devices import named
    from gangrun.launch.health_questions import Asking

    table = layered({}, variables, usual_files())["health"].value
    policy = _policy(here.gpus, here.devices, variables, table.bounds)
    directories = tuple(dict.fromkeys(os.path.abspath(path) for path in here.paths or _usual()))
    around = Surroundings(Path(here.fs_root), Asking(variables), directories, here.peers)
    rounds = Rounds(families_of(frozenset(table.off), table.commands), around, policy, SystemClock())
    verdicts = rounds.look()
    if here.over > 0:
        threading.Event().wait(here.over)
        verdicts = rounds.look()
    names = {place: name for one in rounds.readings() for place, name in named(one).items()}
    return verdicts + (_at_work(here, around, policy) if here.active else ()), names


def _at_work(here: Here, around: Surroundings, policy: HealthPolicy) -> tuple[CheckVerdict, ...]:
    """Devices at work, beside the best that they have shown here."""
    from gangrun.adapters.clock import SystemClock
    from gangrun.health.active.devices import DEEP_FAMILY, FAMILY
    from gangrun.health.gpu import dcgm
    from gangrun.launch.health_work import measured

    families = (DEEP_FAMILY, dcgm.DEEP_TEST_FAMILY) if here.deep else (FAMILY, dcgm.TEST_FAMILY)
    node = node_name(environment.all_variables())
    verdicts, why_not = measured(families, around, policy, node, SystemClock())
    if why_not:
        click.echo(f"gangrun: {clean(why_not)}: the next look has nothing to compare with", err=True)
    return verdicts


def _policy(
    gpus: int | None, devices: tuple[str, ...], variables: Mapping[str, str], bounds: Mapping[str, Any]
) -> HealthPolicy:
    from gangrun.health.framework.check import HealthPolicy

    if gpus is None:
        said = variables.get("SLURM_GPUS_ON_NODE", "")
        gpus = int(said) if said.isascii() and said.isdigit() and len(said) < 5 else None
    for device in devices:
        if not device or "/" in device:
            raise UserError("usage", f"--ib: {device!r} names no device", "as in /sys/class/infiniband: mlx5_0")
    asked = {"gpus_count": gpus, "ib_devices": devices}
    return HealthPolicy(**{**bounds, **{name: value for name, value in asked.items() if value not in (None, ())}})


def _usual() -> tuple[str, ...]:
    try:
        here = os.getcwd()
    except OSError:
        return (tempfile.gettempdir(),)
    return (here, tempfile.gettempdir())

"""``gangrun health``: what this node's checks read, and what it means. It repairs nothing: an administrator does.

A check that could not look is unknown, and is no failure: a box without GPUs is as healthy as the rest of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from gangrun.cli.options import file_names, json_option, run_argument
from gangrun.config import environment
from gangrun.errors import DONE, UserError

if TYPE_CHECKING:
    from gangrun.launch.health_here import HealthQuery

WAIT_MAX_S = 600.0


@click.command("health")
@run_argument
@click.option("--nodes", metavar="LIST", help="Nodes to check through srun instead of this one: n[1-4],n7.")
@click.option("-p", "--partition", default="", metavar="NAME", help="Partition to queue in, for --nodes outside a job.")
@click.option("-A", "--account", default="", metavar="NAME", help="Account to charge, for --nodes outside a job.")
@click.option(
    "--gpus", type=click.IntRange(min=0), metavar="N", help="GPUs that the node must have (default: as Slurm says)."
)
@click.option(
    "--ib",
    "devices",
    multiple=True,
    metavar="DEVICE",
    help="Network device that the job uses: mlx5_0. May be repeated.",
)
@click.option(
    "--path",
    "paths",
    multiple=True,
    metavar="DIR",
    shell_complete=file_names,
    help="Directory to write to (default: this one and the temporary one).",
)
@click.option("--peer", "peers", multiple=True, metavar="HOST", help="Host name that must resolve.")
@click.option(
    "--over",
    type=click.FloatRange(0.0, WAIT_MAX_S),
    default=0.0,
    metavar="SECONDS",
    help="Check twice, SECONDS apart, to see how error counters grow.",
)
@click.option(
    "--network",
    is_flag=True,
    help="Measure the network between pairs of --nodes or of this job's nodes; name slow nodes.",
)
@click.option("--active", is_flag=True, help="Run short device tests, under a minute. Do not use while ranks train.")
@click.option("--deep", is_flag=True, help="Run device tests for some minutes, on most of the memory.")
@click.option(
    "--schedule",
    is_flag=False,
    flag_value="",
    metavar="[HH:MM]",
    help="Print lines for crontab and scrontab that test devices and pairs every day.",
)
@click.option("-a", "--all", "everything", is_flag=True, help="Also show the checks that could not be measured.")
@click.option("-q", "--quiet", is_flag=True, help="Show only warnings and failures.")
@click.option(
    "--reason", is_flag=True, help="Print only the failures, on one line, as `scontrol update ... reason=` takes it."
)
@click.option("--fs-root", default="/", hidden=True, help="Directory that holds /sys and /proc.")
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
    schedule: str | None,
    **asked: object,
) -> int:
    """Check this node: GPUs, network ports, memory, clock, host names, file systems.

    With RUN (an id, a name, a job id) gangrun checks the nodes of that run, with --nodes any nodes of the cluster, and
    shows the worst first. Exit codes: 0 no check failed, 1 a check failed, 3 no check could be measured. "unknown"
    means that a check could not be measured; it is not a failure.
    """
    from gangrun.launch.health_here import HealthQuery

    query = HealthQuery(active=active or deep, deep=deep, **asked)  # type: ignore[arg-type]
    if schedule is not None:
        if run is not None or as_json or reason or quiet or everything:
            words = "--schedule prints lines for cron, so it takes neither RUN nor --json, --reason, --quiet or --all"
            raise UserError("usage", words, "leave them out; --nodes names the nodes to test")
        return _scheduled(schedule, nodes, partition, account, query)
    if run is not None and nodes is not None:
        raise UserError("usage", "RUN and --nodes exclude each other: both name nodes to check", "give one of them")
    if run is not None and network:
        hint = "give --nodes, or run this command inside a Slurm job"
        raise UserError(
            "usage", "--network and RUN exclude each other: the test needs nodes on which nothing runs", hint
        )
    if nodes is None and (partition or account):
        raise UserError(
            "usage", "-p and -A need --nodes: they choose how to queue for those nodes", "name nodes, or leave both out"
        )
    if run is not None or nodes is not None or network:
        queueing = (("partition", partition), ("account", account))
        options = tuple(f"--{name}={value}" for name, value in queueing if value)
        return _elsewhere(run, nodes, options, query, network=network, as_json=as_json)
    return _here(query, everything=everything, quiet=quiet, reason=reason, as_json=as_json)


def _scheduled(at: str, nodes: str | None, partition: str, account: str, query: HealthQuery) -> int:
    import os
    from dataclasses import replace

    from gangrun.display.text import clean
    from gangrun.launch.slurm_ask import tools_of
    from gangrun.launch.slurm_health_nodes import DailyTest, scheduled

    variables = environment.all_variables()
    paths = tuple(os.path.abspath(path) for path in query.paths)  # cron begins somewhere else
    test = DailyTest(at, nodes, partition, account, replace(query, active=True, paths=paths))
    lines, without = scheduled(test, variables, tools_of(variables))
    click.echo("\n".join(lines))
    if without:
        click.echo(f"gangrun: {clean(without)}", err=True)
    return DONE


def _here(query: HealthQuery, *, everything: bool, quiet: bool, reason: bool, as_json: bool) -> int:
    from gangrun.display.health_page import as_plain, exit_code, page, reason_of
    from gangrun.display.text import clean, echo_json, welcomes_color, width, wrapped
    from gangrun.launch.health_here import looked, node_name
    from gangrun.launch.node_history import reminder

    variables = environment.all_variables()
    verdicts, names, why_not = looked(query, variables)
    if why_not:
        click.echo(f"gangrun: {clean(why_not)}; the next test has nothing to compare with", err=True)
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


def _elsewhere(
    run: str | None, nodes: str | None, options: tuple[str, ...], query: HealthQuery, *, network: bool, as_json: bool
) -> int:
    from gangrun.display.health_page import compared, nodes_as_plain, nodes_exit_code, nodes_page
    from gangrun.display.text import clean, echo_json, welcomes_color, width, wrapped
    from gangrun.launch.node_history import reminder
    from gangrun.launch.slurm_ask import tools_of
    from gangrun.launch.slurm_health_nodes import ask, look_at_run, where_to_ask
    from gangrun.runs.times import wall_now

    variables = environment.all_variables()
    tools, note, more = tools_of(variables), "", dict[str, str]()
    if run is not None:
        name, said, note = look_at_run(run, query, tools, wall_now())
        more = {"run": name}
    else:
        where = where_to_ask(nodes, variables, tools, options)
        if network:
            from gangrun.launch.slurm_health_network import measured

            said, found = measured(where, tools)
            note, more = found.sentence, {"test": "network"}
        else:
            said = ask(where, query, tools)
    said = compared(said)
    if run is None:
        note = "; ".join(filter(None, (note, reminder(one.node for one in said if one.word in ("ok", "warn")))))
    if as_json:
        echo_json(nodes_as_plain(said, note=note, **more))
    else:
        head = ": ".join(clean(part) for part in (*more.values(), note) if part)
        lines = [*wrapped(head, width(), "", "  "), ""] if head else []
        click.echo("\n".join([*lines, *nodes_page(said, width(), color=welcomes_color(variables))]))
    return nodes_exit_code(said)

"""``gangrun cancel``, ``checkpoint``, ``resume`` and ``wait``: have a run end, save, continue; wait for its end."""

from __future__ import annotations

import click

from gangrun.cli.options import TIME, Typed, asks, json_option, node_names, run_argument, run_names, runs_dir_option
from gangrun.config.parsers import resume_request, whole
from gangrun.display.text import clean, echo_json
from gangrun.errors import DONE, UserError
from gangrun.launch import stop
from gangrun.runs.locate import find
from gangrun.runs.snapshot import read
from gangrun.runs.state import run_state
from gangrun.runs.status import status_of
from gangrun.runs.times import wall_now


@click.command("cancel")
@run_argument
@click.option("--wait/--no-wait", "waits", default=True, help="Wait until all ranks have ended (default).")
@click.option("--now", is_flag=True, help="Kill ranks and cancel running jobs at once; nothing is saved.")
@click.option(
    "--timeout", "timeout_s", type=TIME, help="Stop waiting after TIME (default the run's grace periods plus 30s)."
)
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation, even without RUN.")
@json_option
@runs_dir_option
def cancel(
    run: str | None, waits: bool, now: bool, timeout_s: float | None, yes: bool, as_json: bool, runs_dir: str | None
) -> int:
    """End a run for good: stop all its ranks and cancel its jobs.

    A script that reads `asked.checkpoint` or uses a Checkpointer saves a checkpoint first. Pending jobs of the run
    are cancelled at once. A running job is cancelled when its ranks have ended. `gangrun resume` continues a cancelled
    run. Without RUN the newest run that was started in this directory is meant, or the only one of them that is alive.
    """
    reading = read(find(run, runs_dir, steering=True, ending=True))
    if run is None and not yes:
        named = f"{clean(reading.spec.run)} ({clean(reading.spec.name)})"
        if not asks():
            words = "cancel needs a RUN, because nobody is here to confirm the choice"
            raise UserError("usage", words, f"name the run, or add -y to cancel {named}")
        click.confirm(f"Cancel {named}?", abort=True, err=True)

    def say(sentence: str) -> None:
        if not as_json:
            click.echo(f"gangrun: {clean(sentence)}", err=True)

    last, words = stop.cancel(reading, timeout_s, say, waits=waits, now=now)
    if as_json:
        echo_json(stop.CancelReport(message=words, status=status_of(last, wall_now())))
    else:
        truth = run_state(last, wall_now())
        ended = last.ended or (truth.ended and last.queue is not None)
        click.echo(clean(words) + (f": {truth.state}, {clean(truth.reason)}" if ended else ""))
    return DONE


@click.command("checkpoint")
@run_argument
@click.option("--wait/--no-wait", "waits", default=True, help="Wait until the checkpoint is saved (default).")
@click.option("--timeout", "timeout_s", type=TIME, help="Stop waiting after TIME (default never).")
@json_option
@runs_dir_option
def checkpoint(run: str | None, waits: bool, timeout_s: float | None, as_json: bool, runs_dir: str | None) -> int:
    """Have all ranks save a checkpoint now, and train on.

    For scripts that read `asked.checkpoint` or use a Checkpointer. Without RUN the newest run that was started in this
    directory is meant, or the only one of them that is alive.
    """
    report = stop.save_now(read(find(run, runs_dir, steering=True)), timeout_s, waits=waits)
    if as_json:
        echo_json(report)
    else:
        click.echo(clean(report.message))
    return DONE


@click.command("drain")
@click.argument("run", shell_complete=run_names)
@click.argument("node", shell_complete=node_names)
@click.option("--wait/--no-wait", "waits", default=True, help="Wait until no rank is on the node (default).")
@click.option("--timeout", "timeout_s", type=TIME, help="Stop waiting after TIME (default never).")
@json_option
@runs_dir_option
def drain(run: str, node: str, waits: bool, timeout_s: float | None, as_json: bool, runs_dir: str | None) -> int:
    """Move the ranks of RUN off NODE at the next checkpoint, and give it none any more.

    All ranks are asked to save now; a script that cannot save when asked moves at its next checkpoint. A spare node
    takes the place of NODE, or the run continues with fewer nodes (--min-nodes), or in another job. The node stays
    excluded from this run for a day.
    """
    report = stop.drain(read(find(run, runs_dir, steering=True)), node, timeout_s, waits=waits)
    if as_json:
        echo_json(report)
    else:
        click.echo(clean(report.message))
    return DONE


@click.command("resume")
@run_argument
@click.option(
    "--resume",
    "request",
    type=Typed(resume_request, ("auto", "none")),
    metavar="auto|none|STEP|PATH",
    default="auto",
    help="Checkpoint to resume from (default auto).",
)
@click.option(
    "--max-restarts",
    type=Typed(whole(0)),
    metavar="N",
    help="Restarts allowed from now on (default the run's own limit).",
)
@click.option("-q", "--quiet", is_flag=True, help="Do not show the ranks' output.")
@click.option("--detach", is_flag=True, help="Go on in the background; gangrun attach shows the run.")
@json_option
@runs_dir_option
def resume(
    run: str | None, request: str, max_restarts: int | None, quiet: bool, detach: bool, as_json: bool,
    runs_dir: str | None,
) -> int:  # fmt: skip
    """Continue a run that failed, was cancelled, or lost all its processes.

    The run resumes from its newest valid checkpoint, and its restarts are counted from 0 again. A run that was started
    with `gangrun run` continues here, in the foreground. A run that was submitted gets one more job, without the
    excluded nodes; if a job of it is held, that job is released instead. gangrun refuses to resume a run that is alive
    or has succeeded. Without RUN the newest run that was started in this directory is meant.
    """
    from gangrun.launch.resume import resume as resumed

    return resumed(run, runs_dir, request, max_restarts, quiet=quiet, as_json=as_json, detach=detach)


@click.command("attach")
@run_argument
@click.option("-q", "--quiet", is_flag=True, help="Do not show the ranks' output.")
@runs_dir_option
def attach(run: str | None, quiet: bool, runs_dir: str | None) -> int:
    """Show a run as gangrun run does, until it ends, and exit with its code.

    Decisions, what the first and the last rank print, and the progress. Ctrl-C and a closed terminal leave this view;
    the run goes on.
    """
    from gangrun.config.environment import all_variables
    from gangrun.launch.owner import attached

    return attached(find(run, runs_dir), all_variables(), quiet=quiet)


@click.command("wait")
@run_argument
@click.option("--timeout", "timeout_s", type=TIME, help="Stop waiting after TIME with exit code 3 (default never).")
@json_option
@runs_dir_option
def wait(run: str | None, timeout_s: float | None, as_json: bool, runs_dir: str | None) -> int:
    """Wait until a run has ended, over all its jobs, and exit with its code.

    Exit codes: 0 the run succeeded, 1 it failed, 130 it was cancelled, 3 the outcome is not known. --json prints the
    final status, as `gangrun status --json` does.
    """
    return stop.tell_end(find(run, runs_dir), timeout_s, as_json=as_json)

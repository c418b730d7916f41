"""``gangrun report``: where the time and the money of a run, or of all runs, went."""

from __future__ import annotations

from pathlib import Path

import click

from gangrun.cli.options import Typed, file_names, json_option, run_argument, runs_dir_option
from gangrun.config.parsers import flops, positive_span_s
from gangrun.display.account_page import cluster_page, report_page
from gangrun.display.status_page import look_now
from gangrun.display.text import clean, echo_json, size_words
from gangrun.errors import DONE, UNKNOWN, UserError
from gangrun.runs.locate import entries_of, find
from gangrun.runs.report import ClusterReport, ClusterTotals, Flops, report_of
from gangrun.runs.snapshot import read

FLOPS = Typed(flops, name="flops")


@click.command("report")
@run_argument
@click.option("-a", "--all", "all_runs", is_flag=True, help="Add up all runs: failures by cause and node, time saved.")
@click.option("--window", type=Typed(positive_span_s, name="time"), help="Also show the useful share of the last TIME.")
@click.option("--gpu-hour-price", type=click.FloatRange(min=0), metavar="PRICE", help="Price of a GPU for an hour.")
@click.option("--step-flops", type=FLOPS, help="FLOPs of one step of all ranks, such as 3.5e15; for the MFU.")
@click.option("--gpu-flops", type=FLOPS, help="Peak FLOPs of one GPU in a second, such as 989T; for the MFU.")
@click.option(
    "--html",
    is_flag=False,
    flag_value="",
    metavar="[FILE]",
    shell_complete=file_names,
    help="Write a page with pictures to FILE (default RUN.html).",
)
@json_option
@runs_dir_option
def report(
    run: str | None, all_runs: bool, window: float | None, gpu_hour_price: float | None, step_flops: float | None,
    gpu_flops: float | None, html: str | None, as_json: bool, runs_dir: str | None,
) -> int:  # fmt: skip
    """Show what a run spent its time on: each second of the run and of each node is in one class.

    \b
      gangrun report my-run --gpu-hour-price 3
      gangrun report my-run --window 24h
      gangrun report my-run --step-flops 4.1e18 --gpu-flops 989T
      gangrun report my-run --html               one file with pictures, for a browser
      gangrun report --all                       how often nodes fail, and which
    """  # noqa: D301 - click reads the backspace
    look = look_now()
    _check_html(html, as_json=as_json)
    given = _given_flops(step_flops, gpu_flops)
    if all_runs:
        if run is not None or any(one is not None for one in (window, html, given)):
            words = "--all adds up every run, so it takes neither RUN nor --window nor --html nor --step-flops"
            raise UserError("usage", words, "leave out --all")
        cluster = _all(runs_dir, gpu_hour_price)
        if as_json:
            echo_json(cluster)
        else:
            click.echo("\n".join(cluster_page(cluster, look)))
        return DONE
    reading = read(find(run, runs_dir), timeline=True)
    if reading.state is None:
        words = f"{reading.spec.run} has no journal yet: no supervisor has begun"
        raise UserError("journal", words, f"gangrun status {reading.spec.run} says what it waits for", UNKNOWN)
    found = report_of(reading, window, gpu_hour_price, given)
    if html is not None:
        from gangrun.display.report.page import html_page

        _write(html or f"{reading.spec.run}.html", html_page(reading, found, look))
    elif as_json:
        echo_json(found)
    else:
        click.echo("\n".join(report_page(found, look)))
    return DONE


def _given_flops(step_flops: float | None, gpu_flops: float | None) -> Flops | None:
    if step_flops is None and gpu_flops is None:
        return None
    if step_flops is None or gpu_flops is None:
        there, missing = ("--gpu-flops", "--step-flops") if step_flops is None else ("--step-flops", "--gpu-flops")
        hint = "--step-flops 4.1e18 --gpu-flops 989T: FLOPs of a step of all ranks, and of a GPU in a second"
        raise UserError("usage", f"{there} gives the MFU only together with {missing}", hint)
    return Flops(step_flops, gpu_flops)


def _check_html(html: str | None, *, as_json: bool) -> None:
    if html is None:
        return
    if as_json:
        raise UserError("usage", "--html and --json exclude each other", "ask for one of them")
    if html not in ("", "-") and not html.lower().endswith((".html", ".htm")):  # else it is RUN, most likely
        words = f"--html takes a file whose name ends in .html, not {html}"
        raise UserError("usage", words, f"gangrun report {html} --html writes the report of the run {html}")


def _write(name: str, page: str) -> None:
    if name == "-":
        click.echo(page, nl=False)
        return
    try:
        Path(name).write_text(page, "utf-8")
    except OSError as error:
        words = f"{name} cannot be written: {error.strerror or error}"
        raise UserError("report", words, "name another file: --html FILE") from error
    click.echo(f"wrote {clean(name)} ({size_words(len(page.encode()))}); open it in a browser")


def _all(runs_dir: str | None, price: float | None) -> ClusterReport:
    totals = ClusterTotals(price)
    for entry in entries_of(runs_dir):
        totals.take(entry)
    return totals.report()

"""``report --html``: well-formed, its sums exact, its size bounded, and no word of a run is markup."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from datetime import timezone
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest

from gangrun.core.events import NodeLost, ProgressMarked
from gangrun.core.evidence import ErrorReport
from gangrun.display.report.page import html_page
from gangrun.display.status_page import PageFormat
from gangrun.planning.accounts import TimeUse
from gangrun.runs.history import edges_ms, folded, node_rows, uses_over_time
from gangrun.runs.ledger import account_of, ledger_of
from gangrun.runs.report import Flops, RunReport, report_of
from gangrun.runs.snapshot import RunSnapshot, read
from gangrun.sim.sweep import failing
from tests.command_line import Call, golden
from tests.runs.builder import Builder
from tests.runs.large_run import large
from tests.runs.stories import cancelled, failed, fall, restarted, running, succeeded

VOID = {"meta"}
HOSTILE = "</td></svg><script>alert(1)</script>\"'&amp;<img src=x onerror=alert(2)>{{x}}\x1b[2J\u202e"


class Page(HTMLParser):
    """What is in the file; an element that is not closed where it should be is an error."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[tuple[str, dict[str, str]]] = []
        self.elements: list[tuple[str, dict[str, str], tuple[str, ...]]] = []
        self._words: dict[int, list[str]] = {}  # of each element, all text in it
        self._places: list[int] = []
        self.feed(page)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        assert len(found) == len(attrs), (tag, attrs)
        self.elements.append((tag, found, tuple(name for name, _ in self.open)))
        if tag not in VOID:
            self.open.append((tag, found))
            self._places.append(len(self.elements) - 1)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open[-1][0] == tag, (tag, self.open[-3:])
        self.open.pop()
        self._places.pop()

    def handle_data(self, data: str) -> None:
        for place in self._places:
            self._words.setdefault(place, []).append(data)

    def words(self, place: int) -> str:
        """All text in an element."""
        return "".join(self._words.get(place, ()))

    def named(self, *tags: str) -> list[tuple[int, dict[str, str], tuple[str, ...]]]:
        """Where these elements are."""
        return [(k, attrs, within) for k, (tag, attrs, within) in enumerate(self.elements) if tag in tags]


def test_mfu_stands_among_the_key_figures(runs) -> None:
    reading = read(restarted(runs).paths, timeline=True)
    report = report_of(reading, 3600.0, None, Flops(1e14, 2.5e13))
    mfu = report.mfu
    assert mfu is not None
    page = html_page(reading, report, PageFormat(reading.records[-1].wall + 60, zone=timezone.utc))
    whole, useful, recent = (f"{100 * (x or 0):.1f} %" for x in (mfu.whole, mfu.useful, mfu.window))
    assert f"<dt>MFU</dt><dd>{whole}<small>{useful} of useful time; {recent} of the last 1 h</small></dd>" in page
    assert "MFU" not in drawn(reading)[0]


def drawn(reading: RunSnapshot, price: float | None = None) -> tuple[str, RunReport]:
    report = report_of(reading, None, price)
    now = reading.records[-1].wall + 60
    return html_page(reading, report, PageFormat(now, zone=timezone.utc)), report


def of(story: Builder) -> RunSnapshot:
    return read(story.paths, timeline=True)


def check_structure(page: str) -> Page:
    found = Page(page)
    levels = [int(tag[1]) for tag, _, _ in found.elements if tag in {"h1", "h2", "h3", "h4"}]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels)), levels
    ids = [attrs["id"] for _, attrs, _ in found.elements if "id" in attrs]
    assert len(ids) == len(set(ids))
    for place, attrs, _ in found.named("svg"):
        assert attrs["role"] == "img"
        assert set(attrs["aria-labelledby"].split()) <= set(ids)
        inside = [found.elements[place + 1], next(one for one in found.elements[place + 1 :] if one[0] == "desc")]
        assert [tag for tag, _, _ in inside] == ["title", "desc"]
        assert "NaN" not in found.words(place)
    for place, _, within in found.named("table"):
        assert "div" in within  # one that scrolls, and has a name
        heads = [tag for tag, _, _ in found.elements[place + 1 : place + 6]]
        assert "th" in heads, heads
    assert all(attrs.get("scope") in {"col", "row"} for _, attrs, _ in found.named("th"))
    regions = [attrs for _, attrs, _ in found.named("div") if attrs.get("role") == "region"]
    assert all(attrs["aria-label"] and attrs["tabindex"] == "0" for attrs in regions)
    reaching_out = [
        name for _, attrs, _ in found.elements for name in attrs if name in {"src", "href", "data", "action"}
    ]
    assert not reaching_out
    assert not [name for _, attrs, _ in found.elements for name in attrs if name.startswith("on")]
    style = found.words(found.named("style")[0][0])
    assert "url(" not in style
    assert "@import" not in style
    assert style.count("{") == style.count("}")
    assert len(found.named("script")) == 1
    return found


LIVES: list[Callable[..., Builder]] = [running, succeeded, cancelled, restarted, failed]


@pytest.mark.parametrize("life", LIVES)
def test_each_life_of_a_run_is_a_whole_page(runs: Path, life: Callable[..., Builder]) -> None:
    page, _ = drawn(of(life(runs)), 2.5)
    found = check_structure(page)
    titles = {found.words(place) for place, _, _ in found.named("h2")}
    assert titles == {"Attempts", "Where the time went", "Training", "Nodes", "Recoveries", "Evidence"}


def test_the_page_says_what_failed_with_the_traceback_once(runs: Path) -> None:
    page, _ = drawn(of(failed(runs)))
    assert page.count("RuntimeError: shape mismatch: 3 vs 4\n") == 1
    assert page.count("The same traceback as in attempt") == 1
    assert "restart in place" in page
    assert "n1 (rank 2)" in page


def seconds(text: str) -> int:
    return round(1000 * float(text.replace(",", "")))


def test_the_rows_of_the_time_sum_to_the_whole(runs: Path) -> None:
    page, report = drawn(of(restarted(runs)))
    table = page[page.index('aria-label="table of the time by class"') :].partition("</table>")[0]
    body, _, foot = table.partition("<tfoot>")
    rows = [re.findall(r'<td class="n">([\d,.]+)</td>', row) for row in body.split("<tr>")[2:]]
    of_run, of_nodes = (sum(seconds(row[k]) for row in rows) for k in (0, 1))
    whole = re.findall(r'<td class="n">([\d,.]+)</td>', foot)
    assert [of_run, of_nodes] == [seconds(whole[0]), seconds(whole[1])]
    assert of_run == round(1000 * report.whole_s)


def test_the_band_holds_every_millisecond_once() -> None:
    for seed in range(12):
        world = failing(seed)
        took = world.run()
        assert took.state is not None
        account = account_of(world.checker.records, took.state)
        uses = uses_over_time(account, edges_ms(account, 37))
        totals: Counter[TimeUse] = Counter()
        for times in uses:
            totals.update(times)
        assert dict(totals) == ledger_of(world.checker.records, took.state, wanted_count=2).run_ms


def test_nodes_share_a_row_only_if_they_were_alike(runs: Path) -> None:
    snapshot = large(runs, 60, 6)
    assert snapshot.state is not None
    account = account_of(snapshot.records, snapshot.state)
    rows = node_rows(account, edges_ms(account, 50))
    nodes = [node for row in rows for node in row.nodes]
    assert sorted(nodes) == [f"n{k:04d}" for k in range(60)]
    by_node = {node: row for row in rows for node in row.nodes}
    assert TimeUse.UNUSABLE in by_node["n0000"].cells  # lost with attempt 0
    assert by_node["n0000"].cells[0] is not TimeUse.UNUSABLE
    assert TimeUse.IDLE_SPARE in by_node["n0059"].cells  # a spare, until one was needed
    assert len(by_node["n0030"].nodes) > 40
    shown, rest = folded(rows, 4)
    assert len(shown) == 4
    assert rest is not None
    assert sorted([*rest.nodes, *(node for row in shown for node in row.nodes)]) == sorted(nodes)


def hostile(runs: Path) -> Builder:
    words = HOSTILE
    error = ErrorReport("Error" + words, words, "sig", f"Traceback\n  {words}", False)
    story = Builder(runs, name=words, nodes=("n0", "n<b>1"), job=f"job{words}").supervisor().up()
    story.on(ProgressMarked(0, 31, loss=2.5), 30).on(ProgressMarked(0, 61, loss=1.5), 30)
    story.exit(2, error=error).on(NodeLost("n<b>1", 1.0, words))
    return story


def test_no_word_of_a_run_is_markup(runs: Path) -> None:
    page, _ = drawn(of(hostile(runs)))
    found = check_structure(page)
    assert not found.named("img", "b", "td/")
    assert HOSTILE.partition("\x1b")[0] in found.words(found.named("h1")[0][0])
    assert "\x1b" not in page
    assert "\u202e" not in page
    body = page[page.index("<main>") : page.index("</main>")]
    assert "<script" not in body
    golden("report-hostile.html", body.replace("</section>", "</section>\n"))


@pytest.mark.slow
def test_a_large_run_is_a_small_file(runs: Path) -> None:
    page, report = drawn(large(runs, 2048, 400), 2.5)
    assert len(page.encode()) <= 2_000_000
    assert sum(report.failures.values()) == 400
    found = check_structure(page)
    rows = page[page.index('aria-label="table of recoveries"') :].partition("</table>")[0].count("<tr>")
    assert rows == 402
    assert "400 restarts" in page
    assert len(found.named("polyline")) >= 400  # a curve begins anew with each attempt


def test_curves_that_cannot_be_drawn_are_said(runs: Path) -> None:
    page, _ = drawn(of(succeeded(runs)))
    assert "The journal holds no value, which makes no curve." in page
    story = Builder(runs / "more").supervisor().up()
    for k in range(20):
        story.on(ProgressMarked(0, 30 * (k + 1), loss="NaN" if k == 7 else 3.0 - k / 10), 30)
    page, _ = drawn(of(story))
    assert "makes no curve" not in page
    assert "19 values from 1.1 to 3, the last 1.1." in page


# ---- the command ----


def test_the_file_is_named_after_the_run_or_as_one_likes(
    runs: Path, gangrun: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    story = succeeded(runs)
    monkeypatch.chdir(tmp_path)
    assert f"wrote {story.run}.html" in gangrun("report", story.run, "--html").out
    assert gangrun("report", "--html", "of it.html", story.run).code == 0
    for name in (f"{story.run}.html", "of it.html"):
        check_structure((tmp_path / name).read_text("utf-8"))
    assert gangrun("report", story.run, "--html", "-").out.startswith("<!DOCTYPE html>")


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["--html", "train"], "gangrun report train --html writes the report of the run train"),
        (["--html", "x.html", "--json"], "ask for one of them"),
        (["--html", "x.html", "--all"], "leave out --all"),
        (["--html", "no/such/folder/x.html"], "name another file"),
    ],
)
def test_what_cannot_be_written_is_said(runs: Path, gangrun: Call, words: list[str], hint: str) -> None:
    succeeded(runs)
    said = gangrun("report", *words)
    assert said.code != 0
    assert hint in said.err + said.out
    assert "Traceback" not in said.err


def test_a_failure_is_told_of_where_a_rank_fell(runs: Path) -> None:
    page, _ = drawn(of(fall(restarted(runs))))
    assert "steps lost" in page

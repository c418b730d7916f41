"""``report --html`` as a browser shows it: its accessibility tree, its contrast in light and dark, and its width."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.display.browser import Browser, browser
from tests.display.test_html_report import drawn, hostile, of
from tests.runs.large_run import large

pytestmark = [pytest.mark.processes, pytest.mark.browser]

# Every element with words of its own whose colour stands out too little from what is behind it, with the ratio.
PALE = """
(() => {
  const parts = c => c.match(/[\\d.]+/g).map(Number);
  const light = c => { const [r, g, b] = parts(c).slice(0, 3).map(v => { v /= 255;
    return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4 }); return 0.2126 * r + 0.7152 * g + 0.0722 * b };
  const behind = e => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor;
    if (!/, 0\\)$/.test(c)) return c } return 'rgb(255,255,255)' };
  const pale = [];
  for (const e of document.querySelectorAll('main *')) {
    if (![...e.childNodes].some(n => n.nodeType === 3 && n.data.trim())) continue;
    if (e.closest('title,desc')) continue;
    const style = getComputedStyle(e), on = e.matches('svg .on');
    const ink = e.closest('svg') ? style.fill : style.color;
    const back = on ? getComputedStyle(e.parentElement.querySelector('rect')).fill : behind(e);
    const [a, b] = [light(ink), light(back)].sort((x, y) => y - x), ratio = (a + 0.05) / (b + 0.05);
    if (ratio < 4.5) pale.push(e.tagName + ' ' + e.textContent.slice(0, 30) + ' ' + ratio.toFixed(2));
  }
  return [...new Set(pale)];
})()
"""


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    folder = tmp_path_factory.mktemp("browser")
    page = folder / "report.html"
    page.write_text(drawn(large(folder, 60, 6), 2.5)[0], "utf-8")
    with browser(folder / "profile") as found:
        found.open(page)
        yield found


def tree(shown: Browser) -> list[tuple[str, str, dict[str, Any]]]:
    """Role, name and properties of all that a screen reader meets."""
    nodes = shown.ask("Accessibility.getFullAXTree")["nodes"]
    return [
        (
            str(node.get("role", {}).get("value")),
            str(node.get("name", {}).get("value", "")),
            {one["name"]: one["value"].get("value") for one in node.get("properties", ())},
        )
        for node in nodes
        if not node["ignored"]
    ]


def test_a_screen_reader_meets_headings_named_pictures_and_tables(shown: Browser) -> None:
    met = tree(shown)
    headings = [(told["level"], name) for role, name, told in met if role == "heading"]
    assert headings[:3] == [(1, "train"), (2, "Attempts"), (2, "Where the time went")]
    assert [name for level, name in headings if level == 2][-1] == "Evidence"
    pictures = [name for role, name, _ in met if role in {"image", "img"}]
    assert len(pictures) == 5
    assert all("; " in name or "." in name for name in pictures), pictures  # the title, then what it shows
    assert {"columnheader", "rowheader"} <= {role for role, _, _ in met}
    regions = [name for role, name, _ in met if role == "region"]
    assert len(regions) == len(set(regions)) >= 8
    assert all(regions)
    folded = [told for role, _, told in met if role == "DisclosureTriangle"]
    assert folded
    assert not any(told.get("expanded") for told in folded)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_stand_out_from_what_is_behind_them(shown: Browser, scheme: str) -> None:
    shown.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    back = shown.value_of("getComputedStyle(document.body).backgroundColor")
    assert (back == "rgb(255, 255, 255)") is (scheme == "light")
    assert shown.value_of(PALE) == []
    assert len(shown.picture()) > 20_000  # an empty page has some hundreds of bytes


def test_on_a_phone_only_pictures_and_tables_scroll_sideways(shown: Browser) -> None:
    shown.ask("Emulation.setDeviceMetricsOverride", width=360, height=740, deviceScaleFactor=1, mobile=True)
    wide = shown.value_of("document.documentElement.scrollWidth")
    shown.ask("Emulation.clearDeviceMetricsOverride")
    assert wide <= 360


def test_printing_unfolds_all_and_folds_it_again(shown: Browser) -> None:
    unfolded = "document.querySelectorAll('details[open]').length"
    everything = shown.value_of("document.querySelectorAll('details').length")
    assert shown.value_of(unfolded) == 0
    shown.value_of("dispatchEvent(new Event('beforeprint'))")
    assert shown.value_of(unfolded) == everything > 0
    shown.value_of("dispatchEvent(new Event('afterprint'))")
    assert shown.value_of(unfolded) == 0
    assert shown.complaints == []


def test_no_word_of_a_run_runs(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    page.write_text(drawn(of(hostile(tmp_path / "runs")))[0], "utf-8")
    with browser(tmp_path / "profile") as found:
        found.open(page)
        assert found.complaints == []
        assert found.value_of("document.images.length + document.querySelectorAll('main script').length") == 0
        assert found.value_of("document.querySelector('h1').textContent").startswith("</td></svg><script>alert(1)")

"""``gangrun metrics``: what it prints is read by Prometheus' own parser, and says what status and report say."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gangrun.core.events import NodeLost, ProgressMarked
from gangrun.runs.metrics import METRICS, MetricsReader, Sample, text_of
from tests.command_line import Call
from tests.runs.builder import Builder
from tests.runs.stories import failed, restarted, running
from tests.waiting import until

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
DASHBOARD = DOCS / "grafana-dashboard.json"


def families(text: str) -> dict[str, Any]:
    return {one.name: one for one in text_string_to_metric_families(text)}


def values(text: str) -> dict[tuple[str, ...], float]:
    """(name, labels but for the run) -> value."""
    return {
        (one.name, *(value for key, value in one.labels.items() if key != "run")): one.value
        for family in families(text).values()
        for one in family.samples
    }


def metrics(story: Builder) -> dict[tuple[str, ...], float]:
    return values(MetricsReader(story.paths).text(story.now))


def test_the_figures_are_those_of_status_and_report(runs: Path, gangrun: Call) -> None:
    story = failed(runs)
    found, status = metrics(story), gangrun("status", "train", "--json").json
    report = gangrun("report", "train", "--json").json
    assert found["gangrun_run_state", "FAILED"] == 1
    assert sum(value for key, value in found.items() if key[0] == "gangrun_run_state") == 1
    assert found["gangrun_restarts_total", "rank error"] == status["restarts"] == 1
    (recovery, *_) = status["recoveries"]
    assert found["gangrun_recoveries_total", "restart"] == 1
    assert found["gangrun_recovery_seconds_total", "stopped"] == recovery["parts"]["stopped_s"]
    assert found["gangrun_lost_steps_total",] == recovery["lost_steps"]
    lost = {key[1]: value for key, value in found.items() if key[0] == "gangrun_lost_seconds_total"}
    assert found["gangrun_useful_seconds",] + sum(lost.values()) == pytest.approx(report["whole_s"])
    assert lost["lost"] > 0 and found["gangrun_goodput_ratio",] == pytest.approx(report["ettr"])
    assert found["gangrun_checkpoint_step",] == status["checkpoint"]["step"] == 20
    assert found["gangrun_checkpoint_age_seconds",] == story.now - status["checkpoint"]["seen"]


def test_names_keep_to_prometheus_conventions(runs: Path) -> None:
    story = restarted(runs)
    story.live(step=30, loss=2.5, tokens=100, steps_per_s=2.0, total_steps=100, grad_norm=1.0)
    text = MetricsReader(story.paths).text(story.now)
    for name, (kind, about) in METRICS.items():
        assert re.fullmatch(r"gangrun_[a-z_]+", name) and name.endswith("_total") == (kind == "counter")
        assert not re.search(r"_(ms|minutes|hours|percent|count)(_|$)", name) and about.endswith(".")
    found = families(text)
    assert {f"{name}_total" if one.type == "counter" else name for name, one in found.items()} <= METRICS.keys()
    assert all(one.documentation and one.type in ("gauge", "counter") for one in found.values())
    assert all(sample.labels["run"] == story.run for one in found.values() for sample in one.samples)


def test_gpus_have_figures_if_there_are_any(runs: Path) -> None:
    story = running(runs)
    assert not any("gpus" in name for name, *_ in metrics(story))
    story.live(step=30, gpu={"count": 8, "busy_percent": 90.0, "memory_used_bytes": 40, "memory_bytes": 80})
    found = metrics(story)
    assert (found["gangrun_gpus",], found["gangrun_gpu_busy_ratio",]) == (8, 0.9)
    assert (found["gangrun_gpu_memory_used_ratio",], found["gangrun_gpu_slowed",]) == (0.5, 0)
    assert ("gangrun_gpu_power_watts",) not in found


def test_each_node_is_in_one_state(runs: Path) -> None:
    story = running(runs)
    assert metrics(story)["gangrun_nodes", "training"] == 2
    story.on(NodeLost("n1", story.now - 9.0, "no answer"))
    found = metrics(story)
    assert (found["gangrun_nodes", "away"], found["gangrun_nodes", "training"]) == (1, 1)


def test_hostile_labels_and_odd_numbers_survive_the_parser() -> None:
    name = 'a "quoted"\nname\\ with {braces}, ünïcode'
    samples: list[Sample] = [("gangrun_run_info", {"name": name}, 1), ("gangrun_loss", {}, "NaN")]
    samples.append(("gangrun_step", {}, None))
    found = families(text_of("r", iter(samples)))
    assert found["gangrun_run_info"].samples[0].labels["name"] == name
    assert str(found["gangrun_loss"].samples[0].value) == "nan" and "gangrun_step" not in found
    assert values(text_of("r", iter([("gangrun_loss", {}, float("-inf"))])))["gangrun_loss",] == float("-inf")


def test_a_run_that_nobody_took_up_yet_has_figures(runs: Path) -> None:
    story = Builder(runs)
    assert metrics(story)["gangrun_run_state", "PENDING"] == 1


def test_a_textfile_is_whole_readable_and_newest_at_the_end(runs: Path, gangrun: Call, home: Path) -> None:
    story = failed(runs)
    target = home / "train.prom"
    assert gangrun("metrics", "train", "--textfile", "train.prom", "--every", "1s").code == 0
    assert values(target.read_text())["gangrun_run_state", "FAILED"] == 1
    assert target.stat().st_mode & 0o777 == 0o644 and [path.name for path in home.glob("*.prom*")] == ["train.prom"]
    said = gangrun("metrics", story.run, "--textfile", "no-such-folder/train.prom")
    assert said.code != 0 and "cannot write" in said.err


def has_ipv6() -> bool:
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET6) as ear:
        ear.bind(("::1", 0))
        return True
    return False


def test_an_endpoint_serves_what_is_printed_on_this_host_alone(runs: Path, gangrun: Call) -> None:
    serves(runs / "4", gangrun, [], "127.0.0.1")
    if has_ipv6():
        serves(runs / "6", gangrun, ["--address", "::1"], "[::1]")


def serves(runs: Path, gangrun: Call, words: list[str], host: str) -> None:
    story = running(runs)
    command = [sys.executable, "-m", "gangrun", "metrics", story.run, "--runs-dir", str(runs), "--port", "0", *words]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert server.stderr is not None
    try:
        url = server.stderr.readline().split()[1]
        assert url.startswith(f"http://{host}:")
        with urllib.request.urlopen(url, timeout=30) as answer:
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            assert values(answer.read().decode())["gangrun_run_state", "RUNNING"] == 1
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(url.replace("/metrics", "/secret"), timeout=30)
        story.on(ProgressMarked(0, 4711))

        def newest() -> float:
            with urllib.request.urlopen(url, timeout=30) as answer:
                return values(answer.read().decode())["gangrun_step",]

        until(lambda: newest() == 4711, 60, "what the journal gained is served")
        taken = gangrun("metrics", str(story.paths.root), "--port", url.rpartition(":")[2].partition("/")[0], *words)
        assert taken.code != 0 and f"cannot listen on {host}:" in taken.err
    finally:
        server.send_signal(signal.SIGINT)
        assert "Traceback" not in server.communicate(timeout=60)[1]


@pytest.mark.parametrize("words", [["--every", "5s"], ["--textfile", "a.prom", "--port", "0"]])
def test_options_that_make_no_sense_together(runs: Path, gangrun: Call, words: list[str]) -> None:
    assert gangrun("metrics", *words).code == 2


def panels() -> list[dict[str, Any]]:
    found = json.loads(DASHBOARD.read_text("utf-8"))["panels"]
    assert isinstance(found, list)
    return found


def test_the_dashboard_asks_only_for_figures_and_labels_that_there_are(runs: Path) -> None:
    story = restarted(runs)
    story.live(step=30, loss=2.5, tokens=100, steps_per_s=2.0, total_steps=100, grad_norm=1.0)
    printed = families(MetricsReader(story.paths).text(story.now))
    labels = {sample.name: sample.labels.keys() for one in printed.values() for sample in one.samples}
    asked = [(target["expr"], target["legendFormat"]) for panel in panels() for target in panel["targets"]]
    for expr, legend in [*asked, ("gangrun_run_info", "{{run}}")]:
        (name,) = re.findall(r"gangrun_\w+", expr)
        assert name in METRICS
        assert name in labels or name == "gangrun_failed_notifications_total"
        assert {*re.findall(r"{{(\w+)}}", legend)} <= labels.get(name, {"run"}), (name, legend)
    assert "label_values(gangrun_run_info, run)" in DASHBOARD.read_text("utf-8")


def test_the_dashboard_has_the_shape_that_grafana_imports() -> None:
    board = json.loads(DASHBOARD.read_text("utf-8"))
    assert board["uid"] and board["title"] and isinstance(board["schemaVersion"], int) and "id" not in board
    assert [one["name"] for one in board["templating"]["list"]] == ["datasource", "run"]
    assert {panel["type"] for panel in panels()} <= {"stat", "gauge", "timeseries", "bargauge"}
    assert len({panel["id"] for panel in panels()}) == len(panels())
    cells: set[tuple[int, int]] = set()
    for panel in panels():
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        mine = {(x, y) for x in range(place["x"], place["x"] + place["w"])
                for y in range(place["y"], place["y"] + place["h"])}  # fmt: skip
        assert not cells & mine, panel["title"]
        cells |= mine
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}


def unlike(ours: Any, theirs: Any, place: str = "") -> Iterator[str]:
    """What of ours is missing or different there."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for name, value in ours.items():
            if name in theirs:
                yield from unlike(value, theirs[name], f"{place}.{name}")
            else:
                yield f"{place}.{name} is no word of Grafana's"
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for k, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            yield from unlike(one, other, f"{place}[{k}]")
    elif ours != theirs:
        yield f"{place} is {ours!r}, and Grafana reads {theirs!r}"


if sys.version_info >= (3, 11):  # Grafana's model needs that; an older Python has no such test, so none that is skipped

    def test_the_dashboard_says_nothing_that_grafana_s_own_model_does_not_know() -> None:
        from grafana_foundation_sdk.cog import plugins
        from grafana_foundation_sdk.cog.encoder import JSONEncoder
        from grafana_foundation_sdk.models import dashboard, prometheus

        plugins.register_default_plugins()  # the options of each kind of panel, the queries of each kind of source
        ours = json.loads(DASHBOARD.read_text("utf-8"))
        read = dashboard.Dashboard.from_json(ours)
        theirs = json.loads(json.dumps(read, cls=JSONEncoder))
        assert not list(unlike(ours, theirs))
        for panel in read.panels or ():
            assert not isinstance(panel.options, dict), f"{panel.title}: Grafana knows no panel {panel.type_val}"
            assert all(isinstance(one, prometheus.Dataquery) for one in panel.targets)
        wrong = json.loads(json.dumps(ours))
        wrong["panels"][0]["options"]["colourMode"] = "value"
        wrong["refersh"] = "30s"
        read_anew = json.loads(json.dumps(dashboard.Dashboard.from_json(wrong), cls=JSONEncoder))
        assert [one.partition(" ")[0] for one in unlike(wrong, read_anew)] == [
            ".panels[0].options.colourMode",
            ".refersh",
        ]


def test_the_page_about_it_names_every_figure() -> None:
    page = (DOCS / "telling.md").read_text("utf-8")
    rows = re.findall(r"^\| `(gangrun_\w+)` \| (\w+) \| [^|]* \| ([^|]+) \|$", page, re.MULTILINE)
    assert [(name, kind, about) for name, kind, about in rows] == [
        (name, kind, about) for name, (kind, about) in METRICS.items()
    ]

"""Many nodes on one page, what srun brings from them, and the meetings that they tell of."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from gangrun.adapters.net.interface import LOOPBACK, addresses, towards, unanswered
from gangrun.adapters.slurm.commands import Answer, Tools
from gangrun.adapters.slurm.step import Heard, Where, lines_of, on_each, once_argv
from gangrun.cli.main import main
from gangrun.core.events import FindingRaised
from gangrun.core.evidence import NodeFinding
from gangrun.core.nodes.meetings import Meeting
from gangrun.display.health_page import NodeReport, compared, nodes_as_plain, nodes_exit_code, nodes_page
from gangrun.errors import UserError
from gangrun.launch.health_here import HealthQuery
from gangrun.launch.slurm_health_network import gathered
from gangrun.launch.slurm_health_nodes import ask, merged, recorded, said_by, where_to_ask, words_of
from gangrun.runs.snapshot import read
from tests.runs.builder import Builder

LOST = ("fail", "gpu_lost", "gpu 3 is lost: it fell off the bus")
CLOCK = ("warn", "host_clock", "the clock is set by nobody")


def test_the_worst_comes_first_and_equal_ones_are_folded() -> None:
    nodes = [NodeReport(f"n{k}", (CLOCK,), ("ok", "warn")) for k in range(1, 9)]
    nodes[4] = NodeReport("n5", (CLOCK, LOST), ("ok", "warn", "fail"))
    nodes[6] = NodeReport("n7", silent="Slurm cannot start anything there: \x1b[2Jevil")
    nodes[7] = NodeReport("n8", excluded="its GPU fell off the bus", verdicts=("ok",))
    lines = nodes_page(nodes, 100, color=False)
    heads = [line for line in lines if line and not line.startswith(" ")]
    assert heads == [
        "excluded n8",
        "fail     n5",
        "warn     n[1-4,6]  (5 nodes)",
        "unknown  n7",
        "8 nodes: 1 excluded, 1 fail, 5 warn, 1 unknown",
    ]
    assert "         n1: warn  the clock is set by nobody (host_clock)" in lines
    assert lines.index("         fail  gpu 3 is lost: it fell off the bus (gpu_lost)") < lines.index(heads[2])
    assert all(line.isprintable() and len(line) <= 100 for line in lines)
    assert nodes_page([NodeReport("n1", tuple(LOST for _ in range(9)))], 100, color=False)[-3].endswith(
        "and 3 more: gangrun health --json"
    )
    assert [one["verdict"] for one in nodes_as_plain(nodes)["nodes"]][4:8] == ["fail", "warn", "unknown", "excluded"]


@pytest.mark.parametrize(
    ("nodes", "code"),
    [
        ([NodeReport("a", verdicts=("ok",)), NodeReport("b", (CLOCK,))], 0),
        ([NodeReport("a", verdicts=("ok",)), NodeReport("b", (LOST,)), NodeReport("c", silent="x")], 1),
        ([NodeReport("a", verdicts=("ok",)), NodeReport("c", silent="x")], 3),
        ([], 3),
    ],
)
def test_exit_codes(nodes: list[NodeReport], code: int) -> None:
    assert nodes_exit_code(nodes) == code


def test_lines_that_srun_broke_are_whole_again() -> None:
    long = {str(task): json.dumps({"node": f"n{task}", "x": str(task) * 3000}) for task in range(2)}
    pieces = [f"{task}: {text[k : k + 1024]}" for k in range(0, 4000, 1024) for task, text in long.items() if text[k:]]
    out = "\n".join(["srun: job 7 queued", "0: a greeting", *pieces, " 1: last", ""])
    assert set(lines_of(out)) == {*long.values(), "a greeting", "last"}


def test_a_step_beside_others_or_a_job_of_its_own() -> None:
    inside = once_argv(Where(("n1", "n2"), "77"), ["true"], 90.0)
    assert inside[:3] == ["srun", "--jobid=77", "--overlap"]
    outside = once_argv(Where(("n1", "n3"), "", ("--partition=gpu",)), ["true"], 90.0)
    assert {"--immediate=60", "--partition=gpu", "--nodelist=n[1,3]", "--time=3"} <= set(outside)
    assert not {"--overlap", "--jobid=77"} & set(outside)
    asked = HealthQuery(gpus=8, devices=("mlx5_0",), paths=("/a b",), peers=("n1",), over=2.0, active=True)
    assert words_of(asked) == ["--gpus", "8", "--active", "--ib=mlx5_0", "--path=/a b", "--peer=n1", "--over=2"]


def test_what_nodes_say_is_read_with_care() -> None:
    check = {"check": "gpu_lost", "verdict": "fail", "words": "gone"}
    lines = (
        "welcome to n1",
        json.dumps({"node": "n1", "checks": [check, {"verdict": "ok"}, 7, {"verdict": "odd"}]}),
        json.dumps({"node": 3}),
        json.dumps({"node": "n3", "error": {"message": "no such thing"}}),
        json.dumps(["n2"]),
    )
    said = said_by(Heard(lines, {"n2": "it is cut off"}, "it said nothing"), ("n1", "n2", "n3", "n4"))
    assert [one.word for one in said] == ["fail", "unknown", "unknown", "unknown"]
    assert [one.silent for one in said] == ["", "it is cut off", "no such thing", "it said nothing"]
    assert said[0].verdicts == ("fail", "ok")


def test_what_should_be_the_same_everywhere_is_compared_and_fails_nobody() -> None:
    def node(name: str, driver: object, **more: str) -> str:
        checks = [
            {"check": "gpu_driver", "verdict": "ok", "alike": {"GPU driver": driver}},
            {"check": "ib_firmware", "verdict": "ok", "alike": more},
        ]
        return json.dumps({"node": name, "checks": [*checks, {"verdict": "ok", "alike": 7}, {"verdict": "ok"}]})

    names = ("n1", "n2", "n3", "n4")
    lines = [node("n1", "570.1"), node("n2", "550.9", b="1"), node("n3", "570.1", b="2"), "{}"]
    said = compared(said_by(Heard(tuple(lines), {}, "it said nothing"), names))
    assert said[0].wrong == ()
    assert said[1].wrong == (
        ("warn", "gpu_driver", "its GPU driver is 550.9, and that of n[1,3] is 570.1"),
        ("warn", "ib_firmware", "its b is 1, and that of n3 is 2"),
    ), "of two that differ, the older one"
    assert [one.word for one in said] == ["ok", "warn", "ok", "unknown"]
    assert (nodes_exit_code(said), nodes_exit_code(said[:3])) == (3, 0)


class NoSlurm:
    def run(self, words: Any, within_s: float) -> Any:
        return Answer(127, err="there is no sinfo on this host")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("n[1", "a bracket is not closed"),
        ("", "names no node"),
        (None, "which nodes? This is no Slurm job"),
        ("n1", "Slurm cannot be asked: there is no sinfo on this host"),
    ],
)
def test_nodes_that_cannot_be_asked_are_refused_in_words(text: str | None, words: str) -> None:
    with pytest.raises(UserError) as refused:
        where_to_ask(text, {}, NoSlurm())  # type: ignore[arg-type]
    assert words in refused.value.message
    assert refused.value.hint


@pytest.mark.parametrize("words", [["run", "--nodes", "n1"], ["-p", "gpu"], ["run", "--network"]], ids=" ".join)
def test_what_contradicts_itself_is_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["health", *words])
    assert ended.value.code == 2


def test_both_sides_of_a_meeting_are_heard() -> None:
    rounds = ((("n1", "n2"), ("n3", "n4")), (("n2", "n3"),))
    said = [
        {"round": 0, "pair": ["n1", "n2"], "node": "n1", "bytes_per_s": 5e9, "latency_s": 1e-5},
        {"round": 0, "pair": ["n1", "n2"], "node": "n2", "bytes_per_s": 4e9, "latency_s": 2e-5},
        {"round": 0, "pair": ["n3", "n4"], "node": "n3", "error": "timed out"},
        {"round": 1, "pair": ["n2", "n3"], "node": "n2", "bytes_per_s": float("nan"), "latency_s": 1},
        {"round": 1, "pair": "n2"},
        [],
    ]
    heard = Heard((*map(json.dumps, said), "noise"), {"n4": "killed"}, "it said nothing")
    assert gathered(rounds, heard) == [
        Meeting(("n1", "n2"), 4e9, 2e-5),
        Meeting(("n3", "n4"), error="failed (timed out)"),
        Meeting(("n2", "n3"), error="failed (it said nothing)"),
    ]


def test_a_host_that_answers_is_told_from_one_that_does_not() -> None:
    with socket.create_server(("127.0.0.1", 0)) as door:
        port = door.getsockname()[1]
        assert unanswered("127.0.0.1", port, 5.0) == ""
    assert unanswered("127.0.0.1", port, 5.0) == "", "refused is an answer"
    assert unanswered("no.such.host.invalid", 1, 2.0).startswith("no.such.host.invalid does not answer: ")


def test_of_a_run_its_journal_tells_what_was_found(tmp_path: Any) -> None:
    built = Builder(tmp_path).supervisor().up()
    built.on(FindingRaised(NodeFinding("n0", "gpu_ecc", False, "one error", 1.0)))
    built.on(FindingRaised(NodeFinding("n0", "gpu_ecc", False, "two errors", 2.0)))
    reading = read(built.paths, timeline=True)
    nodes = {one.node: one for one in recorded(reading, built.now)}
    assert nodes["n0"].wrong == (("warn", "gpu_ecc", "two errors"),)
    now = NodeReport("n0", (("fail", "gpu_lost", "gone"),), ("fail",))
    [both] = [one for one in merged(list(nodes.values()), [now]) if one.node == "n0"]
    assert [check for _, check, _ in both.wrong] == ["gpu_lost", "gpu_ecc"]
    assert both.wrong[1][2] == "earlier: two errors"
    [silent] = merged([nodes["n0"]], [NodeReport("n0", silent="cut off")])
    assert (silent.silent, silent.word) == ("cut off", "warn")
    assert [one.wrong for one in recorded(reading, built.now + 1e6) if one.node == "n0"] == [()]


SRUN = """#!/bin/bash
echo "$@" >> {folder}/calls
case "$*" in
*n9*) echo "srun: error: Unable to allocate resources: Requested nodes are busy" >&2; exit 1;;
*"n[1-3]"*)
  echo "srun: error: Task launch for StepId=7.1 failed on node n2: Communication connection failure" >&2; exit 1;;
*) echo '0: {{"node": "n1", "checks": []}}'; echo "srun: error: n3: task 1: Killed" >&2; exit 137;;
esac
"""


@pytest.mark.serial
def test_where_one_node_cannot_be_reached_the_others_are_asked(tmp_path: Path) -> None:
    (tmp_path / "srun").write_text(SRUN.format(folder=tmp_path))
    (tmp_path / "srun").chmod(0o755)
    tools = Tools({"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_ID": "7"})
    heard = on_each(tools, Where(("n1", "n2", "n3"), "7"), ["gangrun"], 5.0)
    said = {one.node: one for one in said_by(heard, ("n1", "n2", "n3"))}
    assert said["n1"].silent == ""
    assert said["n2"].silent == "Slurm cannot start anything there: Communication connection failure"
    assert said["n3"].silent == "the command there: Killed"
    assert ["--nodelist=n[1,3]" in line for line in (tmp_path / "calls").read_text().splitlines()] == [False, True]
    with pytest.raises(UserError) as refused:
        ask(Where(("n9",), ""), HealthQuery(), tools)
    assert refused.value.message == "no node was asked: Unable to allocate resources: Requested nodes are busy"
    assert "gangrun health RUN" in refused.value.hint
    with pytest.raises(UserError, match="there is no srun on this host"):
        ask(Where(("n1",), "7"), HealthQuery(), Tools({"PATH": "/not/there"}))


def test_a_run_is_looked_at_by_its_path(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    built = Builder(tmp_path).supervisor().up()
    built.on(FindingRaised(NodeFinding("n1", "gpu_ecc_corrected", False, "gpu 0 corrected 999 errors", 1.0)))
    with pytest.raises(SystemExit) as ended:
        main(["health", str(built.paths.root), "--json"])
    told = json.loads(capsys.readouterr().out)
    assert (ended.value.code, told["exit_code"], told["run"]) == (0, 0, built.run)
    assert {one["node"] for one in told["nodes"]} == {"n0", "n1"}
    assert "the run's journal holds" in told["note"]


def test_the_address_by_which_others_reach_this_host_is_among_its_own() -> None:
    own = addresses()
    assert LOOPBACK not in own and "::1" not in own
    reached = towards("192.0.2.1")
    assert reached == LOOPBACK or reached in own

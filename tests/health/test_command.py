"""``gangrun health`` as people call it: the table, the sentences, --json, exit codes; on boxes of every kind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gangrun.adapters.fs.known_bad import KnownBadFile
from gangrun.cli.main import main
from gangrun.config.environment import state_home
from gangrun.display.health_page import as_plain, exit_code, page
from gangrun.health.catalogue import CHECKS
from gangrun.health.framework.check import (
    FIRST_LOOK,
    CauseClass,
    CheckVerdict,
    Finding,
    FindingEvidence,
    Needs,
    Scope,
    Severity,
    Sticky,
)
from gangrun.launch.node_history import reminder
from gangrun.runs.times import wall_now
from tests.health.looks import write
from tests.health.test_host import HOST
from tests.health.test_infiniband import tree

REPO = Path(__file__).parents[2]


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as ended:
        main(["health", *words])
    return int(ended.value.code or 0), capsys.readouterr().out


@pytest.fixture
def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host of files, without GPU or network ports, whatever this machine has."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SLURM_GPUS_ON_NODE", raising=False)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))  # what it reads of counters is kept there
    write(tmp_path / "root", HOST)
    (tmp_path / "root/sys/bus/pci/devices").mkdir(parents=True)
    return tmp_path / "root"


pytestmark = pytest.mark.processes


def test_a_box_without_gpus_is_judged_by_the_rest(box: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = run(capsys, "--fs-root", str(box))
    assert code == 0, out
    assert "unknown: 31 checks (gpu_count to gpu_slowed): no NVIDIA GPU here" in out
    assert "no InfiniBand or RoCE device here" in out
    assert "host_memory" in out
    assert max(map(len, out.splitlines())) <= 100
    assert not [line for line in out.splitlines() if line.startswith("fail")]


def test_who_left_this_node_out_is_reminded_of_it_where_nothing_fails(
    box: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("SLURMD_NODENAME", "n3")
    known = KnownBadFile(state_home())
    known.add({"n3": "gpu 1 is lost", "n4": "XID 79"}, "old", wall_now())
    _, out = run(capsys, "--fs-root", str(box))
    sentence = "your runs still exclude n3 (n3: gpu 1 is lost); after a repair, run gangrun nodes clear n3"
    assert sentence in " ".join(out.split())
    code, out = run(capsys, "--fs-root", str(box), "--gpus", "8")
    assert (code, "still exclude" in out) == (1, False), "it is not the time to think of that"
    known.clear(["n3"])
    _, out = run(capsys, "--fs-root", str(box))
    assert "still exclude" not in out
    assert reminder(["n1", "n4"]).startswith("your runs still exclude n4 (n4: XID 79)")


def test_json_has_every_check_and_a_schema_number(box: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = run(capsys, "--fs-root", str(box), "--json")
    told = json.loads(out)
    assert (told["schema"], told["exit_code"], code) == (1, 0, 0)
    assert [one["check"] for one in told["checks"]] == [check.name for check in CHECKS]
    keys = {"check", "family", "verdict", "reading", "limit", "words", "took_s", "findings", "alike"}
    assert all(one.keys() == keys for one in told["checks"])


def test_what_failed_is_told_in_a_sentence_and_in_the_exit_code(box: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tree(box, {"mlx5_0": {}, "mlx5_1": {"state": "1: DOWN\n", "phys_state": "2: Polling\n"}})
    code, out = run(capsys, "--fs-root", str(box), "--ib", "mlx5_0", "--ib", "mlx5_1", "-q")
    assert code == 1
    assert "fail  mlx5_1 port 1 is 1: DOWN, not ACTIVE" in " ".join(out.split("\n"))
    assert "unknown:" not in out
    code, out = run(capsys, "--fs-root", str(box), "--gpus", "8", "--json")
    [count] = [one for one in json.loads(out)["checks"] if one["check"] == "gpu_count"]
    assert (code, count["verdict"]) == (1, "fail")
    assert (count["findings"][0]["new"], count["findings"][0]["old"]) == (0, 8)


def test_slurm_says_how_many_gpus_there_are(
    box: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_GPUS_ON_NODE", "4")
    assert run(capsys, "--fs-root", str(box))[0] == 1
    monkeypatch.setenv("SLURM_GPUS_ON_NODE", "h100:4(S:0)")
    assert run(capsys, "--fs-root", str(box))[0] == 0, "what is no number is not understood, and expects nothing"


def test_two_looks_judge_counters(box: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tree(box, {"mlx5_0": {}})
    _, out = run(capsys, "--fs-root", str(box), "--over", "0.05", "--json")
    verdicts = {one["check"]: one["verdict"] for one in json.loads(out)["checks"]}
    assert {verdicts[name] for name in ("ib_flaps", "ib_errors", "host_oom", "host_memory_errors")} == {"ok"}


def test_what_makes_no_sense_is_refused(box: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "--ib", "../../etc")[0] == 2
    assert run(capsys, "--gpus", "-1")[0] == 2


def test_a_path_that_is_not_there_fails(box: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = run(capsys, "--fs-root", str(box), "--path", str(box / "gone"))
    assert (code, "gone: the directory cannot be written: No such file or directory" in " ".join(out.split())) == (
        1,
        True,
    )


def test_nothing_heavy_is_loaded_here_and_little_by_the_child(box: Path) -> None:
    code = (
        "import sys\nfrom gangrun.cli.main import main\ntry:\n    main(['health', *sys.argv[1:]])\n"
        "except SystemExit:\n    pass\n"
        "print('LOADED', sorted({'torch', 'zmq', 'submitit', 'pynvml', 'numpy', 'rich'} & sys.modules.keys()))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(REPO)}
    here = ["--fs-root", str(box)]
    for words, loaded in ((here, ["rich"]), ([*here, "--json"], []), (["--help"], [])):
        done = subprocess.run(
            [sys.executable, "-c", code, *words],
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=True,
        )
        assert f"LOADED {loaded}" in done.stdout, done.stdout + done.stderr


# ---- the page, of values ---------------------------------------------------------------------------------------------


def verdict(severity: Severity, check: str = "gpu_ecc", words: str = "", **more: Any) -> CheckVerdict:
    return CheckVerdict(check, "gpu", severity, "0", "0", words, **more)


def test_exit_codes() -> None:
    ok, warn, fail, unknown = (verdict(one) for one in Severity)
    assert exit_code((ok, unknown)) == 0
    assert exit_code((warn, unknown)) == 0
    assert exit_code((ok, fail, unknown)) == 1
    assert exit_code((unknown, unknown)) == 3


def test_foreign_words_move_no_cursor() -> None:
    evil = "NVML \x1b[2J\r\nfail  forged"
    finding = Finding(
        "gpu_lost", Scope.GPU, "gpu 0", Severity.FAIL, CauseClass.HARDWARE, Needs.REBOOT, Sticky.BOOT,
        FindingEvidence(evil), f"gpu 0 is lost: {evil}",
    )  # fmt: skip
    bad = verdict(Severity.FAIL, "gpu_lost", evil, findings=(finding,))
    lines = page([bad, verdict(Severity.UNKNOWN, words=evil)], (bad,), 100, color=False)
    assert all(line.isprintable() for line in lines)
    assert not any(line.startswith("fail  forged") for line in lines)
    assert "needs a reboot; counts until the node has booted anew" in " ".join(" ".join(lines).split())
    [told] = json.loads(json.dumps(as_plain((bad,), "n1")))["checks"]
    assert told["findings"][0]["sticky"] == "boot"
    page_of_docs = (REPO / "docs" / "health.md").read_text("utf-8")
    assert [key for key in (*told, *told["findings"][0]) if f"`{key}`" not in page_of_docs] == []


def found(place: str, severity: Severity, sentence: str, cause: CauseClass = CauseClass.HARDWARE) -> Finding:
    scope = Scope.GPU if place.startswith("gpu") else Scope.NODE
    return Finding("some", scope, place, severity, cause, Needs.RESET, Sticky.BOOT, FindingEvidence(1), sentence)


def test_the_worst_is_told_first_with_the_names_by_which_cards_are_found() -> None:
    warned = verdict(Severity.WARN, "a", findings=(found("gpu 1 link 4", Severity.WARN, "gpu 1 link 4 is poor"),))
    failed = verdict(Severity.FAIL, "b", findings=(found("gpu 7", Severity.FAIL, "gpu 7 is lost"),))
    names = {"gpu 1": "B200, GPU-1", "gpu 7": "B200, GPU-7", "gpu 3": "B200, GPU-3"}
    lines = page([failed, warned], (failed, warned), 100, color=False, names=names)
    told = "\n".join(lines)
    assert lines.index("gpu 1: B200, GPU-1") < lines.index("gpu 7: B200, GPU-7"), "by number, as people look for them"
    lines = page([warned, failed], (warned, failed), 100, color=False, names=names)
    told = "\n".join(lines)
    assert told.index("gpu 7 is lost") < told.index("gpu 1 link 4 is poor") < told.index("gpu 7: B200, GPU-7")
    assert "gpu 1: B200, GPU-1" in lines
    assert "GPU-3" not in told, "nothing is wrong with it"


@pytest.mark.parametrize(
    ("severity", "cause", "words"),
    [
        (Severity.FAIL, CauseClass.HARDWARE, "no run would use this node"),
        (Severity.FAIL, CauseClass.CONFIG, "a run would use this node last"),
        (Severity.WARN, CauseClass.HARDWARE, "a run would use this node"),
        (Severity.OK, CauseClass.HARDWARE, "a run would use this node"),
        (Severity.UNKNOWN, CauseClass.HARDWARE, "this node could not be checked"),
    ],
)
def test_the_last_line_says_what_a_run_would_make_of_it(severity: Severity, cause: CauseClass, words: str) -> None:
    one = verdict(severity, findings=(found("node", severity, "x", cause),))
    assert page([one], (one,), 100, color=False)[-1].endswith(f"; {words}")


def test_a_gpu_that_asks_to_be_drained_keeps_runs_away() -> None:
    asks = replace(found("gpu 0", Severity.WARN, "x"), check="gpu_recovery")
    one = verdict(Severity.WARN, findings=(asks,))
    assert page([one], (one,), 100, color=False)[-1].endswith("; no run would use this node")


def test_who_did_not_answer_in_time_stands_in_the_last_line() -> None:
    """A driver or a file server that hangs is unknown, and must not be overlooked for that."""
    late = verdict(Severity.UNKNOWN, words="no answer within 15 s")
    told = page([], (late, replace(late, check="b"), verdict(Severity.OK)), 100, color=False)
    assert told[-1] == "3 checks: 1 ok, 2 unknown; no answer in time: gpu; a run would use this node"


def test_reasons_name_the_checks_that_they_are_about() -> None:
    checks = [verdict(Severity.UNKNOWN, name, FIRST_LOOK) for name in ("a", "c", "d", "f")]
    shown = [checks[0], verdict(Severity.OK, "b"), *checks[1:]]
    told = " ".join("\n".join(page(shown, tuple(shown), 200, color=False)).split())
    assert f"unknown: a, c, d, f: {FIRST_LOOK}; --over 30 looks twice" in told, "not a to f: b is well"
    told = " ".join("\n".join(page(checks, tuple(checks), 200, color=False)).split())
    assert f"unknown: 4 checks (a to f): {FIRST_LOOK}" in told


def test_the_table_says_how_long_each_look_took_and_wraps_long_readings() -> None:
    quick = CheckVerdict("a", "host", Severity.OK, "24 of 25", "<= 25", "", took_s=0.0124)
    slow = CheckVerdict(
        "b", "host", Severity.OK, "a reading of more words than one line of it has room for", "", "", took_s=12.34
    )
    lines = page([quick, slow], (quick, slow), 80, color=False)
    assert [line.split() for line in lines[:2]] == [
        ["check", "time", "reading", "limit"], ["ok", "a", "12", "ms", "24", "of", "25", "<=", "25"],
    ]  # fmt: skip
    assert lines[2].split()[:4] == ["ok", "b", "12.3", "s"]
    assert lines[3].strip() == "it has room for"
    assert max(map(len, lines)) <= 80


def test_colours_only_where_they_are_welcome() -> None:
    one = [verdict(Severity.FAIL)]
    assert "\x1b[31mfail" in "\n".join(page(one, tuple(one), 100, color=True))
    assert "\x1b" not in "\n".join(page(one, tuple(one), 100, color=False))

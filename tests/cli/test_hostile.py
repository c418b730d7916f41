"""What others wrote must neither move a terminal nor end in a traceback: names, reasons, logs, journals, pipes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import unicodedata
import zlib
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gangrun.core.events import CancelRequested, NodeLost
from gangrun.core.evidence import ErrorReport
from gangrun.display.text import block, clean, log_line
from tests.command_line import Call, call
from tests.runs.builder import Builder
from tests.runs.stories import failed, running

ESCAPES = "a\x1b[2J\x1b]0;owned\x07b\nnext\r\u202egnol\x9b31m\ud800"
REPO = Path(__file__).parents[2]


def harmless(text: str) -> bool:
    """Nothing but printable characters and line ends."""
    return all(c == "\n" or unicodedata.category(c)[0] != "C" for c in text)


def test_hostile_words_reach_the_terminal_spelled_out(runs: Path, gangrun: Call) -> None:
    words = ESCAPES.replace("\ud800", "")  # no journal can hold half a character
    error = ErrorReport("Error" + words, words, "sig", f"Traceback\n  {words}", False)
    story = Builder(runs, name=words, command=("x", "$(id)\n")).supervisor().up()
    story.exit(2, error=error).on(NodeLost("n0", 1.0, words))
    (story.paths.logs / "0").mkdir()
    (story.paths.logs / "0" / "n0.log").write_bytes(b"[n0:rank0] \x1b[31mred\x1b[0m \x1b[2Jgone\x07 \xff\r\n")
    looks = (
        ["status"],
        ["status", "-a"],
        ["explain", "-a"],
        ["logs"],
        ["logs", "-e"],
        ["wait"],
        ["prune", "--dry-run"],
    )
    for look in looks:
        said = gangrun(*look)
        assert said.code in (0, 2, 3), look
        assert harmless(said.out), look
        assert harmless(said.err), look


@pytest.mark.parametrize("word", [ESCAPES, "", "-", "../../etc", "a" * 5000, "\0", "./" + "\udcff", "*", "ü" * 200])
def test_hostile_names_of_runs(runs: Path, gangrun: Call, word: str) -> None:
    for command in ("status", "explain", "logs", "cancel", "resume", "wait", "checkpoints", "prune"):
        said = gangrun(command, word, *(["-y"] if command == "prune" else []))
        assert said.code == 5, (command, said)
        assert harmless(said.err)
        assert gangrun(command, word, "--json").code in (2, 5)


def test_the_bare_word_shows_the_help(home: Path, gangrun: Call) -> None:
    said = gangrun()
    assert (said.code, said.out) == (2, "")
    assert said.err == gangrun("--help").out


@pytest.mark.parametrize("asked", ["40", "ckpt/step-40", "autp"])
def test_a_resume_point_that_nobody_could_find_is_not_passed_over(home: Path, gangrun: Call, asked: str) -> None:
    (home / "train.py").write_text("")
    for verb in ("run", "submit"):
        said = gangrun(verb, "--resume", asked, "train.py")
        assert said.code == 2
        assert "--checkpoint-dir" in said.err
    assert not list(home.glob("gangrun_runs/*"))


def test_a_command_that_does_not_exist(home: Path, gangrun: Call) -> None:
    said = gangrun("statsu")
    assert said.code == 2
    assert "did you mean gangrun status?" in said.err
    said = gangrun("status", "--nonsense\x1b[2J")
    assert said.code == 2
    assert harmless(said.err)
    assert gangrun("status", "--nonsense", "--json").error["kind"] == "usage"


def test_json_of_the_users_own_command_is_not_ours(home: Path, gangrun: Call) -> None:
    assert gangrun("run", "--nproc-per-node", "2", "missing.py", "--json").out == ""
    assert gangrun("run", "--nproc_per_node", "2", "--json", "missing.py").error["kind"] == "usage"
    assert gangrun("run", "--", "missing.py", "--json").out == ""


def test_colours_of_ranks_stay_where_colours_are_welcome() -> None:
    assert log_line("\x1b[1;31mred\x1b[0m", color=True) == "\x1b[1;31mred\x1b[0m\x1b[0m"
    assert log_line("\x1b[1;31mred\x1b[0m", color=False) == "red"
    assert log_line("\x1b[2Jwiped", color=True) == "\\e[2Jwiped"
    assert log_line("a\tb", color=False) == "a       b"


@given(st.text())
def test_nothing_that_moves_a_cursor_gets_through(text: str) -> None:
    assert clean(text).isprintable()
    assert harmless(block(text))
    assert "\x1b" not in log_line(text, color=False)
    assert clean("plain ü 語") == "plain ü 語"


def test_closed_pipes_and_full_disks_are_no_tracebacks(runs: Path, home: Path) -> None:
    failed(runs)
    here = {**os.environ, "PYTHONPATH": str(REPO)}
    for line, code in (
        ("explain | head -1", 0),
        ("explain --all | true", 0),
        ("--help | true", 0),
        ("explain >&-", 0),
        ("status > /dev/full", 3),
        ("status --json > /dev/full", 3),
        ("logs --errors 2>&- | head -1", 0),
        ("logs nosuch 2>/dev/full", 5),
        ("status nosuch --json > /dev/full", 5),
    ):
        script = f"set -o pipefail; {sys.executable} -m gangrun {line}"
        done = subprocess.run(["bash", "-c", script], cwd=home, env=here, capture_output=True, timeout=300, check=False)
        assert done.returncode == code, (line, done)
        assert b"Traceback" not in done.stderr
        assert b"Exception ignored" not in done.stderr


def test_a_locale_without_the_letters(runs: Path, home: Path) -> None:
    failed(runs, name="größe→語")
    here = {**os.environ, "PYTHONPATH": str(REPO), "PYTHONIOENCODING": "ascii", "LC_ALL": "C"}
    for words in (["status"], ["explain"]):
        done = subprocess.run(
            [sys.executable, "-m", "gangrun", *words], cwd=home, env=here, capture_output=True, timeout=300, check=False
        )
        assert done.returncode == 0, done
        assert b"Traceback" not in done.stderr


def with_crc(body: bytes) -> bytes:
    return b'%s,"crc":"%08x"}\n' % (body, zlib.crc32(body))


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**40), 2**40)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
def test_journals_of_any_shape_end_in_words(data: st.DataObject) -> None:
    """Lines whose checksum holds and whose content is anything: an older bug, another version, an enemy."""
    with tempfile.TemporaryDirectory() as folder:
        story = running(Path(folder)).on(CancelRequested("eve"))
        lines = story.paths.journal(1).read_bytes().splitlines()
        victim = data.draw(st.integers(0, len(lines) - 1))
        record = msgspec.json.decode(lines[victim][: lines[victim].rfind(b',"crc":')] + b"}")
        where = data.draw(st.sampled_from(sorted(record)))
        if isinstance(record[where], dict) and record[where] and data.draw(st.booleans()):
            record[where][data.draw(st.sampled_from(sorted(record[where])))] = data.draw(JSON)
        else:
            record[where] = data.draw(JSON)
        lines[victim] = with_crc(msgspec.json.encode(record)[:-1]).rstrip(b"\n")
        story.paths.journal(1).write_bytes(b"\n".join(lines) + b"\n")
        for words in (["status", "-a"], ["status", story.run], ["explain", story.run, "-a"], ["logs", story.run, "-e"]):
            said = call(*words, "--runs-dir", folder)
            assert said.code in (0, 3), (words, said)
            assert harmless(said.out)
            assert harmless(said.err)
            assert call(*words, "--json", "--runs-dir", folder).json


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(noise=st.binary(max_size=200), at=st.integers(0, 4000))
def test_journals_with_noise_in_them_end_in_words(noise: bytes, at: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        story = running(Path(folder))
        whole = story.paths.journal(1).read_bytes()
        story.paths.journal(1).write_bytes(whole[:at] + noise + whole[at:])
        for words in (["status", story.run], ["explain", story.run, "--all"]):
            assert call(*words, "--runs-dir", folder).code in (0, 3)


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(
    name=st.text(max_size=60),
    live=st.dictionaries(
        st.sampled_from(
            ["step", "log_step", "loss", "warning", "attempt", "total_steps", "steps_per_s", "tokens", "tokens_per_s"]
        ),
        JSON,
    ),
)
def test_any_name_and_any_figures(name: str, live: dict) -> None:
    name = name.encode("utf-8", "replace").decode()
    with tempfile.TemporaryDirectory() as folder:
        story = Builder(Path(folder), name=name).supervisor().up().live(**live)
        for words in (["status", story.run], ["status", "-a"], ["explain", story.run]):
            said = call(*words, "--runs-dir", folder)
            assert said.code == 0, said
            assert harmless(said.out)
        shutil.rmtree(story.paths.terms)
        assert call("status", story.run, "--runs-dir", folder).code == 0


def test_a_slip_on_the_command_line_is_answered_with_the_thing_and_the_way_out(home: Path, gangrun: Call) -> None:
    """None of these starts anything."""
    for words, told in (
        (("run", "--checkpoint-dir"), "see gangrun run --help"),
        (("run", "--env-file", "no", "sh"), "--env-file no: No such file or directory\n"),
        (("run", "--here", "--nproc-per-node", "1", "--debug-rank", "5", "sh"), "this run has only rank 0"),
        (("checkpoints", "nowhere"), "nowhere is neither a directory nor a run"),
        (("checkpoints", "no/where"), "no/where is neither a directory nor a run"),
        (("status", "--nope"), "see gangrun status --help"),
        (("--nope",), "see gangrun --help"),
    ):
        said = gangrun(*words)
        assert said.code and told in said.err, (words, said)

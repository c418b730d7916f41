"""node/sampler.py in a real Python process: where its main thread stands, and since when."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gangrun.agent.ranks.environment import RankFiles
from gangrun.agent.ranks.exits import WatchedRank
from gangrun.agent.ranks.observe import CpuDemand, look_at
from gangrun.core.recovery.standing import Look
from gangrun.node import boot, place_page
from gangrun.node.place_page import PlacePage, now_ns
from gangrun.node.processes import read_proc
from gangrun.wire.messages import RankSample
from tests.waiting import until

pytestmark = pytest.mark.processes

FAKE_TORCH = """
import sys, types
class Group:
    count = 41
    def _get_sequence_number_for_group(self): return self.count
    def _get_backend(self, device): raise RuntimeError("none for this device")
class Mute:
    def _get_sequence_number_for_group(self): raise RuntimeError("does not count")
group = Group()
c10d = sys.modules["torch.distributed.distributed_c10d"] = types.ModuleType("c10d")
c10d._world = types.SimpleNamespace(pg_names={group: "0", Mute(): "1"})
c_level = sys.modules["torch._C._distributed_c10d"] = types.ModuleType("c_level")
c_level._dump_fr_trace_json = lambda: '{"entries": []}'
"""


class Booted:
    """A script under boot.py, and its page as the agent sees it."""

    def __init__(self, folder: Path, text: str, python: tuple[str, ...]) -> None:
        self.page = PlacePage(str(folder / "place"), create=True)
        script = folder / "script.py"
        script.write_text(text)
        self.process = subprocess.Popen(
            [*python, str(script)],
            env={**os.environ, "GANGRUN_AGENT_PID": str(os.getpid()), "GANGRUN_PLACE_PAGE": self.page.path},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        self.first_line = self.process.stdout.readline().strip()
        proc = read_proc(self.process.pid)
        assert proc is not None
        files = RankFiles(**{name: folder / name for name in RankFiles.__slots__})
        slot = None
        self.rank = WatchedRank(0, "n", self.process, proc, slot, files, True, self.page)  # type: ignore[arg-type]

    def look(self) -> Look | None:
        return look_at(self.rank, RankSample(0, -1, 0, 0, 7, 0.0, "S"), CpuDemand(), now_ns())

    def until(self, condition: Callable[[Look], object], what: str) -> Look:
        """The first look that fulfils a condition."""

        def found() -> Look | None:
            look = self.look()
            return look if look is not None and condition(look) else None

        return until(found, 20, lambda: f"{what}: {self.look()}")


@contextmanager
def booted(folder: Path, text: str, *python: str) -> Iterator[Booted]:
    run = Booted(folder, text, python or (sys.executable, boot.__file__))
    try:
        yield run
    finally:
        run.process.kill()
        run.process.communicate()


def test_a_call_that_is_not_left_is_told_exactly_and_a_loop_never_is(tmp_path: Path) -> None:
    script = """
        import os, sys, time
        print(os.environ.get("GANGRUN_PLACE_PAGE"), "torch" in sys.modules, flush=True)
        def waits(): sys.stdin.readline()
        waits()
        for _ in iter(int, 1): time.sleep(0.01)
    """
    lines = "\n".join(line.strip() if "print" in line or "import" in line else line[8:] for line in script.splitlines())
    with booted(tmp_path, lines) as run:
        assert run.first_line == "None False", "children must not write the page, and torch is not imported"
        held = run.until(lambda look: look.exact_since and look.place, "stands in a call")
        assert held.has_exact and held.place.startswith("script.py:4 in waits") and held.counts == ()
        assert held.told_count == 7, "without collectives what it prints counts as motion"
        later = run.until(lambda look: look.at > held.at + 1, "two looks later")
        assert (later.exact_since, later.key) == (held.exact_since, held.key)
        assert run.process.stdin is not None
        run.process.stdin.write("\n")
        run.process.stdin.flush()
        run.until(lambda look: not look.exact_since and look.key != held.key and look.at > later.at + 2, "left it")


def test_collectives_are_counted_and_the_flight_recorder_is_written_when_asked(tmp_path: Path) -> None:
    script = FAKE_TORCH + "print('ready', flush=True)\nsys.stdin.readline()\ngroup.count += 1\nsys.stdin.readline()\n"
    with booted(tmp_path, script) as run:
        before = run.until(lambda look: look.counts, "counts")
        assert [count for _, count in before.counts] == [41] and before.timeout_s == 0 and before.told_count == 0
        assert run.process.stdin is not None
        run.process.stdin.write("\n")
        run.process.stdin.flush()
        after = run.until(lambda look: look.counts != before.counts, "another count")
        assert after.counts[0][1] == 42 and after.counted_at > before.counted_at
        assert not run.page.has_dumped
        run.page.ask_dump()
        until(lambda: run.page.has_dumped, 20, "a dump")
        assert Path(run.page.path + ".dump").read_text() == '[{"entries": []}]'


NCCL_TOO = """
c_level._dump_nccl_trace_json = lambda: b'{"entries": [1]}'
"""


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (FAKE_TORCH + NCCL_TOO, '[{"entries": [1]},{"entries": []}]'),  # CUDA builds keep those of NCCL apart
        (FAKE_TORCH + "c_level._dump_nccl_trace_json = lambda: 1 / 0\n", '[{"entries": []}]'),
    ],
)
def test_the_flight_recorder_of_nccl_and_that_of_gloo_are_both_written(tmp_path: Path, text: str, told: str) -> None:
    with booted(tmp_path, text + "print('ready', flush=True)\nsys.stdin.readline()\n") as run:
        run.page.ask_dump()
        until(lambda: run.page.has_dumped, 20, "a dump")
        assert Path(run.page.path + ".dump").read_text() == told


@pytest.mark.parametrize(
    ("version", "older"),
    [
        ("'2.7.1+cu128'", ["7", "/x/", "mine"]),
        ("'2.6.0a0+git1234'", ["7", "/x/", "mine"]),
        ("'2.8.0'", [None, None, "mine"]),
        ("'2.13.0+cpu'", [None, None, "mine"]),
        ("None", [None, None, "mine"]),
    ],
)
def test_only_an_older_torch_is_told_of_its_flight_recorder_by_the_older_names(
    tmp_path: Path, version: str, older: list[str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "version.py").write_text(f"from typing import Optional\n\n__version__ = {version}\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("TORCH_FR_BUFFER_SIZE", "7")
    monkeypatch.setenv("TORCH_FR_DUMP_TEMP_FILE", "/x/")
    names = ["TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"]
    script = f"import json, os\nprint(json.dumps([os.environ.get(name) for name in {names}]), flush=True)\n"
    with booted(tmp_path, script) as run:
        assert json.loads(run.first_line) == older[:2]
    monkeypatch.setenv(names[1], "mine")
    with booted(tmp_path / "torch", script) as run:
        assert json.loads(run.first_line)[1] == older[2], "what the user set stays"


def test_a_rank_that_ended_has_no_sampler_but_its_forked_child_does_not_end_it(tmp_path: Path) -> None:
    script = """
import os, sys
if os.fork() == 0: sys.exit(0)
os.wait()
print("forked", flush=True)
sys.stdin.readline()
"""
    with booted(tmp_path, script) as run:
        run.until(lambda look: look.exact_since, "the rank still has a sampler")
        assert run.process.stdin is not None
        run.process.stdin.write("\n")
        run.process.stdin.flush()
        until(lambda: run.page.read() is None, 20, "no sampler")


def test_a_script_that_becomes_another_program_has_no_sampler(tmp_path: Path) -> None:
    script = "import os\nprint('now', flush=True)\nos.execvp('sleep', ['sleep', '100'])\n"
    with booted(tmp_path, script) as run:
        until(lambda: run.look() is None, 20, "no sampler")


def test_without_ctypes_the_places_are_sampled(tmp_path: Path) -> None:
    start = (
        "import sys; sys.modules['ctypes'] = None; sys.path.insert(0, sys.argv[1]); import sampler, place_page;"
        "sampler.start(place_page); print('ready', flush=True); sys.stdin.readline()"
    )
    with booted(tmp_path, "", sys.executable, "-c", start, str(Path(place_page.__file__).parent)) as run:
        held = run.until(lambda look: look.place, "the same place at two looks")
        assert not held.has_exact and held.exact_since == 0.0 < held.sampled_since


def test_a_page_of_another_version_is_refused(tmp_path: Path) -> None:
    page = PlacePage(str(tmp_path / "place"), create=True)
    assert page.read() is None, "no sampler has written yet"
    page.words[place_page.W_MAGIC] += 1
    with pytest.raises(ValueError, match="not a page of places of version 1"):
        PlacePage(page.path)
    page.close()


def test_a_record_that_is_being_written_is_not_read(tmp_path: Path) -> None:
    page = PlacePage(str(tmp_path / "place"), create=True)
    page.words[place_page.W_PID] = 1
    page.write(tuple(range(8)), [(5, 6)], b"\xc3\xa4" * 200)
    read = page.read()
    assert read is not None and read[1] == "\xe4" * 128, "cut between characters"
    page.words[place_page.W_SEQ] |= 1
    assert page.read() is None


def share_of_waits(run: Booted) -> float:
    """Over ten looks."""
    first = run.until(lambda look: look.looks[0] > 1, "looks").looks
    last = run.until(lambda look: look.looks[0] >= first[0] + 10, "ten more looks").looks
    return (last[1] - first[1]) / (last[0] - first[0])


USES_CUDA = "cuda = sys.modules['torch.cuda'] = types.ModuleType('cuda')\ncuda._initialized = True\n"
SPIN = "while True: pass"
SLEEP = "while True: time.sleep(60)"


@pytest.mark.parametrize(
    ("file", "body", "before", "waits"),
    [
        ("/x/torch/distributed/distributed_c10d.py", SPIN, "", True),
        ("/x/torch/_ops.py", SLEEP, "", False),  # called by the script itself
        ("/x/torch/autograd/graph.py", SLEEP, "", True),
        ("/x/torch/autograd/graph.py", SPIN, "", False),  # its own backward pass
        ("/x/torch/autograd/graph.py", SLEEP, USES_CUDA, False),
        ("/x/torch/distributed/checkpoint/filesystem.py", SLEEP, "", False),  # it saves
        ("/x/train.py", SLEEP, "", False),
    ],
)  # fmt: skip
def test_only_a_rank_that_waits_for_others_is_counted_as_waiting(
    tmp_path: Path, file: str, body: str, before: str, waits: bool
) -> None:
    code = f"def run():\n    {body}\n"
    script = f"import sys, time, types\n{before}exec(compile({code!r}, {file!r}, 'exec'))\nprint(flush=True)\nrun()\n"
    with booted(tmp_path, script) as run:
        assert share_of_waits(run) == (1.0 if waits else 0.0)

"""What is kept of a rank's last words: the error, its causes, the lines that tell most, and when they were written."""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from gangrun.agent.ranks.environment import RankFiles
from gangrun.agent.ranks.exits import (
    TAIL_LINES_COUNT,
    TAIL_MAX_BYTES,
    LastWords,
    has_shown_error,
    last_words,
    memory_words,
    parse_traceback,
    telling,
)
from gangrun.agent.ranks.observe import memory_bytes
from gangrun.core.evidence import RankExit

WATCHDOG = """\
[rank1]:[E1121 10:00:01.1 ProcessGroupNCCL.cpp:632] [Rank 1] Watchdog caught collective operation timeout: \
WorkNCCL(SeqNum=5, OpType=ALLREDUCE, NumelIn=1048576, NumelOut=1048576, Timeout(ms)=600000) ran for 600029 milliseconds
[rank1]:[E1121 10:00:01.2 ProcessGroupNCCL.cpp:684] [Rank 1] Some NCCL operations have failed or timed out.
[rank1]:[E1121 10:00:01.3 ProcessGroupNCCL.cpp:1896] [PG ID 0 PG GUID 0 Rank 1] Process group watchdog thread \
terminated with exception: CUDA error: an illegal memory access was encountered
terminate called after throwing an instance of 'c10::DistBackendError'
  what():  [PG ID 0 PG GUID 0 Rank 1] Process group watchdog thread terminated with exception: CUDA error
Exception raised from c10_cuda_check_implementation at /pytorch/c10/cuda/CUDAException.cpp:43 (most recent call first):
"""
ESTALE = "OSError: [Errno 116] Stale file handle: '/mnt/data/shard-7'"
CAUSED = f"""\
Traceback (most recent call last):
  File "data.py", line 7, in read
    return open(path).read()
{ESTALE}

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "train.py", line 30, in <module>
    batch = next(loader)
  File "data.py", line 9, in read
    raise RuntimeError("no batch") from error
RuntimeError: no batch
"""


@pytest.fixture
def files(tmp_path: Path) -> RankFiles:
    return RankFiles(**{name: tmp_path / name for name in RankFiles.__slots__})


def words(
    files: RankFiles, lines: Sequence[str], ago_s: float = 1.0, *, boot: bool = False, code: int = 1
) -> LastWords:
    """Lines that came 1 ms apart, the first ``ago_s`` before the end."""
    return said(files, [(100.0 - ago_s + i / 1000, line) for i, line in enumerate(lines)], boot=boot, code=code)


def said(files: RankFiles, stderr: Sequence[tuple[float, str]], *, boot: bool = False, code: int = 1) -> LastWords:
    """Of a rank that ended at 100.0; a negative code is a signal."""
    died = RankExit(0, "n0", code if code >= 0 else None, -code if code < 0 else None, at=100.0)
    return last_words(files, stderr, died, through_boot=boot)


def test_an_error_is_shown_once_its_last_line_came_after_it_was_told(files: RankFiles) -> None:
    """A script may have logged the same line before; torch puts the rank before it."""
    first, last = "Traceback (most recent call last):", "[rank1]: RuntimeError: Connection closed by peer"
    assert not has_shown_error(files, [(99.0, last)]), "nothing was told"
    report = {"traceback": f"{first}\nRuntimeError: Connection closed by peer\n", "written_at": 99.0}
    files.error.write_text(json.dumps(report))
    assert not has_shown_error(files, [(98.9, last), (99.1, first)])
    assert has_shown_error(files, [(99.1, first), (99.1, last)])
    files.error.write_text(json.dumps({**report, "traceback": ""}))
    assert not has_shown_error(files, [(99.1, last)])


def test_a_traceback_has_its_causes_and_what_comes_after_it_does_not_hide_it(files: RankFiles) -> None:
    after = ["/usr/lib/python3/resource_tracker.py:224: UserWarning: 1 leaked semaphore", "W1121 closing"]
    found = words(files, ["before", *CAUSED.splitlines(), *after])
    assert found.error is not None
    assert (found.error.kind, found.error.message, found.error.chain) == ("RuntimeError", "no batch", (ESTALE,))
    assert found.error.traceback == CAUSED.rstrip()
    assert found.tail == ("before", *after), "a traceback is not kept twice"
    assert found.written_at == 99.001


def test_torch_puts_the_rank_before_each_line(files: RankFiles) -> None:
    plain = parse_traceback(CAUSED.splitlines())
    assert plain is not None
    found = words(files, [f"[rank3]: {line}" for line in CAUSED.splitlines()])
    assert found.error == plain and found.tail == ()


def test_a_logger_puts_its_own_words_before_that_and_a_checkpoint_says_which_rank_failed() -> None:
    plain = parse_traceback(CAUSED.splitlines())
    lines = [line.replace("last):", "last): (RANK 0)") for line in CAUSED.splitlines()]
    assert plain is not None
    found = parse_traceback([f"2025-10-31 03:11:02,473 - Trainer - INFO - [rank3]: {line}" for line in lines])
    assert found is not None and (found.kind, found.message) == (plain.kind, plain.message)
    assert found.signature == plain.signature


def test_a_line_of_another_thread_amid_a_traceback_does_not_hide_it() -> None:
    lines = CAUSED.splitlines()
    lines.insert(-3, "WARNING:root:prefetch is slow")
    found = parse_traceback(lines)
    assert found is not None and (found.kind, found.message) == ("RuntimeError", "no batch")


def test_what_ended_nothing_is_no_error(files: RankFiles) -> None:
    ignored = ["Exception ignored in: <function Pool.__del__ at 0x7f>", *CAUSED.splitlines()[:4]]
    assert words(files, ignored).error is None
    both = words(files, [*CAUSED.splitlines(), *ignored]).error
    assert both is not None and both.message == "no batch", "a destructor's comes after the cause"
    handled = words(files, [*CAUSED.splitlines(), "going on"], ago_s=3600.0)
    assert handled == LastWords(), "an hour before the end it was handled"


def test_the_tail_holds_what_matters_however_long_a_backtrace_follows(files: RankFiles) -> None:
    backtrace = [f"/lib/libtorch_{n}.so(+0x{n:x}) [0x7f]" for n in range(200)]
    found = words(files, [*[f"loading shard {n}" for n in range(30)], *WATCHDOG.splitlines(), *backtrace, "Aborted"])
    assert found.error is None
    assert len(found.tail) <= TAIL_LINES_COUNT and sum(map(len, found.tail)) <= TAIL_MAX_BYTES
    assert set(WATCHDOG.splitlines()) <= set(found.tail)
    assert found.tail[-1] == "Aborted"
    assert found.written_at == 99.03, "the first line that tells of the error"


def test_a_progress_bar_tells_nothing_of_when_the_error_was_written(files: RankFiles) -> None:
    assert words(files, [f"{n}%|####  | {n}/100" for n in range(100)]).written_at == 0.0
    stderr = [(50.0, "NCCL WARN something long ago"), (99.0, "loss 1.0"), (99.5, "CUDA error: device-side assert")]
    assert said(files, stderr).written_at == 99.5
    assert said(files, []) == LastWords()


def test_an_error_that_a_victim_handled_does_not_make_it_fall_first(files: RankFiles) -> None:
    """It logged a retry 40 s before its end, and then lost a peer that had failed 1 s before."""
    retried = [(60.0 + i / 1000, line) for i, line in enumerate(CAUSED.splitlines())]
    found = said(files, [*retried, (99.9, "Connection closed by peer [10.0.0.3]:21734")])
    assert found.written_at == 0.0 or found.written_at > 99.0, "its culprit wrote at 99.0"
    warned = [(60.0, "NCCL WARN retrying"), *((60.0 + s, f"step {s}") for s in range(1, 40))]
    assert said(files, warned).written_at == 0.0


def test_lines_are_cut_and_said_once() -> None:
    assert telling(["error A", "", "error B", "error A"]) == ("error B", "error A")
    long = telling(["x" * 10_000, *[f"{n} error " + 500 * "é" for n in range(40)], "the end"])
    assert long[-1] == "the end"
    assert sum(len(line.encode()) for line in long) <= TAIL_MAX_BYTES


def test_the_report_of_the_rank_itself_decides_whatever_crashes_after_it(files: RankFiles) -> None:
    report = {"type": "ValueError", "message": "bad", "traceback": "T\nValueError: bad", "signature": "s",
              "chain": ["KeyError: 'k'"], "written_at": 98.7654}  # fmt: skip
    files.error.write_text(json.dumps(report))
    found = words(files, [*CAUSED.splitlines(), "free(): invalid pointer", "Fatal Python error: Aborted"])
    assert found.error is not None and (found.error.message, found.error.chain) == ("bad", ("KeyError: 'k'",))
    assert found.tail[-2:] == ("free(): invalid pointer", "Fatal Python error: Aborted")
    assert (found.written_at, found.reported) == (98.765, True)
    for nonsense in (None, "soon", 1e9, -1.0):
        files.error.write_text(json.dumps({**report, "written_at": nonsense, "chain": nonsense}))
        found = words(files, ["x"])
        assert found.error is not None and found.error.chain == ()
        assert (found.written_at, found.reported) == (0.0, False)


def test_what_torchs_record_wrote_has_its_causes_too(files: RankFiles) -> None:
    told = {"message": "RuntimeError: no batch", "extraInfo": {"py_callstack": CAUSED, "timestamp": "1"}}
    files.torchelastic_error.write_text(json.dumps({"message": told}))
    found = words(files, [])
    assert found.error is not None and found.error.chain == (ESTALE,)
    assert words(files, [], boot=True).error is None, "the boot file would have reported it too"
    assert words(files, [], code=-9).error is None


BUG = ["Traceback (most recent call last):", '  File "t.py", line 3, in f', "    x()", "RuntimeError: CUDA error: ECC"]


@pytest.mark.parametrize(
    "lines",
    [
        BUG,
        [f"\x1b[31m{line}\x1b[0m" for line in BUG],
        [f"[rank3]: {line}" for line in BUG],
        [f"n1: {line}" for line in BUG],
        [f"2026-11-23 10:00:0{i},12{i} | ERROR | {line}" for i, line in enumerate(BUG)],
        ["Epoch 0:  50%|█████     | 5/10 [00:01<00:01]" + BUG[0], *BUG[1:]],
        ["  + Exception Group " + BUG[0], '  |   File "a.py", line 1, in g', "  | ExceptionGroup: two (1)",
         "  +-+---------------- 1 ----------------", *(f"    | {line}" for line in BUG), "    +------------------"],
        [BUG[0], "", "> " + BUG[1].strip(), "    x()", "    └ <function x at 0x7f>", "", BUG[3]],
        ["╭────── Traceback (most recent call last) ──────╮", "│ t.py:3 in f                            │",
         "│ ❱ 3     x()                            │", "╰────────────────────────╯", BUG[3]],
    ],
    ids=["plain", "colours", "torch", "launcher", "logger", "tqdm", "group", "loguru", "rich"],
)  # fmt: skip
def test_a_traceback_is_found_in_whatever_dress(lines: list[str]) -> None:
    plain, found = parse_traceback(BUG), parse_traceback(["before", *lines, "after"])
    assert found is not None and plain is not None
    assert (found.kind, found.message, found.signature) == (plain.kind, plain.message, plain.signature)


def test_the_error_of_a_data_loaders_worker_stays_in_the_message() -> None:
    inner = ["Original " + BUG[0], *BUG[1:3], "OSError: [Errno 28] No space left on device"]
    lines = [*BUG[:3], "OSError: Caught OSError in DataLoader worker process 3.", *inner]
    found = parse_traceback(lines)
    assert found is not None and found.message.startswith("Caught OSError") and found.message.endswith("on device")


MISSING = "ModuleNotFoundError: No module named 'flash_attn'"
HANDLED = "During handling of the above exception, another exception occurred:"


def test_an_error_that_was_handled_is_no_cause_of_the_next() -> None:
    missing = [*BUG[:3], MISSING, "", HANDLED, ""]
    later = [BUG[0], '  File "t.py", line 5, in f', "    train()", '  File "t.py", line 9, in train', "    raise bad"]
    found = parse_traceback([*missing, *later, "RuntimeError: loss became NaN"])
    assert found is not None and (found.message, found.chain) == ("loss became NaN", ())
    told = [BUG[0], '  File "t.py", line 5, in f', '    raise SetupError("install it")', "SetupError: install it"]
    found = parse_traceback([*missing, *told])
    assert found is not None and found.chain == (MISSING,)


def test_a_traceback_of_a_thread_or_of_a_child_ends_no_rank(files: RankFiles) -> None:
    for head in ("Exception in thread Thread-1 (load):", "Process SpawnProcess-1:"):
        found = words(files, [head, *BUG])
        assert found.error is None and BUG[3] in found.tail, "it is told, since nobody caught it"
        assert words(files, [head, *BUG], code=-9).tail == (head,)


def test_when_a_traceback_on_stderr_tells_of_the_end(files: RankFiles) -> None:
    """Not of a rank that was killed, nor after the script went on. A wrapper may change the code or become a signal."""
    for boot, code, ago_s, counts in [
        (True, 1, 1.0, True), (True, 1, 20.0, False), (True, 3, 1.0, False), (True, -6, 1.0, False),
        (False, 1, 20.0, True), (False, 5, 1.0, True), (False, 5, 20.0, False), (False, 137, 1.0, False),
        (False, -9, 1.0, False), (False, -6, 20.0, True), (False, 134, 20.0, True), (False, 255, 1.0, False),
    ]:  # fmt: skip
        found = words(files, BUG, ago_s, boot=boot, code=code)
        assert (found.error is not None) is counts, (boot, code, ago_s)
        assert found.tail == (), "a survived one is not read as the last words"
    at = [(90.0, line) for line in BUG]
    after = ["[W1121 10:00:01.1 ProcessGroupNCCL.cpp:1496] Warning: WARNING: destroy_process_group() was not called",
             "/usr/lib/python3/resource_tracker.py:224: UserWarning: 1 leaked semaphore", "  warnings.warn(",
             "wandb: Find logs at: ./wandb", "terminate called without an active", "Aborted"]  # fmt: skip
    assert said(files, [*at, *((95.0 + i, line) for i, line in enumerate(after))]).error is not None
    for went_on in ("WARNING:root:retry 2", "step 41 loss 2.0", "Epoch 3:  10%|#   | 1/10"):
        assert said(files, [*at, (95.0, went_on)]).error is None, went_on


LAUNCHED = """[rank1]: Traceback (most recent call last):
[rank1]:   File "train.py", line 3, in <module>
[rank1]:     load(7)
[rank1]: ValueError: no shard 7
W1123 18:00:00.1 12 torch/distributed/elastic/multiprocessing/api.py:1010] Sending process 13 closing signal SIGTERM
E1123 18:00:00.2 12 torch/distributed/elastic/multiprocessing/api.py:984] failed (exitcode: 1) local_rank: 1
Traceback (most recent call last):
  File "/env/bin/torchrun", line 8, in <module>
    sys.exit(main())
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\x20
============================================================
train.py FAILED
"""


def test_behind_a_launcher_the_error_is_its_ranks(files: RankFiles) -> None:
    lost = LAUNCHED.replace("ValueError: no shard 7", "torch.distributed.DistBackendError: NCCL error: remote gone")
    found = words(files, [*lost.splitlines()[:4], *LAUNCHED.splitlines()]).error
    assert found is not None and (found.kind, found.message) == ("ValueError", "no shard 7"), "no victim's"
    alone = words(files, LAUNCHED.splitlines()[4:]).error
    assert alone is not None and alone.kind.endswith("ChildFailedError"), "the rank said nothing"
    files.torchelastic_error.write_text('{"message": {"message": "KeyError: 3", "extraInfo": {"py_callstack": ""}}}')
    written = words(files, LAUNCHED.splitlines()).error
    assert written is not None and (written.kind, written.message) == ("KeyError", "3"), "torchrun's own choice"


@pytest.mark.parametrize("code", [17, -9])
def test_a_traceback_that_a_busy_agent_reads_after_the_end_explains_no_end_that_none_explains(
    files: RankFiles, code: int
) -> None:
    assert words(files, CAUSED.splitlines(), ago_s=-0.1, boot=True, code=code).error is None


@pytest.mark.parametrize(
    ("held", "words"),
    [
        ({}, ""),
        ({1: 12_400_000_000}, "3 s before, rank 1 held 12.4 GB"),
        ({0: 10**9, 1: 12_400_000_000}, "3 s before, rank 1 held 12.4 GB, rank 0 held 1 GB"),
        (
            dict.fromkeys(range(8), 10**9),
            "3 s before, rank 0 held 1 GB, rank 1 held 1 GB, rank 2 held 1 GB, rank 3 held 1 GB, 4 other ranks 4 GB",
        ),
    ],
)
def test_who_held_how_much_memory(held: dict[int, int], words: str) -> None:
    assert memory_words(held, 3.2) == words


def test_the_limit_and_what_standbys_held_are_told_too() -> None:
    told = memory_words({1: 824_000_000}, 3.2, 1_468_006_400, 400_000_000)
    expected = "3 s before, of 1.47 GB allowed, rank 1 held 0.824 GB, standbys held 0.4 GB (--no-warm keeps none)"
    assert told == expected


def test_memory_that_a_process_holds_is_seen() -> None:
    before = memory_bytes(os.getpid())
    with mmap.mmap(-1, 64 << 20) as held:  # the heap may have had as much to spare
        for page in range(0, len(held), mmap.PAGESIZE):
            held[page] = 1
        assert memory_bytes(os.getpid()) > before + len(held) // 2
    assert memory_bytes(2**30) == 0

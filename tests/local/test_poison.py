"""A checkpoint that is whole and yet kills whoever loads it, on one box with real ranks."""

from __future__ import annotations

import json
from pathlib import Path

from tests.local.harness import Box

# Loads what it is told to; a state that is bad, or with EVER any state, breaks it two steps later.
TRAIN = """
import json, os, sys
from pathlib import Path
import gangrun
path, step = gangrun.resume_info()
state = json.loads((Path(path) / "state.json").read_text())
with open("loads.txt", "a") as log:
    log.write(f"{os.environ['GANGRUN_ATTEMPT']} {step}\\n")
for now in range(step + 1, 31):
    gangrun.step(now)
    if now == step + 2 and (state == "bad" or os.environ.get("EVER")):
        raise ValueError(f"the loss is not a number at step {now}")
"""


def put(directory: Path, step: int, state: str) -> None:
    """A checkpoint of a format without checksums, which no framework is needed for."""
    header = json.dumps({"w": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}}).encode()
    save = directory / f"step-{step}"
    save.mkdir(parents=True)
    (save / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    (save / "state.json").write_text(json.dumps(state))


def run(box: Box, **environment: str) -> int:
    put(box.work / "its ckpt", 10, "good")
    put(box.work / "its ckpt", 20, "bad")
    box.start("--checkpoint-dir", box.work / "its ckpt", box.script(TRAIN), environment=environment)
    return box.end()


def loads(box: Box) -> list[str]:
    return (box.work / "loads.txt").read_text().splitlines()


def aside(box: Box) -> list[str]:
    return [path.name for path in (box.work / "its ckpt").glob(".gangrun/set-aside/*/step-*")]


def test_it_is_set_aside_and_the_one_before_it_is_taken(box: Box) -> None:
    assert run(box) == 0, box.told()
    assert loads(box) == ["0 20", "1 20", "2 10"]
    assert aside(box) == ["step-20"] and not (box.work / "its ckpt" / "step-20").exists()
    status = box.status()
    assert [one["outcome"] for one in status["attempts"]] == ["rank error", "poisoned checkpoint", "succeeded"]
    story = box.explain()
    for words in ("step 20 counts as poisoned", "the loss is not a number", "undo with: mv -nT"):
        assert words in story, story


# Trains from nothing and saves every tenth step, in a format without checksums. What the first attempt saves after step
# 30 is spoilt, and that shows two steps after it was loaded; it is killed before it shows.
SAVES = """
import json, os, signal
from pathlib import Path
import gangrun
path, step = gangrun.resume_info() or ("", None)
state = json.loads((Path(path) / "state.json").read_text()) if path else "good"
attempt = int(os.environ["GANGRUN_ATTEMPT"])
with open("loads.txt", "a") as log:
    log.write(f"{attempt} {step}\\n")
begin = step + 1 if path else 0
for now in range(begin, 81):
    gangrun.step(now)
    if state == "bad" and now == begin + 1:
        raise ValueError(f"the loss is not a number at step {now}")
    if now and now % 10 == 0:
        header = json.dumps({"w": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}}).encode()
        new = Path("its ckpt", f"new-{attempt}-{now}")
        new.mkdir(parents=True)
        (new / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
        (new / "state.json").write_text(json.dumps("bad" if attempt == 0 and now > 30 else "good"))
        new.rename(new.with_name(f"step-{now}"))
    if attempt == 0 and now == 55:
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_validator_is_asked_before_the_ranks_start(box: Box) -> None:
    put(box.work / "its ckpt", 10, "good")
    put(box.work / "its ckpt", 20, "good")
    refuse = 'sh -c \'case "$1" in */step-20) echo "$PWD" too hot; exit 1;; esac\' check'
    box.start("--checkpoint-dir", box.work / "its ckpt", "--validator", refuse, box.script(TRAIN))
    assert box.end() == 0, box.told()
    assert loads(box) == ["0 10"] and aside(box) == ["step-20"]
    assert f"the validator refuses it: {box.work} too hot" in box.explain()

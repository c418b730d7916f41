"""A rank that is killed while torch builds native code for it leaves a lock, for which every later start would wait."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.local.harness import Box

BUILDS = """
    import os, signal, time
    from pathlib import Path
    from torch.utils.file_baton import FileBaton
    place = Path("{place}")
    place.mkdir(parents=True, exist_ok=True)
    baton = FileBaton(str(place / "lock"))
    if not baton.try_acquire():
        print("WAITS", flush=True)
        baton.wait()
    if os.environ["GANGRUN_ATTEMPT"] == "0":
        time.sleep(2.5)
        os.kill(os.getpid(), signal.SIGKILL)
    baton.release()
"""


@pytest.mark.parametrize("place", ["cache/torch_extensions/py311_cpu/ops", "elsewhere/ops"])
def test_the_lock_of_a_rank_that_died_in_a_build_is_removed(box: Box, place: str) -> None:
    elsewhere = {"TORCH_EXTENSIONS_DIR": str(box.work / "elsewhere")}
    box.start(box.script(BUILDS.format(place=box.work / place)), environment=elsewhere)
    assert box.end() == 0, box.told()
    assert box.outcomes() == ["killed", "succeeded"], box.told()
    assert "WAITS" not in box.out.read_text() and "the rank that was building native code there is dead" in box.told()


def test_a_lock_that_is_no_builds_is_left_alone(box: Box, tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    box.start("--max-restarts", "0", box.script(BUILDS.format(place=tmp_path)))
    assert box.end() == 1, box.told()
    assert lock.exists()

"""Draws docs/terminal.svg from a real run whose rank is killed:  python docs/draw_terminal.py [FILE]

The script of the tutorial trains on a pseudo-terminal. Once it has saved, rank 1 is killed. What the terminal showed,
and what ``gangrun status`` said afterwards, becomes a picture. Only names of folders are shortened, and the traceback
of the rank that lost its peer.
"""

import json
import os
import pty
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parents[1]
TUTORIAL = ROOT / "docs" / "tutorials" / "one-box.md"
GANGRUN = [sys.executable, "-m", "gangrun"]
COLUMNS, SAVED, WITHIN_S = 110, "step-30", 120.0
ENVIRONMENT = {
    **os.environ, "PYTHONPATH": str(ROOT), "TERM": "dumb", "COLUMNS": str(COLUMNS), "OMP_NUM_THREADS": "1",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
}  # fmt: skip
BETWEEN = "# in another terminal: kill -9 of rank 1"


def asked(folder: Path, *words: str) -> str:
    """What a command prints."""
    return subprocess.run(
        [*GANGRUN, *words], cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, check=True
    ).stdout


def wait_until(is_so: object) -> None:
    """Wait for the run to get somewhere; a run that does not is an error."""
    give_up_at = time.monotonic() + WITHIN_S
    while not is_so():  # type: ignore[operator]
        if time.monotonic() > give_up_at:
            sys.exit(f"no checkpoint {SAVED}, or no pid of rank 1, within {WITHIN_S:.0f} s")
        time.sleep(0.1)


def pid_of_rank(folder: Path) -> int:
    """The process of rank 1; 0 while nobody knows."""
    ranks = json.loads(asked(folder, "status", "--ranks", "--json"))["ranks"]
    return next((one["pid"] or 0 for one in ranks if one["rank"] == 1), 0)


def trained(folder: Path) -> str:
    """All that the terminal showed from the start of the run to its end."""
    words = ["run", "--nproc-per-node", "2", "--checkpoint-dir", "ckpt", "train.py"]
    script = TUTORIAL.read_text("utf-8").partition("```python\n")[2].partition("```")[0]
    (folder / "train.py").write_text(script.replace("sleep(0.1)", "sleep(0.25)"))  # time to find a pid and to kill
    owner, terminal = pty.openpty()
    run = subprocess.Popen(
        [*GANGRUN, *words], cwd=folder, env=ENVIRONMENT, stdin=terminal, stdout=terminal, stderr=terminal
    )
    os.close(terminal)
    shown, killed = b"", False
    while True:
        try:
            shown += os.read(owner, 65536)
        except OSError:  # the last process has left the terminal
            break
        if not killed and (folder / "ckpt" / SAVED / ".metadata").exists():
            wait_until(lambda: pid_of_rank(folder))
            shown += f"\n\x1b[1m{BETWEEN}\x1b[0m\n\n".encode()
            os.kill(pid_of_rank(folder), signal.SIGKILL)
            killed = True
    os.close(owner)
    if run.wait() != 0 or not killed:
        sys.exit(f"the run ended with {run.returncode}:\n{shown.decode()}")
    return shown.decode().replace("\r\n", "\n")


def main(file: Path) -> None:
    """Train, then draw."""
    with tempfile.TemporaryDirectory(prefix="gangrun-picture-") as name:
        folder = Path(name)
        os.environ.update(XDG_STATE_HOME=name, XDG_CONFIG_HOME=name)
        ENVIRONMENT.update(XDG_STATE_HOME=name, XDG_CONFIG_HOME=name)
        prompt = "\x1b[1m$ gangrun {}\x1b[0m\n"
        text = prompt.format("run --nproc-per-node 2 --checkpoint-dir ckpt train.py") + trained(folder)
        text += prompt.format("status") + asked(folder, "status")
        text = re.sub(r"(Traceback [^\n]*\n)(?:[^\n]*\[rank\d\]:  [^\n]*\n)+", "\\1  ...\n", text)
        text = re.sub(rf"{re.escape(str(folder.resolve()))}|{re.escape(name)}", "~", text)
    console = Console(record=True, width=COLUMNS, file=open(os.devnull, "w"), highlight=False, force_terminal=True)  # noqa: SIM115
    console.print(Text.from_ansi(text))
    file.write_text(console.export_svg(title="gangrun", unique_id="gangrun"), "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else Path(__file__).parent / "terminal.svg")

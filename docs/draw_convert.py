"""Draws docs/convert.svg from what ``gangrun convert`` prints:  python docs/draw_convert.py [FILE]

The script is the one that readers of the tutorial save as ``train.sbatch``; what the terminal shows is the command's
real output.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parents[1]
TUTORIAL = ROOT / "docs" / "tutorials" / "sbatch.md"
COLUMNS = 110


def shown(folder: Path) -> str:
    """The script, and both outputs of the command, as a terminal has them."""
    script = TUTORIAL.read_text("utf-8").partition("```bash\n")[2].partition("```")[0]
    (folder / "train.sbatch").write_text(script)
    done = subprocess.run(
        [sys.executable, "-m", "gangrun", "convert", "train.sbatch"], cwd=folder, capture_output=True, text=True,
        check=True, env={**os.environ, "PYTHONPATH": str(ROOT), "TERM": "dumb", "COLUMNS": str(COLUMNS)},
    )  # fmt: skip
    prompt, end = "\x1b[1m$ {}\x1b[0m\n", "\n"
    text = prompt.format("cat train.sbatch") + script + end
    text += prompt.format("gangrun convert train.sbatch > gangrun.sbatch") + done.stderr + end
    return text + prompt.format("cat gangrun.sbatch") + done.stdout


def main(file: Path) -> None:
    """Convert, then draw."""
    with tempfile.TemporaryDirectory(prefix="gangrun-picture-") as name:
        text = shown(Path(name))
    console = Console(record=True, width=COLUMNS, file=open(os.devnull, "w"), highlight=False, force_terminal=True)  # noqa: SIM115
    console.print(Text.from_ansi(text))
    file.write_text(console.export_svg(title="gangrun convert", unique_id="gangrun-convert"), "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else Path(__file__).parent / "convert.svg")

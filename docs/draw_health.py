"""Draws docs/health.svg from readings that were recorded:  python docs/draw_health.py [FILE]

The readings are those with which tests judge a GPU that has had a double-bit error, and a real machine without GPUs.
The checks, the verdicts and the page are the real ones.
"""

import json
import os
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from gangrun.display.health_page import page  # noqa: E402
from gangrun.health.catalogue import FAMILIES  # noqa: E402
from gangrun.health.framework.check import CheckVerdict, HealthPolicy, judged  # noqa: E402
from gangrun.health.framework.readings import reading_from  # noqa: E402

COLUMNS = 100
RECORDED = ("played-a100-double-bit-error", "measured-box-storage")


def verdicts_of(name: str) -> list[CheckVerdict]:
    """What every check says of a recorded reading; the first look, so that counters are unknown."""
    kept = reading_from(json.loads((ROOT / "tests/health/recorded" / f"{name}.json").read_text("utf-8")))
    assert kept is not None
    family = next(one for one in FAMILIES if one.name == kept.family)
    return [judged(check, family.remember(kept, None), None, HealthPolicy()) for check in family.checks]


def main(file: Path) -> None:
    """Judge, then draw."""
    found = tuple(one for name in RECORDED for one in verdicts_of(name) if one.severity.value != "unknown")
    console = Console(record=True, width=COLUMNS, file=open(os.devnull, "w"), highlight=False, force_terminal=True)  # noqa: SIM115
    console.print(Text.from_ansi("\n".join(page(list(found), found, COLUMNS, color=True))))
    file.write_text(console.export_svg(title="gangrun health", unique_id="gangrun-health"), "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else Path(__file__).parent / "health.svg")

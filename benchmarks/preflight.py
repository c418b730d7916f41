"""What the gate before a job's first ranks costs: all cheap checks of a node, from their process's start to its word.

Run:  python benchmarks/preflight.py [--rounds 10] [--json FILE]

Both are on the way of each start of a job: the watching process must be up, and then have looked at everything once,
for which it has five seconds (`preflight_within_s`). With GPUs or InfiniBand in the machine their reading is in the
figure; `--gpus LIBRARY STATE` plays them with the tests' own driver library.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from gangrun.adapters.local.health_child import HealthChild  # noqa: E402

WITHIN_S = 60.0
BOUND_S = 5.0


def once(variables: dict[str, str]) -> dict[str, float]:
    """One node's gate: seconds until the process watches, and until it has looked."""
    with tempfile.TemporaryDirectory() as folder:
        spec = {"node": "bench", "directories": [folder], "policy": {"preflight_within_s": WITHIN_S}}
        command = [sys.executable, "-m", "gangrun.entry.health_watch", json.dumps(spec)]
        began = time.monotonic()
        child = HealthChild(command, {**variables, "PYTHONPATH": str(ROOT)}, time.monotonic, lambda _: None)
        child.start()
        try:
            _, first = child.look(WITHIN_S)
            ready = time.monotonic()
            _, second = child.look(WITHIN_S)
            looked = time.monotonic()
        finally:
            child.close()
    if first or second:
        raise SystemExit(f"not measured: {first or second}")
    return {"whole_s": ready - began, "look_s": looked - ready}


def measure(rounds: int = 10, variables: dict[str, str] | None = None) -> dict:
    """Median and slowest of several."""
    found = [once(variables or dict(os.environ)) for _ in range(rounds)]
    names = ("whole_s", "look_s")
    return {
        "rounds": rounds,
        **{name: statistics.median(one[name] for one in found) for name in names},
        **{f"slowest_{name}": max(one[name] for one in found) for name in names},
        "bounds": {"look_s": BOUND_S},
    }


def table(result: dict) -> str:
    """For people."""
    rows = (("whole_s", "process started to its word"), ("look_s", "every cheap check once"))
    return "\n".join(
        f"{words:28} {result[name]:6.2f} s, slowest of {result['rounds']}: {result[f'slowest_{name}']:.2f} s"
        for name, words in rows
    )


def main() -> None:
    """Measure and print; 1 where the bound is broken."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--gpus", nargs=2, metavar=("LIBRARY", "STATE"), help="a folder and a file of the tests")
    parser.add_argument("--json", type=Path)
    words = parser.parse_args()
    played = {"LD_LIBRARY_PATH": words.gpus[0], "FAKE_NVML": words.gpus[1]} if words.gpus else {}
    result = measure(words.rounds, {**os.environ, **played})
    print(table(result))
    if words.json:
        words.json.write_text(json.dumps(result, indent=2) + "\n")
    raise SystemExit(int(result["look_s"] > BOUND_S))


if __name__ == "__main__":
    main()

"""The house keeps itself: sizes, opening words, names, who may reach for time, environment and processes.

A file that fails here is split or renamed, not excepted. Who imports whom is kept by import-linter (pyproject.toml).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FILE_LINES_MAX = 800
FUNCTION_LINES_MAX = 70
NO_ROOM = {"utils", "util", "helpers", "helper", "common", "misc"}
ISLANDS = {"gangrun/node/"}
ALLOWED = {
    # step() stamps its own time: handing it a clock would cost more than the step's whole budget of a microsecond
    # health's children are programs of their own, run by the training python, where nobody can hand them a clock
    "time": ISLANDS
    | {
        "gangrun/adapters/clock.py",
        "gangrun/training/environment.py",
        "gangrun/training/step.py",
        "gangrun/launch/chaos/sample.py",  # a training script, started by path
        "gangrun/health/active/device_child.py",
        "gangrun/health/active/pair_child.py",
    },
    "environ": ISLANDS
    | {
        "gangrun/config/environment.py",
        "gangrun/agent/ranks/environment.py",
        "gangrun/training/environment.py",
        "gangrun/launch/chaos/sample.py",
    },
    "subprocess": ISLANDS
    | {
        "gangrun/agent/ranks/gang_part.py",
        "gangrun/adapters/local/",
        "gangrun/adapters/slurm/commands.py",
        "gangrun/config/launchers.py",  # only accelerate knows what its options and its file say, in the user's python
        "gangrun/checkpoint/mapped_crc.py",  # its child is gone with the reading: nobody above has to know
    },
}
PLACES_OF_ONE_MACHINE = re.compile(r"/work/|/tmp/gr\b|\bissue #?\d{1,2}\b", re.IGNORECASE)
WRITTEN = {".py", ".md", ".toml", ".txt", ".sh", ".sbatch", ".json", ".cfg"}


def sources(*rooms: str) -> list[str]:
    return sorted(str(path.relative_to(ROOT)) for room in rooms for path in (ROOT / room).rglob("*.py"))


GANGRUN = sources("gangrun")
TESTS = sources("tests")
EVERYWHERE = sources("gangrun", "tests", "examples", "benchmarks")


@cache
def tree(path: str) -> ast.Module:
    return ast.parse((ROOT / path).read_text("utf-8"), path)


def none(offences: list[str]) -> None:
    """All offenders at once, so that one run shows the whole bill."""
    assert not offences, "\n" + "\n".join(offences)


def calls(module: ast.Module, names: set[str]) -> Iterator[int]:
    for node in ast.walk(module):
        if isinstance(node, ast.Call) and dotted(node.func) in names:
            yield node.lineno


def functions(module: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(module):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node


def dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else "?"


def reached(module: ast.Module) -> Iterator[tuple[str, int]]:
    """What of time, environment and processes a module reaches for, with the line."""
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            names, line = [alias.name.split(".")[0] for alias in node.names], node.lineno
        elif isinstance(node, ast.ImportFrom):
            names, line = [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)], node.lineno
        elif isinstance(node, ast.Attribute):
            names, line = [dotted(node)], node.lineno
        else:
            continue
        for name in names:
            if name in {"time", "subprocess"}:
                yield name, line
            if name in {"os.environ", "os.environb", "os.getenv", "os.putenv"}:
                yield "environ", line


def test_a_file_can_be_read_at_one_sitting() -> None:
    lines = {path: len((ROOT / path).read_text("utf-8").splitlines()) for path in EVERYWHERE}
    none(
        [
            f"{path} has {n} lines; split it (at most {FILE_LINES_MAX})"
            for path, n in lines.items()
            if n > FILE_LINES_MAX
        ]
    )


def test_a_function_fits_on_a_screen() -> None:
    sizes = [(path, f, (f.end_lineno or f.lineno) - f.lineno + 1) for path in EVERYWHERE for f in functions(tree(path))]
    none([f"{path}:{f.lineno} {f.name} has {n} lines; split it" for path, f, n in sizes if n > FUNCTION_LINES_MAX])


def test_a_module_opens_by_saying_what_it_is_for() -> None:
    none([f"{path}: say in its first line what it is for" for path in GANGRUN if not ast.get_docstring(tree(path))])


def test_no_module_is_a_drawer_for_odds_and_ends() -> None:
    none([path for path in EVERYWHERE if NO_ROOM & {part.removesuffix(".py").strip("_") for part in Path(path).parts}])


def test_time_environment_and_processes_stay_in_their_rooms() -> None:
    none(
        [
            f"{path}:{line} reaches for {what}; it is allowed in {', '.join(sorted(ALLOWED[what]))}"
            for path in GANGRUN
            for what, line in reached(tree(path))
            if not any(path == room or (room.endswith("/") and path.startswith(room)) for room in ALLOWED[what])
        ]
    )


def test_only_the_command_line_prints() -> None:
    inside = ("gangrun/cli/", "gangrun/launch/", "gangrun/entry/")
    outside = [path for path in GANGRUN if not path.startswith(inside)]
    none(
        [
            f"{path}:{line} prints; hand the words to the cli"
            for path in outside
            for line in calls(tree(path), {"print"})
        ]
    )


def test_tests_wait_for_conditions_not_for_time() -> None:
    # torchrun_style holds training scripts that tests run: their pace stands for the work of a step
    others = [path for path in TESTS if path != "tests/waiting.py" and "/torchrun_style/" not in path]
    sleeps = {"time.sleep", "asyncio.sleep", "sleep"}
    none(
        [
            f"{path}:{line} sleeps; use tests.waiting.until(condition, deadline_s, what)"
            for path in others
            for line in calls(tree(path), sleeps)
        ]
    )


def test_nothing_speaks_of_one_machine_or_of_who_wrote_it() -> None:
    here = Path(__file__).resolve()
    skipped = {".git", ".venv", ".make", "gangrun_runs", "node_modules", "results"}
    found = []
    for path in sorted(ROOT.rglob("*")):
        inside = path.relative_to(ROOT)
        if skipped & set(inside.parts) or any(part.startswith(".") and part != ".ci" for part in inside.parts[:-1]):
            continue
        written = path.suffix in WRITTEN or path.name in {"Makefile", "run"}
        if not written or path == here or not path.is_file():
            continue
        for number, line in enumerate(path.read_text("utf-8", errors="replace").splitlines(), 1):
            if PLACES_OF_ONE_MACHINE.search(line):
                found.append(f"{inside}:{number}: {line.strip()[:100]}")
    none(found)


@pytest.mark.parametrize("name", ["LICENSE", "CHANGELOG.md", "CONTRIBUTING.md", "README.md", "constraints.txt"])
def test_what_a_stranger_looks_for_is_there(name: str) -> None:
    assert len((ROOT / name).read_text("utf-8")) > 200, name


def test_rooms_are_packages() -> None:
    bare = {str(Path(p).parent) for p in GANGRUN if not (ROOT / p).parent.joinpath("__init__.py").exists()}
    assert not bare, f"without __init__.py these rooms escape the import contracts: {sorted(bare)}"


def test_what_breaks_a_rule_is_seen() -> None:
    """The eyes of the rules above, turned on a module that breaks them."""
    bad = ast.parse("import time\nimport os\nfrom subprocess import run\nos.environ['A']\ntime.sleep(1)\nprint(2)\n")
    assert list(reached(bad)) == [("time", 1), ("subprocess", 3), ("environ", 4)]
    assert list(calls(bad, {"time.sleep"})) == [5]
    assert list(calls(bad, {"print"})) == [6]

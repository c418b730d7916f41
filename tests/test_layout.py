"""The shape of the product, as numbers that may only fall.

Every import counts, those inside functions and under TYPE_CHECKING included. A number that falls is written down
here; one that would rise needs a merge, a move or a rename instead.
"""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
SMALL_LINES = 60
FILE_NAMED = re.compile(r"`+[^`]*?([\w-]+/[\w./-]*\w\.(?:py|md|sbatch))\b")
ONE_IMPORTER_MAX = 56
SMALL_MAX = 15
SHARED_CLASS_NAMES_MAX = 3


@cache
def modules() -> dict[str, tuple[Path, ast.Module]]:
    found = {}
    for path in sorted((ROOT / "gangrun").rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        found[name] = path, ast.parse(path.read_text("utf-8"))
    return found


@cache
def imported() -> dict[str, frozenset[str]]:
    """Module -> the modules of gangrun that it imports anywhere."""
    found = {}
    for name, (_, tree) in modules().items():
        named: set[str] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                named.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                named.add(node.module)
                named.update(f"{node.module}.{alias.name}" for alias in node.names)
        found[name] = frozenset(named & modules().keys() - {name})
    return found


def cycles(graph: dict[str, frozenset[str]]) -> list[str]:
    """What is left when modules that nothing left imports, or that import nothing left, are taken out repeatedly."""
    left = set(graph)
    while True:
        used = {other for name in left for other in graph[name] if other in left}
        ends = {name for name in left if name not in used or not graph[name] & left}
        if not ends:
            return sorted(left)
        left -= ends


def files(names: list[str]) -> str:
    return "\n" + "\n".join(str(modules()[name][0].relative_to(ROOT)) for name in names)


def plain_modules() -> list[str]:
    return [name for name, (path, _) in modules().items() if path.name not in {"__init__.py", "__main__.py"}]


def test_no_module_imports_itself_by_way_of_others() -> None:
    found = cycles(imported())
    assert not found, f"in or between import cycles: {files(found)}"


def test_a_cycle_is_seen() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set[str](), "e": {"a"}}
    assert cycles({name: frozenset(others) for name, others in graph.items()}) == ["b", "c"]


def test_a_module_with_one_importer_is_part_of_it() -> None:
    importers = Counter(other for others in imported().values() for other in others)
    found = [name for name in plain_modules() if importers[name] == 1]
    assert len(found) <= ONE_IMPORTER_MAX, f"{len(found)} modules have one importer: merge some {files(found)}"


def test_a_small_module_is_part_of_another() -> None:
    lines = {name: len(modules()[name][0].read_text("utf-8").splitlines()) for name in plain_modules()}
    found = [name for name, count in lines.items() if count < SMALL_LINES]
    assert len(found) <= SMALL_MAX, (
        f"{len(found)} modules have fewer than {SMALL_LINES} lines: merge some {files(found)}"
    )


def test_one_class_name_has_one_meaning() -> None:
    where = defaultdict(set)
    for name, (_, tree) in modules().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                where[node.name].add(name)
    shared = [f"{name}: {', '.join(sorted(found))}" for name, found in sorted(where.items()) if len(found) > 1]
    assert len(shared) <= SHARED_CLASS_NAMES_MAX, "\n" + "\n".join(shared)


def test_files_that_pages_and_docstrings_name_are_there() -> None:
    there = [f"/{path.relative_to(ROOT)}" for path in ROOT.rglob("*.*") if ".venv" not in path.parts]
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(path for path, _ in modules().values())]
    named = {(page, name) for page in pages for name in FILE_NAMED.findall(page.read_text("utf-8"))}
    gone = [(page, name) for page, name in sorted(named) if not any(path.endswith(f"/{name}") for path in there)]
    assert not gone, "\n" + "\n".join(f"{page.relative_to(ROOT)}: {name}" for page, name in gone)

"""The site as ``make docs`` builds it: no warning, no dead link, no page, command or public name left out."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import gangrun
from gangrun.cli.main import COMMANDS
from tests.cli.test_manual import options_of
from tests.docs.test_terminal_picture import text_of

ROOT = Path(__file__).parents[2]
SECTIONS = ("Tutorials", "How-to", "Reference", "Explanation")


class Looked(HTMLParser):
    """What a page links to, which places it has, and what it says; ``nav`` only what is in its navigation."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.places: set[str] = set()
        self.nav: list[str] = []
        self.pictures: list[str] = []
        self.text = ""
        self._navs = 0
        self.feed(page.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self._navs += tag == "nav"
        self.places |= {found[name] or "" for name in ("id", "name") if name in found}
        for name in ("href", "src"):
            if link := found.get(name):
                self.links.append(link)
                if tag == "a" and self._navs:
                    self.nav.append(link)
        if tag == "img":
            self.pictures.append(found.get("src") or "")

    def handle_endtag(self, tag: str) -> None:
        self._navs -= tag == "nav"

    def handle_data(self, data: str) -> None:
        self.text += data


def built(root: Path, folder: Path) -> tuple[int, str]:
    """The exit code of ``make docs``, and what it says. With --quiet MkDocs would count no warning."""
    recipe = (ROOT / "Makefile").read_text("utf-8").partition("\ndocs:")[2].splitlines()[1]
    words = [sys.executable, *recipe.partition("$(PY) ")[2].split(), "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(words, cwd=root, env=environment, capture_output=True, text=True, timeout=300, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Looked]:
    """Every page by its path in the site."""
    folder = tmp_path_factory.mktemp("site")
    code, told = built(ROOT, folder)
    assert (code, "WARNING" in told) == (0, False), told
    Looked.folder = folder  # type: ignore[attr-defined]
    return {page.relative_to(folder).as_posix(): Looked(page) for page in folder.rglob("*.html")}


def dead(site: dict[str, Looked]) -> Iterator[str]:
    """Links inside the site that lead nowhere, and addresses outside that are none."""
    folder: Path = Looked.folder  # type: ignore[attr-defined]
    for name, page in site.items():
        for link in page.links if name != "404.html" else ():  # its links are those of the server's root
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                if parts.scheme not in ("https", "http") or "." not in parts.netloc or " " in link:
                    yield f"{name}: {link}"
                continue
            target = folder / name if not parts.path else (folder / name).parent / unquote(parts.path)
            there = target.resolve().relative_to(folder.resolve()).as_posix()
            has_place = there not in site or unquote(parts.fragment) in {"", *site[there].places}
            if not (target.exists() and has_place):
                yield f"{name}: {link}"


def test_every_link_leads_somewhere(site: dict[str, Looked]) -> None:
    assert sum(len(page.links) for page in site.values()) > 1000
    assert list(dead(site)) == []


def test_dead_links_end_the_build(tmp_path: Path) -> None:
    for entry in ROOT.iterdir():
        if entry.name not in ("docs", "build"):
            (tmp_path / entry.name).symlink_to(entry)
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    links = ("slurm.md#nosuch", "../gangrun/nosuch.py", "https://exa%mple.com/x")
    with (tmp_path / "docs" / "hangs.md").open("a", encoding="utf-8") as page:
        page.writelines(f"\n[dead]({link})\n" for link in links)
    (tmp_path / "docs" / "forgotten.md").write_text("# In no navigation\n")
    code, told = built(tmp_path, tmp_path / "site")
    assert code == 1
    warnings = [line for line in told.splitlines() if line.startswith("WARNING")]
    assert all(any(link in line and "hangs.md" in line for line in warnings) for link in links), told
    assert "forgotten.md" in told


def test_every_page_can_be_reached_from_the_first(site: dict[str, Looked]) -> None:
    """By the navigation alone; the pages of docs/ are all there."""
    pages = {page.relative_to(ROOT / "docs").with_suffix(".html").as_posix() for page in (ROOT / "docs").rglob("*.md")}
    pages = {page.replace("README.html", "index.html") for page in pages}
    assert pages < site.keys()
    reached, left = {"index.html"}, ["index.html"]
    while left:
        here = left.pop()
        for link in site[here].nav:
            there = os.path.normpath(os.path.join(os.path.dirname(here), urlsplit(link).path or os.path.basename(here)))
            if there in site and there not in reached:
                reached.add(there)
                left.append(there)
    assert site.keys() - reached == {"404.html"}


def test_each_command_has_a_page_with_all_its_options(site: dict[str, Looked]) -> None:
    for name in COMMANDS.keys() - {"help"}:
        page = site[f"commands/gangrun-{name}.html"]
        assert COMMANDS[name][1] in page.text
        assert [option for option in options_of(name) if option not in page.text] == [], name
        assert f"gangrun-{name}.html" in site["commands/gangrun.html"].links


def test_every_public_name_is_in_the_reference_with_what_it_is_for(site: dict[str, Looked]) -> None:
    page = site["api.html"]
    assert set(gangrun._PUBLIC) == set(gangrun.__all__) - {"__version__"}
    for name, module in gangrun._PUBLIC.items():
        assert f"gangrun{name.lower()}" in page.places, name
        source = ast.parse((ROOT / f"{module.replace('.', '/')}.py").read_text("utf-8"))
        (found,) = [one for one in source.body if isinstance(one, ast.ClassDef | ast.FunctionDef) and one.name == name]
        summary = (ast.get_docstring(found) or "").split("\n\n")[0].replace("``", "")
        assert summary and " ".join(summary.split()) in " ".join(page.text.split()), name


def test_each_section_has_a_picture(site: dict[str, Looked]) -> None:
    text = (ROOT / "mkdocs.yml").read_text("utf-8").partition("\nnav:\n")[2]
    head, *parts = re.split(r"^  - ([\w-]+):\n", text, flags=re.MULTILINE)
    assert (head.strip(), tuple(parts[::2])) == ("- Home: index.md", SECTIONS)
    for section, pages in zip(parts[::2], parts[1::2], strict=True):
        names = [name.replace(".md", ".html") for name in re.findall(r"^ {6}- .*: (\S+\.md)$", pages, re.MULTILINE)]
        assert any(site[name].pictures for name in names), section


@pytest.mark.parametrize(
    ("name", "words"),
    [("health", "no run would use this node"), ("convert", "gangrun run --nproc-per-node 1 train.py")],
)
def test_a_picture_of_what_a_command_prints_is_of_today(tmp_path: Path, name: str, words: str) -> None:
    drawn = tmp_path / f"{name}.svg"
    subprocess.run([sys.executable, ROOT / "docs" / f"draw_{name}.py", drawn], check=True, timeout=280)
    assert text_of(drawn) == text_of(ROOT / "docs" / f"{name}.svg")
    assert words in text_of(drawn)

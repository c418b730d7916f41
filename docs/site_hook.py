"""What the site has besides docs/*.md. MkDocs calls the functions ``on_*`` while ``make docs`` builds it (mkdocs.yml).

- Pages of the repository outside docs/, such as README.md, are pages of the site.
- The reference is generated: a page for each command from its help, one for the Python API from the docstrings.
- A link to any other file of the repository leads to a copy of it. A link to a file that is not there is a warning,
  which the build takes for an error.
"""

from __future__ import annotations

import importlib
import logging
import os
import posixpath
import re
import sys
from pathlib import Path
from urllib.parse import urlsplit

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

LOG = logging.getLogger("mkdocs.hooks.gangrun")
# page of the site -> the file of the repository that it shows
OUTSIDE = {
    "index.md": "README.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
    "examples.md": "examples/README.md",
    "slurm-templates.md": "slurm-templates/README.md",
}
COMMANDS = "commands"  # the folder of their pages, and the entry in the nav that they replace
COPIES = "repository"  # the folder of files to which pages link
SOURCE = ".txt"  # added to the name of a copied program, so that a browser shows it
_LINK = re.compile(r"(?<=\]\()([^)\s]+)(?=\))")
_LIST_AFTER_TEXT = re.compile(r"^((?:\*\*|#).*)\n(?=- |1\. )", re.MULTILINE)  # Markdown wants an empty line between
_EXTERNAL = re.compile(r"https?://[a-z0-9.-]+\.[a-z]{2,}(:\d+)?(/[^\s<>\"]*)?", re.IGNORECASE)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the commands where the nav names them."""
    from gangrun.cli.manual import markdown_pages

    names = [name for name, _ in markdown_pages()]
    shown = [{name.removesuffix(".md").replace("-", " "): f"{COMMANDS}/{name}"} for name in names]
    assert config.nav is not None
    for entry in config.nav:
        for one in entry.get("Reference", ()) if isinstance(entry, dict) else ():
            if one.get("Commands") == COMMANDS:
                one["Commands"] = shown
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what is generated, and what is linked."""
    from gangrun.cli.manual import markdown_pages

    for name, text in markdown_pages():
        files.append(File.generated(config, f"{COMMANDS}/{name}", content=text))
    files.append(File.generated(config, "api.md", content=api_page()))
    for name, path in OUTSIDE.items():
        files.append(File.generated(config, name, content=(ROOT / path).read_text("utf-8")))
    for page in list(files.documentation_pages(inclusion=InclusionLevel.is_included)):
        _copy_linked(page, files, config)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links into those of the site, and write lists as Python's Markdown reads them."""
    del config, files
    shown = page.file.src_uri

    def link(found: re.Match[str]) -> str:
        target, fragment = _in_repository(shown, found[0])
        if target is None:
            return found[0]
        there = _of_site(target)
        if there is None:
            LOG.warning("%s links to %s, which is not in the repository", _of_repository(shown), found[0])
            return found[0]
        return posixpath.relpath(there, posixpath.dirname(shown) or ".") + fragment

    return _LIST_AFTER_TEXT.sub(r"\1\n\n", _LINK.sub(link, markdown))


def api_page() -> str:
    """The public names of the package, each with its docstring; mkdocstrings fills it in."""
    public = importlib.import_module("gangrun")._PUBLIC  # noqa: SLF001 - the table of what is public
    head = "What a training script may use after `import gangrun`. A script that gangrun did not start may call it too."
    lines = ["# Python API", "", head, ""]
    for name in sorted(public, key=str.lower):
        lines += [f"## gangrun.{name}", "", f"::: {public[name]}.{name}", ""]
    return "\n".join(lines)


def _of_repository(shown: str) -> str:
    """The file behind a page of the site."""
    return OUTSIDE.get(shown, f"docs/{shown}")


def _in_repository(shown: str, link: str) -> tuple[str | None, str]:
    """The file of the repository that a link of a page means, and the fragment; None for one that leads elsewhere."""
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        if not _EXTERNAL.fullmatch(link):
            LOG.warning("%s links to %s, which is no address", _of_repository(shown), link)
        return None, ""
    generated = shown == "api.md" or shown.startswith(f"{COMMANDS}/")
    if not parts.path or generated:
        return None, ""
    here = posixpath.dirname(_of_repository(shown))
    return posixpath.normpath(posixpath.join(here, parts.path)), f"#{parts.fragment}" if parts.fragment else ""


def _of_site(target: str) -> str | None:
    """Where the site shows a file or a folder of the repository; None if there is no such file."""
    if target.startswith("../") or not (ROOT / target).exists():
        return None
    if (ROOT / target).is_dir():
        return _of_site(f"{target}/README.md")
    for shown, path in OUTSIDE.items():
        if path == target:
            return shown
    if target.startswith("docs/") and not target.endswith(".py"):
        return target.removeprefix("docs/")
    return f"{COPIES}/{target}{SOURCE}"


def _copy_linked(page: File, files: Files, config: MkDocsConfig) -> None:
    for found in _LINK.finditer(page.content_string):
        target, _ = _in_repository(page.src_uri, found[0])
        there = _of_site(target) if target is not None else None
        if there is not None and there.startswith(f"{COPIES}/") and files.get_file_from_path(there) is None:
            assert target is not None
            files.append(File.generated(config, there, abs_src_path=os.fspath(ROOT / target)))

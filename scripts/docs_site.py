"""Hooks of MkDocs: the site has the README as its first page, and files outside docs/ that pages
link to.

Pages stay readable in the repository, with links such as `../examples/deepfm.py`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
OUTSIDE = "repository"
NOTEBOOK_LINK = re.compile(r'href="([^":]+)\.(?:md|ipynb)(#[^"]*)?"')
LINK = re.compile(r"(\]\()([^)#\s]+)((?:#[^)]*)?\))")


def on_files(files: Any, *, config: Any) -> Any:
    """Add the README as index.md, and each file of the repository that a page links to."""
    from mkdocs.structure.files import File

    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    files.append(File.generated(config, "index.md", content=relink(readme, ROOT)))
    wanted = set(outside_links(readme, ROOT))
    for page in sorted((ROOT / "docs").glob("*.md")):
        wanted |= set(outside_links(page.read_text(encoding="utf-8"), page.parent))
    for path in sorted(wanted):
        source = ROOT / path
        if source.is_dir():
            listed = "\n".join(f"* `{each.name}`" for each in sorted(source.iterdir()))
            content = f"# {path}\n\n{listed}\n"
            files.append(File.generated(config, f"{OUTSIDE}/{path}/index.md", content=content))
        elif source.suffix == ".md":
            content = relink(source.read_text(encoding="utf-8"), source.parent, depth=1)
            files.append(File.generated(config, f"{OUTSIDE}/{path}", content=content))
        else:
            files.append(File.generated(config, f"{OUTSIDE}/{path}", abs_src_path=str(source)))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """Point links that leave docs/ at the copies."""
    del config, files
    if page.file.src_uri == "index.md" or page.file.src_uri.startswith(OUTSIDE):
        return markdown
    return relink(markdown, ROOT / "docs")


def on_page_content(html: str, *, page: Any, config: Any, files: Any) -> str:
    """Point links of notebooks at pages: MkDocs only does so in Markdown."""
    del config, files
    if not page.file.src_uri.endswith(".ipynb"):
        return html
    return NOTEBOOK_LINK.sub(r'href="\1.html\2"', html)


def outside_links(markdown: str, folder: Path) -> list[str]:
    """Return the files of the repository outside docs/ that a text in `folder` links to."""
    found = []
    for _, target, _ in LINK.findall(markdown):
        path = (folder / target).resolve()
        if "://" not in target and path.exists() and not path.is_relative_to(ROOT / "docs"):
            found.append(str(path.relative_to(ROOT)))
    return found


def relink(markdown: str, folder: Path, *, depth: int = 0) -> str:
    """Return a text of `folder` with its links as they are in the site, `depth` folders down."""

    def change(match: re.Match[str]) -> str:
        before, target, after = match.groups()
        path = (folder / target).resolve()
        if "://" in target or not path.exists():
            return match[0]
        up = "../" * depth
        if path.is_relative_to(ROOT / "docs"):
            return f"{before}{up}{path.relative_to(ROOT / 'docs')}{after}"
        place = f"{up}{OUTSIDE}/{path.relative_to(ROOT)}"
        return f"{before}{place}{'/index.md' if path.is_dir() else ''}{after}"

    return LINK.sub(change, markdown)

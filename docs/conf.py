"""The site of the documentation, made by `make site`.

The pages are plain Markdown, readable on GitHub. The tree of the site is the lists of links in `index.md`: each heading
with a list becomes a part of the tree.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import airflow_provider_launch

if TYPE_CHECKING:
    from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[1]
INDEX = "docs/index"
FOLDERS = {"Coming from elsewhere": "coming-from", "Cookbook": "cookbook"}
"""Parts of the tree that also have all pages of a folder."""

project = "airflow-provider-launch"
release = version = airflow_provider_launch.__version__
html_title = f"{project} {release}"
# The sources are the whole checkout, because pages link to the changelog and to the example DAGs.
root_doc = INDEX
include_patterns = ["docs/**", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "changelog.d/README.md"]
exclude_patterns = [
    ".*",
    *(f"{path.name}/**" for path in ROOT.iterdir() if path.is_dir() and path.name not in {"docs", "changelog.d"}),
]
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
source_suffix = {".md": "markdown"}
html_theme = "furo"
html_static_path: list[str] = []
html_extra_path = ["_site"]
html_copy_source = False
html_show_sourcelink = False
# Text and code are ASCII.
smartquotes = False

# Links to headings, as on GitHub.
myst_heading_anchors = 4

autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "show-inheritance": True}
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
# Docstrings have code in single backquotes.
default_role = "code"
add_module_names = False


def parts_of(index: str) -> dict[str, list[str]]:
    """Return the pages that each part of the index links to, in order."""
    parts: dict[str, list[str]] = {}
    for part in re.split(r"^## ", index, flags=re.MULTILINE)[1:]:
        heading, _, text = part.partition("\n")
        links = re.findall(r"\]\(([^)#:\s]+)\.md\)", text)
        parts[heading.strip()] = [link for link in dict.fromkeys(links) if not link.startswith("../README")]
    return parts


def add_tree(_app: Sphinx, docname: str, source: list[str]) -> None:
    """Append the tree of the site to the index."""
    if docname != INDEX:
        return
    placed: set[str] = set()
    for heading, pages in parts_of(source[0]).items():
        folder = FOLDERS.get(heading)
        found = sorted((ROOT / "docs" / folder).glob("*.md")) if folder else []
        pages += [f"{folder}/{path.stem}" for path in found if f"{folder}/{path.stem}" not in pages]
        mine = [page for page in pages if page not in placed]
        placed.update(mine)
        if mine:
            source[0] += f"\n\n```{{toctree}}\n:hidden:\n:caption: {heading}\n\n" + "\n".join(mine) + "\n```\n"


def setup(app: Sphinx) -> None:
    """Connect the tree."""
    app.connect("source-read", add_tree)

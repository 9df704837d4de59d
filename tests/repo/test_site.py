"""The site builds without a warning, and each of its links and anchors leads to a part of the site."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

pytest.importorskip("sphinx", reason="make site installs it")
pytestmark = pytest.mark.timeout(600)

ROOT = Path(__file__).resolve().parents[2]


class Page(HTMLParser):
    """The links of a page, and the ids that links to it may name."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.ids: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" and value:
                self.ids.add(value)
            elif name in {"href", "src"} and value:
                self.links.append(value)


def dead_links(site: Path) -> Iterator[str]:
    """Yield each link that leads to no file of the site, or to no id of its page."""
    pages = {path: Page(path) for path in site.rglob("*.html")}
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            is_page = target in pages and parts.fragment
            if not target.exists() or (is_page and unquote(parts.fragment) not in pages[target].ids):
                yield f"{path.relative_to(site)}: {link}"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A build with the options of `make site`."""
    folder = tmp_path_factory.mktemp("site").resolve()
    command = [sys.executable, "-m", "sphinx", "-b", "dirhtml", "-E", "-W", "--keep-going", "-q", "-c", "docs"]
    built = subprocess.run(
        [*command, "-d", str(folder / "cache"), ".", str(folder / "site")],
        cwd=ROOT, capture_output=True, text=True, timeout=550, check=False,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    return folder / "site"


def test_each_link_of_the_site_leads_somewhere(site) -> None:
    # furo's links to the generated index of names and to the search are pages, too.
    assert not sorted(dead_links(site))


def test_the_site_has_a_page_for_each_page_of_the_checkout(site) -> None:
    pages = {path.relative_to(ROOT).with_suffix("") for path in (ROOT / "docs").rglob("*.md")}

    assert {path for path in pages if not (site / path).is_dir() and path.name != "index"} == set()


def test_docstrings_become_pages(site) -> None:
    text = (site / "docs/reference/python/dags/index.html").read_text(encoding="utf-8")

    assert 'id="airflow_provider_launch.operators.launch.LaunchAppOperator"' in text


def test_the_search_finds_words_of_the_pages(site) -> None:
    assert "defer_after_" in (site / "searchindex.js").read_text(encoding="utf-8")


def test_a_dead_link_is_found(tmp_path) -> None:
    (tmp_path / "a.html").write_text('<p id="x"><a href="#x">1</a><a href="#y">2</a><a href="b/">3</a></p>')

    assert sorted(dead_links(tmp_path)) == ["a.html: #y", "a.html: b/"]

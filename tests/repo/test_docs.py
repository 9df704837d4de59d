"""Pages are correct: each Python block runs, each link works, and the README fits on a screen."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from airflow_provider_launch.schedulers.backends import BACKENDS

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("changelog.d/README.md"))
)
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
SAVED = re.compile(r"Save (?:it|this) as `(\w+\.py)`[^\n]*\n\n```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)

_REPO = "airflow-provider-launch/airflow-provider-launch"
OURS = (f"https://github.com/{_REPO}/blob/main/", f"https://raw.githubusercontent.com/{_REPO}/main/")


def blocks(page: str, language: str) -> list[str]:
    text = (ROOT / page).read_text(encoding="utf-8")
    return [body for found, body in BLOCK.findall(text) if found == language]


def anchors(text: str) -> set[str]:
    """The ids that a page's headings get: lower case, spaces as hyphens, other characters dropped."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")])
def test_python_blocks_of_a_page_run(page, tmp_path, monkeypatch, capsys):
    """Blocks run in the order of the page, in one namespace; those that the reader saves run alone, as modules."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LAUNCH_HOME", str(tmp_path / "launch"))
    monkeypatch.syspath_prepend(tmp_path)
    namespace = {"__name__": "docs"}
    saved = dict(SAVED.findall((ROOT / page).read_text(encoding="utf-8")))
    for name, block in saved.items():
        (tmp_path / name).write_text(block, encoding="utf-8")

    for number, block in enumerate(blocks(page, "python"), 1):
        # A file, because functions of a block may travel with their source.
        file = tmp_path / f"{page.replace('/', '-')}-block-{number}.py"
        file.write_text(block, encoding="utf-8")
        exec(compile(block, str(file), "exec"), {"__name__": "docs"} if block in saved.values() else namespace)
    for name in saved:
        sys.modules.pop(name.removesuffix(".py"), None)

    told = {
        "docs/core.md": "hello from 0\nhello from 1\n",
        "docs/workspaces.md": "hello from the workspace\n",
        "docs/functions.md": "[3, 7]\n",
        "docs/app.md": "worker 1 has shard-1, attempt 0\nworker 1 has shard-1, attempt 1\n",
    }
    assert told.get(page, "") in capsys.readouterr().out


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "json")])
def test_json_blocks_of_a_page_parse(page):
    for block in blocks(page, "json"):
        json.loads(block)


def target_of(page: Path, link: str) -> tuple[Path, str] | None:
    """Return the file of this checkout that a link leads to, and the anchor; None if it leads elsewhere."""
    file, _, anchor = link.partition("#")
    for prefix in OURS:
        if file.startswith(prefix):
            return ROOT / file.removeprefix(prefix), anchor
    if "://" in file:
        return None
    return (page.parent / file if file else page), anchor


@pytest.mark.parametrize("page", PAGES)
def test_links_of_a_page_lead_somewhere(page):
    path = ROOT / page
    dead = []
    for link in re.findall(r"\]\(([^)\s]+)\)", BLOCK.sub("", path.read_text(encoding="utf-8"))):
        target = target_of(path, link)
        if target is None:
            continue
        found, anchor = target
        if not found.exists() or (anchor and anchor not in anchors(found.read_text(encoding="utf-8"))):
            dead.append(link)

    assert not dead


def test_links_of_the_readme_are_absolute():
    """It is also the page of the package on PyPI, which has no other files."""
    links = re.findall(r"\]\(([^)\s]+)\)", BLOCK.sub("", (ROOT / "README.md").read_text(encoding="utf-8")))

    assert len(links) > 10
    assert not [link for link in links if "://" not in link]


@pytest.mark.parametrize("name", BACKENDS)
def test_the_page_of_a_scheduler_has_all_its_parts(name):
    text = (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
    first, *parts = re.split(r"^## ", text, flags=re.MULTILINE)

    assert "```python" in first
    assert f"connection `launch_{name}_default`" in first.lower() or "[a connection](#a-connection)" in first
    assert f"(reference/options.md#{name})" in first
    assert {"Rights", "When something is wrong"} <= {part.partition("\n")[0] for part in parts}


@pytest.mark.parametrize("page", PAGES)
def test_tasks_named_in_a_page_exist(page):
    tasks = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))

    named = set(re.findall(r"(?:`|^)make ([a-z-]+)", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE))

    assert named <= tasks


def test_readme_fits_on_a_screen():
    """A picture, two commands, one DAG, a table and links; the rest belongs into docs/."""
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 50

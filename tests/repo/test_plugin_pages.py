"""The pages for authors of plug-ins are complete, and lead to public names only."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
from pathlib import Path

import pytest

from airflow_provider_launch.schedulers.api import DescribeAppResponse, ListAppResponse
from airflow_provider_launch.testing import Engine, SchedulerContract, contract
from tests.repo.test_docs import blocks

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = ["adding-a-queue.md", "adding-a-scheduler.md", "plugins.md", "testing.md", "reference/example-scheduler.md"]
SOURCES = [
    *ROOT.glob("tests/plugins/launch_*/*.py"),
    ROOT / "airflow_provider_launch" / "testing" / "example_scheduler.py",
]
PRIVATE = re.compile(r"(?:schedulers/|airflow_provider_launch[./](?:\w+[./])*)_[a-z]\w*")
"""A module of ours whose name starts with an underscore, as a path or in an import."""
FOR_OURS = "\n## A scheduler of this package\n"
"""The section of a page from which on it is not for plug-ins."""


def text_of(page: str) -> str:
    return (DOCS / page).read_text(encoding="utf-8").partition(FOR_OURS)[0]


def bullets(page: str) -> set[str]:
    return set(re.findall(r"^\* `(\w+)`", text_of(page), re.MULTILINE))


def rows(page: str) -> set[str]:
    """Return the names in the first column of the tables of a page."""
    found = re.findall(r"^\| ((?:`\w+(?:\([^)]*\))?`(?:, )?)+) \|", text_of(page), re.MULTILINE)
    return {name for cell in found for name in re.findall(r"`(\w+)", cell)}


@pytest.mark.parametrize("page", PAGES)
def test_a_page_for_authors_names_no_private_module(page):
    assert PRIVATE.findall(text_of(page)) == []


def test_private_modules_are_recognized():
    whole = (DOCS / "adding-a-scheduler.md").read_text(encoding="utf-8")

    assert PRIVATE.findall(whole) == ["schedulers/_kit"]
    assert PRIVATE.search("from airflow_provider_launch.schedulers._kit.claim import x")


def test_plugins_import_only_public_names():
    found = [
        f"{source.name}: {node.module}.{alias.name}"
        for source in SOURCES
        for node in ast.walk(ast.parse(source.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("airflow_provider_launch")
        for alias in node.names
    ]

    assert len({name.partition(":")[0] for name in found}) == len(SOURCES) - 1, "the driver of Ray imports none"
    assert [name for name in found if "._" in name] == []


def test_the_page_of_a_queue_is_enough_to_start_and_short():
    """It has a stub, its first app, its tests and a whole plug-in, all with their imports."""
    assert len(text_of("adding-a-queue.md").splitlines()) <= 300
    for block in blocks("docs/adding-a-queue.md", "python") + blocks("docs/adding-a-queue.md", "py"):
        assert re.match(r'(""".*"""\n\n)?(import|from) ', block), block[:80]


def test_all_attributes_and_fixtures_of_the_contract_are_listed():
    assert contract._DECLARED - {"engine", "create"} <= bullets("testing.md")
    assert bullets("testing.md") <= contract._DECLARED


def test_all_methods_of_the_engine_are_listed():
    methods = {name for name, _ in inspect.getmembers(Engine, inspect.isfunction)}

    assert methods <= rows("testing.md")


def test_all_fields_of_a_response_are_listed():
    """Some are written from several, such as the state and the message."""
    text = text_of("plugins.md")
    names = {field.name for kind in (DescribeAppResponse, ListAppResponse) for field in dataclasses.fields(kind)}
    names -= {"app_id", "app_handle"}

    assert {name for name in names if f"`{name}`" not in text} == set()


def test_no_section_of_the_contract_can_be_left_out():
    """Each test of the contract belongs to a module that the contract lists."""
    folder = Path(inspect.getfile(SchedulerContract)).parent
    classes = {
        node.name
        for path in folder.glob("_*.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and node.name.endswith("Tests")
    }

    assert classes == {base.__name__ for base in SchedulerContract.__bases__}

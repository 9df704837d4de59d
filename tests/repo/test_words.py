"""Users read the words of their field: those that only this project once used do not come back.

See `docs/glossary.md`. Users see pages, changelog, options and messages; names and comments are left to reviews.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
INSTEAD = {
    "told": "reported, shown, logged",
    "tell": "report, show, list",
    "tells": "reports, shows, lists",
    "telling": "reporting",
    "look": "poll, check",
    "looks": "polls, checks",
    "looked": "polled, checked",
    "borne": "retried while unreachable",
    "bears": "retries while unreachable",
    "in hand": "current",
    "whoever": "the user, the observer, the administrator",
    "judge": "decide",
    "judges": "decides",
    "verdict": "state, decision",
    "void": "discarded",
    "wish": "field, option, request",
    "wishes": "fields, options, requests",
    "of before": "previous",
    "says": "shows, states, names",
    "said": "showed, stated, named",
}
FORBIDDEN = re.compile(rf"\b({'|'.join(INSTEAD)})\b(?! up\b| like\b)", re.IGNORECASE)

PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("changelog.d/*.md"),
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
    )
    if path.name != "glossary.md"
)
MODULES = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "airflow_provider_launch").rglob("*.py"))
QUOTED = re.compile(r"`[^`]*`|^```.*?^```$", re.DOTALL | re.MULTILINE)


def found_in(text: str) -> list[str]:
    return [f"{match[0]!r}, better: {INSTEAD[match[0].lower()]}" for match in FORBIDDEN.finditer(text)]


def shown_strings(path: Path) -> list[str]:
    """Return the texts of a module that users may see: messages, and the help below a field."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    docstrings = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            is_model = isinstance(node, ast.ClassDef) and path.name == "options.py"
            bodies = [statement for statement in node.body if isinstance(statement, ast.Expr)]
            docstrings |= {id(statement.value) for statement in bodies if not is_model}
    texts = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    # A text without a blank is a name, of a class, a label or a file.
    return [node.value for node in texts if id(node) not in docstrings and " " in node.value.strip()]


@pytest.mark.parametrize("page", PAGES)
def test_a_page_uses_the_words_of_the_field(page: str) -> None:
    assert not found_in(QUOTED.sub("", (ROOT / page).read_text(encoding="utf-8")))


@pytest.mark.parametrize("module", MODULES)
def test_options_and_messages_use_the_words_of_the_field(module: str) -> None:
    assert not [found for text in shown_strings(ROOT / module) for found in found_in(text)]


def test_the_scan_sees_messages_and_help_and_no_docstrings(tmp_path: Path) -> None:
    module = tmp_path / "options.py"
    module.write_text(
        '"""A look at it."""\n\nclass Options:\n    root: str\n    """Whoever wants it."""\n\n'
        'def run(name):\n    """Tells it."""\n    raise ValueError(f"the engine says {name}; look again")\n',
        encoding="utf-8",
    )

    assert sorted(shown_strings(module)) == ["; look again", "Whoever wants it.", "the engine says "]

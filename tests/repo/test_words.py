"""Users read the words of their field: those that only this project once used do not come back.

See `docs/glossary.md`. This holds for pages, changelog, options and messages, for docstrings, comments and names of the
package, for the names of tests, and for the help of the Makefile.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
INSTEAD = {
    "told": "reported, shown, logged",
    "tell": "report, show, list",
    "tells": "reports, shows, lists",
    "telling": "reporting",
    "look": "poll, check",
    "looks": "polls, checks",
    "looked": "polled, checked",
    "looking": "polling, checking",
    "borne": "retried while unreachable",
    "bear": "retry while unreachable",
    "bears": "retries while unreachable",
    "in hand": "current",
    "whoever": "the user, the observer, the administrator",
    "judge": "decide",
    "judges": "decides",
    "judged": "decided",
    "verdict": "state, decision",
    "void": "discarded",
    "wish": "field, option, request",
    "wishes": "fields, options, requests",
    "of before": "previous",
    "says": "shows, states, names",
    "said": "showed, stated, named",
    "say": "show, state, name",
    "saying": "showing, stating",
}
# "Look up" and "look like" are plain English; so is a text of which only the look is meant.
PLAIN = r"(?![ _-]up\b|[ _-](?:like|alike)|-?up_| empty| older| the same)"
FORBIDDEN = re.compile(rf"(?<!-)\b({'|'.join(INSTEAD)})\b{PLAIN}", re.IGNORECASE)
IN_NAMES = re.compile(rf"(?:^|_)({'|'.join(word for word in INSTEAD if ' ' not in word)})(?=_|$){PLAIN}")

NOUNS = {
    "string",
    "ending",
    "mapping",
    "warning",
    "setting",
    "naming",
    "masking",
    "following",
    "running",
    "tracking",
    "standing",
    "starting",
}
"""Nouns of the field in -ing: a state, a table, or an activity as a topic."""

PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("changelog.d/*.md"),
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "SECURITY.md",
    )
    if path.name != "glossary.md"
)
MODULES = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "airflow_provider_launch").rglob("*.py"))
TESTS = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("test_*.py"))
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


def comments_and_docstrings(path: Path) -> list[str]:
    source = path.read_text(encoding="utf-8")
    comments = [
        token.string
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    ]
    strings = [node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Expr)]
    return comments + [text.value for text in strings if isinstance(text, ast.Constant) and isinstance(text.value, str)]


def defined_names(path: Path) -> list[str]:
    """Return the names of modules, classes, functions, arguments and variables that a module defines."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = [path.stem]
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names.append(node.name)
        elif isinstance(node, ast.arg):
            names.append(node.arg)
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.append(node.id if isinstance(node, ast.Name) else node.attr)
    # A class is written in CamelCase: `AppVerdict` has the words app and verdict.
    return [re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower() for name in names]


def is_gerund(class_name: str) -> bool:
    return class_name.endswith("ing") and class_name.rsplit("_", maxsplit=1)[-1] not in NOUNS


def found_in_all(paths: list[str], find: Callable[[Path], list[str]]) -> list[str]:
    """Return what is found in files, each with its file."""
    return [f"{path}: {found}" for path in paths for found in find(ROOT / path)]


def test_pages_use_the_words_of_the_field() -> None:
    assert not found_in_all(PAGES, lambda page: found_in(QUOTED.sub("", page.read_text(encoding="utf-8"))))


def test_options_and_messages_use_the_words_of_the_field() -> None:
    assert not found_in_all(MODULES, lambda module: [f for text in shown_strings(module) for f in found_in(text)])


def test_docstrings_and_comments_use_the_words_of_the_field() -> None:
    """Who reads a backend for the first time knows the field, and none of our own words."""

    def find(module: Path) -> list[str]:
        return [found for text in comments_and_docstrings(module) for found in found_in(QUOTED.sub("", text))]

    assert not found_in_all(MODULES, find)


def test_names_use_the_words_of_the_field() -> None:
    assert not found_in_all(MODULES, lambda module: [n for n in defined_names(module) if IN_NAMES.search(n)])


def test_tests_are_named_in_the_words_of_the_field() -> None:
    def find(module: Path) -> list[str]:
        return [name for name in defined_names(module) if name.startswith("test_") and IN_NAMES.search(name)]

    assert not found_in_all(TESTS, find)


def test_classes_and_modules_are_nouns() -> None:
    def find(module: Path) -> list[str]:
        tree = ast.parse(module.read_text(encoding="utf-8"))
        classes = [node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
        names = [*(re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower() for name in classes), module.stem]
        return [name for name in names if is_gerund(name)]

    assert not found_in_all(MODULES, find)


def test_the_makefile_uses_the_words_of_the_field() -> None:
    helps = re.findall(r"## (.*)", (ROOT / "Makefile").read_text(encoding="utf-8"))

    assert helps
    assert not [found for text in helps for found in found_in(text)]


def test_the_scan_sees_names_comments_and_docstrings(tmp_path: Path) -> None:
    module = tmp_path / "launching.py"
    module.write_text(
        'class AppVerdict:\n    """A look at it."""\n\n'
        "    def look_up(self, told):  # bear it\n        self._said = told\n",
        encoding="utf-8",
    )

    assert sum(bool(IN_NAMES.search(name)) for name in defined_names(module)) == 3
    assert [len(found_in(text)) for text in comments_and_docstrings(module)] == [1, 1]
    assert is_gerund("launching")


def test_the_scan_sees_messages_and_help_and_no_docstrings(tmp_path: Path) -> None:
    module = tmp_path / "options.py"
    module.write_text(
        '"""A look at it."""\n\nclass Options:\n    root: str\n    """Whoever wants it."""\n\n'
        'def run(name):\n    """Tells it."""\n    raise ValueError(f"the engine says {name}; look again")\n',
        encoding="utf-8",
    )

    assert sorted(shown_strings(module)) == ["; look again", "Whoever wants it.", "the engine says "]

"""Texts use the standard words of the field (see `docs/glossary.md`) and plain English.

Words are checked in pages, changelog, options, messages, docstrings, comments and names of the package, names of tests,
and the help of the Makefile. Constructions are also checked in tests, examples, benchmarks and tools.

`python tests/repo/test_words.py tests/contract docs` lists the constructions to avoid in these rooms. Without arguments
it prints the rows of `ALLOWED` that match the current tree.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Callable, Iterator
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
# "Look up" and "look like" are plain English, and so are looks in the sense of appearance.
PLAIN = r"(?![ _-]up\b|[ _-](?:like|alike)|-?up_| empty| older| the same)"
FORBIDDEN = re.compile(rf"(?<!-)\b({'|'.join(INSTEAD)})\b{PLAIN}", re.IGNORECASE)
IN_NAMES = re.compile(rf"(?:^|_)({'|'.join(word for word in INSTEAD if ' ' not in word)})(?=_|$){PLAIN}")

CONSTRUCTIONS = {
    # A question may start with these words.
    r"(?:^|[.!?:] |\| )(?:What|Who|Those (?:that|who)|Of (?:an?|two|those))\b(?![^.]*\?)": "the noun first",
    # "There is no such app" is plain English.
    r"(?<!there )\b(?:is|are) no (?!longer\b|more than\b)": "is not a valid, does not exist, has no",
    r"\b(?:is|are) none of": "is not one of",
    r"\banew\b": "again",
    r"\bin vain\b": "without success",
    r"\bbeside\b": "next to, in addition to",
    r"\bmend(?:s|ed|ing)?\b": "fix",
    r"\b(?:some|no)body\b": "another user, no process",
    r"\bgo(?:es)? on\b": "continue, resume",
    r"\bbrings? [^.;:]{1,30} on\b": "performs the next step of",
}
"""Constructions to avoid, each with a better wording."""
ALLOWED: dict[str, int] = {
    "tests": 1,
    "tests/airflow": 5,
    "tests/live": 1,
}
"""Number of constructions to avoid in each room. Lower a number when its room has fewer; never raise it."""

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
"""Nouns in -ing: a state, a table, or an activity as a topic."""

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
SOURCES = sorted(
    path.relative_to(ROOT).as_posix()
    for folder in ("airflow_provider_launch", "tests", "example_dags", "bench", "tools")
    for path in (ROOT / folder).rglob("*.py")
    # The test of the words quotes them.
    if path != Path(__file__).resolve()
)
HEADINGS = re.compile(r"^#.*$|^\|.*\|$(?=\n\|[-| ]+\|$)", re.MULTILINE)
"""Headings of pages and tables, which are not sentences: "What happens" is plain English there."""
QUOTED = re.compile(r"`[^`]*`|^```.*?^```$", re.DOTALL | re.MULTILINE)


def found_in(text: str) -> list[str]:
    return [f"{match[0]!r}, better: {INSTEAD[match[0].lower()]}" for match in FORBIDDEN.finditer(text)]


def shown_strings(path: Path) -> list[str]:
    """Return the texts of a module that users see: messages, and the help of options."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    docstrings = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            is_model = isinstance(node, ast.ClassDef) and path.name == "options.py"
            bodies = [statement for statement in node.body if isinstance(statement, ast.Expr)]
            docstrings |= {id(statement.value) for statement in bodies if not is_model}
    texts = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    # A text without a blank is the name of a class, a label or a file.
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


def paragraphs(text: str) -> list[str]:
    """Split a text at blank lines, list items, headings and rows; each part becomes one line."""
    parts = re.split(r"\n\s*\n|\n(?=\s*(?:[-*#|]|\d+\.) ?)", text)
    return [" ".join(re.sub(r"^\s*(?:[-*#]+ |\d+\. )", "", part).split()) for part in parts]


def comment_blocks(source: str) -> Iterator[str]:
    """Yield the comments of a module; comments on consecutive lines are one text."""
    block: list[str] = []
    last = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        line, column = token.start
        stands_alone = not token.line[:column].strip()
        if block and (line != last + 1 or not stands_alone):
            yield " ".join(block)
            block = []
        block.append(token.string.lstrip("#: "))
        last = line
    yield " ".join(block)


def sentences_of(path: Path) -> Iterator[str]:
    """Yield all texts of a module: comments, docstrings, messages and help."""
    source = path.read_text(encoding="utf-8")
    tree = ast.parse(source)
    yield from comment_blocks(source)
    parts = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts |= {id(value) for value in node.values}
            yield "".join(str(value.value) if isinstance(value, ast.Constant) else "`x`" for value in node.values)
    for node in ast.walk(tree):
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts
        # A text without a blank is a name, of a user or a step.
        if is_text and " " in node.value.strip():
            yield node.value


def constructions_in(text: str) -> list[str]:
    """Return the constructions to avoid, each with its context and a better wording."""
    found = []
    for paragraph in paragraphs(
        re.sub(r"`[^`\n]*`", "`x`", re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE))
    ):
        for pattern, better in CONSTRUCTIONS.items():
            flags = 0 if pattern.startswith("(?:^") else re.IGNORECASE
            for match in re.finditer(pattern, paragraph, flags):
                around = paragraph[max(match.start() - 40, 0) : match.end() + 40]
                found.append(f"{around!r}, better: {better}")
    return found


def constructions() -> dict[str, list[str]]:
    """Return the constructions to avoid by room: a folder of the package or of the tests, or another folder."""
    rooms: dict[str, list[str]] = {}
    for path in [*PAGES, *SOURCES]:
        parts = Path(path).parts[:-1]
        depth = 3 if parts[1:2] == ("schedulers",) else 2 if parts[:1] != ("docs",) else 1
        room = "/".join(parts[:depth]) or "docs"
        is_page = path.endswith(".md")
        texts = [HEADINGS.sub("", (ROOT / path).read_text(encoding="utf-8"))] if is_page else sentences_of(ROOT / path)
        rooms.setdefault(room, []).extend(f"{path}: {found}" for text in texts for found in constructions_in(text))
    return rooms


def defined_names(path: Path) -> list[str]:
    """Return the names that a module defines, including its own."""
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
    """Return the findings in files, each with its file."""
    return [f"{path}: {found}" for path in paths for found in find(ROOT / path)]


def test_pages_use_the_words_of_the_field() -> None:
    assert not found_in_all(PAGES, lambda page: found_in(QUOTED.sub("", page.read_text(encoding="utf-8"))))


def test_options_and_messages_use_the_words_of_the_field() -> None:
    assert not found_in_all(MODULES, lambda module: [f for text in shown_strings(module) for f in found_in(text)])


def test_docstrings_and_comments_use_the_words_of_the_field() -> None:
    """A new reader knows the words of the field, but not words of this project."""

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


def test_constructions_to_avoid_become_fewer() -> None:
    """Rewrite a new one; lower the number in `ALLOWED` after removing one."""
    found = {room: texts for room, texts in constructions().items() if texts}

    more = [text for room, texts in found.items() if len(texts) > ALLOWED.get(room, 0) for text in texts]
    assert not more
    assert {room: len(texts) for room, texts in found.items()} == ALLOWED, "lower the numbers of ALLOWED"


@pytest.mark.parametrize(
    "text",
    [
        "What the containers were made from is gone.",
        "It ended. Who asks again gets it.",
        "Those that are missing are new.",
        "Of a cancelled app the reason stays.",
        "the port 99999 is no port",
        "it is none of its",
        "A task goes on and\n    brings an app on.",
        "Somebody else runs a sidecar beside it.",
    ],
)
def test_a_construction_to_avoid_is_found(text: str) -> None:
    assert constructions_in(text)


@pytest.mark.parametrize(
    "text",
    [
        "What is a follower?",
        "There is no such app.",
        "It is no longer there, and is no more than a name.",
        "We recommend `nobody` besides.",
    ],
)
def test_plain_english_is_not_found(text: str) -> None:
    assert not constructions_in(text)


def test_constructions_are_found_in_comments_messages_and_docstrings(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text(
        '"""Go on anew."""\n\n# Over two lines: it is\n# no app.\nraise ValueError(f"{name} is no app")\n',
        encoding="utf-8",
    )

    assert [len(constructions_in(text)) for text in sentences_of(module)] == [1, 1, 2]


if __name__ == "__main__":
    by_room = constructions()
    for chosen in sys.argv[1:]:
        sys.stdout.write("".join(f"{text}\n" for text in by_room.get(chosen, [])))
    if not sys.argv[1:]:
        counts = Counter({room: len(texts) for room, texts in by_room.items() if texts})
        sys.stdout.write("".join(f'    "{room}": {counts[room]},\n' for room in sorted(counts)))

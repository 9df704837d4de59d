"""Whether a function can be a component, by its source."""

from __future__ import annotations

import pytest

from airflow_provider_launch.specs import file_linter
from airflow_provider_launch.specs.file_linter import ArgTypeValidator, ReturnTypeValidator, validate


@pytest.fixture
def lint(tmp_path):
    def lint(source, name="fn", **options):
        path = tmp_path / "component.py"
        path.write_text(source)
        return validate(str(path), name, **options)

    return lint


@pytest.mark.parametrize(
    "arg",
    [
        "x: int",
        "x: 'str'",
        "x: Optional[int]",
        "x: typing.Optional[int]",
        "x: int | None",
        "x: None | int",
        "x: Union[int, None]",
        "x: Annotated[str, '-x']",
        "x: Annotated[Optional[str], '-x']",
        "x: list",
        "x: list[str]",
        "x: typing.List[str]",
        "x: Optional[list[str]]",
        "x: dict[str, str] | None",
        "x: Dict[str, int]",
        "x: tuple[int, str]",
        "x: Mine",
        "*args: str",
        "*, x: str",
        "x: str, /",
    ],
)
def test_types_that_text_can_spell_are_right(lint, arg):
    assert lint(f"def fn({arg}) -> AppDef: ...") == []


@pytest.mark.parametrize(
    ("arg", "text"),
    [
        ("x", "Missing type annotation for argument 'x' in function 'fn'"),
        ("*args", "Missing type annotation for argument 'args' in function 'fn'"),
        ("*, k", "Missing type annotation for argument 'k' in function 'fn'"),
        ("p, /", "Missing type annotation for argument 'p' in function 'fn'"),
        ("x: 'in valid'", "Unsupported argument type ''in valid'' for argument 'x: 'in valid'' in function 'fn'"),
        (
            "x: dict[list[str], str]",
            "Non-primitive key type 'list[str]' for argument 'x: dict[list[str], str]' in function 'fn'",
        ),
        ("x: dict[str, list[str]]", "Non-primitive value type 'list[str]' for argument"),
        ("x: list[list[str]]", "Non-primitive element type 'list[str]' for argument"),
        ("x: tuple[int, list[str]]", "Non-primitive element type 'list[str]' for argument"),
        ("x: set[str]", "Unsupported container type 'set' for argument"),
        ("x: dict[str]", "Malformed dict type 'dict[str]' for argument"),
        ("x: tuple[int]", "Unsupported tuple type 'tuple[int]' for argument"),
        ("x: mod.Type", "Unsupported argument type 'mod.Type' for argument"),
        ("x: int | str", "Unsupported argument type 'int | str' for argument"),
    ],
)
def test_other_types_are_named(lint, arg, text):
    (message,) = lint(f"def fn({arg}) -> AppDef: ...")

    assert message.description.startswith(text)
    assert (message.severity, message.line) == ("error", 1)


@pytest.mark.parametrize(
    ("returns", "text"),
    [
        ("", "missing return annotation"),
        ("-> int", "incorrect return annotation"),
        ("-> list[AppDef]", "incorrect return annotation"),
        ("-> AppDef", None),
        ("-> specs.AppDef", None),
        ("-> 'specs.AppDef'", None),
        ("-> 'AppDef'", None),
    ],
)
def test_the_function_must_show_that_it_returns_an_app(lint, returns, text):
    messages = lint(f"def fn() {returns}: ...")

    assert [text in message.description for message in messages] == ([] if text is None else [True])


def test_several_things_may_be_wrong(lint):
    assert len(lint("def fn(a, b, c: set[str]): ...")) == 4
    assert lint("def fn(a): ...", validators=[]) == []
    assert len(lint("def fn(a): ...", validators=[ArgTypeValidator()])) == 1
    assert lint("def fn(a) -> Other: ...", validators=[ReturnTypeValidator("Other")]) == []


def test_a_file_that_cannot_be_read_is_one_message(lint):
    (message,) = lint("def fn(:\n")
    assert message.description == "invalid syntax"
    (message,) = lint("def other() -> AppDef: ...")
    assert message.description == "Function fn not found"


def test_the_last_definition_counts_also_below_try(lint):
    source = "def fn(a): ...\ntry:\n    def fn() -> AppDef: ...\nexcept ImportError:\n    pass\n"

    assert lint(source) == []


def test_the_file_is_not_run(lint):
    assert lint("raise SystemExit\ndef fn() -> AppDef: ...") == []


def test_the_reader_is_found_in_this_module(monkeypatch):
    monkeypatch.setattr(file_linter, "read_conf_file", lambda path: "def fn() -> AppDef: ...")

    assert validate("no/such/file", "fn") == []

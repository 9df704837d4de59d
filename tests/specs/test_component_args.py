"""Arguments of components, from text and from values."""

from __future__ import annotations

import argparse
from typing import Annotated, Any

import pytest

from airflow_provider_launch.specs import AppDef
from airflow_provider_launch.specs.builders import (
    ComponentArgs,
    build_app,
    component_args_from_str,
    materialize_appdef,
    parse_args,
)
from airflow_provider_launch.specs.errors import InvalidAppError
from airflow_provider_launch.specs.file_linter import TorchXArgumentHelpFormatter, get_fn_docstring


def kept(**values: Any) -> AppDef:
    return AppDef("app", metadata=values)


def one(  # noqa: PLR0917 - components take what they take
    i: int = 1,
    number: float = 0.5,
    flag: bool = False,
    text: str | None = None,
    words: list[str] | None = None,
    pairs: dict[str, int] | None = None,
    numbers: list[int] | None = None,
    h: str = "none",
    config: Annotated[str, "-cn"] = "c",
) -> AppDef:
    """Keep what it is given.

    It does nothing else.

    Args:
        i: a whole number, 100% of it
        number: a number
            over two lines
        text (str): a text
    """
    return kept(
        i=i,
        number=number,
        flag=flag,
        text=text,
        words=words,
        pairs=pairs,
        numbers=numbers,
        h=h,
        config=config,
    )


def rest(*args: str, needed: str, also: str = "a") -> AppDef:
    return kept(args=args, needed=needed, also=also)


def given(arguments: Any, fn: Any = one, **options: Any) -> dict[str, Any]:
    """Arguments that differ from the defaults of `one`."""
    default = one().metadata if fn is one else {}
    made = materialize_appdef(fn, arguments, **options).metadata
    return {name: value for name, value in made.items() if value != default.get(name, "")}


@pytest.mark.parametrize(
    ("arguments", "values"),
    [
        ([], {}),
        (["--i", "3"], {"i": 3}),
        (["--i=3"], {"i": 3}),
        (["-i", "3"], {"i": 3}),
        (["--i", "-3"], {"i": -3}),
        (["--number", "1e3"], {"number": 1000.0}),
        (["--flag", "YES"], {"flag": True}),
        (["--text", "a b"], {"text": "a b"}),
        (["--text", ""], {"text": ""}),
        (["--text=--i"], {"text": "--i"}),
        (["--words", "a,b,c"], {"words": ["a", "b", "c"]}),
        (["--words", ""], {}),
        (["--numbers", "1,2"], {"numbers": [1, 2]}),
        (["--pairs", "a=1,b=2"], {"pairs": {"a": 1, "b": 2}}),
        (["-h", "gpu"], {"h": "gpu"}),
        (["-cn", "x"], {"config": "x"}),
        (["--config", "x"], {"config": "x"}),
    ],
)
def test_arguments_are_cast_to_the_type_of_their_parameter(arguments, values):
    assert given(arguments) == values


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--needed", "n"], ()),
        (["--needed", "n", "a", "b"], ("a", "b")),
        (["--needed", "n", "a", "--also", "x", "-y"], ("a", "--also", "x", "-y")),
        (["--needed", "n", "--", "--lr", "1"], ("--lr", "1")),
        (["--needed", "n", "--", "--", "1"], ("--", "1")),
        (["--needed", "n", "a", "--", "b"], ("a", "--", "b")),
    ],
)
def test_everything_after_the_first_free_word_belongs_to_the_rest(arguments, words):
    made = materialize_appdef(rest, arguments).metadata

    assert made == {"args": words, "needed": "n", "also": "a"}


def test_the_vector_wins_over_config_and_that_over_defaults():
    options: dict[str, Any] = {"cmpnt_defaults": {"i": "2", "number": "2", "h": "d"}, "config": {"i": 3, "number": 3.0}}

    assert given(["--i", "4"], **options) == {"i": 4, "number": 3.0, "h": "d"}
    assert given([], cmpnt_defaults={"unknown": "x"}, config={"other": 1}) == {}


def test_a_default_text_of_the_rest_is_split_like_a_shell_line():
    options: dict[str, Any] = {"cmpnt_defaults": {"args": "a 'b c' --d=e", "needed": "n"}}

    assert given([], rest, **options)["args"] == ("a", "b c", "--d=e")
    assert given(["x"], rest, **options)["args"] == ("x",)
    assert given([], rest, config={"args": ["p", "q"], "needed": "n"})["args"] == ("p", "q")


def test_raw_and_typed_arguments_can_be_had():
    assert parse_args(one, ["--i", "3", "--words", "a,b"]).words == "a,b"
    assert parse_args(one, ["--i", "3"]).i == 3
    assert component_args_from_str(rest, ["--needed", "n", "a"]) == ComponentArgs(
        positional_args={}, var_args=["a"], kwargs={"needed": "n", "also": "a"}
    )


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--also", "x"], "the following arguments are required: --needed"),
        (["--needed", "x", "--alos", "y"], "unrecognized arguments: --alos"),
        (["--needed"], "expected one argument"),
    ],
)
def test_wrong_vectors_end_a_program_with_its_usage(arguments, text, capsys):
    with pytest.raises(SystemExit) as caught:
        materialize_appdef(rest, arguments)

    told = capsys.readouterr().err
    assert caught.value.code == 2
    assert text in told
    assert "usage: rest" in told


def test_help_shows_the_docstring(capsys):
    with pytest.raises(SystemExit) as caught:
        parse_args(one, ["--help"])

    told = " ".join(capsys.readouterr().out.split())
    assert caught.value.code == 0
    assert "Keep what it is given. It does nothing else." in told
    assert "a whole number, 100% of it (default: 1)" in told
    assert "a number over two lines (default: 0.5)" in told
    assert "--flag FLAG bool (default: False)" in told


def test_the_formatter_marks_required_arguments():
    parser = argparse.ArgumentParser(formatter_class=TorchXArgumentHelpFormatter, add_help=False)
    parser.add_argument("--a", required=True, help="first")
    parser.add_argument("--b", default="x", help="second")

    told = parser.format_help()
    assert "first (required)" in told
    assert "second (default: x)" in told


def test_docstrings_are_read():
    description, helps = get_fn_docstring(one)

    assert description == "Keep what it is given.\nIt does nothing else."
    assert helps["text"] == "a text"
    assert helps["flag"] == " "
    assert get_fn_docstring(rest)[0].startswith("rest ")


# ---- without a process to end ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "values"),
    [
        ({}, {}),
        ({"i": 3, "flag": True, "text": "x"}, {"i": 3, "flag": True, "text": "x"}),
        ({"i": "3", "flag": "on", "number": "2"}, {"i": 3, "flag": True, "number": 2.0}),
        ({"number": 2}, {"number": 2}),
        ({"text": None}, {}),
        ({"words": ["a"], "pairs": {"a": 1}}, {"words": ["a"], "pairs": {"a": 1}}),
        ({"words": "a,b", "pairs": "a=1"}, {"words": ["a", "b"], "pairs": {"a": 1}}),
        (["--i", "3"], {"i": 3}),
    ],
)
def test_values_are_taken_as_they_are_and_text_is_cast(arguments, values):
    default = one().metadata
    made = build_app(one, arguments).metadata

    assert {name: value for name, value in made.items() if value != default[name]} == values


@pytest.mark.parametrize(("words", "expected"), [(["a", 1], ("a", "1")), ("a 'b c'", ("a", "b c")), ([], ())])
def test_the_rest_is_a_list_or_a_line(words, expected):
    assert build_app(rest, {"args": words, "needed": "n"}).metadata["args"] == expected


@pytest.mark.parametrize(
    ("fn", "arguments", "texts"),
    [
        (one, {"txt": "x"}, ["no argument 'txt'", "did you mean 'text'?", "usage: one"]),
        (one, {"zzzz": "x"}, ["no argument 'zzzz'", "there are i, number"]),
        (one, {"i": "x"}, ["'i' must be int", "'x' is not", "usage: one"]),
        (one, {"i": True}, ["'i' must be int", "True is bool"]),
        (one, {"i": None}, ["'i' must be int", "None is NoneType"]),
        (one, {"flag": "perhaps"}, ["'flag' must be bool", "'perhaps'"]),
        (one, {"words": [1]}, ["'words' must be list[str]"]),
        (one, {"pairs": {"a": "x"}}, ["'pairs' must be dict[str, int]"]),
        (one, {"pairs": "a"}, ["'pairs' must be dict[str, int]"]),
        (one, ["--i", "x"], ["--i", "invalid int value: 'x'", "usage: one"]),
        (one, ["--wrods", "x"], ["unrecognized arguments: --wrods", "did you mean '--words'?"]),
        (one, ["--flag", "perhaps"], ["'flag' must be bool"]),
        (one, ["--help"], ["usage: one", "a whole number"]),
        (one, "--i 3", ["must be a list of strings or a mapping"]),
        (one, ["--i", 3], ["must be a list of strings or a mapping"]),
        (rest, {}, ["needs the argument 'needed'", "usage: rest"]),
        (rest, [], ["the following arguments are required: --needed"]),
        (rest, {"needed": "n", "args": 3}, ["'args' takes a list of strings, not int"]),
        (rest, {"needed": "n", "args": [["x"]]}, ["'args' takes a list of strings, but it has a list"]),
    ],
)
def test_a_wrong_argument_is_named_with_the_usage(fn, arguments, texts):
    with pytest.raises(InvalidAppError) as caught:
        build_app(fn, arguments)

    assert [text for text in texts if text not in str(caught.value)] == []


def test_a_secret_is_not_shown():
    def login(password: int = 0) -> AppDef:
        return kept(password=password)

    with pytest.raises(InvalidAppError, match="'password' must be int") as caught:
        build_app(login, {"password": "hunter2"})

    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "arguments", [["--api_key", "hunter2hush"], ["--api_key=hunter2hush"], ["--api_key=1", "--password", "hunter2hush"]]
)
def test_no_error_about_a_vector_shows_a_secret(arguments):
    def login(api_key: int = 0) -> AppDef:
        return kept(api_key=api_key)

    with pytest.raises(InvalidAppError, match=r"\*\*\*") as caught:
        build_app(login, arguments)

    assert "hunter2hush" not in str(caught.value)


def test_a_function_that_is_not_a_component_is_refused():
    def many(**kwargs: str) -> AppDef:
        return kept(**kwargs)

    def other(a: str = "") -> AppDef:
        return "no app"  # type: ignore[return-value]

    def refuses() -> AppDef:
        raise ValueError("give me more")

    for build in (build_app, materialize_appdef):
        with pytest.raises(TypeError, match=r"'many' takes \*\*kwargs"):
            build(many, [])
        with pytest.raises(TypeError, match="'other' must return an AppDef, not str"):
            build(other, [])
    with pytest.raises(InvalidAppError, match="component 'refuses': give me more"):
        build_app(refuses, {})


@pytest.mark.parametrize(
    ("error", "reason"),
    [(KeyError("no such size"), "no such size"), (KeyError(), "KeyError"), (ValueError(), "ValueError")],
)
def test_an_error_of_a_component_about_its_arguments_is_one_of_the_app(error, reason):
    def fails() -> AppDef:
        raise error

    with pytest.raises(InvalidAppError, match=f"^component 'fails': {reason}$"):
        build_app(fails, {})


def test_an_annotation_that_does_not_exist_at_run_time_is_named():
    def train(x: Absent) -> AppDef:  # type: ignore[name-defined]  # noqa: F821 - as below TYPE_CHECKING
        return kept(x=x)

    with pytest.raises(TypeError, match=r"component 'train': an annotation uses 'Absent', .* outside of TYPE_CHECKING"):
        build_app(train, {"x": "1"})

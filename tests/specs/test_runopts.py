"""The schema of a scheduler's options."""

from __future__ import annotations

import logging
import typing
from typing import Any, Literal, Optional, Union

import pytest

from airflow_provider_launch.specs.errors import InvalidRunConfigException
from airflow_provider_launch.specs.runopts import runopt, runopts

USAGE = """\
    usage:
        region=REGION,[tags=TAGS]

    required arguments:
        region=REGION (str)
            where to run

    optional arguments:
        tags=TAGS (list[str], None)
            labels"""


@pytest.fixture
def opts() -> runopts:
    opts = runopts()
    opts.add("run_as", str, "user", required=True, aliases=["user"], deprecated_aliases=["owner"])
    opts.add("priority", int, "rank", default=10)
    opts.add("tags", list[str], "labels")
    opts.add("env", dict[str, str], "variables")
    opts.add("ratio", float, "share")
    opts.add("preemptible", bool, "may be stopped", default=False)
    opts.add("ulimits", list, "limits as JSON")
    return opts


@pytest.mark.parametrize(
    ("tp", "text", "value"),
    [
        (str, " a ", " a "),
        (int, "5", 5),
        (float, "0.5", 0.5),
        (bool, "Yes", True),
        (bool, "off", False),
        (list[str], "a,b,", ["a", "b"]),
        (list[str], "a;b", ["a", "b"]),
        (list[str], "", []),
        (list[str], '["a,b", "c;d", 1]', ["a,b", "c;d", "1"]),
        (list[str], " []", []),
        (list[int], "[1, 2]", [1, 2]),
        (dict[str, str], '{"team": "x:y,z", "n": 1}', {"team": "x:y,z", "n": "1"}),
        (dict[str, str], "a:b:c,d:e", {"a": "b:c", "d": "e"}),
        (dict[str, str], "", {}),
        (list, '[{"a": 1}]', [{"a": 1}]),
        (dict, '{"a": {"b": [1]}}', {"a": {"b": [1]}}),
        (list[int], "1,2", [1, 2]),
        (Optional[int], "5", 5),  # noqa: UP045 - old annotations work too
        (int | bool, "yes", True),
        (Literal["low", "high"], "HIGH", "high"),
        (typing.List[str], "a", ["a"]),  # noqa: UP006 - same
    ],
)
def test_text_is_cast_to_the_type(tp, text, value):
    assert runopt(None, tp, is_required=False, help="").cast_to_type(text) == value


@pytest.mark.parametrize(
    ("tp", "text", "reason"),
    [
        (int, "x", "x"),
        (float, "x", "x"),
        (bool, "maybe", "maybe"),
        (dict[str, str], "a:b,c", "'c'"),
        (dict, "[1]", "list"),
        (list, "{", "JSON"),
        pytest.param(list, "[" * 100_000, "recursion", id="deep"),
        (list[str], "['a']", "tojson"),
        (list[str], '["a", "b"', "tojson"),
        (list[str], '{"a": "b"}', "dict"),
        (dict[str, str], "{team: x}", "tojson"),
        (dict[str, str], '["a"]', "list"),
        (list[int], '["a"]', "members"),
        (type(None), "x", "None"),
        (Literal["low", "high"], "mid", "'low', 'high'"),
    ],
)
def test_text_of_another_type_is_refused(tp, text, reason):
    with pytest.raises(ValueError, match=reason):
        runopt(None, tp, is_required=False, help="").cast_to_type(text)


@pytest.mark.parametrize(
    ("value", "tp", "fits"),
    [
        (["a"], list[str], True),
        ([1], list[str], False),
        (["a"], dict[str, str], False),
        ({"a": "b"}, dict[str, str], True),
        ({"a": 1}, typing.Dict[str, str], False),  # noqa: UP006 - old annotations work too
        (True, int, False),
        (1, float, True),
        (True, float, False),
        (1, bool, False),
        (1, Union[str, int], True),  # noqa: UP007 - same
        (1.5, str | int, False),
        (1, int | None, True),
        (None, int | None, False),
        (None, Any, False),
        (object(), Any, True),
        ([1, "a"], list, True),
        ({1: 2}, dict, True),
        ("low", Literal["low"], True),
        ("mid", Literal["low"], False),
        ([{"a": None}], list[dict[str, Any]], True),
    ],
)
def test_types_are_checked_to_their_elements(value, tp, fits):
    assert runopts.is_type(value, tp) is fits


def test_kinds_of_collections_are_reported():
    assert runopt(None, list[str], is_required=False, help="").is_type_list_of_str
    assert runopt(None, typing.List[str], is_required=False, help="").is_type_list_of_str  # noqa: UP006 - old spelling
    assert not runopt(None, list, is_required=False, help="").is_type_list_of_str
    assert runopt(None, typing.Dict[str, str], is_required=False, help="").is_type_dict_of_str  # noqa: UP006 - same
    assert not runopt(None, dict[str, int], is_required=False, help="").is_type_dict_of_str


def test_a_required_option_has_no_default():
    with pytest.raises(ValueError, match="region"):
        runopts().add("region", str, "where", default="eu", required=True)


@pytest.mark.parametrize(("tp", "default"), [(int, "5"), (str, 5), (int, True), (list[str], [1]), (int, [])])
def test_a_default_of_another_type_is_refused(tp, default):
    with pytest.raises(TypeError, match="'x'"):
        runopts().add("x", tp, "", default=default)


@pytest.mark.parametrize(("tp", "default"), [(list[str], []), (dict[str, str], {}), (list[str], {}), (list, [])])
def test_an_empty_collection_is_a_default_of_each_collection_type(tp, default):
    opts = runopts()
    opts.add("x", tp, "", default=default)

    assert opts.resolve(opts.resolve({})) == {"x": default}


def test_a_later_option_replaces_an_earlier_one(opts):
    opts.add("priority", str, "now text", default="high")

    assert opts.get("priority") == runopt("high", str, is_required=False, help="now text")
    assert [name for name, _ in opts][:2] == ["run_as", "priority"]
    assert len(opts) == 7


@pytest.mark.parametrize("name", ["run_as", "user", "owner", "runAs"])
def test_each_spelling_finds_the_option(opts, name):
    assert opts.get(name) is opts._opts["run_as"]


def test_camel_case_can_be_declined():
    opts = runopts()
    opts.add("run_as", str, "", auto_aliases=False)

    assert opts.get("runAs") is None
    assert opts.get("nothing") is None


def test_resolve_fills_in_defaults_and_keeps_the_rest(opts):
    cfg = {"runAs": "a", "extra": 1, "tags": None}

    resolved = opts.resolve(cfg)

    assert resolved == {
        "run_as": "a",
        "extra": 1,
        "tags": None,
        "priority": 10,
        "env": None,
        "ratio": None,
        "preemptible": False,
        "ulimits": None,
    }
    assert cfg == {"runAs": "a", "extra": 1, "tags": None}
    assert opts.resolve(resolved) == resolved


def test_a_default_is_copied():
    opts = runopts()
    opts.add("tags", list[str], "", default=["a"])
    opts.resolve({})["tags"].append("b")

    assert opts.resolve({}) == {"tags": ["a"]}


@pytest.mark.parametrize("cfg", [{}, {"run_as": None}])
def test_a_required_option_must_have_a_value(opts, cfg):
    with pytest.raises(InvalidRunConfigException, match="run_as") as caught:
        opts.resolve(cfg)

    assert caught.value.cfg_key == "run_as"


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("priority", "high", ["priority", "int", "'high'", "str"]),
        ("priority", True, ["priority", "int", "True", "bool"]),
        ("tags", [1], ["tags", "list[str]", "[1]"]),
        ("env", {"a": 1}, ["env", "dict[str, str]"]),
    ],
)
def test_a_wrong_value_is_reported_with_option_value_and_type(opts, name, value, words):
    with pytest.raises(InvalidRunConfigException) as caught:
        opts.resolve({"run_as": "a", name: value})

    assert all(word in str(caught.value) for word in words)


def test_two_spellings_may_agree_but_not_differ(opts):
    assert opts.resolve({"run_as": "a", "runAs": "a"})["run_as"] == "a"
    with pytest.raises(InvalidRunConfigException, match=r"'run_as'.*'runAs'"):
        opts.resolve({"run_as": "a", "runAs": "b"})


def test_a_deprecated_spelling_warns(opts):
    with pytest.warns(DeprecationWarning, match="'owner' is deprecated; use 'run_as'"):
        assert opts.resolve({"owner": "a"})["run_as"] == "a"


def test_an_error_lists_names_and_no_values(opts):
    """The misspelt name of a password is not recognized as a secret."""
    with pytest.raises(InvalidRunConfigException, match=r"Given: run_as, registry_pasword, 'a\\nb'$"):
        opts.resolve({"run_as": "hunter2", "registry_pasword": "hunter2", "a\nb": "hunter2"}, strict=True)


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("priorty", "unknown option 'priorty'; did you mean 'priority'?"),
        ("usr", "did you mean 'run_as'?"),
        ("zzz", "Known options: run_as, priority, tags"),
    ],
)
def test_strict_refuses_an_unknown_name_and_proposes_one(opts, key, text):
    with pytest.raises(InvalidRunConfigException) as caught:
        opts.resolve({"run_as": "a", key: 1}, strict=True)

    assert text in str(caught.value)
    assert caught.value.cfg_key == key


@pytest.mark.parametrize(
    ("text", "cfg"),
    [
        ("K=a,b;J=d", {"K": ["a", "b"], "J": "d"}),
        ("K=a,b;", {"K": ["a", "b"]}),
        ("E=f:b,F:B", {"E": {"f": "b", "F": "B"}}),
        ("J=d,K=a,X=e", {"J": "d", "K": ["a"]}),
        ("", {}),
    ],
)
def test_options_are_read_from_one_text(text, cfg):
    opts = runopts()
    opts.add("K", list[str], "")
    opts.add("J", str, "", default="unused")
    opts.add("E", dict[str, str], "")

    assert opts.cfg_from_str(text) == cfg


def test_an_unknown_name_in_text_is_reported_and_dropped_or_refused(opts, caplog):
    with caplog.at_level(logging.WARNING):
        assert opts.cfg_from_str("priorty=5,runAs=a") == {"run_as": "a"}

    assert "did you mean 'priority'?" in caplog.text
    with pytest.raises(InvalidRunConfigException):
        opts.cfg_from_str("priorty=5", strict=True)
    with pytest.raises(ValueError, match=r"priority.*int.*'x'"):
        opts.cfg_from_str("priority=x")


@pytest.mark.parametrize(
    ("text", "cfg"),
    [
        ('{"priority": 5, "tags": null}', {"priority": 5, "tags": None}),
        ('{"priority": "5"}', {"priority": 5}),
        ('{"tags": "a,b"}', {"tags": ["a", "b"]}),
        ('{"tags": ["a", 1]}', {"tags": ["a", "1"]}),
        ('{"env": {"a": 1}}', {"env": {"a": "1"}}),
        ('{"ulimits": [{"soft": 1}]}', {"ulimits": [{"soft": 1}]}),
        ('{"ratio": 1, "preemptible": "no"}', {"ratio": 1, "preemptible": False}),
    ],
)
def test_options_are_read_from_json(opts, text, cfg):
    assert opts.cfg_from_json_repr(text) == cfg


@pytest.mark.parametrize("text", ['{"priority": "x"}', '{"run_as": 5}', '{"priority": 1.5}', '{"tags": {}}', "[1]"])
def test_json_of_another_type_is_refused(opts, text):
    with pytest.raises(ValueError, match=r"priority|run_as|tags|object"):
        opts.cfg_from_json_repr(text)


def test_the_right_schema_wins():
    left, right = runopts(), runopts()
    left.add("a", int, "left", default=1)
    left.add("b", int, "left", default=1)
    right.add("b", int, "right", default=2)
    merged = left | right

    assert merged.resolve({}) == {"a": 1, "b": 2}
    assert left.resolve({}) == {"a": 1, "b": 1}
    left.update(right)
    assert left.resolve({}) == {"a": 1, "b": 2}


def test_usage_shows_required_options_first():
    opts = runopts()
    opts.add("tags", list[str], "labels")
    opts.add("region", str, "where to run", required=True)

    assert repr(opts) == USAGE
    assert repr(runopts()) == "    usage:\n        "


def test_a_secret_is_not_shown_in_an_error():
    """Error texts are written to task logs."""
    opts = runopts()
    opts.add("api_token", int, "")

    for failing in (lambda: opts.resolve({"api_token": "hunter2"}), lambda: opts.cfg_from_str("api_token=hunter2")):
        with pytest.raises(InvalidRunConfigException) as caught:
            failing()
        assert "hunter2" not in str(caught.value)


def test_a_dict_of_wrong_parts_is_not_only_named_by_its_own_type(opts) -> None:
    """The message was: must be of type dict[str, str], but {'a': 1} is dict."""
    with pytest.raises(InvalidRunConfigException, match=r"type dict\[str, str\], but \{'a': 1\} is dict of int"):
        opts.resolve({"run_as": "x", "env": {"a": 1}})

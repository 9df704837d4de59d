"""The app of a function: without Airflow, by a Runner or as a component."""

from __future__ import annotations

import json
import os
from enum import Enum
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from airflow_provider_launch.functions import Replica, function_app, value_of
from airflow_provider_launch.functions.app import LARGEST_BYTES, _divided
from airflow_provider_launch.functions.arguments import bound
from airflow_provider_launch.runner import get_runner
from airflow_provider_launch.schedulers.environment import FIELD_PATH
from airflow_provider_launch.specs import AppDef, AppState, Resource, RetryPolicy
from airflow_provider_launch.specs.app_dict import app_from_dict, app_to_dict
from airflow_provider_launch.specs.check import check_app
from airflow_provider_launch.specs.errors import InvalidAppError
from airflow_provider_launch.specs.handles import parse_app_handle
from airflow_provider_launch.specs.macros import macros
from airflow_provider_launch.specs.secrets import masked_env


def share(items: list[int], replica: Replica, scale: int = 2) -> list[int]:
    return [item * scale for item in replica.part(items)]


def component(*items: str) -> AppDef:
    """Share the items.

    Args:
        items: numbers
    """
    return function_app(share, [[int(item) for item in items]], num_replicas=2, gather=True)


@pytest.mark.engine("local")
def test_a_runner_runs_it(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("LAUNCH_HOME", str(tmp_path))
    with get_runner() as runner:
        handle = runner.run(component("1", "2", "3"), "local")
        status = runner.wait(handle, 0.05, timeout=60)
        assert status is not None
        assert status.state is AppState.SUCCEEDED
        found = [*runner.scheduler("local").iter_results(parse_app_handle(handle).app_id)]
    assert [value_of(each) for each in found] == [[2], [4, 6]]


def test_the_fields_are_those_of_a_role() -> None:
    resource = Resource(cpu=1, gpu=0, memMB=64)
    app = function_app(
        share, [[1]], {"scale": 3},
        image="python:3.12", python="/opt/python", num_replicas=4, resource=resource, env={"A": "b ${replica_id}"},
        max_retries=2, retry_policy=RetryPolicy.REPLICA, port_map={"x": 0}, metadata={"docker": {}}, torch=True,
        max_disruptions=5,
    )  # fmt: skip
    check_app(app)
    (role,) = app.roles

    assert (app.name, role.name, role.image, role.entrypoint) == ("share", "share", "python:3.12", "/opt/python")
    assert (role.num_replicas, role.resource, role.max_retries, role.max_disruptions) == (4, resource, 2, 5)
    assert (role.retry_policy, role.port_map, role.metadata) == (RetryPolicy.REPLICA, {"x": 0}, {"docker": {}})
    assert role.torch_env
    assert role.env["A"] == "b ${replica_id}"
    assert app_from_dict(app_to_dict(app)) == app


def test_equal_calls_give_equal_apps() -> None:
    """Otherwise a retry would not recognize the app of the last try."""
    assert function_app(share, [[1]]) == function_app(share, [[1]])


@pytest.mark.parametrize("text", ["%s", "{frozenset(%s), frozenset({4})}", "{(frozenset(%s),), (frozenset({4}),)}"])
def test_the_order_of_a_set_changes_no_app(text: str) -> None:
    """Texts have another order in each process; numbers of equal remainders in that of the set."""
    sets = ["{8, 0}", "{0, 8}"]

    assert [*eval(sets[0])] != [*eval(sets[1])]
    assert _divided({"x": text % sets[0]}) == _divided({"x": text % sets[1]})


def test_the_name_of_the_result_shows_in_the_command() -> None:
    """A scheduler that cannot return a result refuses apps that name it."""
    assert "LAUNCH_RESULT_PATH" in function_app(share, [[1]]).roles[0].args[1]


def test_arguments_up_to_a_megabyte_travel_in_parts() -> None:
    text = "$" * 400_000
    app = function_app(share, [[text]])
    check_app(app)
    values = macros.Values("", "", "", "").apply(app.roles[0])
    parts = [value for name, value in values.env.items() if name.startswith("LAUNCH_FUNCTION_")]

    assert text in "".join(parts[1:])
    assert all(len(part) <= 120_000 for part in parts)
    with pytest.raises(InvalidAppError, match=f"bytes, the limit is {LARGEST_BYTES}; store the data, and pass its"):
        function_app(share, [["x" * LARGEST_BYTES]])
    with pytest.raises(InvalidAppError, match="bytes, the limit is"):
        # Kubernetes stores each of them twice.
        function_app(share, [["$" * (LARGEST_BYTES // 2)]])


def test_a_request_shows_the_size_of_a_function_only() -> None:
    shown = masked_env(function_app(share, [["of the arguments"]]).roles[0].env)

    assert shown["LAUNCH_FUNCTION_PARTS"] == "1"
    assert shown["LAUNCH_FUNCTION_0"].startswith("(function and arguments, ")
    assert len(shown["LAUNCH_FUNCTION_0"]) < 60


@pytest.mark.parametrize("text", ["{{ 1 + 1 }}", "{% raw %}", "{# x #}", '{{ 1 }}", "y": "', "\\{{{ 1 }}}", "{", "}}"])
def test_a_text_of_an_argument_is_never_a_template(text) -> None:
    """A task renders the variables of its app: the value of a run could end the text, and add code to the function."""
    import jinja2

    env = function_app(share, [[text, {text: text}]]).roles[0].env

    assert {name: jinja2.Template(value).render() for name, value in env.items()} == env
    assert json.loads(env["LAUNCH_FUNCTION_0"].partition(" ")[2])["args"][0] == [text, {text: text}]


def test_a_text_of_an_argument_becomes_no_field_of_a_pod() -> None:
    """A long text is divided anywhere; Kubernetes would refuse a field that does not exist, and other engines each."""
    text = "\\[FIELD_PATH]x"
    env = function_app(share, [[text]]).roles[0].env

    assert FIELD_PATH not in "".join(env.values())
    assert json.loads(env["LAUNCH_FUNCTION_0"].partition(" ")[2])["args"][0] == [text]


class Kind(str, Enum):
    A = "a"


LOOP: list[Any] = []
LOOP.append(LOOP)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (PurePosixPath("/x"), r"argument x is a PurePosixPath, which JSON cannot hold; use str"),
        ({"a": [{1}]}, r"argument x\['a'\]\[0\] is a set, which JSON cannot hold; use sorted\(\)"),
        ({1: 2}, r"argument x, key 1, is a int \(1\), which JSON cannot hold; use texts as keys"),
        (float("nan"), r"argument x is a float \(nan\), which JSON cannot hold; use None, or a text"),
        (b"x", "pass a text, or the address of the data"),
        (Kind.A, r"argument x is a Kind, which JSON cannot hold; use .value"),
        (Resource(1, 0, 1), r"use dataclasses.asdict\(\)"),
        (object(), "pass texts, numbers, lists and dicts, or the address of the data"),
        (LOOP, "argument x contains itself"),
        ("\ud800", "remove the half of a surrogate pair"),
    ],
)  # fmt: skip
def test_arguments_that_json_cannot_hold_are_refused(value, text) -> None:
    def f(x: Any, y: Any = None) -> None: ...

    with pytest.raises(InvalidAppError, match=text):
        bound(f, [value], {})


def test_defaults_count_as_arguments() -> None:
    def f(x: Any = Path("/x")) -> None: ...

    with pytest.raises(InvalidAppError, match="argument x is a PosixPath"):
        function_app(f)


def f_middle(a, replica, b=2, *rest, c, **more): ...
def f_named(a, *, replica, b=2): ...
def f_only(replica, /, a=1): ...


@pytest.mark.parametrize(
    ("function", "args", "kwargs", "expected"),
    [
        (f_middle, [1], {"c": 3, "z": 4}, {"args": [1, None, 2], "kwargs": {"c": 3, "z": 4}, "replica": 1}),
        (f_named, [1], {}, {"args": [1], "kwargs": {"replica": None, "b": 2}, "replica": "replica"}),
        (f_only, [], {"a": 5}, {"args": [None, 5], "kwargs": {}, "replica": 0}),
        (os.path.join, ["a", "b"], {}, {"args": ["a", "b"], "kwargs": {}, "replica": None}),
    ],
)
def test_a_call_is_bound_by_the_signature(function, args, kwargs, expected) -> None:
    assert bound(function, args, kwargs) == expected


@pytest.mark.parametrize(
    ("args", "kwargs", "text"),
    [
        ([], {"c": 1}, "missing a required argument: 'a'"),
        ([1], {}, "missing a required"),
        ([1, 2], {"c": 1}, "pass the arguments after it by name"),
        ([1], {"replica": 1, "c": 1}, "is given by the launcher; leave it out"),
    ],
)
def test_calls_that_do_not_fit_are_refused(args, kwargs, text) -> None:
    with pytest.raises(InvalidAppError, match=text):
        bound(f_middle, args, kwargs)


@pytest.mark.parametrize(
    ("args", "kwargs", "text"),
    [([1, 2], {}, "too many positional arguments"), ([1], {"z": 2}, "got an unexpected keyword argument 'z'")],
)
def test_an_argument_without_a_parameter_is_refused(args, kwargs, text) -> None:
    with pytest.raises(InvalidAppError, match=f"^function 'f_named': {text}$"):
        bound(f_named, args, kwargs)

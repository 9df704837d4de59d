"""Connections: what they mean, and what is refused."""

from __future__ import annotations

import json

import pytest
from airflow.sdk.exceptions import AirflowNotFoundException

from airflow_provider_launch.hooks.launch import HOOKS, LaunchHook
from airflow_provider_launch.hooks.local import LocalLaunchHook
from airflow_provider_launch.specs.errors import InvalidAppError


@pytest.fixture
def define(monkeypatch):
    def define(conn_type: str = "launch_local", conn_id: str = "c", **fields) -> LaunchHook:
        extra = fields.pop("extra", {})
        text = extra if isinstance(extra, str) else json.dumps(extra)
        monkeypatch.setenv(
            f"AIRFLOW_CONN_{conn_id.upper()}", json.dumps({"conn_type": conn_type, "extra": text, **fields})
        )
        return LaunchHook.for_connection(conn_id)

    return define


def test_the_default_connection_needs_no_definition() -> None:
    hook = LaunchHook.for_connection("launch_local_default")

    assert isinstance(hook, LocalLaunchHook)
    assert hook.options.cfg == {}


def test_any_other_connection_must_exist() -> None:
    with pytest.raises(AirflowNotFoundException):
        LaunchHook.for_connection("launch_local_other")


def test_extras_are_cast_and_null_is_unset(define, tmp_path) -> None:
    hook = define(extra={"root": str(tmp_path), "keep_days": "3", "grace_s": "2.5", "time_limit_s": None})

    assert hook.options.params["keep_days"] == 3
    assert hook.options.cfg == {"grace_s": 2.5}
    assert hook.options.identity == f"local root={tmp_path}"
    assert hook.runner.name() == "c"


def test_a_uri_connection_works(monkeypatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_C", "launch-local://?keep_days=5&prepend_cwd=true")
    options = LaunchHook.for_connection("c").options

    assert options.params["keep_days"] == 5
    assert options.cfg == {"prepend_cwd": True}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"extra": {"rot": "/x"}}, "root"),
        ({"extra": {"keep_days": "many"}}, "keep_days"),
        ({"extra": {"keep_days": -1}}, "keep_days"),
        ({"extra": {"grace_s": [1]}}, "grace_s"),
        ({"extra": "{no json"}, "JSON"),
        ({"extra": "[1]"}, "object"),
        ({"host": "h", "login": "me"}, "host, login"),
        ({"conn_type": "http"}, "launch_local"),
        ({"conn_type": "launch"}, "scheduler"),
        ({"conn_type": "launch", "extra": {"scheduler": "x", "quue": 1}}, "quue"),
        ({"conn_type": "launch", "extra": {"scheduler": "x", "cfg": "y"}}, "cfg"),
    ],
)
def test_what_is_wrong_in_a_connection_is_named(define, fields, message) -> None:
    with pytest.raises(InvalidAppError, match=message):
        define(**fields).options  # noqa: B018 - the reading is the act


def test_cfg_wins_over_the_connection(define) -> None:
    hook = define(extra={"grace_s": 1, "working_dir": "w"})

    assert hook.merged_cfg({"graceS": 2.0}) == {"grace_s": 2.0, "working_dir": "w"}


def test_the_connection_test_says_what_was_checked(define, tmp_path) -> None:
    is_fine, text = define(extra={"root": str(tmp_path)}).test_connection()

    assert is_fine
    assert str(tmp_path) in text
    assert "extras are valid" in text


def test_the_connection_test_tells_what_is_wrong(define) -> None:
    is_fine, text = define(extra={"rooot": "x"}).test_connection()

    assert not is_fine
    assert "rooot" in text


@pytest.mark.parametrize("conn_type", HOOKS)
def test_airflow_can_make_each_hook_for_its_connection_test(conn_type) -> None:
    from airflow_provider_launch.hooks import launch, local

    hook_class = {"launch": launch.LaunchHook, "launch_local": local.LocalLaunchHook}[conn_type]

    assert hook_class(**{hook_class.conn_name_attr: "temporary"}).conn_type == conn_type

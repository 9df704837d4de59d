"""Connections of plug-ins are equal to those of this package: checked, locked, limited, and with a form."""

from __future__ import annotations

import json
import re
from pathlib import Path

import airflow
import jsonschema
import pytest

from airflow_provider_launch.hooks.launch import LaunchHook
from airflow_provider_launch.runner import Runner
from airflow_provider_launch.specs import AppDef, Role
from airflow_provider_launch.specs.errors import InvalidAppError, InvalidRunConfigException

APP = AppDef("app", [Role("main", "/", entrypoint="true")])


@pytest.fixture(autouse=True)
def installed(install) -> None:
    install("launch_tsp")


@pytest.fixture
def define(monkeypatch, tmp_path):
    params = {"root": str(tmp_path / "root"), "socket": str(tmp_path / "socket")}

    def define(extra: dict, conn_type: str = "launch") -> LaunchHook:
        whole = {**params, **extra} if conn_type == "launch_tsp" else {"scheduler": "tsp", "params": params, **extra}
        monkeypatch.setenv("AIRFLOW_CONN_C", json.dumps({"conn_type": conn_type, "extra": json.dumps(whole)}))
        return LaunchHook.for_connection("c")

    return define


BROKEN = [
    pytest.param(
        {"cfg": {"slot": 2}}, "cfg of this connection: unknown option 'slot'; did you mean 'slots'?", id="name"
    ),
    pytest.param({"cfg": {"slots": "x"}}, "cfg of this connection: .*'slots'", id="value"),
    pytest.param({"cfg": {"slots": [1]}}, "cfg of this connection: .*'slots'", id="type"),
    pytest.param({"locked": ["slotz"]}, "this connection locks 'slotz', which is not an option of 'tsp'", id="lock"),
    pytest.param({"params": {"rot": "/x"}}, "'rot'; did you mean 'root'?", id="param"),
    pytest.param(
        {"lock": ["slots"]}, "unknown extra 'lock'; there are scheduler, params, cfg, locked, max", id="extra"
    ),
    pytest.param({"max_time_limit_s": "long"}, "'max_time_limit_s' must be a number of seconds", id="limit"),
]


@pytest.mark.parametrize(("extra", "message"), BROKEN)
def test_the_connection_test_finds_what_the_first_task_would_find(define, extra, message) -> None:
    is_fine, text = define(extra).test_connection()

    assert not is_fine
    assert re.search(message, text), text


def test_the_connection_test_passes_and_lists_apps(define) -> None:
    assert define({"cfg": {"slots": 2}, "locked": ["slots"]}).test_connection() == (
        True,
        "extras are valid; scheduler 'tsp' answered and lists 0 apps; nothing was launched",
    )


@pytest.mark.parametrize("conn_type", ["launch", "launch_tsp"])
def test_a_wrong_option_of_the_connection_is_not_blamed_on_the_task(define, conn_type) -> None:
    extra = {"slots": [1]} if conn_type == "launch_tsp" else {"cfg": {"slots": [1]}}

    with pytest.raises(InvalidAppError, match=r"connection 'c': .*'slots'"):
        define(extra, conn_type).merged_cfg({"grace_s": 1})


def test_a_wrong_option_of_the_task_is(define) -> None:
    with pytest.raises(InvalidRunConfigException, match="cfg of the task: unknown option 'slot'"):
        define({"cfg": {"slots": 2}}).merged_cfg({"slot": 3})


@pytest.mark.parametrize("conn_type", ["launch", "launch_tsp"])
def test_locks_limits_and_placeholders_work(define, conn_type) -> None:
    extra = {"locked": ["slots"], "max_time_limit_s": 60, "placeholders": {"team": "blue"}}
    hook = define(extra | ({"slots": 2} if conn_type == "launch_tsp" else {"cfg": {"slots": 2}}), conn_type)

    with pytest.raises(InvalidRunConfigException, match="'slots' is locked by connection 'c'"):
        hook.merged_cfg({"slots": 3})
    assert hook.merged_cfg({})["slots"] == 2
    assert hook.options.placeholders == {"team": "blue"}
    assert hook.scheduler.submit_dryrun(APP, hook.merged_cfg({})).request.time_limit_s == 60
    with pytest.raises(InvalidAppError, match="time_limit_s=61 is above 60"):
        hook.scheduler.submit_dryrun(APP, hook.merged_cfg({"time_limit_s": 61}))


def test_a_type_of_a_plugin_takes_text_of_a_uri(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv(
        "AIRFLOW_CONN_C", f"launch-tsp://?root={tmp_path}&slots=3&locked=slots,grace_s&max_time_limit_s=9"
    )
    hook = LaunchHook.for_connection("c")

    assert hook.options.cfg == {"slots": 3}
    assert hook.options.locked == ("slots", "grace_s")
    assert hook.scheduler.max_time_limit_s == 9


def test_an_unknown_type_names_those_of_plugins(monkeypatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_C", "launch-tps://")

    with pytest.raises(InvalidAppError, match=r"type 'launch_tps'.*use one of .*launch_tsp"):
        LaunchHook.for_connection("c")


def test_its_form_is_generated_and_keeps_to_airflows_schema() -> None:
    import launch_tsp_airflow

    info = launch_tsp_airflow.get_provider_info()
    schema = json.loads((Path(airflow.__file__).parent / "provider_info.schema.json").read_text())
    jsonschema.validate(info, schema)

    (kind,) = info["connection-types"]
    form = kind["conn-fields"]
    assert {"root", "socket", "slots", "time_limit_s", "locked", "max_time_limit_s", "placeholders"} <= form.keys()
    assert form["slots"]["schema"] == {
        "type": ["integer", "null"],
        "minimum": 1,
        "section": "Defaults of each launch",
    }
    assert launch_tsp_airflow.TspHook.conn_type == kind["connection-type"]


def test_the_hook_of_its_type_tests_a_connection(define) -> None:
    import launch_tsp_airflow

    define({}, "launch_tsp")

    assert launch_tsp_airflow.TspHook("c").test_connection()[0]


def test_a_runner_finds_the_scheduler_and_refuses_unknown_keywords(tmp_path) -> None:
    with (
        Runner("c", scheduler_params={"tsp": {"rot": str(tmp_path)}}) as runner,
        pytest.raises(InvalidAppError, match="did you mean 'root'"),
    ):
        runner.scheduler("tsp")

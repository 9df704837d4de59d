"""Limits of a connection that a DAG or a handle cannot override."""

from __future__ import annotations

import dataclasses
import json

import pytest

from airflow_provider_launch.hooks.launch import LaunchHook
from airflow_provider_launch.operators.launch import LaunchAppOperator
from airflow_provider_launch.schedulers.backends import BACKENDS
from airflow_provider_launch.specs import AppDef, Role
from airflow_provider_launch.specs.errors import InvalidAppError, InvalidRunConfigException
from airflow_provider_launch.triggers.launch import AppStatusTrigger
from tests.airflow.support import a_dag, launch, run_task, run_triggers, sh
from tests.airflow.test_sensor import launched, sensor  # noqa: F401 - a fixture


@pytest.fixture
def define(monkeypatch):
    def define(conn_type: str, **extra) -> LaunchHook:
        monkeypatch.setenv("AIRFLOW_CONN_C", json.dumps({"conn_type": conn_type, "extra": extra}))
        return LaunchHook.for_connection("c")

    return define


# ---- locked options --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS.values(), ids=lambda backend: backend.name)
def test_every_connection_can_limit_options_of_tasks(backend) -> None:
    options = {item.name for item in dataclasses.fields(backend.connection_options())}

    assert {"locked", "max_time_limit_s"} <= options


def test_a_locked_option_is_not_overruled(define) -> None:
    """Otherwise a DAG, or whoever may trigger it with a conf, runs as root on the host of the engine."""
    hook = define("launch_docker", user="1000", locked=["user", "privileged"])

    assert hook.merged_cfg({"pull": "never"}) == {"user": "1000", "pull": "never"}
    for cfg in ({"user": "0"}, {"privileged": True}, {"privileged": False}):
        with pytest.raises(InvalidRunConfigException, match=r"option '(user|privileged)' is locked by connection 'c'"):
            hook.merged_cfg(cfg)


def test_an_overlay_does_not_override_locked_options(define) -> None:
    overlay = {"pod": {"hostNetwork": True}}
    hook = define("launch_kubernetes", security="restricted", locked=["security"], overlay={"pod": {"nodeName": "n"}})

    assert hook.merged_cfg({})["overlay"] == {"pod": {"nodeName": "n"}}
    with pytest.raises(InvalidRunConfigException, match=r"'overlay' is locked by connection 'c'.*could override"):
        hook.merged_cfg({"overlay": overlay})
    assert define("launch_kubernetes").merged_cfg({"overlay": overlay})["overlay"] == overlay


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("pod_template", {"kind": "Pod"}),
        ("volumes", [{"name": "v", "secret": {"secretName": "keys"}}]),
        ("init_containers", [{"name": "i"}]),
        ("sidecars", [{"name": "s", "securityContext": {"privileged": True}}]),
        ("by_role", {"main": {"security": "none"}}),
    ],
)
def test_options_that_could_do_the_same_as_locked_ones_are_locked_too(define, name: str, value: object) -> None:
    with pytest.raises(
        InvalidRunConfigException, match=rf"'{name}' is locked by connection 'c'.*{name} could override"
    ):
        define("launch_kubernetes", locked=["env_secrets"]).merged_cfg({name: value})
    assert define("launch_kubernetes", **{name: value}, locked=["env_secrets"]).merged_cfg({})[name] == value
    assert define("launch_kubernetes").merged_cfg({name: value})[name] == value


@pytest.mark.parametrize("locked", ["container", "containerMounts"])
def test_commands_outside_of_a_container_are_locked_with_it(define, locked: str) -> None:
    """They run on the node, and could also mount its directories by a variable of apptainer."""
    setup = ["export APPTAINER_BIND=/:/host"]
    with pytest.raises(InvalidRunConfigException, match=r"'setup' is locked by connection 'c'.*setup could override"):
        define("launch_slurm", locked=[locked]).merged_cfg({"setup": setup})
    assert define("launch_slurm", locked=["partition"]).merged_cfg({"setup": setup})["setup"] == setup


def test_only_options_can_be_locked(define) -> None:
    """A misspelt name would lock no option without being noticed."""
    with pytest.raises(InvalidAppError, match="connection 'c' locks 'privilegd', which is not an option of 'docker'"):
        define("launch_docker", locked=["privilegd"]).merged_cfg({})


def test_a_locked_time_limit_holds_against_the_operator(monkeypatch, api, tmp_path) -> None:
    extra = {"root": str(tmp_path), "time_limit_s": 60, "locked": ["time_limit_s"]}
    monkeypatch.setenv("AIRFLOW_CONN_C", json.dumps({"conn_type": "launch_local", "extra": extra}))
    ran = run_task(launch(sh("true"), launch_conn_id="c", time_limit_s=1e6), api)

    assert ran.state == "failed"
    assert "option 'time_limit_s' is locked by connection 'c'" in str(ran.error)
    assert run_task(launch(sh("true"), launch_conn_id="c"), api).state == "success"


def test_an_overlay_in_a_role_does_not_override_locked_options(monkeypatch, api) -> None:
    extra = {"user": "1000", "locked": ["user"], "host": "unix:///no/such.sock"}
    monkeypatch.setenv("AIRFLOW_CONN_C", json.dumps({"conn_type": "launch_docker", "extra": extra}))
    app = AppDef("a", [Role("w", "image", entrypoint="true", metadata={"docker": {"privileged": True}})])
    with a_dag():
        task = LaunchAppOperator(task_id="t", app=app, launch_conn_id="c")
    ran = run_task(task, api)

    assert ran.state == "failed"
    assert "role 'w' has an overlay for 'docker'" in str(ran.error)


def test_a_plug_in_connection_locks_too(define) -> None:
    hook = define("launch", scheduler="docker", params={}, cfg={"user": "1"}, locked=["user"])

    assert hook.options.locked == ("user",)
    with pytest.raises(InvalidRunConfigException, match="locked by connection"):
        hook.merged_cfg({"user": "0"})
    with pytest.raises(InvalidAppError, match="extra 'locked' must be a list of names"):
        _ = define("launch", scheduler="docker", locked=5).options
    with pytest.raises(InvalidAppError, match="must be next to 'params'"):
        _ = define("launch", scheduler="docker", params={"locked": ["user"]}).options


# ---- programs in a kubeconfig ----------------------------------------------------------------------------------------


def kubeconfig(user: dict[str, object]) -> str:
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
        "users": [{"name": "u", "user": user}],
    }
    return json.dumps(document)


@pytest.mark.parametrize("key", ["exec", "auth-provider"])
@pytest.mark.parametrize("conn_type", ["launch_kubernetes", "launch"])
def test_a_kubeconfig_in_a_connection_starts_no_program(define, monkeypatch, tmp_path, conn_type, key) -> None:
    """An editor of connections could run it on workers, triggerers, and with the connection test."""
    ran = tmp_path / "ran"
    program = {"apiVersion": "client.authentication.k8s.io/v1", "command": "touch", "args": [str(ran)]}
    secret = kubeconfig({key: {**program, "interactiveMode": "Never", "name": "oidc"}})
    extras: dict[str, object] = {"kubeconfig_secret": secret}
    if conn_type == "launch":
        extras = {"scheduler": "kubernetes", "params": extras}
    is_fine, text = define(conn_type, **extras).test_connection()

    assert not is_fine
    assert f"user 'u' starts a program ({key})" in text
    assert "allow_kubeconfig_exec in the section launch" in text
    assert not ran.exists()
    if key == "exec":
        monkeypatch.setenv("AIRFLOW__LAUNCH__ALLOW_KUBECONFIG_EXEC", "True")
        define(conn_type, **extras).test_connection()
        assert ran.exists()


def test_a_kubeconfig_with_a_token_is_fine(define) -> None:
    assert define("launch_kubernetes", kubeconfig_secret=kubeconfig({"token": "t"})).options.backend == "kubernetes"


# ---- whose apps a sensor shows ---------------------------------------------------------------------------------------


def test_a_sensor_shows_apps_of_the_allowed_connections_only(engine, api, launched) -> None:  # noqa: F811 - the fixture
    """A handle from a conf or an XCom could name any connection, whose lines and cancel the sensor then gives."""
    app_id, xcom = launched
    engine.write(app_id, "worker", 0, "their secret line\n")
    ran = run_task(sensor(xcom["handle"], launch_conn_id=["mine", "ours"], on_kill="cancel"), api)

    assert ran.state == "failed"
    assert "is an app of connection 'cluster', but launch_conn_id allows 'mine', 'ours'" in str(ran.error)
    assert not ran.logged("their secret line")

    from airflow_provider_launch.specs.states import AppState

    engine.state(app_id, AppState.SUCCEEDED)
    assert run_task(sensor(xcom["handle"], launch_conn_id=["mine", "cluster"]), api).state == "success"


def test_a_trigger_shows_apps_of_the_allowed_connections_only(engine, launched) -> None:  # noqa: F811 - the fixture
    _, xcom = launched
    ((event,),) = run_triggers(AppStatusTrigger(xcom["handle"], launch_conn_id=["mine"]), during=lambda _cancel: None)

    assert event.payload["reason"] == "error"
    assert "launch_conn_id allows 'mine'" in event.payload["text"]


@pytest.mark.parametrize("given", [[], "", ()])
def test_no_allowed_connection_allows_none(given) -> None:
    """Only None leaves the connection to the handle: a list may be empty by mistake, or by a template."""
    from airflow_provider_launch._task.options import allowed_conn_id
    from airflow_provider_launch.specs.errors import InvalidAppError
    from airflow_provider_launch.specs.handles import parse_app_handle

    handle = parse_app_handle("fake://cluster/app-1")

    with pytest.raises(InvalidAppError, match="launch_conn_id allows none"):
        allowed_conn_id(given, handle)
    if given != "":
        with pytest.raises(InvalidAppError, match="allows no connection; name one or several"):
            sensor("fake://cluster/app-1", launch_conn_id=given)
    assert allowed_conn_id(None, handle) == "cluster"

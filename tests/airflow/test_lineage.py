"""Replicas learn of their task as OpenLineage's parent run: with the real provider where it is installed, and else
with a stand-in that has its documented functions."""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from types import ModuleType, SimpleNamespace

import pytest

from airflow_provider_launch._task.lineage import parent_env
from airflow_provider_launch.schedulers.spec_hash import LINEAGE_PARENT, LINEAGE_ROOT_PARENT, spec_hash
from airflow_provider_launch.specs import AppDef, Role
from tests.airflow.support import launch, run_task, sh

PROVIDER = "airflow.providers.openlineage"
NAMESPACE = "team$1"
UUID = r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"


def is_installed() -> bool:
    try:
        return importlib.util.find_spec(PROVIDER) is not None
    except ImportError:
        return False


def stand_in(monkeypatch) -> SimpleNamespace:
    """The functions of the provider that are used; `disabled` and `fails` steer them."""
    state = SimpleNamespace(disabled=False, disabled_operators=set(), fails=False)
    uuid = "01900000-0000-7000-8000-{:012d}".format

    def parent(ti):
        if state.fails:
            raise RuntimeError("no namespace")
        return f"{NAMESPACE}/{ti.dag_id}.{ti.task_id}/{uuid(ti.try_number)}"

    parts = {
        "conf": {"is_disabled": lambda: state.disabled},
        "utils.utils": {
            "is_operator_disabled": lambda op: type(op).__qualname__ in state.disabled_operators,
            "is_selective_lineage_enabled": lambda op: True,
        },
        "plugins.macros": {
            "lineage_parent_id": parent,
            "lineage_root_parent_id": lambda ti: f"{NAMESPACE}/{ti.dag_id}/{uuid(0)}",
        },
    }
    for name, functions in parts.items():
        module = ModuleType(f"{PROVIDER}.{name}")
        vars(module).update(functions)
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return state


@pytest.fixture(params=["stand-in", "real"])
def lineage(request, monkeypatch):
    """An active provider."""
    if request.param == "stand-in":
        stand_in(monkeypatch)
        return
    if not is_installed():
        pytest.skip("apache-airflow-providers-openlineage is not installed")
    monkeypatch.setenv("AIRFLOW__OPENLINEAGE__TRANSPORT", '{"type": "console"}')
    monkeypatch.setenv("AIRFLOW__OPENLINEAGE__NAMESPACE", NAMESPACE)
    # Its configuration is cached, but not under pytest.
    assert not importlib.import_module(f"{PROVIDER}.conf").is_disabled()


def on_cluster(*roles: Role, **kwargs):
    return launch(*(roles or (sh("true"),)), launch_conn_id="cluster", wait=False, **kwargs)


def envs(engine) -> list[dict[str, str]]:
    (app,) = engine.apps.values()
    return [role.env for role in app.request.app.roles]


def test_every_role_learns_of_its_parents(lineage, engine, api) -> None:
    ran = run_task(on_cluster(sh("true", name="a"), sh("true", name="b")), api)

    assert ran.error is None
    for env in envs(engine):
        # A `$` is doubled, because for the scheduler it starts a macro.
        assert re.fullmatch(rf"team\$\$1/test_dag\.t/{UUID}", env[LINEAGE_PARENT])
        assert re.fullmatch(rf"team\$\$1/test_dag/{UUID}", env[LINEAGE_ROOT_PARENT])


def test_variables_that_a_role_sets_itself_stay(lineage, engine, api) -> None:
    role = sh("true", env={LINEAGE_PARENT: "mine"})

    run_task(on_cluster(role), api)

    assert envs(engine)[0][LINEAGE_PARENT] == "mine"
    assert role.env == {LINEAGE_PARENT: "mine"}


def test_a_retry_with_another_parent_takes_up_its_app(lineage, engine, make_api) -> None:
    """Each try is another run for OpenLineage, and yet the app is the same."""
    api = make_api(retries=1)
    run_task(on_cluster(), api)
    ran = run_task(on_cluster(), api, try_number=2)

    assert engine.started == 1
    assert ran.logged("continuing with app")
    assert not ran.logged("the DAG has changed")


def test_the_hash_of_an_app_does_not_see_its_parents() -> None:
    def digest(**env):
        return spec_hash(AppDef("a", [Role("w", "", entrypoint="true", env=env)]), {})

    assert digest(**{LINEAGE_PARENT: "a", LINEAGE_ROOT_PARENT: "b"}) == digest()
    assert digest(OTHER="a") != digest()


def test_a_provider_that_is_not_active_adds_nothing(engine, api, monkeypatch) -> None:
    state = stand_in(monkeypatch)
    state.disabled = True

    run_task(on_cluster(), api)

    assert LINEAGE_PARENT not in envs(engine)[0]


def test_an_operator_that_is_left_out_adds_nothing(engine, api, monkeypatch) -> None:
    stand_in(monkeypatch).disabled_operators = {"LaunchAppOperator"}

    run_task(on_cluster(), api)

    assert LINEAGE_PARENT not in envs(engine)[0]


def test_a_provider_that_fails_is_reported_and_the_app_runs(engine, api, monkeypatch) -> None:
    stand_in(monkeypatch).fails = True

    ran = run_task(on_cluster(), api)

    assert ran.error is None
    assert ran.logged("get no parent run, since OpenLineage failed: no namespace")
    assert engine.started == 1


@pytest.mark.skipif(is_installed(), reason="the provider is installed")
def test_without_the_provider_nothing_is_added() -> None:
    assert parent_env(None, pytest.fail) == {}


def test_where_the_provider_cannot_be_imported_nothing_is_added(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, f"{PROVIDER}.conf", None)

    assert parent_env(None, pytest.fail) == {}

"""`@task.launch` through the real task runner, on real local processes."""

from __future__ import annotations

import pytest
from airflow.sdk import task

from airflow_provider_launch._airflow import AirflowFailException
from airflow_provider_launch.decorators.launch import launch_task
from airflow_provider_launch.operators.launch import LaunchAppOperator
from airflow_provider_launch.specs import AppDef, Role, app_to_dict
from airflow_provider_launch.specs.errors import InvalidAppError
from tests.airflow.support import FakeExecutionApi, a_dag, run_task, run_to_end, sh

pytestmark = pytest.mark.engine("local")


def made(function, *args, **options):
    """The task that a decorated function makes."""
    with a_dag():
        return launch_task(function, **options)(*args).operator


def echo(*words: str) -> AppDef:
    return AppDef("app", [Role("w", "", entrypoint="echo", args=list(words))])


def test_airflow_finds_it_and_its_own_decorators() -> None:
    """A wrong entry breaks `task.<name>` for every DAG of the deployment (T3)."""
    assert task.launch is launch_task
    assert callable(task.bash)
    with pytest.raises(AttributeError):
        _ = task.nothing_of_this_name


@pytest.mark.parametrize("form", [lambda app: app, app_to_dict])
def test_the_returned_app_is_launched(form) -> None:
    api = FakeExecutionApi()

    with a_dag():

        @task.launch
        def train():
            return form(echo("hello"))

        operator = train().operator
    ran = run_task(operator, api)

    assert ran.error is None
    assert ran.logged("[w/0] hello")
    assert operator.task_id == "train"
    assert isinstance(operator, LaunchAppOperator)
    assert set(api.xcoms["train", "return_value"]) == {"handle", "state", "attempts", "roles", "result"}
    assert "echo" in api.rendered["request"]


def test_arguments_are_rendered_and_the_context_is_there_by_name() -> None:
    def train(word, *, other="x", run_id=None, ti=None):
        return echo(word, other, run_id, ti.task_id)

    with a_dag():
        operator = launch_task(train)("{{ run_id }}", other="{{ ti.task_id }}").operator
    ran = run_task(operator, FakeExecutionApi())

    assert ran.logged("[w/0] test_run train test_run train")


def test_templates_in_the_returned_app_are_data() -> None:
    """As with the operator, templates in the returned app are not rendered."""
    ran = run_task(made(lambda: echo("{{ run_id }}"), task_id="t"), FakeExecutionApi())

    assert ran.logged("[w/0] {{ run_id }}")


def test_arguments_of_the_operator_are_those_of_the_decorator(tmp_path) -> None:
    api = FakeExecutionApi()
    operator = made(
        lambda: echo("x"), task_id="t", wait=False, cfg={"working_dir": str(tmp_path)}, time_limit_s=30, retries=2
    )
    ran = run_task(operator, api)

    assert (operator.wait, operator.time_limit_s, operator.retries) == (False, 30, 2)
    assert ran.error is None
    assert api.xcoms["t", "return_value"]["state"] == "SUBMITTED"
    assert api.rendered["cfg"] == {"working_dir": str(tmp_path)}


def test_override_changes_arguments_for_one_task() -> None:
    def train():
        return echo("x")

    with a_dag():
        decorated = launch_task(train, wait=False)
        first, second = decorated().operator, decorated.override(wait=True, task_id="again")().operator

    assert (first.task_id, first.wait) == ("train", False)
    assert (second.task_id, second.wait) == ("again", True)


def test_it_expands() -> None:
    api = FakeExecutionApi()

    def train(word, times, ti=None):
        return echo(*[word] * times, str(ti.map_index))

    with a_dag():
        mapped = launch_task(train).partial(times=2).expand(word=["a", "b", "{{ run_id }}"]).operator

    texts = []
    for index in range(3):
        api.store = {}  # the store of each task instance is its own
        ran = run_task(mapped, api, map_index=index)
        assert ran.error is None
        texts += [line for line in ran.lines if line.startswith("[w/0]")]
    assert texts == ["[w/0] a a 0", "[w/0] b b 1", "[w/0] test_run test_run 2"]
    assert len({api.xcoms["train", "handle", index] for index in range(3)}) == 3


def test_it_defers() -> None:
    """The resumed task is a new object without an app, and the function must not be called again."""
    api = FakeExecutionApi()
    calls = []

    def train(word):
        calls.append(word)
        return AppDef("app", [sh(f"sleep 0.5; echo {word}", name="w")])

    ran, events = run_to_end(made(train, "{{ run_id }}", deferrable=True), api)

    assert ran.error is None
    assert len(events) == 1
    assert calls == ["test_run"]
    assert [line for line in ran.lines if line.startswith("[w/0]")] == ["[w/0] test_run"]
    assert api.xcoms["train", "return_value"]["state"] == "SUCCEEDED"
    assert "test_run" in api.rendered["request"]


def test_an_annotation_does_not_split_the_result() -> None:
    """Airflow takes `-> dict` for a wish to push each key, but it is the type of the app and not of the result."""
    api = FakeExecutionApi()

    def train() -> dict:
        return app_to_dict(echo("x"))

    assert run_task(made(train), api).error is None
    assert ("train", "state") not in api.xcoms


def test_multiple_outputs_split_the_result_of_the_task() -> None:
    api = FakeExecutionApi()

    assert run_task(made(lambda: echo("x"), task_id="t", multiple_outputs=True), api).error is None
    assert api.xcoms["t", "state"] == "SUCCEEDED"
    assert api.xcoms["t", "handle"] == api.xcoms["t", "return_value"]["handle"]


def test_the_task_after_it_gets_the_result() -> None:
    api = FakeExecutionApi()

    with a_dag():

        @task.launch
        def first():
            return AppDef("app", [sh("echo '{\"n\": 3}' > $LAUNCH_RESULT_PATH", name="w")])

        @task.launch
        def second(before):
            return echo(before["state"], str(before["result"]["n"]))

        one = first()
        two = second(one)
    assert run_task(one.operator, api).error is None
    api.store = {}  # the store of each task is its own
    ran = run_task(two.operator, api)

    assert two.operator.upstream_task_ids == {"first"}
    assert ran.logged("[w/0] SUCCEEDED 3")


@pytest.mark.parametrize("value", [None, "app", [echo("x")], {"name": "a"}, AppDef("no-roles")])
def test_an_invalid_app_ends_the_task_without_retries(value) -> None:
    def train():
        return value

    ran = run_task(made(train), FakeExecutionApi(retries=3))

    assert ran.state == "failed"
    assert isinstance(ran.error, (AirflowFailException, InvalidAppError))
    assert isinstance(value, (dict, AppDef)) or "'train' must return an AppDef or a dict, not" in str(ran.error)


def test_an_error_of_the_function_is_the_error_of_the_task() -> None:
    def train():
        raise OSError("no data")

    ran = run_task(made(train), FakeExecutionApi(retries=1))

    assert (ran.state, str(ran.error)) == ("up_for_retry", "no data")


def test_impossible_arguments_are_refused_when_the_dag_is_parsed() -> None:
    async def later():
        return echo("x")

    with pytest.raises(InvalidAppError, match="leave `app` out"):
        made(lambda: echo("x"), task_id="t", app=echo("y"))
    with pytest.raises(InvalidAppError, match="'later' is async"):
        made(later)
    with pytest.raises(InvalidAppError, match="on_kill='no'"):
        made(lambda: echo("x"), task_id="t", on_kill="no")


def test_a_dry_run_shows_that_the_app_is_not_yet_known(capsys) -> None:
    made(lambda: echo("x"), task_id="t").dry_run()

    assert "the app is known only in a run" in capsys.readouterr().out

"""The operator and the connection through the real task runner, on a real Kubernetes cluster."""

from __future__ import annotations

import json
import runpy
import time
import uuid
from pathlib import Path

import pytest

from airflow_provider_launch.hooks.launch import LaunchHook
from airflow_provider_launch.operators.launch import LaunchAppOperator
from airflow_provider_launch.specs import AppDef, RetryPolicy, Role
from airflow_provider_launch.specs.app_dict import app_to_dict
from airflow_provider_launch.specs.errors import AppFailedError
from tests.airflow.support import FakeExecutionApi, a_dag, run_task, run_to_end

pytestmark = pytest.mark.engine("kubernetes")

EXAMPLES = Path(__file__).resolve().parents[2] / "example_dags"


@pytest.fixture
def define(kubernetes_engine, kubernetes_namespace, monkeypatch):
    """Defines the connection `kube` to the cluster, with further extras."""

    def define(conn_id: str = "kube", **extra) -> None:
        known = {"kubeconfig_path": str(kubernetes_engine.kubeconfig), "namespace": kubernetes_namespace}
        connection = {"conn_type": "launch_kubernetes", "extra": {**known, "pull": "never", **extra}}
        monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", json.dumps(connection))

    return define


@pytest.fixture
def launch(kubernetes_engine, define):
    """Makes a task of these roles; equal tasks would have equal ids."""

    def launch(*roles: Role, **kwargs) -> LaunchAppOperator:
        define(security="none", grace_s=1)
        with a_dag():
            task_id = f"t{uuid.uuid4().hex[:10]}"
            return LaunchAppOperator(task_id=task_id, app=AppDef("app", [*roles]), launch_conn_id="kube", **kwargs)

    def sh(script: str, **fields) -> Role:
        name = fields.pop("name", "worker")
        return Role(name, kubernetes_engine.image, entrypoint="sh", args=["-c", script], **fields)

    launch.sh = sh
    return launch


def test_success_hands_over_handle_codes_and_result(launch) -> None:
    api = FakeExecutionApi()
    first = launch.sh("echo hello; echo '{\"n\": 3}' > $LAUNCH_RESULT_PATH", name="first")
    task = launch(first, launch.sh("echo hello", num_replicas=2))

    ran = run_task(task, api)

    assert ran.error is None
    handle = api.xcoms[task.task_id, "handle"]
    assert handle.startswith(f"kubernetes://kube/test-dag-{task.task_id}-")
    assert api.xcoms[task.task_id, "return_value"] == {
        "handle": handle,
        "state": "SUCCEEDED",
        "attempts": 1,
        "roles": {"first": [0], "worker": [0, 0]},
        "result": {"n": 3},
    }
    told = sorted(str(entry["event"]) for entry in ran.log if str(entry["event"]).startswith("["))
    assert told == ["[first/0] hello", "[worker/0] hello", "[worker/1] hello"]


@pytest.mark.parametrize("deferrable", [False, True], ids=["sync", "deferrable"])
@pytest.mark.parametrize(("code", "xcom"), [(0, "return_value"), (3, "app")], ids=["success", "failure"])
def test_a_large_result_is_handed_over_without_the_lines_that_carry_it(launch, deferrable, code, xcom) -> None:
    api = FakeExecutionApi()
    script = f"""echo hello; head -c 50000 /dev/zero | tr '\\0' 7 | sed 's/.*/"&"/' >$LAUNCH_RESULT_PATH; exit {code}"""
    proxy = {"image": "launch-busybox:local", "imagePullPolicy": "Never", "command": ["sleep", "600"]}
    cfg = {
        "result_image": "launch-busybox:local",
        "init_containers": [{"name": f"proxy-{k}", "restartPolicy": "Always", **proxy} for k in range(4)],
    }
    task = launch(launch.sh(script), cfg=cfg, deferrable=deferrable)
    ran = run_to_end(task, api)[0] if deferrable else run_task(task, api)

    assert (ran.error is None) is (code == 0)
    assert api.xcoms[task.task_id, xcom]["result"] == "7" * 50_000
    assert [line for line in ran.lines if line.startswith("[worker/0]")] == ["[worker/0] hello"]
    assert not ran.logged("Nzc3Nzc3")


def test_failure_names_role_replica_and_exit_code(launch) -> None:
    ran = run_task(launch(launch.sh("echo why; exit $((3 * ${replica_id}))", num_replicas=2)), FakeExecutionApi())

    assert ran.state == "failed"
    assert isinstance(ran.error, AppFailedError)
    assert "role 'worker' replica 1 (attempt 0" in str(ran.error)
    assert "exited with code 3" in str(ran.error)
    assert "  why" in str(ran.error).splitlines()


def test_the_operator_makes_the_retries_of_the_app(launch) -> None:
    api = FakeExecutionApi()
    script = "echo attempt $$LAUNCH_ATTEMPT; test $$LAUNCH_ATTEMPT = 1"
    task = launch(launch.sh(script, max_retries=2, retry_policy=RetryPolicy.APPLICATION))
    ran = run_task(task, api)

    assert ran.error is None
    assert [line for line in ran.lines if line.startswith("[worker/0] attempt")] == [
        "[worker/0] attempt 0",
        "[worker/0] attempt 1",
    ]
    assert api.xcoms[task.task_id, "return_value"]["attempts"] == 2


def test_the_requests_secrets_are_masked(launch) -> None:
    api = FakeExecutionApi()
    ran = run_task(launch(launch.sh("true", env={"MY_PASSWORD": "hunter2hunter2"})), api)

    # Airflow cuts a rendered field after 4096 characters, the log shows all of it.
    assert "dag_id" in api.rendered["request"]
    assert ran.logged("MY_PASSWORD")
    assert "hunter2hunter2" not in api.rendered["request"]
    assert not ran.logged("hunter2hunter2")


def test_the_connection_test_names_missing_rights(
    define, kubernetes_engine, kubernetes_make_namespace, kubernetes_namespace
) -> None:
    define()
    well, text = LaunchHook.for_connection("kube").test_connection()
    assert well, text
    assert kubernetes_namespace in text

    namespace = kubernetes_make_namespace()
    rules = [{"apiGroups": [""], "resources": ["services"], "verbs": ["create", "get", "list", "patch", "delete"]}]
    define(kubeconfig_path=str(kubernetes_engine.limited(namespace, rules)), namespace=namespace)
    well, text = LaunchHook.for_connection("kube").test_connection()
    assert not well
    assert "create jobs.batch" in text
    assert "create services" not in text


def test_the_example_is_that_of_local_processes_in_another_image(kubernetes_engine, define) -> None:
    define("launch_kubernetes_default")
    local, example = (runpy.run_path(str(EXAMPLES / f"launch_{name}_demo.py")) for name in ("local", "kubernetes"))
    task = example["count_words"]

    def app_of(demo) -> str:
        return json.dumps(app_to_dict(demo["count_words"].app)).replace(demo["IMAGE"], "IMAGE")

    assert app_of(example) == app_of(local)
    assert kubernetes_engine.python_image() == example["IMAGE"]

    # The node of the tests has two processors, and others use it.
    for role in task.app.roles:
        role.resource.cpu = 0
    task.task_id = f"t{uuid.uuid4().hex[:10]}"
    api = FakeExecutionApi()
    began = time.monotonic()
    ran = run_task(task, api)

    assert ran.error is None, (ran.error, time.monotonic() - began)
    assert example["compare"].function(api.xcoms[task.task_id, "return_value"]) > 1000

"""Results of pods with many containers: a container of the launcher returns them by its log."""

from __future__ import annotations

import pytest

from airflow_provider_launch.specs import AppState, Resource, RetryPolicy
from airflow_provider_launch.specs.errors import InvalidAppError
from airflow_provider_launch.specs.overlays import JOIN, set_overlay

pytestmark = pytest.mark.engine("kubernetes")

LIMIT = 65_536
KILL = 'for p in /proc/[0-9]*; do grep -q "launch-result be[g]in" $p/cmdline && kill -9 ${p#/proc/}; done'
"""A script that kills the container of results: the processes of a pod see each other."""


def writes(size: int) -> str:
    """Return a script that writes a text as the result, of this size in bytes."""
    return f"""head -c {size - 2} /dev/zero | tr '\\0' x | sed 's/.*/"&"/' | head -c {size} >"$LAUNCH_RESULT_PATH" """


def container(apps, name, script, **fields):
    """Return a container that runs a script."""
    return {"name": name, "image": apps.image, "imagePullPolicy": "Never", "command": ["sh", "-c", script], **fields}


def sidecars(apps, number):
    """Return native sidecars that wait for their end."""
    script = "trap 'exit 0' TERM; while :; do sleep 0.2; done"
    return [container(apps, f"proxy-{k}", script, restartPolicy="Always") for k in range(number)]


def error_of(apps, app_id):
    """Return why the result cannot be read."""
    with pytest.raises(InvalidAppError) as error:
        pytest.fail(f"there is a result: {apps.another().result(app_id)}")
    return str(error.value)


# ---- sizes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("containers", [1, 5, 8])
def test_large_results_are_returned_from_pods_with_many_containers(kubernetes_apps, containers):
    """Without the container, a pod of eight containers has 1.5 KB of a result."""
    apps = kubernetes_apps
    script = f"echo hello; if [ $LAUNCH_REPLICA_ID = 0 ]; then {writes(4096)}; else {writes(60_000)}; fi"
    app_id = apps.start(
        apps.sh(script, num_replicas=2), result_image=apps.image, init_containers=sidecars(apps, containers - 1)
    )

    assert apps.end(app_id).state is AppState.SUCCEEDED
    assert [*apps.another().iter_results(app_id)] == ["x" * 4094, "x" * 59_998]
    assert apps.lines(app_id) == ["hello\n"]


def test_a_result_beyond_the_limit_is_refused(kubernetes_apps):
    apps = kubernetes_apps
    app_id = apps.start(apps.sh(writes(LIMIT + 1)), result_image=apps.image)

    assert apps.end(app_id).state is AppState.SUCCEEDED
    assert f"{LIMIT + 1} bytes, the limit is {LIMIT}" in error_of(apps, app_id)


def test_without_the_container_a_result_that_was_cut_names_the_option(kubernetes_apps):
    apps = kubernetes_apps
    info = apps.info(apps.sh(writes(4000)), init_containers=sidecars(apps, 4))
    app_id = apps.scheduler.schedule(info)

    assert len(info.warnings) == 1
    assert "keeps only 2457 bytes of a result; option result_image" in info.warnings[0]
    assert apps.end(app_id).state is AppState.SUCCEEDED
    assert "Kubernetes keeps 2457 bytes" in error_of(apps, app_id)
    assert "use option result_image" in error_of(apps, app_id)


# ---- ends ------------------------------------------------------------------------------------------------------------


def test_an_app_that_failed_has_its_error_and_its_result(kubernetes_apps):
    apps = kubernetes_apps
    error = """echo '{"message": "diverged"}' >"$TORCHELASTIC_ERROR_FILE" """
    found = apps.run(apps.sh(f"{error}; {writes(60_000)}; exit 3"), result_image=apps.image)

    assert found.state is AppState.FAILED
    assert "diverged" in found.structured_error_msg
    assert apps.another().result(found.app_id) == "x" * 59_998


def test_the_result_of_a_program_that_ran_out_of_memory_is_returned(kubernetes_apps):
    apps = kubernetes_apps
    script = """echo '{"epoch": 7}' >"$LAUNCH_RESULT_PATH"; x=$(head -c 300000000 /dev/zero | tr '\\0' x)"""
    found = apps.run(apps.sh(script, resource=Resource(1, 0, 32)), result_image=apps.image)

    assert found.state is AppState.FAILED
    assert "out of memory" in found.msg
    assert apps.another().result(found.app_id) == {"epoch": 7}


def test_half_a_document_of_a_program_that_failed_is_no_result(kubernetes_apps):
    apps = kubernetes_apps
    found = apps.run(apps.sh("""echo '{"epoch": ' >"$LAUNCH_RESULT_PATH"; exit 3"""), result_image=apps.image)

    assert found.state is AppState.FAILED
    assert apps.another().result(found.app_id) is None


def test_the_last_attempt_of_roles_that_are_retried_has_the_result(kubernetes_apps):
    apps = kubernetes_apps
    script = 'echo "$LAUNCH_ATTEMPT" >"$LAUNCH_RESULT_PATH"; test $LAUNCH_ATTEMPT = 1'
    retried = {"max_retries": 1, "retry_policy": RetryPolicy.APPLICATION}
    found = apps.run(
        apps.sh(script, **retried), apps.sh("exec sleep 300", "peer", service=True), result_image=apps.image
    )

    assert (found.state, found.num_restarts) == (AppState.SUCCEEDED, 1)
    assert apps.another().result(found.app_id) == 1


def test_an_app_that_is_cancelled_has_the_result_that_it_wrote(kubernetes_apps):
    apps = kubernetes_apps
    script = 'echo 5 >"$LAUNCH_RESULT_PATH"; echo written; exec sleep 300'
    app_id = apps.start(apps.sh(script), result_image=apps.image)
    apps.until(app_id, lambda _: apps.lines(app_id, should_tail=False) == ["written\n"])
    apps.scheduler.cancel(app_id)

    assert apps.end(app_id).state is AppState.CANCELLED
    assert apps.another().result(app_id) == 5


def test_restricted_pods_return_their_results(apps_in, kubernetes_make_namespace):
    apps = apps_in(kubernetes_make_namespace(**{"pod-security.kubernetes.io/enforce": "restricted"}))
    script = f"[ -w /airflow/xcom ]; {writes(60_000)}"
    found = apps.run(apps.sh(script), security="auto", run_as_user=65532, result_image=apps.image)

    assert found.state is AppState.SUCCEEDED
    assert apps.scheduler.result(found.app_id) == "x" * 59_998


# ---- faults of the container -----------------------------------------------------------------------------------------


def test_a_container_that_is_killed_while_the_program_runs_is_started_again(kubernetes_apps):
    apps = kubernetes_apps
    app_id = apps.start(apps.sh(f"{KILL}; sleep 5; echo 5 >$LAUNCH_RESULT_PATH"), result_image=apps.image)

    assert apps.end(app_id).state is AppState.SUCCEEDED
    assert apps.another().result(app_id) == 5


def test_a_result_whose_container_is_killed_at_the_end_is_an_error(kubernetes_apps):
    """After the second kill Kubernetes waits ten seconds before it starts the container again."""
    apps = kubernetes_apps
    script = f"n=0; while [ $n -lt 2 ]; do {KILL.replace('; done', ' && n=$((n + 1)); done')}; sleep 0.1; done"
    app_id = apps.start(apps.sh(f"{script}; echo 5 >$LAUNCH_RESULT_PATH"), result_image=apps.image)

    assert apps.end(app_id).state is AppState.SUCCEEDED
    assert "the result of main/0 is lost: container 'launch-result' exit code 137" in error_of(apps, app_id)


def test_an_image_that_cannot_be_pulled_is_the_reason_why_an_app_waits(kubernetes_apps):
    apps = kubernetes_apps
    app_id = apps.start(apps.sh("true"), result_image="no-such-image:local")
    found = apps.until(app_id, lambda found: "ErrImageNeverPull" in found.msg, 20)

    assert found.state is AppState.PENDING
    assert found.msg.startswith("ErrImageNeverPull: container 'launch-result': ")
    assert found.is_stuck
    apps.scheduler.delete(app_id)


def test_an_image_without_a_shell_is_the_reason_why_an_app_waits(kubernetes_apps):
    apps = kubernetes_apps
    role = apps.sh("true")
    change = {"name": "launch-result", "env": [{"name": "PATH", "value": "/nowhere"}]}
    set_overlay(role, "kubernetes", "V1Pod", {"spec": {JOIN("initContainers", on="name"): [change]}})
    app_id = apps.start(role, result_image=apps.image)
    found = apps.until(app_id, lambda found: '"sh"' in found.msg, 30)

    assert found.state is AppState.PENDING
    assert "container 'launch-result'" in found.msg
    assert "executable file not found" in found.msg
    assert found.is_stuck
    apps.scheduler.delete(app_id)

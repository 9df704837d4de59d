"""A pod is more than one container: sidecars that do not end, init containers that fail, hang or cannot start."""

from __future__ import annotations

import pytest

from airflow_provider_launch.specs import AppState, RetryPolicy, is_terminal

pytestmark = pytest.mark.engine("kubernetes")


def beside(apps, name, script, *, kind="containers", **fields):
    """Return the option `overlay` that adds a container to the pod."""
    one = {"name": name, "image": apps.image, "imagePullPolicy": "Never", "command": ["sh", "-c", script], **fields}
    return {"pod": {kind: [one]}}


SLEEP = "trap 'exit 0' TERM; echo up; while :; do sleep 0.2; done"


# ---- sidecars --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("code", "state"), [(0, AppState.SUCCEEDED), (7, AppState.FAILED)])
def test_an_app_ends_with_its_program_whatever_a_sidecar_does(kubernetes_apps, code, state):
    apps = kubernetes_apps
    app_id = apps.start(apps.sh(f"sleep 1; exit {code}"), overlay=beside(apps, "proxy", SLEEP), sidecar_grace_s=2)
    waits = apps.until(app_id, lambda found: "proxy" in found.msg or is_terminal(found.state), 30)

    assert waits.state is AppState.RUNNING
    assert waits.msg == (
        f"main/0 has ended with exit code {code}, and container 'proxy' still runs; it is stopped by sidecar_grace_s=2"
    )
    ended = apps.until(app_id, lambda found: is_terminal(found.state), 30)
    assert ended.state is state
    (replica,) = ended.roles_statuses[0].replicas
    assert (replica.state, replica.exit_code) == (state, code)
    assert ended.msg == ("<NONE>" if code == 0 else "main/0 failed: exit code 7")
    assert apps.another().describe(app_id).state is state
    assert not [pod for pod in apps.pods(app_id) if not pod.over]


def test_a_replica_with_a_sidecar_is_tried_again(kubernetes_apps):
    apps = kubernetes_apps
    script = "test $LAUNCH_ATTEMPT = 1 || exit 4"
    role = apps.sh(script, max_retries=1, retry_policy=RetryPolicy.REPLICA)
    found = apps.run(role, overlay=beside(apps, "proxy", SLEEP), sidecar_grace_s=0)

    assert (found.state, found.num_restarts) == (AppState.SUCCEEDED, 1)


def test_the_end_of_the_leader_is_the_end_whatever_sidecars_do(kubernetes_apps):
    apps = kubernetes_apps
    script = "test $LAUNCH_REPLICA_ID = 0 || sleep 300"
    found = apps.run(
        apps.sh(script, num_replicas=2),
        overlay=beside(apps, "proxy", SLEEP),
        sidecar_grace_s=0,
        success_policy="leader",
    )

    assert found.state is AppState.SUCCEEDED
    assert [one.state for one in found.roles_statuses[0].replicas] == [AppState.SUCCEEDED, AppState.CANCELLED]


def test_a_sidecar_that_fails_is_named(kubernetes_apps):
    apps = kubernetes_apps
    found = apps.run(apps.sh("sleep 1"), overlay=beside(apps, "proxy", "echo no route; exit 9"))

    assert found.state is AppState.FAILED
    assert found.msg == "main/0 failed: container 'proxy' exit code 9; its last lines: no route"
    assert found.structured_error_msg == "<NONE>"


# ---- init containers -------------------------------------------------------------------------------------------------


def test_an_init_container_that_fails_is_named_with_its_last_lines(kubernetes_apps):
    apps = kubernetes_apps
    overlay = beside(apps, "fetch", "echo one; echo no such bucket; exit 3", kind="initContainers")
    found = apps.run(apps.sh("true"), overlay=overlay)

    assert found.state is AppState.FAILED
    assert found.msg == "main/0 failed: init container 'fetch' exit code 3; its last lines: one / no such bucket"
    assert found.roles_statuses[0].replicas[0].reason == "init container 'fetch' exit code 3"


def test_an_init_container_that_cannot_start_is_the_reason_why_an_app_waits(kubernetes_apps):
    apps = kubernetes_apps
    overlay = beside(apps, "fetch", "true", kind="initContainers", image="no-such-image:local")
    app_id = apps.start(apps.sh("true"), overlay=overlay)
    found = apps.until(app_id, lambda found: "ErrImageNeverPull" in found.msg, 20)

    assert found.state is AppState.PENDING
    assert found.msg.startswith("ErrImageNeverPull: init container 'fetch': ")
    assert found.is_stuck
    apps.scheduler.delete(app_id)


def test_an_init_container_that_hangs_is_the_reason_why_an_app_waits(kubernetes_apps):
    apps = kubernetes_apps
    overlay = beside(apps, "fetch", "echo begun; sleep 300", kind="initContainers")
    app_id = apps.start(apps.sh("true"), overlay=overlay, container_logs=["fetch"])
    found = apps.until(app_id, lambda found: "fetch" in found.msg, 20)

    assert found.state is AppState.PENDING
    assert found.msg.startswith("init container 'fetch' runs since ")
    assert apps.lines(app_id) == ["begun\n"], "while it hangs"
    apps.scheduler.delete(app_id)


# ---- logs ------------------------------------------------------------------------------------------------------------


def test_logs_of_other_containers_come_with_their_names(kubernetes_apps):
    apps = kubernetes_apps
    fetch = beside(apps, "fetch", "echo fetched", kind="initContainers")["pod"]
    overlay = {"pod": {**fetch, **beside(apps, "proxy", "echo up; sleep 2; echo down")["pod"]}}
    app_id = apps.start(apps.sh("sleep 1; echo run"), overlay=overlay, container_logs=["fetch", "proxy"])
    assert apps.end(app_id).state is AppState.SUCCEEDED
    lines, cursor = [], None
    while True:
        chunk = apps.scheduler.read_logs(app_id, "main", 0, cursor)
        if not chunk.lines:
            break
        lines += [(line.container, line.text) for line in chunk.lines]
        cursor = chunk.cursor

    assert lines[0] == ("fetch", "fetched\n")
    assert [text for name, text in lines if name == "proxy"] == ["up\n", "down\n"]
    assert [text for name, text in lines if name == ""] == ["run\n"]


# ---- events ----------------------------------------------------------------------------------------------------------


def test_a_volume_that_cannot_be_mounted_is_the_reason_why_an_app_waits(kubernetes_apps):
    apps = kubernetes_apps
    overlay = {"pod": {"volumes": [{"name": "s", "secret": {"secretName": "nope"}}]}}
    overlay["container"] = {"volumeMounts": [{"name": "s", "mountPath": "/s"}]}
    app_id = apps.start(apps.sh("true"), overlay=overlay)
    found = apps.until(app_id, lambda found: "FailedMount" in found.msg, 30)

    assert found.state is AppState.PENDING
    assert "nope" in found.msg
    apps.scheduler.delete(app_id)


@pytest.mark.parametrize("pod", [{"schedulerName": "no-such"}, {"nodeName": "no-such"}])
def test_a_scheduler_or_node_that_ignores_a_pod_is_the_reason_of_the_wait(kubernetes_apps, pod):
    apps = kubernetes_apps
    app_id = apps.start(apps.sh("true"), overlay={"pod": pod})
    found = apps.until(app_id, lambda found: "'no-such'" in found.msg, 30)

    assert found.state is AppState.PENDING
    assert "taken the pod" in found.msg
    apps.scheduler.delete(app_id)


def test_a_program_that_a_probe_kills_fails_because_of_the_probe(kubernetes_apps):
    apps = kubernetes_apps
    probe = {"exec": {"command": ["false"]}, "periodSeconds": 1, "failureThreshold": 1}
    found = apps.run(apps.sh("exec sleep 300"), overlay={"container": {"livenessProbe": probe}})

    assert found.state is AppState.FAILED
    assert "ended by SIG" in found.msg
    assert "Unhealthy: Liveness probe failed" in found.msg

"""A started app that waits again: the state shows the reason."""

from __future__ import annotations

import contextlib

import pytest

from airflow_provider_launch.schedulers.kubernetes.client import TakenError
from airflow_provider_launch.specs import AppState, RetryPolicy

pytestmark = pytest.mark.engine("kubernetes")

FAILS_LATE = "test $LAUNCH_ATTEMPT = 0 || exec sleep 300; sleep 2; exit 5"


@pytest.mark.parametrize("policy", [RetryPolicy.REPLICA, RetryPolicy.APPLICATION])
def test_a_retry_that_a_quota_refuses_is_reported(apps_in, kubernetes_make_namespace, policy):
    """There may be room later, so the app waits; a replica with exit code 5 does not run meanwhile."""
    apps = apps_in(kubernetes_make_namespace())
    app_id = apps.start(apps.sh(FAILS_LATE, max_retries=1, retry_policy=policy))
    apps.running(app_id)
    quota = {"metadata": {"name": "q"}, "spec": {"hard": {"pods": "0"}}}
    apps.call("POST", "/api/v1/{ns}/resourcequotas", quota)
    waits = apps.until(app_id, lambda found: "exceeded quota" in found.msg)

    assert waits.state is AppState.RUNNING
    assert waits.msg.startswith("main")
    assert "waits to start: FailedCreate: " in waits.msg
    assert not waits.is_stuck
    if policy is RetryPolicy.REPLICA:
        (replica,) = waits.roles_statuses[0].replicas
        assert replica.state is AppState.PENDING
        assert "exceeded quota" in str(replica.reason)
    apps.call("DELETE", "/api/v1/{ns}/resourcequotas/q")
    apps.until(app_id, lambda found: found.num_restarts == 1 and "waits" not in found.msg)
    apps.scheduler.cancel(app_id)
    assert apps.end(app_id).state is AppState.CANCELLED


@pytest.mark.parametrize("how", ["mounted", "variable"])
def test_a_retry_whose_secret_is_gone_is_reported_as_stuck(kubernetes_apps, how):
    """The Secret does not come back by itself: the task fails after a minute, and names the Secret."""
    apps = kubernetes_apps
    body = {"metadata": {"name": "gone"}, "stringData": {"KEY": "value"}}
    with contextlib.suppress(TakenError):
        apps.call("POST", "/api/v1/{ns}/secrets", body)
    options = {
        "mounted": {
            "overlay": {
                "pod": {"volumes": [{"name": "creds", "secret": {"secretName": "gone"}}]},
                "container": {"volumeMounts": [{"name": "creds", "mountPath": "/creds"}]},
            }
        },
        "variable": {"env_secrets": {"KEY": "gone/KEY"}},
    }[how]
    role = apps.sh(FAILS_LATE, max_retries=1, retry_policy=RetryPolicy.REPLICA)
    app_id = apps.start(role, apps.sh("exec sleep 300", "peer"), **options)
    apps.until(
        app_id,
        lambda found: all(one.state is AppState.RUNNING for role in found.roles_statuses for one in role.replicas),
    )
    apps.call("DELETE", "/api/v1/{ns}/secrets/gone")
    stuck = apps.until(app_id, lambda found: found.is_stuck)

    assert stuck.state is AppState.RUNNING
    assert "main/0 waits to start: " in stuck.msg
    assert '"gone" not found' in stuck.msg
    apps.scheduler.cancel(app_id)
    assert apps.end(app_id).state is AppState.CANCELLED


def test_an_app_that_was_suspended_while_it_ran_is_reported(kubernetes_apps):
    apps = kubernetes_apps
    app_id = apps.start(apps.sh("exec sleep 300"))
    apps.running(app_id)
    apps.cluster.patch("jobs", f"{app_id}--main", {"spec": {"suspend": True}})
    held = apps.until(app_id, lambda found: "suspended" in found.msg)

    assert held.state is AppState.RUNNING
    assert not held.is_stuck
    apps.cluster.patch("jobs", f"{app_id}--main", {"spec": {"suspend": False}})
    apps.until(app_id, lambda found: "suspended" not in found.msg)
    apps.scheduler.cancel(app_id)
    assert apps.end(app_id).state is AppState.CANCELLED

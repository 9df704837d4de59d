"""Apps without observers: ends by Kubernetes itself, and the objects that stay after a cancel."""

from __future__ import annotations

import dataclasses
import time

import pytest

from airflow_provider_launch.schedulers.kubernetes import manifests
from airflow_provider_launch.schedulers.kubernetes.naming import Label
from airflow_provider_launch.schedulers.kubernetes.objects import job_of
from airflow_provider_launch.specs import AppState, RetryPolicy
from tests.support.apps import until

pytestmark = pytest.mark.engine("kubernetes")


def test_kubernetes_enforces_the_time_limit_without_polls(kubernetes_apps, monkeypatch):
    monkeypatch.setattr(manifests, "BACKSTOP_S", 3)
    apps = kubernetes_apps
    app_id = apps.start(apps.sh("exec sleep 300"), time_limit_s=3)
    until(lambda: any(pod.running for pod in apps.pods(app_id)))
    until(lambda: not any(pod.running for pod in apps.pods(app_id)))
    (job,) = apps.cluster.list("jobs", f"{Label.APP_ID}={app_id}")[0]
    assert {"DeadlineExceeded"} == {one.reason for one in job_of(job).conditions.values()}
    found = apps.end(app_id)

    assert found.state is AppState.FAILED
    assert "time limit" in found.msg


def alive(apps, app_id):
    return [pod.name for pod in apps.pods(app_id) if pod.running and not pod.over]


def test_a_cancel_ends_the_retries_even_without_polls(kubernetes_apps):
    """After the kill of a task no process polls; ten seconds later Kubernetes would restart the replicas."""
    apps = kubernetes_apps
    roles = [apps.sh("exec sleep 300", name, num_replicas=2, max_retries=3) for name in ("main", "peer")]
    roles = [dataclasses.replace(role, retry_policy=RetryPolicy.REPLICA) for role in roles]
    app_id = apps.start(*roles)
    until(lambda: len(alive(apps, app_id)) == 4)
    pods = {pod.uid for pod in apps.pods(app_id)}
    apps.scheduler.cancel(app_id)
    time.sleep(30)

    assert {pod.uid for pod in apps.pods(app_id)} <= pods
    assert alive(apps, app_id) == []
    assert apps.end(app_id).state is AppState.CANCELLED


@pytest.mark.parametrize("grace_s", [6, 14])
def test_a_replica_with_retries_has_its_grace(kubernetes_apps, grace_s):
    """Even if the Job must end before a replica gets its next attempt."""
    apps = kubernetes_apps
    last = f"for i in $(seq {grace_s - 2}); do echo $i; sleep 1; done; exit 0"
    script = f"trap '{last}' TERM; echo up; while :; do sleep 0.1; done"
    role = apps.sh(script, max_retries=3, retry_policy=RetryPolicy.REPLICA)
    app_id = apps.start(role, grace_s=grace_s)
    apps.until(app_id, lambda _: apps.lines(app_id) == ["up\n"])
    apps.scheduler.cancel(app_id)

    assert apps.end(app_id).state is AppState.CANCELLED
    assert apps.lines(app_id) == ["up\n", *(f"{n}\n" for n in range(1, grace_s - 1))]
    assert len(apps.pods(app_id)) == 1


def test_a_cancel_ends_jobs_that_have_not_started(kubernetes_apps):
    """It would start afterwards, perhaps without an observer."""
    apps = kubernetes_apps
    index = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
    first = {
        "name": "first",
        "image": apps.image,
        "imagePullPolicy": "Never",
        "command": ["sh", "-c", "test $INDEX = 0 || sleep 8"],
        "env": [{"name": "INDEX", "valueFrom": {"fieldRef": {"fieldPath": index}}}],
    }
    role = apps.sh("exec sleep 300", num_replicas=2)
    app_id = apps.start(role, overlay={"pod": {"initContainers": [first]}})
    until(lambda: len(alive(apps, app_id)) == 1)
    apps.scheduler.cancel(app_id)
    time.sleep(12)

    assert alive(apps, app_id) == []
    assert not any(pod.has_started for pod in apps.pods(app_id) if pod.replica == 1)
    assert apps.end(app_id).state is AppState.CANCELLED


def test_a_cancel_ends_containers_that_outlive_the_program(kubernetes_apps):
    """A sidecar of a webhook keeps the pod, and the app, running until Kubernetes ends it."""
    apps = kubernetes_apps
    side = {"name": "side", "image": apps.image, "imagePullPolicy": "Never", "command": ["sleep", "300"]}
    app_id = apps.start(apps.sh("echo done"), overlay={"pod": {"containers": [side]}})
    until(lambda: any(pod.exit_code == 0 for pod in apps.pods(app_id)))
    time.sleep(12)
    apps.scheduler.cancel(app_id)
    until(lambda: all(pod.over for pod in apps.pods(app_id)), 15)

    assert apps.lines(app_id) == ["done\n"]
    assert apps.end(app_id).state is AppState.CANCELLED

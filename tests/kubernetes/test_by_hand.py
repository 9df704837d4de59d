"""Pods deleted by hand, and objects that the cluster never accepts: reported, and never a silent success."""

from __future__ import annotations

import dataclasses
import uuid

import pytest

from airflow_provider_launch.schedulers.kubernetes.objects import pod_of
from airflow_provider_launch.schedulers.kubernetes.observer import _with_image
from airflow_provider_launch.schedulers.kubernetes.request import KubernetesRole
from airflow_provider_launch.specs import AppState
from airflow_provider_launch.specs.errors import InvalidAppError
from tests.engines.docker.images import busybox_content
from tests.engines.kubernetes.images import load, remove

pytestmark = pytest.mark.engine("kubernetes")

POLITE = "trap 'exit 0' TERM; echo run; while :; do sleep 0.1; done"


def deleted(apps, script: str = POLITE, *, force: bool = False, **how: object) -> str:
    """Launch an app, and delete its pod while its program runs."""
    app_id = apps.start(apps.sh(script), **how)
    apps.until(app_id, lambda _: apps.lines(app_id))
    (pod,) = apps.pods(app_id)
    apps.call("DELETE", f"/api/v1/{{ns}}/pods/{pod.name}", {"gracePeriodSeconds": 0} if force else None)
    return app_id


def test_a_pod_that_is_deleted_is_no_success_though_its_program_exits_with_0(kubernetes_apps):
    found = kubernetes_apps.end(deleted(kubernetes_apps, grace_s=10))

    assert found.state is AppState.FAILED
    assert "main/0 failed: stopped from outside (its pod was deleted)" in found.msg
    late = kubernetes_apps.another().describe(found.app_id)
    assert (late.state, late.msg) == (AppState.FAILED, found.msg)


def test_the_end_of_a_deleted_pod_may_be_accepted(kubernetes_apps):
    app_id = deleted(kubernetes_apps, grace_s=10, on_outside_stop="accept")

    assert kubernetes_apps.end(app_id).state is AppState.SUCCEEDED


def test_a_pod_that_is_deleted_by_force_is_shown_as_removed(kubernetes_apps):
    found = kubernetes_apps.end(deleted(kubernetes_apps, "echo run; exec sleep 300", force=True))

    assert found.state is AppState.FAILED
    assert found.msg == "main/0 failed: its pod was removed from outside, and its log with it"


@pytest.mark.parametrize(
    ("overlay", "text"),
    [
        (
            {"pod": {"nodeSelectr": {}}},
            r"role 'main': the cluster refuses its pods, see option overlay.*nodeSelectr",
        ),
        (
            {"pod": {"dnsPolicy": "Never"}},
            r"role 'main': the cluster refuses its pods, see option overlay.*dnsPolicy",
        ),
        ({"service": {"typ": "x"}}, r"the Service of the app, see option overlay.service: .*typ"),
    ],
)
def test_objects_that_the_cluster_never_accepts_are_errors_of_the_author(kubernetes_apps, overlay, text):
    """A retry cannot succeed."""
    info = kubernetes_apps.info(kubernetes_apps.sh("true"), overlay=overlay)
    with pytest.raises(InvalidAppError, match=text):
        kubernetes_apps.scheduler.schedule(info)

    assert kubernetes_apps.objects(info.request.app_id) == []


@pytest.mark.engine("registry")
@pytest.mark.engine("kube-apiserver")  # a cluster of our own, which takes images from a registry without TLS
def test_a_retry_runs_the_image_of_the_first_attempt(kubernetes_apps, kubernetes_engine, registry):
    """Even if its tag means another image by then."""
    apps, cluster, name = kubernetes_apps, kubernetes_engine.cluster, f"{registry}/train:latest"
    key = uuid.uuid4().hex[:8]

    def push(version: int) -> str:
        # An image of its own: one that was pulled must not be used without a pull.
        content = busybox_content()
        env = [*content.env, f"V={key}-{version}"]
        local = load(cluster, dataclasses.replace(content, name=f"launch-train-{key}:{version}", env=env))
        cluster.ctr("images", "tag", "--force", f"docker.io/library/{local}", name)
        cluster.ctr("images", "push", "--plain-http", name)
        cluster.ctr("images", "rm", name)
        remove(cluster, local)
        return f"{key}-{version}"

    first = push(1)
    app_id = apps.start(apps.sh("echo $V; sleep 2; test $LAUNCH_ATTEMPT = 1", image=name, max_retries=1), pull="always")
    apps.until(app_id, lambda _: apps.lines(app_id))
    push(2)
    found = apps.end(app_id)

    assert found.state is AppState.SUCCEEDED
    assert apps.lines(app_id) == [f"{first}\n"] * 2
    assert all(pod.digest.startswith(f"{registry}/train@sha256:") for pod in apps.pods(app_id))


def test_another_attempt_of_an_app_runs_the_digest_of_the_first():
    """Images that were loaded into a node have no digest."""

    def pod(failures: int, image: str):
        labels = {"launch.io/role": "main", "launch.io/attempt": str(failures)}
        metadata = {"name": f"p{failures}", "uid": f"u{failures}", "labels": labels}
        return pod_of(
            {"metadata": metadata, "spec": {}, "status": {"containerStatuses": [{"name": "main", "imageID": image}]}}
        )

    role = KubernetesRole("main", "main", 1, "sh", [], {}, {}, "APPLICATION", 1, {"image": "team/train:latest"}, {})
    first, second = "registry/team/train@sha256:aa", "registry/team/train@sha256:bb"

    assert _with_image(role, [pod(1, second), pod(0, first)]).container["image"] == first
    assert _with_image(role, [pod(0, "sha256:cc")]).container["image"] == "team/train:latest"

"""Refused steps and damaged records: reported, retried, and without effect on other apps."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import pytest

from airflow_provider_launch.follow.poller import poll_many
from airflow_provider_launch.schedulers.ids import make_unique
from airflow_provider_launch.schedulers.kubernetes.client import ConflictError
from airflow_provider_launch.schedulers.kubernetes.naming import Annotation
from airflow_provider_launch.schedulers.kubernetes.scheduler import KubernetesScheduler
from airflow_provider_launch.specs import AppState
from airflow_provider_launch.specs.errors import SchedulerRejectedError, SchedulerUnavailableError
from tests.faults import Fault, error
from tests.support.apps import described, until

pytestmark = pytest.mark.engine("kubernetes")


class Requests:
    """Records the requests of one scheduler."""

    def __init__(self, scheduler: KubernetesScheduler) -> None:
        self.made: list[str] = []
        self._sent = scheduler.cluster._sent
        scheduler.cluster._sent = self._record  # type: ignore[method-assign]

    def _record(self, method: str, path: str, *args: Any) -> Any:
        self.made.append(f"{method} {path}")
        return self._sent(method, path, *args)


def test_a_retry_that_is_refused_waits_and_costs_the_others_nothing(apps_in, kubernetes_make_namespace, caplog):
    """The cluster may have room later; only this app waits for that."""
    apps = apps_in(kubernetes_make_namespace())
    others = [apps.start(apps.sh("exec sleep 300")) for _ in range(4)]
    for app_id in others:
        apps.running(app_id)
    app_id = apps.start(apps.sh("sleep 3; exit 3", max_retries=1))
    quota = {"metadata": {"name": "q"}, "spec": {"hard": {"count/jobs.batch": "5"}}}
    apps.call("POST", "/api/v1/{ns}/resourcequotas", quota)
    waits = apps.until(app_id, lambda found: "exceeded quota" in found.msg)
    assert waits.state is AppState.RUNNING

    requests = Requests(apps.scheduler)
    until = time.monotonic() + 4
    looks = 0
    while time.monotonic() < until:
        found = apps.scheduler.describe_many([*others, app_id])
        assert {response.state for response in found.values() if response} == {AppState.RUNNING}
        looks += 1
        time.sleep(0.1)
    assert sum(one.startswith("POST") for one in requests.made) <= 1
    assert len([record for record in caplog.records if "exceeded quota" in record.getMessage()]) == 1
    # The Jobs of all, the record of this one; and once a few more for the step.
    assert len(requests.made) <= 2 * looks + 8
    apps.call("DELETE", "/api/v1/{ns}/resourcequotas/q")
    found = apps.end(app_id)
    assert (found.state, found.num_restarts) == (AppState.FAILED, 1)


@pytest.mark.parametrize(
    "notes", [{Annotation.REQUEST: "x"}, {Annotation.REQUEST: "eJyrVgIAAW4AuQ=="}, {Annotation.ATTEMPT: "x"}]
)
def test_a_damaged_record_costs_the_others_nothing(kubernetes_apps, notes):
    apps = kubernetes_apps
    good, bad = apps.start(apps.sh("exec sleep 300")), apps.start(apps.sh("sleep 5; exit 3", max_retries=1))
    for app_id in (good, bad):
        apps.running(app_id)
    apps.cluster.patch("services", bad, {"metadata": {"annotations": notes}})
    fresh = apps.another()

    told = fresh.describe(bad)
    assert told is not None
    assert told.state is AppState.RUNNING
    assert "damaged" in told.msg
    described(fresh, bad, lambda found: found.state is not AppState.RUNNING)
    found = fresh.describe_many([good, bad])
    assert (found[good].state, found[bad].state) == (AppState.RUNNING, AppState.UNKNOWN)
    assert "damaged" in found[bad].msg
    assert {row.app_id for row in fresh.list()} >= {good, bad}
    for app_id in (good, bad):
        fresh.delete(app_id)


# ---- what cannot be written ------------------------------------------------------------------------------------------


@pytest.fixture
def policy(kubernetes_apps):
    """Deny all changes of Services in this namespace, as a policy of the cluster does, until the end of the block."""

    @contextlib.contextmanager
    def denied() -> Iterator[None]:
        group = "/apis/admissionregistration.k8s.io/v1"
        name = make_unique("launch-tests")
        space = {"matchLabels": {"kubernetes.io/metadata.name": kubernetes_apps.namespace}}
        rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["services"]}
        spec = {
            "matchConstraints": {"namespaceSelector": space, "resourceRules": [rule]},
            "validations": [{"expression": "false", "message": "services stay as they are"}],
        }
        binding = {"policyName": name, "validationActions": ["Deny"]}
        kinds = {"validatingadmissionpolicies": spec, "validatingadmissionpolicybindings": binding}
        for kind, body in kinds.items():
            kubernetes_apps.call("POST", f"{group}/{kind}", {"metadata": {"name": name}, "spec": body})
        try:
            wait_until_denied(kubernetes_apps)
            yield
        finally:
            for kind in kinds:
                kubernetes_apps.call("DELETE", f"{group}/{kind}/{name}")

    return denied


def wait_until_denied(apps):
    name = make_unique("probe")
    body = {"metadata": {"name": name, "annotations": {"a": "b"}}, "spec": {"clusterIP": "None"}}
    apps.call("POST", "/api/v1/{ns}/services", body)
    deadline = time.monotonic() + 60
    with contextlib.suppress(ConflictError):
        while time.monotonic() < deadline:
            change = {"op": "add", "path": "/metadata/annotations/a", "value": str(time.monotonic())}
            apps.cluster.patch("services", name, [change])
            time.sleep(0.2)
    apps.call("DELETE", f"/api/v1/{{ns}}/services/{name}")


def test_a_policy_against_our_annotations_is_reported_by_apps_that_need_them(kubernetes_apps, policy):
    """A submission without a commitment, and a cancel without its mark, have done nothing."""
    apps = kubernetes_apps
    running = apps.start(apps.sh("exec sleep 300"))
    apps.running(running)
    info = apps.info(apps.sh("true"))

    with policy():
        with pytest.raises(SchedulerRejectedError, match=r"services stay as they are.*to allow"):
            apps.scheduler.cancel(running)
        with pytest.raises(SchedulerRejectedError, match=r"services stay as they are.*to allow"):
            apps.scheduler.schedule(info)
    assert apps.another().describe(running).state is AppState.RUNNING
    until(lambda: not apps.objects(info.request.app_id), 60, 0.2)
    apps.scheduler.delete(running)


@pytest.fixture
def dead_webhook(kubernetes_apps):
    """Register a webhook that does not answer for all changes of Jobs in this namespace."""
    path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
    name = f"{make_unique('launch')}.tests.io"
    hook = {
        "name": name,
        "clientConfig": {"url": "https://127.0.0.1:1/"},
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": kubernetes_apps.namespace}},
        "rules": [{"apiGroups": ["batch"], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["jobs"]}],
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }

    @contextlib.contextmanager
    def installed() -> Iterator[None]:
        kubernetes_apps.call("POST", path, {"metadata": {"name": name}, "webhooks": [hook]})
        try:
            yield
        finally:
            kubernetes_apps.call("DELETE", f"{path}/{name}")

    return installed


def test_a_webhook_that_is_down_hides_one_app_and_not_all(kubernetes_apps, dead_webhook):
    """Only apps that need a change wait for it; else the tasks of all apps would fail after `unavailable_for_s`."""
    apps = kubernetes_apps
    good = apps.start(apps.sh("exec sleep 300"))
    bad = apps.start(apps.sh("sleep 6; exit 3"), apps.sh("exec sleep 300", "peer"))
    for app_id in (good, bad):
        apps.running(app_id)
    with dead_webhook():
        deadline = time.monotonic() + 60
        while "webhook" not in (found := poll_many(apps.scheduler, [good, bad]))[bad].msg:
            assert time.monotonic() < deadline, found
            time.sleep(0.5)
            assert [answer.state for answer in found.values()] == [AppState.RUNNING] * 2
    found = apps.end(bad)

    assert found.state is AppState.FAILED
    assert "exit code 3" in found.msg
    apps.scheduler.delete(good)


@pytest.mark.parametrize("submits", [True, False])
def test_an_observer_that_is_always_too_late_reports_it(kubernetes_apps, kubernetes_proxy, submits):
    apps = kubernetes_apps
    changed = "the server rejected our request due to an error in our request"
    info = apps.info(apps.sh("exec sleep 300"))
    app_id = info.request.app_id
    if not submits:
        apps.scheduler.schedule(info)
    fault = kubernetes_proxy.add(Fault(error(422, changed), "PATCH", "/services/", times=None))
    began = time.monotonic()

    with pytest.raises(SchedulerUnavailableError, match=r"could not be written.*may succeed later"):
        apps.scheduler.schedule(info) if submits else apps.scheduler.cancel(app_id)
    assert fault.hits == 8
    assert time.monotonic() - began > 2, "eight rounds without pauses leave other observers no time to finish"
    kubernetes_proxy.clear()
    apps.scheduler.delete(app_id)


def test_an_interrupted_cancel_is_completed_by_a_follower(kubernetes_apps, kubernetes_proxy):
    """Its mark is in the record, which the follower of many quiet apps reads only once a minute."""
    apps = kubernetes_apps
    ids = [apps.start(apps.sh("exec sleep 300")) for _ in range(2)]
    follower = apps.another()
    for app_id in ids:
        apps.running(app_id)
    follower.describe_many(ids)
    kubernetes_proxy.add(Fault(error(403, "injected"), "PATCH", "/jobs/", times=None))
    with pytest.raises(SchedulerRejectedError, match="injected"):
        apps.scheduler.cancel(ids[0])
    kubernetes_proxy.clear()
    follower.describe_many(ids)

    requests = Requests(follower)
    follower._records_at -= 61
    deadline = time.monotonic() + 60
    while (found := follower.describe_many(ids))[ids[0]].state is AppState.RUNNING:
        assert time.monotonic() < deadline, found
        time.sleep(0.2)
    assert [found[app_id].state for app_id in ids] == [AppState.CANCELLED, AppState.RUNNING]
    assert sum(one.endswith("/services") for one in requests.made) == 1
    for app_id in ids:
        follower.delete(app_id)

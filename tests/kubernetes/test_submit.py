"""Submission: refused before anything exists, or started once, whichever answer is lost."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from airflow_provider_launch.schedulers.kubernetes.naming import Annotation, Label
from airflow_provider_launch.specs import AppDef, AppState, Resource
from airflow_provider_launch.specs.errors import (
    AppConflictError,
    InvalidAppError,
    SchedulerRejectedError,
    SchedulerUnavailableError,
)
from tests.faults import Fault, drop_answer, error

pytestmark = pytest.mark.engine("kubernetes")

WRITES = {"POST": 7, "PATCH": 4}
"""Requests of a submission of two roles that change something or ask for a dry run."""


def test_writes_of_a_submission(kubernetes_apps, kubernetes_proxy):
    """The next test loses the answer of each."""
    info = kubernetes_apps.info(kubernetes_apps.sh("true"), kubernetes_apps.sh("true", "peer"))
    before = {method: len(kubernetes_proxy.matching(method)) for method in WRITES}
    kubernetes_apps.scheduler.schedule(info)

    assert {method: len(kubernetes_proxy.matching(method)) - before[method] for method in WRITES} == WRITES


@pytest.mark.parametrize(
    ("method", "nth"), [(method, nth) for method, count in WRITES.items() for nth in range(1, count + 1)]
)
def test_a_lost_answer_starts_nothing_twice(kubernetes_apps, kubernetes_proxy, method, nth):
    """The server has done the request, but the launcher gets no answer."""
    apps = kubernetes_apps
    info = apps.info(apps.sh("echo run"), apps.sh("echo run", "peer"))
    # Twice: the first one is repeated at once, as after a connection that the server had closed.
    apps_id = info.request.app_id
    kubernetes_proxy.add(Fault(drop_answer(), method, nth=nth, times=2))
    try:
        apps.scheduler.schedule(info)
    except SchedulerUnavailableError:
        kubernetes_proxy.clear()
        apps.another().schedule(info)
    kubernetes_proxy.clear()

    assert apps.end(apps_id).state is AppState.SUCCEEDED
    assert [apps.lines(apps_id, role) for role in ("main", "peer")] == [["run\n"]] * 2
    assert len(apps.pods(apps_id)) == 2
    assert len(apps.objects(apps_id)) == 3


def test_a_busy_server_is_waited_for(kubernetes_apps, kubernetes_proxy):
    apps = kubernetes_apps
    fault = kubernetes_proxy.add(Fault(error(429, retry_after_s=1), "POST", "/services$", times=2))
    app_id = apps.start(apps.sh("true"))

    assert fault.hits == 2
    assert apps.end(app_id).state is AppState.SUCCEEDED


@pytest.mark.parametrize("status", [429, 500, 503, 504])
def test_a_server_that_stays_busy_is_not_an_answer(kubernetes_apps, kubernetes_proxy, status):
    apps = kubernetes_apps
    app_id = apps.start(apps.sh("sleep 60"))
    kubernetes_proxy.add(Fault(error(status, retry_after_s=30), "GET", times=None))

    with pytest.raises(SchedulerUnavailableError, match=str(status)):
        apps.scheduler.describe(app_id)
    kubernetes_proxy.clear()
    apps.scheduler.delete(app_id)


def test_a_list_that_has_expired_is_started_again(kubernetes_apps, kubernetes_proxy):
    apps = kubernetes_apps
    app_id = apps.start(apps.sh("sleep 60"))
    fault = kubernetes_proxy.add(Fault(error(410, "too old"), "GET", "/jobs$"))

    assert app_id in {row.app_id for row in apps.scheduler.list()}
    assert fault.hits == 1
    apps.scheduler.delete(app_id)


def test_two_schedulers_that_adopt_at_once_start_one_app(kubernetes_apps, kubernetes_proxy):
    """Their submitter died after it had created the record."""
    apps = kubernetes_apps
    info = apps.info(apps.sh("echo run"), apps.sh("echo run", "peer"))
    kubernetes_proxy.add(Fault(error(403, "injected"), "POST", "/jobs$", nth=3, times=None))
    with pytest.raises(SchedulerRejectedError):
        apps.scheduler.schedule(info)
    kubernetes_proxy.clear()
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda scheduler: scheduler.schedule(info), [apps.another(), apps.another()]))

    assert apps.end(info.request.app_id).state is AppState.SUCCEEDED
    assert len(apps.pods(info.request.app_id)) == 2


def test_a_foreign_service_is_a_conflict(kubernetes_apps):
    apps = kubernetes_apps
    info = apps.info(apps.sh("true"))
    body = {"metadata": {"name": info.request.app_id}, "spec": {"clusterIP": "None"}}
    apps.call("POST", "/api/v1/{ns}/services", body)

    with pytest.raises(AppConflictError, match="not an app of the launcher"):
        apps.scheduler.schedule(info)
    assert apps.scheduler.describe(info.request.app_id) is None


# ---- refused by the server's dry run ---------------------------------------------------------------------------------


def refused(apps, *roles, **cfg):
    info = apps.info(*roles, **cfg)
    with pytest.raises((SchedulerRejectedError, InvalidAppError)) as caught:
        apps.scheduler.schedule(info)
    assert apps.objects(info.request.app_id) == []
    return str(caught.value)


def test_a_limit_range_refuses_at_once(apps_in, kubernetes_make_namespace):
    """The server would accept its Job, which would never get a pod and never fail."""
    apps = apps_in(kubernetes_make_namespace())
    limits = [{"type": "Container", "max": {"memory": "64Mi"}}]
    apps.call("POST", "/api/v1/{ns}/limitranges", {"metadata": {"name": "l"}, "spec": {"limits": limits}})

    text = refused(apps, apps.sh("true", "trainer", resource=Resource(cpu=0, gpu=0, memMB=128)))
    assert "trainer" in text
    assert "maximum memory usage per Container is 64Mi" in text


def test_a_quota_that_can_never_be_met_refuses_and_one_that_is_used_up_waits(apps_in, kubernetes_make_namespace):
    apps = apps_in(kubernetes_make_namespace())
    apps.call(
        "POST", "/api/v1/{ns}/resourcequotas", {"metadata": {"name": "q"}, "spec": {"hard": {"limits.memory": "64Mi"}}}
    )
    small, large = (Resource(cpu=0, gpu=0, memMB=size) for size in (48, 128))

    assert "exceeded quota" in refused(apps, apps.sh("true", resource=large))
    first = apps.start(apps.sh("sleep 8", resource=small))
    apps.running(first)
    second = apps.start(apps.sh("true", resource=small))
    waits = apps.until(second, lambda found: "FailedCreate" in found.msg)
    assert waits.state is AppState.PENDING
    assert "exceeded quota" in waits.msg
    assert apps.end(second).state is AppState.SUCCEEDED


@pytest.mark.parametrize(
    ("cfg", "word"), [({"service_account": "nobody"}, "nobody"), ({"priority_class": "none-such"}, "none-such")]
)
def test_missing_objects_are_named(kubernetes_apps, cfg, word):
    assert word in refused(kubernetes_apps, kubernetes_apps.sh("true"), **cfg)


def test_a_field_that_kubernetes_does_not_know_is_refused(kubernetes_apps):
    assert "hostNetwrok" in refused(kubernetes_apps, kubernetes_apps.sh("true"), overlay={"pod": {"hostNetwrok": True}})


def test_a_missing_namespace_is_named(apps_in):
    apps = apps_in("no-such-namespace")
    with pytest.raises(SchedulerRejectedError, match="no-such-namespace"):
        apps.start(apps.sh("true"))


# ---- pod security ----------------------------------------------------------------------------------------------------


def test_the_default_runs_an_image_of_root(kubernetes_apps):
    """Most images are like this."""
    found = kubernetes_apps.run(kubernetes_apps.sh("id -u; grep NoNewPrivs /proc/self/status"), security="auto")

    assert found.state is AppState.SUCCEEDED
    assert kubernetes_apps.lines(found.app_id) == ["0\n", "NoNewPrivs:\t1\n"]


def test_the_default_passes_restricted_pod_security(apps_in, kubernetes_make_namespace, caplog):
    apps = apps_in(kubernetes_make_namespace(**{"pod-security.kubernetes.io/enforce": "restricted"}))
    found = apps.run(
        apps.sh("id -u; echo '{\"a\": 1}' > $LAUNCH_RESULT_PATH"),
        security="auto",
        run_as_user=65532,
        shm_size_mb=8,
    )

    assert found.state is AppState.SUCCEEDED
    assert "enforces the Pod Security Standard 'restricted'" in caplog.text
    assert apps.lines(found.app_id) == ["65532\n"]
    assert apps.scheduler.result(found.app_id) == {"a": 1}
    assert "PodSecurity" in refused(apps, apps.sh("true"), security="none")


def test_an_image_of_root_waits_and_shows_why(kubernetes_apps):
    apps = kubernetes_apps
    app_id = apps.start(apps.sh("true"), security="restricted")
    found = apps.until(app_id, lambda found: "CreateContainerConfigError" in found.msg)

    assert found.state is AppState.PENDING
    assert "root" in found.msg
    assert found.is_stuck
    apps.scheduler.cancel(app_id)
    assert apps.end(app_id).state is AppState.CANCELLED


# ---- labels ----------------------------------------------------------------------------------------------------------

NAMES = ["team", "cost centre", "größe", "n" * 80, "a/b/c", "example.com/größe", "-", ""]
VALUES = ["data", "v" * 200, "übergrößen & mehr", "a\nb", "/", "-x-", " ", '{"a": 1}']
TASK = {"dag_id": "größe" * 40, "task_id": "g.train", "run_id": "manual__2026-01-01T00:00:00+00:00", "try_number": 1}


def test_labels_that_the_cluster_would_refuse_are_made_safe_and_kept_whole(kubernetes_apps):
    apps = kubernetes_apps
    given = dict(zip(NAMES, VALUES, strict=True))
    info = apps.scheduler.submit_dryrun(
        AppDef("app", [apps.sh("true")], metadata={"airflow": TASK}), {"pull": "never", "labels": given}
    )
    app_id = apps.scheduler.schedule(info)

    assert apps.end(app_id).state is AppState.SUCCEEDED
    of_app = f"{Label.APP_ID}={app_id}"
    found = [item["metadata"] for kind in ("services", "jobs", "pods") for item in apps.cluster.list(kind, of_app)[0]]
    assert len(found) == 3
    for metadata in found:
        labels, annotations = metadata["labels"], metadata["annotations"]
        names = json.loads(annotations[Annotation.LABEL_NAMES])
        whole = {names.get(name, name): annotations.get(name, value) for name, value in labels.items()}
        assert {name: whole.get(name) for name in given} == given
        assert {name: whole[name] for name in TASK} == {name: str(value) for name, value in TASK.items()}
    assert apps.cluster.list("pods", f"{of_app},team=data,task_id=g.train")[0]

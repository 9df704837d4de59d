"""Jobs, pods and records that a user has changed: they affect only their app. No cluster is needed."""

from __future__ import annotations

import base64
import json
import tracemalloc
import zlib
from collections.abc import Mapping
from typing import Any

import pytest

from airflow_provider_launch.follow.poller import poll_many
from airflow_provider_launch.schedulers.kubernetes import scheduler as scheduler_module
from airflow_provider_launch.schedulers.kubernetes.client import Cluster
from airflow_provider_launch.schedulers.kubernetes.manifests import plan_text, record_body
from airflow_provider_launch.schedulers.kubernetes.naming import Annotation, Label
from airflow_provider_launch.schedulers.kubernetes.objects import apps_in, pods_in
from airflow_provider_launch.schedulers.kubernetes.options import KubernetesConnection, KubernetesOpts
from airflow_provider_launch.schedulers.kubernetes.record import UNREADABLE, DamagedError, plan_in
from airflow_provider_launch.schedulers.kubernetes.request import build_request, packed, unpacked
from airflow_provider_launch.schedulers.kubernetes.scheduler import create_scheduler
from airflow_provider_launch.specs import AppDef, AppState, Role
from airflow_provider_launch.specs.errors import AppUnavailableError, SchedulerUnavailableError
from tests.support.bombs import bomb

DIGITS = "9" * 5000
KUBECONFIG = json.dumps(
    {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:9"}}],
        "users": [{"name": "u", "user": {"token": "no-token"}}],
    }
)
PLAN = {"roles": [["main", "main", 1, "REPLICA", 0]], "time_limit_s": None, "grace_s": 1, "queue": False}
BOMB = base64.b64encode(bomb(150)).decode()
DEEP = base64.b64encode(zlib.compress(b"[" * 100_000)).decode()


def job(app_id: str, labels: Mapping[str, str] | None = None, notes: Mapping[str, str] | None = None) -> dict[str, Any]:
    return {
        "metadata": {
            "name": f"{app_id}--main",
            "uid": f"j-{app_id}",
            "resourceVersion": "1",
            "labels": {Label.APP_ID: app_id, Label.ROLE: "main", Label.ATTEMPT: "0", **(labels or {})},
            "annotations": {Annotation.PLAN: json.dumps(PLAN), **(notes or {})},
        },
        "spec": {},
        "status": {"active": 1, "ready": 1},
    }


@pytest.mark.parametrize(
    ("labels", "notes"),
    [
        ({Label.ATTEMPT: "abc"}, {}),
        ({Label.ATTEMPT: DIGITS}, {}),
        ({Label.ATTEMPT: "-1"}, {}),
        ({}, {Annotation.PREEMPTIONS: DIGITS}),
        ({}, {Annotation.PLAN: "{"}),
        ({}, {Annotation.PLAN: "[" * 100_000}),
        ({}, {Annotation.PLAN: json.dumps({**PLAN, "roles": [["main", "main", 10**9, "REPLICA", 0]]})}),
        ({}, {Annotation.PLAN: json.dumps({**PLAN, "roles": 1})}),
        ({}, {Annotation.PLAN: json.dumps({**PLAN, "roles": []})}),
        ({}, {Annotation.PLAN: json.dumps({**PLAN, "roles": [["main", "main", 1, "OTHER", 0]]})}),
        ({}, {Annotation.PLAN: json.dumps({**PLAN, "time_limit_s": "x"})}),
        ({}, {Annotation.PLAN: json.dumps({**PLAN, "time_limit_s": True})}),
        ({}, {Annotation.PLAN: json.dumps({**PLAN, "grace_s": None})}),
        ({}, {Annotation.PLAN: json.dumps({**PLAN, "queue": "no"})}),
        ({}, {Annotation.PLAN: json.dumps({**PLAN, "leader": 1})}),
        ({}, {Annotation.PLAN: json.dumps({**PLAN, "ttl_s": []})}),
        ({}, {Annotation.PLAN: json.dumps({**PLAN, "group": {}})}),
        ({}, {Annotation.PLAN: json.dumps({**PLAN, "sidecar_grace_s": "60"})}),
        ({}, {Annotation.PLAN: json.dumps({**PLAN, "container_logs": [[]]})}),
    ],
)
def test_a_damaged_job_concerns_its_app_alone(labels, notes):
    apps = apps_in([job("good"), job("bad", labels, notes)])

    assert apps["good"].plan() is not None
    with pytest.raises(DamagedError, match="delete the app"):
        apps["bad"].plan()


@pytest.mark.parametrize("indexes", ["0-999999999999", DIGITS, "a"])
def test_invalid_indexes_of_a_job(indexes):
    bad = job("bad")
    bad["status"]["completedIndexes"] = indexes

    assert apps_in([bad])["bad"].damage


def test_the_error_for_a_damaged_job_is_short():
    """An annotation may have 256 KiB, and the error of Python repeats its text."""
    plan = {**PLAN, "roles": [["main", "main", 1, "x" * 200_000, 0]]}
    damage = apps_in([job("bad", {}, {Annotation.PLAN: json.dumps(plan)})])["bad"].damage

    assert damage is not None
    assert len(damage) < 500


@pytest.mark.parametrize("labels", [{Label.INDEX: "abc"}, {Label.INDEX: DIGITS}, {Label.ATTEMPT: "x"}, None])
def test_a_pod_that_cannot_be_read_is_left_out(labels, caplog):
    def pod(name: str, labels: Mapping[str, str] | None) -> dict[str, Any]:
        own = {Label.APP_ID: name, Label.ROLE: "main", Label.INDEX: "0"}
        metadata = {"name": name, "uid": name, "labels": None if labels is None else {**own, **labels}}
        return {"metadata": metadata, "spec": {}, "status": {"phase": "Running"}}

    assert [app_id for app_id, _ in pods_in([pod("bad", labels), pod("good", {})])] == ["good"]
    assert "a pod is ignored, because it cannot be read" in caplog.text


@pytest.mark.parametrize(
    "text",
    ["x", BOMB, DEEP, "packed", base64.b64encode(zlib.compress(b"{}")).decode()],
    ids=["a letter", "bomb", "deep", "a word", "no request"],
)
def test_a_request_that_cannot_be_read_costs_little(text):
    tracemalloc.start()
    try:
        with pytest.raises(UNREADABLE):
            unpacked(text)
        assert tracemalloc.get_traced_memory()[1] < 140 * 2**20
    finally:
        tracemalloc.stop()


class Server:
    """Lists the given objects, as the API server does."""

    def __init__(self, objects: Mapping[str, list[dict[str, Any]]]) -> None:
        self.objects = objects

    def list(self, kind: str, _selector: str, **_how: object) -> tuple[list[dict[str, Any]], float]:
        return self.objects.get(kind, []), 1_700_000_000.0

    def get(self, kind: str, name: str) -> dict[str, Any] | None:
        return next((one for one in self.objects.get(kind, []) if one["metadata"]["name"] == name), None)


@pytest.mark.parametrize(
    ("labels", "notes"),
    [
        ({Label.ATTEMPT: "abc"}, {}),
        ({}, {Annotation.REQUEST: BOMB}),
        ({}, {Annotation.REQUEST: DEEP}),
        ({}, {Annotation.ATTEMPT: DIGITS}),
        ({}, {Annotation.OWNER: "[" * 100_000}),
        ({}, {f"{Annotation.COMMITTED}0": '[["main", "j-bad"]]'}),
        ({}, {f"{Annotation.COMMITTED}0": '{"main": ["j-bad"]}'}),
    ],
    ids=["job", "bomb", "deep", "digits", "owner", "pairs", "uids"],
)
def test_a_list_shows_the_others_beside_a_damaged_app(monkeypatch, labels, notes):
    jobs, services = [], []
    for app_id in ("bad", "good"):
        app = AppDef("app", [Role("main", "image", entrypoint="true")])
        request = build_request(app, KubernetesOpts(), app_id, {})
        record = record_body(request)
        record["metadata"] |= {"uid": app_id, "creationTimestamp": "2026-01-31T12:00:00Z"}
        found = job(app_id, labels if app_id == "bad" else {}, {Annotation.PLAN: plan_text(request)})
        if app_id == "bad":
            record["metadata"]["annotations"] |= notes
            if Annotation.REQUEST in notes:
                del found["metadata"]["annotations"][Annotation.PLAN]
        services.append(record)
        jobs.append(found)
    scheduler = create_scheduler("tests")
    server = Server({"jobs": jobs, "services": services})
    monkeypatch.setattr(Cluster, "list", lambda _self, *args, **how: server.list(*args, **how))
    monkeypatch.setattr(Cluster, "get", lambda _self, *args: server.get(*args))

    rows = {row.app_id: row for row in scheduler.list()}

    assert rows.keys() == {"bad", "good"}
    assert scheduler.sweep(0, live=False) == []
    assert rows["good"].created_at is not None
    if Annotation.OWNER not in notes:
        assert (rows["bad"].state, rows["bad"].created_at) == (AppState.UNKNOWN, None)


def server_of(*ids: str) -> Server:
    """Return a server with running apps."""
    jobs, services = [], []
    for app_id in ids:
        request = build_request(AppDef("app", [Role("main", "image", entrypoint="true")]), KubernetesOpts(), app_id, {})
        record = record_body(request)
        record["metadata"] |= {"uid": app_id, "creationTimestamp": "2026-01-31T12:00:00Z"}
        services.append(record)
        jobs.append(job(app_id, {}, {Annotation.PLAN: plan_text(request)}))
    return Server({"jobs": jobs, "services": services})


@pytest.mark.parametrize("namespaces", [None, ["b"]], ids=["one namespace", "two"])
def test_a_damaged_app_does_not_hide_the_others_of_its_namespace(monkeypatch, namespaces):
    servers = {"a": server_of("bad", "good", "fine"), "b": server_of("other")}
    bad_job, bad_record = (servers["a"].objects[kind][0] for kind in ("jobs", "services"))
    # Its pod is gone, so its record is read.
    bad_job["status"] = {"completedIndexes": "0", "succeeded": 1}
    bad_record["metadata"]["annotations"][Annotation.ATTEMPT] = DIGITS
    monkeypatch.setattr(Cluster, "list", lambda self, *args, **how: servers[self.namespace].list(*args, **how))
    monkeypatch.setattr(Cluster, "get", lambda self, *args: servers[self.namespace].get(*args))
    scheduler = create_scheduler("tests", namespace="a", namespaces=namespaces, kubeconfig_secret=KUBECONFIG)

    answers = poll_many(scheduler, ["bad", "good", "fine", "other"])

    assert [getattr(answers[app_id], "state", answers[app_id]) for app_id in ("good", "fine")] == [AppState.RUNNING] * 2


def test_a_namespace_that_is_down_is_asked_once(monkeypatch):
    server, asked = server_of("app-0", "app-1"), []
    monkeypatch.setattr(Cluster, "list", lambda _self, *args, **how: server.list(*args, **how))
    scheduler = create_scheduler("tests", namespace="a", namespaces=["a"], kubeconfig_secret=KUBECONFIG)
    assert all(scheduler.describe_many(["app-0", "app-1"]).values())

    def down(_self: Cluster, kind: str, *_: Any, **__: Any) -> Any:
        asked.append(kind)
        raise SchedulerUnavailableError("down")

    monkeypatch.setattr(Cluster, "list", down)

    with pytest.raises(SchedulerUnavailableError, match="down"):
        scheduler.describe_many(["app-0", "app-1"])
    assert asked == ["jobs"]


def test_an_answer_that_cannot_be_made_is_an_error_of_its_app(monkeypatch):
    """Even if the checks miss the damage, the other apps are polled."""
    server = server_of("bad", "good")
    monkeypatch.setattr(Cluster, "list", lambda _self, *args, **how: server.list(*args, **how))
    monkeypatch.setattr(Cluster, "get", lambda _self, *args: server.get(*args))
    original = scheduler_module.response_from

    def fails(app: Any, plan: Any, *args: Any) -> Any:
        if app.app_id == "bad" and plan.roles:
            raise TypeError("'<' not supported")
        return original(app, plan, *args)

    monkeypatch.setattr(scheduler_module, "response_from", fails)
    scheduler = create_scheduler("tests")

    found = scheduler.describe_many(["bad", "good"])
    assert (found["bad"].state, found["good"].state) == (AppState.UNKNOWN, AppState.RUNNING)
    assert "TypeError" in found["bad"].msg
    assert {row.app_id: row.state for row in scheduler.list()}["bad"] is AppState.UNKNOWN


def test_our_own_annotations_are_read():
    app = AppDef("app", [Role("main", "image", entrypoint="true", num_replicas=10_000)])
    request = build_request(app, KubernetesOpts(), "app", {})

    assert unpacked(packed(request)) == request
    assert plan_in(plan_text(request)).roles[0].num_replicas == 10_000


def test_a_node_that_does_not_serve_its_logs_is_not_an_outage(monkeypatch):
    """The kubelet of one node is down; as an outage it would stop the logs of all apps of the connection."""

    class Answer:
        status, headers = 500, {}

        def stream(self, *_, **__):
            return [b'{"message": "dial tcp 10.0.0.7:10250: connection refused"}']

        def release_conn(self): ...

    cluster = Cluster(KubernetesConnection(timeout_s=60))
    monkeypatch.setattr(Cluster, "url", "https://k")
    monkeypatch.setattr(Cluster, "namespace", "ns")
    asked = []
    monkeypatch.setattr(cluster, "_sent", lambda *request: asked.append(request) or Answer())

    with pytest.raises(AppUnavailableError, match="connection refused"):
        cluster.log("pod", "main", None)
    assert len(asked) < 5
    asked.clear()
    with pytest.raises(SchedulerUnavailableError) as caught:
        cluster.list("pods", "")
    assert not isinstance(caught.value, AppUnavailableError)

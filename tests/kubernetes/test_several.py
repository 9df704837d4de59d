"""Several namespaces and clusters of one connection, from which tasks choose."""

from __future__ import annotations

import inspect
import json
import re
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import yaml

from airflow_provider_launch.schedulers.ids import make_unique
from airflow_provider_launch.schedulers.kubernetes.options import KubernetesConnection
from airflow_provider_launch.schedulers.kubernetes.scheduler import (
    KubernetesScheduler,
    SeveralNamespacesScheduler,
    create_scheduler,
)
from airflow_provider_launch.schedulers.kubernetes.several import (
    Place,
    SeveralNamespaces,
    _described,
    place_of,
    places_of,
)
from airflow_provider_launch.specs import AppDef, AppState, Role
from airflow_provider_launch.specs.errors import (
    AppConflictError,
    AppUnavailableError,
    InvalidAppError,
    SchedulerRejectedError,
    SchedulerUnavailableError,
    UnknownAppException,
)
from tests.faults import Fault
from tests.faults.actions import Action
from tests.support.apps import described, until
from tests.support.fake_scheduler import FakeScheduler, an_app
from tests.support.repeats import often
from tests.support.role_page import rules_of_the_page

on_cluster = pytest.mark.engine("kubernetes")
APP = AppDef("app", [Role("main", "busybox", entrypoint="true")])


@pytest.mark.parametrize(
    ("connection", "cfg", "text"),
    [
        ({}, {"namespace": "b"}, r"namespace='b': the connection allows only its own; .* its field 'namespaces'"),
        ({"namespace": "a"}, {"namespace": "b"}, r"namespace='b': the connection allows 'a'; "),
        ({"namespace": "a", "namespaces": ["b"]}, {"namespace": "c"}, r"namespace='c': the connection allows 'a', 'b'"),
        ({"context": "a", "contexts": ["b"]}, {"context": "c"}, r"context='c': .* 'a', 'b'; .* its field 'contexts'"),
        ({"namespaces": ["b"]}, {"context": "b"}, r"context='b': the connection allows only its own"),
        ({"namespaces": ["b"]}, {"namespace": ""}, r"namespace='': the connection allows 'b'"),
    ],
)
def test_a_namespace_that_the_connection_does_not_list_is_refused_by_the_dry_run(connection, cfg, text) -> None:
    with pytest.raises(InvalidAppError, match=text):
        create_scheduler("s", **connection).submit_dryrun(APP, cfg)


def test_the_dry_run_shows_the_namespace_of_the_task() -> None:
    scheduler = create_scheduler("s", namespaces=["b"], contexts=["gpu"])

    assert "POST jobs namespace=b context=gpu\n" in str(
        scheduler.submit_dryrun(APP, {"namespace": "b", "context": "gpu"})
    )
    assert "POST jobs\n" in str(scheduler.submit_dryrun(APP, {}))


def test_the_namespace_of_the_connection_is_that_of_a_launch_that_names_none() -> None:
    connection = KubernetesConnection(namespace="a", namespaces=["b", "a"], contexts=["gpu"])

    assert place_of(connection, None, "a") == place_of(connection, None, None) == Place()
    assert places_of(connection) == [Place(), Place(None, "b"), Place("gpu"), Place("gpu", "b")]


def test_a_connection_with_one_namespace_asks_no_other() -> None:
    assert type(create_scheduler("s")) is KubernetesScheduler


def test_each_method_that_asks_the_cluster_is_passed_to_the_namespace_of_the_app() -> None:
    """Otherwise it would ask the namespace of the connection."""
    own = {name for name, each in vars(KubernetesScheduler).items() if inspect.isfunction(each)}
    public = {name for name in own if not name.startswith("_")} | {"_cancel_existing", "_delete_existing"}

    assert public <= vars(SeveralNamespaces).keys()


@pytest.fixture
def unique() -> str:
    return make_unique("test")


@pytest.fixture
def two(kubernetes_namespace, kubernetes_make_namespace, kubernetes_apps):
    """The namespace of the connection, another one, and a scheduler for both."""
    other = kubernetes_make_namespace()
    return kubernetes_namespace, other, kubernetes_apps.another(namespaces=[other])


def launch(apps, scheduler, script: str, app_id: str | None = None, **cfg) -> str:
    info = scheduler.submit_dryrun(AppDef("app", [apps.sh(script)]), {**apps.cfg, **cfg}, app_id=app_id)
    return scheduler.schedule(info)


def test_an_unreadable_app_or_namespace_does_not_hide_the_apps_of_the_others() -> None:
    def fail(ids: list[str]) -> None:
        if "bad" in ids:
            raise SchedulerRejectedError("bad cannot be read")

    one, unreachable = FakeScheduler("s"), FakeScheduler("s")
    one.engine.on_describe = fail
    for app_id in ("good", "bad", "fine"):
        one.schedule(one.submit_dryrun(an_app(), {}, app_id=app_id))
    unreachable.engine.cut()

    answers, failed = _described({"good": one, "bad": one, "there": unreachable, "fine": one, "gone": one})

    assert {app_id: answer and answer.state for app_id, answer in answers.items()} == {
        "good": AppState.PENDING,
        "fine": AppState.PENDING,
        "gone": None,
    }
    assert {app_id: type(error) for app_id, error in failed.items()} == {
        "bad": SchedulerRejectedError,
        "there": SchedulerUnavailableError,
    }


@on_cluster
def test_apps_of_two_namespaces_are_followed_together_by_another_process(kubernetes_apps, apps_in, two) -> None:
    _, other, scheduler = two
    ids = [
        launch(kubernetes_apps, scheduler, "echo here; echo 1 >$LAUNCH_RESULT_PATH"),
        launch(kubernetes_apps, scheduler, "echo there; echo 2 >$LAUNCH_RESULT_PATH", namespace=other),
    ]
    there = apps_in(other)
    assert [bool(kubernetes_apps.pods(app_id)) + 2 * bool(there.pods(app_id)) for app_id in ids] == [1, 2]
    reader = kubernetes_apps.another(namespaces=[other])

    assert isinstance(reader, SeveralNamespacesScheduler)
    for app_id in ids:
        assert described(reader, app_id, timeout_s=90).state is AppState.SUCCEEDED
    assert {app_id: found.state for app_id, found in reader.describe_many(ids).items()} == dict.fromkeys(
        ids, AppState.SUCCEEDED
    )
    assert [[str(line) for line in reader.log_iter(app_id, "main", 0)] for app_id in ids] == [["here\n"], ["there\n"]]
    assert [reader.result(app_id) for app_id in ids] == [1, 2]
    assert {*ids} <= {row.app_id for row in reader.list()}
    assert ids[1] not in {row.app_id for row in kubernetes_apps.scheduler.list()}
    native = reader.describe_native(ids[1])
    assert native is not None
    assert native.request.namespace == other
    assert reader.describe("none") is None
    with pytest.raises(UnknownAppException):
        reader.read_logs("none", "main", 0)


@on_cluster
def test_an_app_of_another_namespace_is_cancelled_and_deleted(kubernetes_apps, apps_in, two) -> None:
    _, other, scheduler = two
    app_id = launch(kubernetes_apps, scheduler, "exec sleep 300", namespace=other)
    fresh = kubernetes_apps.another(namespaces=[other])
    described(fresh, app_id, lambda found: found.state is AppState.RUNNING, 90)

    fresh.cancel(app_id)
    assert described(fresh, app_id, timeout_s=60).state is AppState.CANCELLED
    fresh.delete(app_id)
    assert described_gone(scheduler, app_id)
    until(lambda: not fresh.exists(app_id), 30)  # its record may be deleted last


def described_gone(scheduler, app_id: str) -> bool:
    until(lambda: scheduler.describe(app_id) is None, 30, 0.2)
    return True


@on_cluster
def test_a_sweep_deletes_ended_apps_of_all_namespaces_and_of_no_others(
    kubernetes_apps, apps_in, kubernetes_make_namespace
) -> None:
    own, other, foreign = (kubernetes_make_namespace() for _ in range(3))
    scheduler = kubernetes_apps.another(namespace=own, namespaces=[other])
    not_listed = apps_in(foreign)
    ids = [launch(kubernetes_apps, scheduler, "true", namespace=name) for name in (own, other)]
    kept = not_listed.start(not_listed.sh("true"))
    for app_id in ids:
        described(scheduler, app_id, timeout_s=90)
    not_listed.end(kept)

    assert sorted(kubernetes_apps.another(namespace=own, namespaces=[other]).sweep(0)) == sorted(ids)
    assert not_listed.scheduler.describe(kept).state is AppState.SUCCEEDED


@on_cluster
def test_an_id_is_launched_in_one_namespace_only(kubernetes_apps, apps_in, two, unique) -> None:
    _, other, scheduler = two
    launch(kubernetes_apps, scheduler, "true", unique, namespace=other)
    fresh = kubernetes_apps.another(namespaces=[other])

    assert launch(kubernetes_apps, fresh, "true", unique, namespace=other) == unique  # adopted
    with pytest.raises(AppConflictError, match=rf"exists in namespace '{other}'.*nothing was started"):
        launch(kubernetes_apps, fresh, "true", unique)
    assert kubernetes_apps.objects(unique) == []


def both_claim() -> Action:
    """Hold back the answers to two claims until the server has both."""
    barrier = threading.Barrier(2)

    def act(exchange) -> None:
        answer = exchange.forward()
        barrier.wait(20)
        exchange.relay(answer)

    return act


@on_cluster
@pytest.mark.parametrize("is_held", [True, False], ids=["both-claim", "any-order"])
def test_an_id_that_is_launched_twice_at_once_starts_in_one_namespace(
    kubernetes_apps, kubernetes_proxy, apps_in, two, is_held
) -> None:
    own, other, _ = two
    for _ in range(1 if is_held else often(3, 30)):
        app_id = make_unique("test")
        if is_held:
            kubernetes_proxy.add(Fault(both_claim(), "POST", r"/services$", times=2))
        schedulers = [kubernetes_apps.another(namespaces=[other]) for _ in range(2)]

        def start(at: int, schedulers=schedulers, app_id=app_id) -> str | AppConflictError:
            try:
                return launch(kubernetes_apps, schedulers[at], "true", app_id, namespace=(own, other)[at])
            except AppConflictError as error:
                return error

        with ThreadPoolExecutor(2) as pool:
            first, second = sorted(pool.map(start, range(2)), key=lambda each: isinstance(each, str))
        assert isinstance(first, AppConflictError)
        # The other text: it came again while both claims were still there.
        assert re.search("nothing was started|exists in the namespaces", str(first))
        assert second == app_id
        started = [apps for apps in (kubernetes_apps, apps_in(other)) if apps.objects(app_id)]
        assert len(started) == 1
        reader = kubernetes_apps.another(namespaces=[other])
        assert described(reader, app_id, timeout_s=90).state is AppState.SUCCEEDED
        reader.delete(app_id)


@on_cluster
def test_a_copy_of_an_id_in_another_namespace_is_reported(kubernetes_apps, apps_in, two, unique) -> None:
    """A user of one namespace cannot answer for an app of another."""
    _, other, scheduler = two
    good = launch(kubernetes_apps, scheduler, "exec sleep 300", namespace=other)
    launch(kubernetes_apps, scheduler, "exec sleep 300", unique, namespace=other)
    kubernetes_apps.start(kubernetes_apps.sh("true"), app_id=unique)
    fresh = kubernetes_apps.another(namespaces=[other])

    with pytest.raises(AppUnavailableError, match="exists in the namespaces"):
        fresh.describe(unique)
    with pytest.raises(AppConflictError, match="exists in the namespaces"):
        fresh.cancel(unique)
    with pytest.raises(AppUnavailableError) as caught:
        fresh.describe_many([good, unique])
    assert [*caught.value.texts] == [unique]
    assert scheduler.describe(unique) is not None  # it has launched the app itself
    for made in (kubernetes_apps.scheduler, apps_in(other).scheduler):
        made.delete(unique)
    scheduler.delete(good)


@on_cluster
def test_an_app_is_followed_after_its_connection_got_more_namespaces(kubernetes_apps, two) -> None:
    """Its record and its id are those of a connection with one namespace."""
    _, _, scheduler = two
    app_id = kubernetes_apps.start(kubernetes_apps.sh("exec sleep 300"))

    described(scheduler, app_id, lambda found: found.state is AppState.RUNNING, 90)
    scheduler.cancel(app_id)
    assert kubernetes_apps.end(app_id).state is AppState.CANCELLED


@on_cluster
def test_an_app_is_not_missing_while_a_namespace_refuses_to_answer(
    kubernetes_engine, kubernetes_apps, kubernetes_make_namespace, apps_in, checkout
) -> None:
    own, closed = kubernetes_make_namespace(), kubernetes_make_namespace()
    user = apps_in(own, kubernetes_engine.limited(own, rules_of_the_page(checkout)))
    scheduler = user.another(namespaces=[closed])
    hidden = apps_in(closed).start(user.sh("true"))
    app_id = user.start(user.sh("exec sleep 300"))

    assert scheduler.missing_rights()[-1].endswith(f"in namespace {closed}")
    with pytest.raises(SchedulerRejectedError, match=f"may not list 'services' in namespace '{closed}'"):
        scheduler.describe(hidden)
    with pytest.raises(SchedulerRejectedError, match="may not list 'services'"):
        launch(user, scheduler, "true")
    assert scheduler.describe(app_id) is not None
    with pytest.raises(AppUnavailableError) as caught:
        scheduler.describe_many([app_id, hidden])
    assert [*caught.value.texts] == [hidden]
    scheduler.cancel(app_id)
    user.end(app_id)


@on_cluster
def test_an_app_of_another_context_is_followed(kubernetes_engine, kubernetes_make_namespace, apps_in, tmp_path) -> None:
    """The namespace of a context is that of its apps, as for the connection."""
    own, other = kubernetes_make_namespace(), kubernetes_make_namespace()
    document = yaml.safe_load(kubernetes_engine.kubeconfig.read_text(encoding="utf-8"))
    (first,) = document["contexts"]
    document["contexts"] += [
        {"name": name, "context": {**first["context"], "namespace": namespace}}
        for name, namespace in (("here", own), ("there", other))
    ]
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps({**document, "current-context": "here"}))
    apps = apps_in(own, path)
    scheduler = apps.another(namespace=None, contexts=["there", "here"])
    ids = [launch(apps, scheduler, "true", context=name) for name in (None, "here", "there")]
    reader = apps.another(namespace=None, contexts=["there", "here"])

    assert [described(reader, app_id, timeout_s=90).state for app_id in ids] == [AppState.SUCCEEDED] * 3
    assert [row.app_id for row in reader.list()] == sorted(ids)
    assert [row.app_id for row in apps_in(other).scheduler.list()] == ids[2:]

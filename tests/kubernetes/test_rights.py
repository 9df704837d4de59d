"""Permissions: the Role of the page is sufficient, and each permission in it is needed."""

from __future__ import annotations

import pytest
import yaml

from airflow_provider_launch.schedulers.kubernetes.scheduler import VERBS
from airflow_provider_launch.specs import AppState, RetryPolicy
from airflow_provider_launch.specs.errors import InvalidAppError, SchedulerRejectedError
from tests.support.apps import until
from tests.support.role_page import rules_of_the_page

pytestmark = pytest.mark.engine("kubernetes")


@pytest.fixture
def rules(checkout):
    return rules_of_the_page(checkout)


def test_the_role_of_the_page_grants_the_rights_of_the_connection_test(rules):
    granted = {
        f"{resource}.{group}" if group else resource: tuple(rule["verbs"])
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }

    assert granted == dict(VERBS)


def test_with_the_role_of_the_page_an_app_lives_its_whole_life(
    kubernetes_engine, kubernetes_make_namespace, apps_in, rules
):
    namespace = kubernetes_make_namespace()
    apps = apps_in(namespace, kubernetes_engine.limited(namespace, rules))
    failing = apps.sh("echo try; exit 3", max_retries=1)
    found = apps.run(failing, apps.sh("echo up; exec sleep 300", "peer"))

    assert found.state is AppState.FAILED
    assert apps.lines(found.app_id) == ["try\n"] * 2
    assert apps.run(apps.sh("exit 3", max_retries=1, retry_policy=RetryPolicy.REPLICA)).num_restarts == 1
    app_id = apps.start(apps.sh("exec sleep 300"))
    apps.running(app_id)
    apps.scheduler.cancel(app_id)
    assert apps.end(app_id).state is AppState.CANCELLED
    assert app_id in {row.app_id for row in apps.scheduler.list()}
    apps.scheduler.delete(app_id)
    assert apps.scheduler.missing_rights() == []


def test_missing_rights_are_named(kubernetes_engine, kubernetes_make_namespace, apps_in):
    namespace = kubernetes_make_namespace()
    rules = [
        {"apiGroups": [""], "resources": ["services", "events"], "verbs": ["create", "get", "list", "patch", "delete"]},
        {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["create", "get", "list"]},
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "patch"]},
    ]
    apps = apps_in(namespace, kubernetes_engine.limited(namespace, rules))

    assert apps.scheduler.missing_rights() == ["patch jobs.batch", "create pods", "get pods/log"]
    info = apps.info(apps.sh("true"))
    with pytest.raises(SchedulerRejectedError, match=rf"may not create 'pods' in namespace '{namespace}'.*Role"):
        apps.scheduler.schedule(info)
    assert apps.objects(info.request.app_id) == []


def test_without_the_right_to_list_pods_running_apps_can_be_ended(
    kubernetes_engine, kubernetes_make_namespace, apps_in, rules
):
    """A launch is refused before anything is created; without the permission later, apps can still be ended."""
    namespace = kubernetes_make_namespace()
    admin = apps_in(namespace)
    rules = [{**rule, "verbs": ["create", "patch"]} if rule["resources"] == ["pods"] else rule for rule in rules]
    apps = apps_in(namespace, kubernetes_engine.limited(namespace, rules))
    assert apps.scheduler.missing_rights() == ["list pods"]
    info = apps.info(apps.sh("exec sleep 300"))
    with pytest.raises(SchedulerRejectedError, match=rf"may not list 'pods' in namespace '{namespace}'"):
        apps.scheduler.schedule(info)
    assert admin.objects(info.request.app_id) == []
    app_id = admin.start(apps.sh("exec sleep 300"))
    until(lambda: any(pod.running for pod in admin.pods(app_id)), 30)
    apps.scheduler.cancel(app_id)

    until(lambda: not any(pod.running for pod in admin.pods(app_id)), 30)
    assert admin.end(app_id).state is AppState.CANCELLED


def test_without_the_right_to_list_events_only_the_reason_is_missing(
    kubernetes_engine, kubernetes_make_namespace, apps_in, rules
):
    namespace = kubernetes_make_namespace()
    rules = [rule for rule in rules if rule["resources"] != ["events"]]
    apps = apps_in(namespace, kubernetes_engine.limited(namespace, rules))
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "full"}, "spec": {"hard": {"pods": "1"}}}
    apps.call("POST", "/api/v1/{ns}/resourcequotas", quota)
    first = apps.start(apps.sh("exec sleep 300"))
    apps.running(first)
    app_id = apps.start(apps.sh("true"))
    found = apps.until(app_id, lambda found: found.state is AppState.PENDING and found.msg != "<NONE>", 30)

    assert "may not list 'events'" in found.msg
    apps.scheduler.delete(app_id)
    apps.scheduler.delete(first)


def test_credentials_that_are_not_accepted_are_reported(kubernetes_engine, kubernetes_namespace, apps_in, tmp_path):
    document = yaml.safe_load(kubernetes_engine.kubeconfig.read_text(encoding="utf-8"))
    for user in document["users"]:
        user["user"] = {"token": "wrong"}
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(document))
    apps = apps_in(kubernetes_namespace, path)

    with pytest.raises(SchedulerRejectedError, match="does not accept our credentials"):
        apps.scheduler.describe("any")


def test_a_token_that_was_renewed_is_used(kubernetes_engine, kubernetes_namespace, apps_in, tmp_path):
    """Token files are rewritten while a triggerer runs for weeks."""
    document = yaml.safe_load(kubernetes_engine.kubeconfig.read_text(encoding="utf-8"))
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump({**document, "users": [{**u, "user": {"token": "old"}} for u in document["users"]]}))
    apps = apps_in(kubernetes_namespace, path)
    with pytest.raises(SchedulerRejectedError):
        apps.scheduler.describe("any")
    path.write_text(yaml.safe_dump(document))

    assert apps.scheduler.describe("any") is None


@pytest.mark.parametrize(
    ("connection", "word"),
    [
        ({"kubeconfig_path": "/no/such/file"}, "kubeconfig"),
        ({"kubeconfig_secret": "{", "kubeconfig_path": None}, "neither YAML nor JSON"),
        ({"kubeconfig_secret": "a", "kubeconfig_path": None}, "not a valid kubeconfig"),
        ({"context": "no-such"}, "no-such"),
        ({"in_cluster": True}, "in_cluster"),
    ],
)
def test_a_kubeconfig_that_cannot_be_used_is_reported(kubernetes_apps, connection, word):
    with pytest.raises(InvalidAppError, match=word):
        kubernetes_apps.another(**connection).describe("any")


def test_a_kubeconfig_may_be_given_as_text(kubernetes_engine, kubernetes_apps):
    text = kubernetes_engine.kubeconfig.read_text(encoding="utf-8")

    assert kubernetes_apps.another(kubeconfig_path=None, kubeconfig_secret=text).describe("any") is None

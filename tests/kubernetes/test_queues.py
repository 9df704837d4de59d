"""Apps in queues of a real Kueue: one role is its Job, several roles are admitted as one group of pods."""

from __future__ import annotations

import time

import pytest

from airflow_provider_launch.schedulers.kubernetes.scheduler import VERBS
from airflow_provider_launch.specs import AppState, Resource, RetryPolicy
from airflow_provider_launch.specs.errors import SchedulerRejectedError
from tests.engines.kubernetes.queues import PLACE_MB
from tests.faults import Fault, error
from tests.support.apps import until

pytestmark = [pytest.mark.engine("kubernetes"), pytest.mark.engine("kueue"), pytest.mark.timeout(900)]

ONE = Resource(cpu=0, gpu=0, memMB=PLACE_MB)
TWO = Resource(cpu=0, gpu=0, memMB=2 * PLACE_MB)
PRIORITY = "kueue.x-k8s.io/priority-class"


@pytest.fixture
def queue(kubernetes_make_queue):
    """A queue with places for two replicas."""
    return kubernetes_make_queue(2)


@pytest.fixture
def apps(queue, apps_in):
    return apps_in(queue.namespace)


def start(apps, *scripts, **how):
    """Start an app with one role for each script, each of one place."""
    roles = [apps.sh(script, f"r{number}", resource=ONE) for number, script in enumerate(scripts)]
    return apps.start(*roles, queue="team", **how)


def is_free(queue):
    until(lambda: queue.used_places() == 0, 30)


def rules():
    """The required permissions, without the optional ones."""
    return [
        {"apiGroups": ["batch" if "." in name else ""], "resources": [name.partition(".")[0]], "verbs": [*verbs]}
        for name, verbs in VERBS.items()
    ]


# ---- one role --------------------------------------------------------------------------------------------------------


def test_an_app_runs_in_its_quota_and_gives_it_back(apps, queue):
    app_id = start(apps, "echo run")

    assert apps.end(app_id).state is AppState.SUCCEEDED
    is_free(queue)


def test_a_waiting_app_shows_the_reason_and_the_queue(apps, queue):
    """Without the permission to list Workloads only the wait is shown, not its reason."""
    first = start(apps, "sleep 60")
    apps.running(first)
    app_id = apps.start(apps.sh("true", resource=TWO), queue="team")
    found = apps.until(app_id, lambda found: "insufficient" in found.msg)

    assert found.state is AppState.PENDING
    assert found.msg.startswith("queue 'team': couldn't assign flavors")
    apps.scheduler.cancel(first)
    assert apps.end(app_id).state is AppState.SUCCEEDED


def test_a_user_who_may_not_list_workloads_gets_the_state_without_the_reason(apps, queue, kubernetes_engine, apps_in):
    limited = apps_in(queue.namespace, kubernetes_engine.limited(queue.namespace, rules()))
    queue.hold()
    app_id = start(limited, "true")
    found = limited.until(app_id, lambda found: found.state is AppState.PENDING)

    assert found.msg == "suspended: a queue, or a person, holds it back"
    assert limited.scheduler.missing_rights() == []


@pytest.mark.parametrize("status", [403, 429, 503])
def test_the_reason_stays_while_it_cannot_be_read(queue, apps_in, kubernetes_engine, monkeypatch, status):
    """Workloads only add the reason, so the state is known without them."""
    monkeypatch.setattr("airflow_provider_launch.schedulers.kubernetes.scheduler._QUEUED_S", 0.0)
    with kubernetes_engine.proxy(namespace=queue.namespace) as proxy:
        apps = apps_in(queue.namespace, proxy.kubeconfig)
        app_id = apps.start(apps.sh("true", resource=Resource(cpu=0, gpu=0, memMB=3 * PLACE_MB)), queue="team")
        known = apps.until(app_id, lambda found: "insufficient" in found.msg)
        fault = Fault(error(status), "GET", "/workloads", times=None)
        proxy.add(fault)
        texts = {apps.scheduler.describe(app_id).msg for _ in range(3)}

        assert texts == {known.msg}
        assert fault.hits >= 3
        proxy.clear()
        apps.scheduler.cancel(app_id)


def test_a_cancel_leaves_a_queue_that_admits_nothing(apps, queue):
    """The Job is over, so its TTL starts, and its Workload requests no quota."""
    queue.hold()
    app_id = start(apps, "true", ttl_s=60)
    apps.until(app_id, lambda found: "team is inactive" in found.msg)
    apps.scheduler.cancel(app_id)

    assert apps.end(app_id).state is AppState.CANCELLED
    assert apps.another().describe(app_id).state is AppState.CANCELLED
    (job,), _ = apps.cluster.list("jobs", f"launch.io/app-id={app_id}")
    until(lambda: "Complete" in conditions(apps.cluster.get("jobs", job["metadata"]["name"])), 10)
    assert job["spec"]["ttlSecondsAfterFinished"] == 60
    until(lambda: all("Finished" in conditions(workload) for workload in queue.workloads().values()), 10)
    assert apps.pods(app_id) == []


def conditions(document):
    return {item["type"] for item in document.get("status", {}).get("conditions", []) if item["status"] == "True"}


def test_a_preempted_app_is_pending_for_every_observer_and_runs_again(apps, queue):
    script = "echo ${LAUNCH_PREEMPTIONS-none}; sleep 5; echo done"
    low = start(apps, script, labels={PRIORITY: "launch-low"}, grace_s=0)
    apps.running(low)
    high = apps.start(apps.sh("sleep 3", resource=TWO), queue="team", labels={PRIORITY: "launch-high"})
    found = apps.until(low, lambda found: found.state is AppState.PENDING)
    fresh = apps.another()

    found = apps.until(low, lambda found: "Preempted to accommodate" in found.msg)
    assert found.state is AppState.PENDING
    other = fresh.describe(low)
    assert other.state is AppState.PENDING
    assert "Preempted to accommodate" in other.msg
    assert apps.end(high).state is AppState.SUCCEEDED
    assert apps.end(low).state is AppState.SUCCEEDED
    assert apps.lines(low, "r0") == ["1\n", "done\n"]
    apps.scheduler.delete(low)
    until(lambda: apps.objects(low) == [], 30)


def test_without_the_right_to_write_configmaps_preemptions_are_still_counted(apps, queue, kubernetes_engine, apps_in):
    """Only the program does not get the number."""
    workloads = {"apiGroups": ["kueue.x-k8s.io"], "resources": ["workloads"], "verbs": ["list"]}
    limited = apps_in(queue.namespace, kubernetes_engine.limited(queue.namespace, [*rules(), workloads]))
    script = "echo ${LAUNCH_PREEMPTIONS-none}; sleep 5; echo done"
    low = start(limited, script, labels={PRIORITY: "launch-low"}, grace_s=0)
    limited.running(low)
    apps.start(apps.sh("sleep 3", resource=TWO), queue="team", labels={PRIORITY: "launch-high"})
    limited.until(low, lambda found: found.state is AppState.PENDING)
    found = limited.end(low)

    assert (found.state, found.num_restarts) == (AppState.SUCCEEDED, 1)
    assert limited.lines(low, "r0") == ["none\n", "done\n"]
    assert len(apps.objects(low)) == 2  # Service and Job


# ---- several roles ---------------------------------------------------------------------------------------------------


def test_several_roles_run_as_one_group(apps, queue):
    app_id = start(apps, "echo one", "echo two")

    assert apps.end(app_id).state is AppState.SUCCEEDED
    assert [apps.lines(app_id, role) for role in ("r0", "r1")] == [["one\n"], ["two\n"]]
    assert list(queue.workloads()) == [app_id]
    is_free(queue)


def test_a_group_starts_whole_or_not_at_all(apps, queue):
    """Half of it would fit."""
    first = start(apps, "sleep 60")
    apps.running(first)
    app_id = start(apps, "echo one", "echo two")
    found = apps.until(app_id, lambda found: "insufficient" in found.msg)

    assert found.state is AppState.PENDING
    assert found.msg.startswith("queue 'team': ")
    time.sleep(1)
    assert not any(pod.has_started for pod in apps.pods(app_id))
    apps.scheduler.cancel(first)
    assert apps.end(app_id).state is AppState.SUCCEEDED


def test_a_preempted_group_restarts_as_a_whole_and_is_not_charged(apps, queue):
    low = start(apps, "sleep 6; echo one", "sleep 6; echo two", labels={PRIORITY: "launch-low"}, grace_s=0)
    apps.running(low)
    until(lambda: all(pod.has_started for pod in apps.pods(low)), 20)
    high = start(apps, "sleep 300", labels={PRIORITY: "launch-high"})
    found = apps.until(low, lambda found: found.state is AppState.PENDING and "insufficient" in found.msg)

    assert "preempted" in found.msg
    other = apps.another().describe(low)
    assert other.state is AppState.PENDING
    assert "preempted" in other.msg
    apps.scheduler.cancel(high)
    end = apps.end(low)
    assert end.state is AppState.SUCCEEDED
    assert end.num_restarts == 1
    assert [apps.lines(low, role) for role in ("r0", "r1")] == [["one\n"], ["two\n"]]
    is_free(queue)


def test_a_preemption_is_a_failure_where_the_user_wants_it(apps, queue):
    low = start(apps, "sleep 60", "sleep 60", labels={PRIORITY: "launch-low"}, grace_s=0, on_disruption="fail")
    apps.running(low)
    high = start(apps, "true", labels={PRIORITY: "launch-high"})
    found = apps.end(low)

    assert found.state is AppState.FAILED
    assert "preempted" in found.msg
    assert apps.end(high).state is AppState.SUCCEEDED


def test_an_application_retry_is_queued_again(apps, queue):
    script = 'echo "attempt $LAUNCH_ATTEMPT"; test "$LAUNCH_ATTEMPT" = 1'
    role = apps.sh(script, resource=ONE, max_retries=1, retry_policy=RetryPolicy.APPLICATION)
    app_id = apps.start(role, queue="team")

    found = apps.end(app_id)
    assert (found.state, found.num_restarts) == (AppState.SUCCEEDED, 1)
    assert apps.lines(app_id) == ["attempt 0\n", "attempt 1\n"]
    assert sorted(queue.workloads()) == [app_id, f"{app_id}-r1"]
    is_free(queue)


def test_a_failure_in_a_group_ends_the_others_and_frees_the_quota(apps, queue):
    app_id = start(apps, "sleep 2; exit 3", "echo peer; sleep 60")
    found = apps.end(app_id)

    assert found.state is AppState.FAILED
    assert "exit code 3" in found.msg
    assert apps.lines(app_id, "r1") == ["peer\n"]
    is_free(queue)


@pytest.mark.parametrize("full", [False, True], ids=["running", "queued"])
def test_nothing_of_a_deleted_group_stays(apps, queue, full):
    if full:
        queue.set_places(1)
    app_id = start(apps, "sleep 60", "sleep 60")
    apps.until(app_id, lambda found: "insufficient" in found.msg if full else found.state is AppState.RUNNING)
    apps.scheduler.delete(app_id)

    until(lambda: not apps.objects(app_id) and not apps.pods(app_id), 60)
    until(lambda: not queue.workloads(), 60)
    is_free(queue)


def test_a_queued_group_can_be_cancelled(apps, queue):
    queue.set_places(1)
    app_id = start(apps, "true", "true")
    apps.until(app_id, lambda found: "insufficient" in found.msg)
    apps.scheduler.cancel(app_id)

    assert apps.end(app_id).state is AppState.CANCELLED
    until(lambda: not any(pod.phase == "Pending" for pod in apps.pods(app_id)), 60)
    is_free(queue)


def test_a_group_is_refused_if_no_queue_holds_its_pods_back(kubernetes_apps):
    """It would run past the queue."""
    with pytest.raises(SchedulerRejectedError, match="integration 'pod'"):
        start(kubernetes_apps, "true", "true")


def test_a_group_ends_where_only_its_pods_of_jobs_are_not_held_back(kubernetes_apps, kubernetes_proxy):
    """As older versions of Kueue do, which hold back the pod of the dry run, since it belongs to no Job."""
    gates = [{"name": "kueue.x-k8s.io/admission"}]
    pod = {"metadata": {"name": "dry"}, "spec": {"schedulingGates": gates}}
    kubernetes_proxy.add(Fault(error(201, body=pod), "POST", "/pods$", times=None))
    apps = kubernetes_apps
    app_id = start(apps, "sleep 300", "sleep 300")
    found = apps.end(app_id)

    assert found.state is AppState.FAILED
    assert "does not hold back the pods of Jobs" in found.msg
    assert "ask the administrator of the cluster for Kueue 0.15 or newer" in found.msg
    until(lambda: not any(pod.running for pod in apps.pods(app_id)), 30)
    assert apps.another().describe(app_id).msg == found.msg


def test_the_leader_of_a_group_decides(apps, queue):
    """Its remaining Jobs are ended, and their quota is released."""
    app_id = start(apps, "sleep 3; echo done", "sleep 300", success_policy="leader")
    found = apps.end(app_id)

    assert found.state is AppState.SUCCEEDED
    assert apps.lines(app_id, "r0") == ["done\n"]
    is_free(queue)
    until(lambda: not any(pod.running for pod in apps.pods(app_id)), 30)
    apps.scheduler.delete(app_id)
    until(lambda: not apps.objects(app_id) and not apps.pods(app_id), 60)


def test_a_namespace_with_groups_can_be_deleted(apps, queue):
    running = start(apps, "sleep 60")
    apps.running(running)
    groups = [start(apps, "sleep 60", "sleep 60") for _ in range(2)]
    apps.scheduler.cancel(running)
    until(lambda: any(pod.has_started for app_id in groups for pod in apps.pods(app_id)), 30)
    apps.call("DELETE", f"/api/v1/namespaces/{queue.namespace}")

    until(lambda: not queue.exists(), 90)

"""Reports of pods that wait, are disrupted, or are stopped from outside."""

from __future__ import annotations

import contextlib
import json
import time

import pytest

from airflow_provider_launch.schedulers.kubernetes.client import TakenError
from airflow_provider_launch.schedulers.kubernetes.naming import Annotation, Label
from airflow_provider_launch.schedulers.kubernetes.request import unpacked
from airflow_provider_launch.specs import AppState, Resource, RetryPolicy, is_terminal
from tests.faults import Fault, error
from tests.support.apps import until

pytestmark = pytest.mark.engine("kubernetes")


def evict(apps, pod):
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod.name}}
    apps.call("POST", f"/api/v1/{{ns}}/pods/{pod.name}/eviction", body)


def test_args_alone_follow_the_entrypoint_of_the_image(kubernetes_apps):
    """The image of these tests has none, so its runtime starts the first argument."""
    apps = kubernetes_apps
    app_id = apps.start(apps.sh("", entrypoint=None, args=["echo", "started by the image"]))

    assert apps.end(app_id).state is AppState.SUCCEEDED
    assert apps.lines(app_id) == ["started by the image\n"]


def test_a_variable_is_a_field_of_the_pod(kubernetes_apps):
    """Components of TorchX have such values."""
    apps = kubernetes_apps
    env = {"POD": "[FIELD_PATH]metadata.name", "NODE": "[FIELD_PATH]spec.nodeName", "TEXT": "a [FIELD_PATH]"}
    app_id = apps.start(apps.sh('echo "$POD $NODE $TEXT"', env=env))

    assert apps.end(app_id).state is AppState.SUCCEEDED
    (pod,) = apps.cluster.list("pods", f"{Label.APP_ID}={app_id}")[0]
    expected = f"{pod['metadata']['name']} {pod['spec']['nodeName']} a [FIELD_PATH]\n"
    assert apps.lines(app_id) == [expected]


def test_half_a_cpu_is_a_limit_and_less_is_reserved(kubernetes_apps):
    apps = kubernetes_apps
    app_id = apps.start(apps.sh("true", resource=Resource(0.5, 0, 64, cpu_request=0.1, memMB_request=16)))

    assert apps.end(app_id).state is AppState.SUCCEEDED
    (pod,) = apps.cluster.list("pods", f"{Label.APP_ID}={app_id}")[0]
    assert pod["spec"]["containers"][0]["resources"] == {
        "limits": {"cpu": "500m", "memory": "64Mi"},
        "requests": {"cpu": "100m", "memory": "16Mi"},
    }


# ---- waits -----------------------------------------------------------------------------------------------------------


def test_a_pod_that_fits_on_no_node_waits_and_reports_it(kubernetes_apps):
    apps = kubernetes_apps
    app_id = apps.start(apps.sh("true", resource=Resource(cpu=1000, gpu=0, memMB=0)))
    found = apps.until(app_id, lambda found: "Insufficient cpu" in found.msg)

    assert found.state is AppState.PENDING
    assert not found.is_stuck, "a node may come"
    apps.scheduler.cancel(app_id)
    assert apps.end(app_id).state is AppState.CANCELLED


def test_a_missing_image_waits_and_reports_it(kubernetes_apps):
    apps = kubernetes_apps
    app_id = apps.start(apps.sh("true", image="no-such-image:local"))
    found = apps.until(app_id, lambda found: "ErrImageNeverPull" in found.msg)

    assert found.state is AppState.PENDING
    assert found.is_stuck
    apps.scheduler.cancel(app_id)
    assert apps.end(app_id).state is AppState.CANCELLED


def test_a_queue_decides_when_an_app_starts(kubernetes_apps):
    """As Kueue does, which resumes the suspended Job."""
    apps = kubernetes_apps
    app_id = apps.start(apps.sh("echo run"), queue="local")
    waits = apps.until(app_id, lambda found: found.state is AppState.PENDING)

    assert "suspended" in waits.msg
    apps.cluster.patch("jobs", f"{app_id}--main", {"spec": {"suspend": False}})
    assert apps.end(app_id).state is AppState.SUCCEEDED


def test_an_app_that_waits_in_a_queue_can_be_cancelled(kubernetes_apps):
    apps = kubernetes_apps
    app_id = apps.start(apps.sh("echo run"), queue="local")
    apps.scheduler.cancel(app_id)

    assert apps.end(app_id).state is AppState.CANCELLED
    # The queue comes too late.
    apps.cluster.patch("jobs", f"{app_id}--main", {"spec": {"suspend": False}})
    time.sleep(3)
    assert apps.pods(app_id) == []
    assert apps.another().describe(app_id).state is AppState.CANCELLED


# ---- disruptions -----------------------------------------------------------------------------------------------------


def test_an_eviction_is_not_charged(kubernetes_apps):
    apps = kubernetes_apps
    app_id = apps.start(apps.sh("echo run; test -z $LAUNCH_DISRUPTIONS && sleep 300; sleep 3"), grace_s=0)
    apps.until(app_id, lambda _: apps.lines(app_id))
    (pod,) = apps.pods(app_id)
    evict(apps, pod)
    again = apps.until(app_id, lambda found: "has restarted" in found.msg)
    found = apps.end(app_id)

    assert again.state is AppState.RUNNING
    assert again.msg.startswith("main/0 was preempted (restart 1), and has restarted")
    assert found.state is AppState.SUCCEEDED
    assert found.num_restarts == 1
    assert "lines may be missing here" in apps.lines(app_id)[0]
    assert [one.uid for one in apps.pods(app_id)] != [pod.uid]


def test_an_eviction_may_be_a_failure(kubernetes_apps):
    apps = kubernetes_apps
    app_id = apps.start(apps.sh("echo run; sleep 300"), on_disruption="fail")
    apps.until(app_id, lambda _: apps.lines(app_id))
    (pod,) = apps.pods(app_id)
    evict(apps, pod)
    found = apps.end(app_id)

    assert found.state is AppState.FAILED
    assert "preempted" in found.msg


def test_evictions_restart_the_app_as_often_as_a_role_allows(kubernetes_apps):
    """The other rank fails when it loses its peer, before the pod of the peer has ended."""
    apps = kubernetes_apps
    # Replica 0 ends slowly after TERM, and replica 1 fails when that begins.
    rank = (
        "echo run $LAUNCH_ATTEMPT; [ $LAUNCH_REPLICA_ID = 0 ] || exec nc $TORCHX_RANK0_HOST 8000; "
        "trap 'kill $!; sleep 3; exit 1' TERM; nc -l -p 8000 >/dev/null & sleep 300 & wait"
    )
    app_id = apps.start(apps.sh(rank, num_replicas=2, max_disruptions=1), grace_s=20)
    for attempt in range(2):
        apps.until(
            app_id, lambda _, text=f"run {attempt}\n": all(text in apps.lines(app_id, "main", k) for k in (0, 1))
        )
        pod = next(one for one in apps.pods(app_id) if one.app_attempt == attempt and one.replica == 0)
        evict(apps, pod)
    found = apps.end(app_id)

    assert found.state is AppState.FAILED
    assert found.num_restarts == 1


def test_a_pod_that_is_deleted_by_hand_is_charged(kubernetes_apps):
    apps = kubernetes_apps
    app_id = apps.start(apps.sh("echo run; sleep 300", max_retries=1, retry_policy=RetryPolicy.REPLICA))
    apps.until(app_id, lambda _: apps.lines(app_id))
    for _ in range(2):
        (pod,) = (one for one in apps.pods(app_id) if not one.over)
        apps.call("DELETE", f"/api/v1/{{ns}}/pods/{pod.name}")
        apps.until(
            app_id,
            lambda found, old=pod: (
                found.state is AppState.FAILED or any(one.uid != old.uid and one.running for one in apps.pods(app_id))
            ),
        )
    found = apps.end(app_id)

    assert found.state is AppState.FAILED
    assert "main" in found.msg


def test_out_of_memory_is_named(kubernetes_apps):
    apps = kubernetes_apps
    script = "dd if=/dev/zero of=/dev/null bs=256M count=1"
    found = apps.run(apps.sh(f"exec {script}", resource=Resource(cpu=0, gpu=0, memMB=32)))

    assert found.state is AppState.FAILED
    assert "out of memory" in found.msg


# ---- stops from outside ----------------------------------------------------------------------------------------------


def test_a_job_that_was_deleted_by_hand_is_gone_or_lost(kubernetes_apps):
    """The outcome is unknown, and nothing is started again."""
    apps = kubernetes_apps
    app_id = apps.start(apps.sh("sleep 300"), apps.sh("sleep 300", "peer"))
    apps.running(app_id)
    apps.call("DELETE", f"/apis/batch/v1/{{ns}}/jobs/{app_id}--peer", {"propagationPolicy": "Foreground"})
    lost = apps.until(app_id, lambda found: "lost" in found.msg)

    assert "peer" in lost.msg
    assert lost.state is AppState.RUNNING
    apps.scheduler.delete(app_id)


def test_nothing_stays_after_the_ttl(kubernetes_apps):
    """Kubernetes removes the Jobs, and with the last of them the Service."""
    apps = kubernetes_apps
    app_id = apps.start(apps.sh("true"), apps.sh("true", "peer"), removed_after_s=2)
    deadline = time.monotonic() + 90
    while apps.objects(app_id):
        assert time.monotonic() < deadline, apps.objects(app_id)
        apps.scheduler.describe(app_id)
        time.sleep(0.5)

    assert apps.scheduler.describe(app_id) is None


@pytest.mark.parametrize("code", [0, 3])
def test_the_ttl_begins_when_the_whole_app_has_ended(kubernetes_apps, kubernetes_proxy, code):
    """A role that ends early keeps its Job; later all are removed, and the end stays in every process."""
    apps = kubernetes_apps
    train = apps.sh(f"sleep 8; exit {code}", "train")
    app_id = apps.start(apps.sh("true", "prep"), train, removed_after_s=3)
    seen, by_others = [], []
    before = kubernetes_proxy.count("PATCH")
    deadline = time.monotonic() + 90
    while (found := apps.scheduler.describe(app_id)) is not None:
        assert time.monotonic() < deadline, found
        seen.append(found)
        if is_terminal(found.state) and (other := apps.another().describe(app_id)):
            by_others.append(other)
        time.sleep(0.3)

    states = list(dict.fromkeys(one.state for one in seen if one.state is not AppState.PENDING))
    assert states == [AppState.RUNNING, AppState.FAILED if code else AppState.SUCCEEDED]
    assert {one.state for one in by_others} <= {states[-1]}
    if code:
        assert {one.msg for one in seen if one.state is AppState.FAILED} == {"train/0 failed: exit code 3"}
        # The pods, of which alone others could learn the exit code, go before their Job.
        assert all(one.msg.startswith(("train/0 failed: ", "train failed: ")) for one in by_others), by_others
    # The result, and the two Jobs; of a failure the end too.
    assert kubernetes_proxy.count("PATCH") - before <= (4 if code else 3)


def test_a_cancelled_app_is_removed_without_another_poll(kubernetes_apps):
    """A killed task cancels its app and does not poll it again."""
    apps = kubernetes_apps
    late = apps.sh("exec sleep 300", "late")
    app_id = apps.start(apps.sh("true", "early"), late, removed_after_s=1)
    apps.until(app_id, lambda _: [pod for pod in apps.pods(app_id) if pod.over])
    apps.until(app_id, lambda _: [pod for pod in apps.pods(app_id) if pod.running])
    time.sleep(3)
    apps.scheduler.cancel(app_id)

    until(lambda: not apps.objects(app_id), 120, 0.5)


def test_an_app_that_is_deleted_is_gone_though_others_hold_its_objects(kubernetes_apps):
    """The removal may take long, for example because of a finalizer."""
    apps = kubernetes_apps
    app_id = apps.start(apps.sh("exit 3"))
    assert "exit code 3" in apps.end(app_id).msg
    record = f"/api/v1/{{ns}}/services/{app_id}"

    def hold(*finalizers: str) -> None:
        body = apps.call("GET", record)
        body["metadata"]["finalizers"] = [*finalizers]
        apps.call("PUT", record, body)

    hold("launch.io/tests")
    apps.scheduler.delete(app_id)
    found = [scheduler.describe(app_id) for scheduler in (apps.scheduler, apps.another())]
    listed = [row.app_id for row in apps.another().list()]
    assert "deletionTimestamp" in apps.call("GET", record)["metadata"]
    hold()

    assert found == [None, None]
    assert app_id not in listed


def test_the_end_of_one_role_is_not_taken_back_while_its_job_goes(kubernetes_apps):
    apps = kubernetes_apps
    app_id = apps.start(apps.sh("true"), removed_after_s=1)
    seen = []
    while (found := apps.scheduler.describe(app_id)) is not None:
        seen.append(found.state)

    assert AppState.UNKNOWN not in seen


def test_a_result_that_went_with_its_pod_is_reported(kubernetes_apps, caplog):
    """A node may be removed, with its pods, long before the other replicas have ended."""
    apps = kubernetes_apps
    app_id = apps.start(apps.sh('echo 5 > "$LAUNCH_RESULT_PATH"'), apps.sh("sleep 6", "peer"))
    until(lambda: any(pod.phase == "Succeeded" for pod in apps.pods(app_id)))
    assert apps.scheduler.result(app_id) == 5
    (pod,) = [pod for pod in apps.pods(app_id) if pod.role == "main"]
    until(lambda: apps.scheduler.describe(app_id).roles_statuses[0].replicas[0].state is AppState.SUCCEEDED)
    time.sleep(2)  # until its Job has counted it
    apps.call("DELETE", f"/api/v1/{{ns}}/pods/{pod.name}")

    assert apps.end(app_id).state is AppState.SUCCEEDED
    assert not caplog.records
    assert apps.scheduler.result(app_id) is None
    assert f"app {app_id}: the pod that may have written a result was removed" in caplog.text


# ---- costs -----------------------------------------------------------------------------------------------------------


def test_a_quiet_app_costs_one_request_for_each_poll(kubernetes_apps, kubernetes_proxy):
    apps = kubernetes_apps
    ids = [apps.start(apps.sh("sleep 300")) for _ in range(3)]
    for app_id in ids:
        apps.until(app_id, lambda found: found.state is AppState.RUNNING)
    time.sleep(3)
    apps.scheduler.describe_many(ids)
    before = kubernetes_proxy.count()
    for _ in range(5):
        assert {found.state for found in apps.scheduler.describe_many(ids).values()} == {AppState.RUNNING}

    assert kubernetes_proxy.count() - before == 5
    for app_id in ids:
        apps.scheduler.delete(app_id)


def test_apps_that_wait_share_the_lists_of_their_pods(kubernetes_apps, kubernetes_proxy):
    """Even if each app started to wait at another time."""
    apps = kubernetes_apps
    ids = []
    for _ in range(6):
        ids.append(apps.start(apps.sh("true"), node_selector={"launch.io/none": "x"}))
        apps.until(ids[-1], lambda found: "Unschedulable" in found.msg)
        time.sleep(1)
    # The pods of the first are due within this time, and those of all are read then.
    deadline = time.monotonic() + 11
    while time.monotonic() < deadline:
        apps.scheduler.describe_many(ids)
        time.sleep(0.5)
    before = kubernetes_proxy.count(path="/pods$")
    deadline = time.monotonic() + 21
    while time.monotonic() < deadline:
        apps.scheduler.describe_many(ids)
        time.sleep(0.5)

    assert kubernetes_proxy.count(path="/pods$") - before <= 3
    for app_id in ids:
        apps.scheduler.delete(app_id)


def test_a_lost_answer_to_a_cancel_is_made_up_for(kubernetes_apps, kubernetes_proxy):
    apps = kubernetes_apps
    app_id = apps.start(apps.sh("trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.1; done"))
    apps.until(app_id, lambda _: apps.lines(app_id))
    kubernetes_proxy.add(Fault(error(500), "PATCH", times=1))
    apps.scheduler.cancel(app_id)

    assert apps.end(app_id).state is AppState.CANCELLED
    assert apps.lines(app_id) == ["up\n", "bye\n"]


def test_the_leader_decides(kubernetes_apps):
    """The head ends by itself, its workers do not."""
    head = kubernetes_apps.sh(
        "[ $LAUNCH_REPLICA_ID = 0 ] || exec sleep 300; sleep 3; echo done", "head", num_replicas=2
    )
    found = kubernetes_apps.run(head, kubernetes_apps.sh("sleep 300", "worker"), success_policy="leader")

    states = {(role.role, one.id): one.state for role in found.roles_statuses for one in role.replicas}
    assert found.state is AppState.SUCCEEDED
    assert found.msg == "head/0: 1 of 1 succeeded; stopped worker"
    assert states == {
        ("head", 0): AppState.SUCCEEDED,
        ("head", 1): AppState.CANCELLED,
        ("worker", 0): AppState.CANCELLED,
    }
    assert not [pod for pod in kubernetes_apps.pods(found.app_id) if not pod.over]


def test_a_worker_that_fails_before_the_leader_ends_fails_the_app(kubernetes_apps):
    head = kubernetes_apps.sh("[ $LAUNCH_REPLICA_ID = 0 ] && exec sleep 300; exit 7", "head", num_replicas=2)
    found = kubernetes_apps.run(head, success_policy="leader")

    assert found.state is AppState.FAILED
    assert "head/1" in found.msg


def test_500_replicas_are_described_with_few_requests(kubernetes_apps, kubernetes_proxy):
    """One Job shows the state of all replicas; their pods are listed in pages of 1000."""
    app_id = kubernetes_apps.start(kubernetes_apps.sh("true", num_replicas=500), node_selector={"launch.io/none": "x"})
    waiting = kubernetes_apps.until(app_id, lambda found: "Unschedulable" in found.msg)
    assert len(waiting.roles_statuses[0].replicas) == 500

    before = kubernetes_proxy.count("GET")
    kubernetes_apps.scheduler.describe(app_id)

    # The Job, and a page.
    assert kubernetes_proxy.count("GET") - before <= 2
    kubernetes_apps.scheduler.delete(app_id)


# ---- secrets ---------------------------------------------------------------------------------------------------------


def test_secrets_are_passed_by_reference(kubernetes_apps):
    """Only the program has the values, not the record, the Jobs, the pods or the request."""
    apps = kubernetes_apps
    for name, data in (("by-key", {"token": "hush-1"}), ("by-name", {"FIRST": "hush-2", "SECOND": "hush-3"})):
        body = {"metadata": {"name": name}, "stringData": data}
        with contextlib.suppress(TakenError):
            apps.call("POST", "/api/v1/{ns}/secrets", body)
    options = {"env_secrets": {"HF_TOKEN": "by-key/token"}, "env_from_secrets": ["by-name"]}
    app_id = apps.start(apps.sh('echo "$HF_TOKEN $FIRST $SECOND"', env={"SECOND": "ours"}), **options)

    assert apps.end(app_id).state is AppState.SUCCEEDED
    assert apps.lines(app_id) == ["hush-1 hush-2 ours\n"]
    kept = [apps.cluster.list(kind, f"{Label.APP_ID}={app_id}")[0] for kind in ("services", "jobs", "pods")]
    records = [unpacked(job["metadata"]["annotations"][Annotation.REQUEST]).to_json() for job in kept[1]]
    assert "hush" not in json.dumps([kept, records])
    assert "hush" not in str(apps.scheduler.describe_native(app_id))

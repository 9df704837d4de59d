"""The response built from Jobs and pods. No cluster is needed."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_launch.schedulers.kubernetes.containers import SideContainer, side_containers, wait_among
from airflow_provider_launch.schedulers.kubernetes.objects import App, job_of, pod_of, result_in
from airflow_provider_launch.schedulers.kubernetes.pod_events import incidents
from airflow_provider_launch.schedulers.kubernetes.reconcile import Assessment
from airflow_provider_launch.schedulers.kubernetes.record import Plan, PlannedRole
from airflow_provider_launch.schedulers.kubernetes.status import is_missing_source, is_refused_pull, response_from
from airflow_provider_launch.schedulers.responses import DescribeAppResponse
from airflow_provider_launch.schedulers.retry import RolePolicy
from airflow_provider_launch.specs.errors import InvalidAppError
from airflow_provider_launch.specs.states import AppState

PLAN = Plan((PlannedRole("Main", "main", 2, RolePolicy("REPLICA", 0)),), None, 10, queue=False)


def terminated(code: int, reason: str = "Error", message: str = "", finished: str = "2026-01-31T12:00:05Z") -> dict:
    return {
        "terminated": {
            "exitCode": code,
            "reason": reason,
            "message": message,
            "startedAt": "2026-01-31T12:00:00Z",
            "finishedAt": finished,
        }
    }


def pod(replica: int, phase: str, state: dict[str, Any] | None = None, *, failures: int = 0, **status: Any) -> Any:
    statuses = [{"name": "main", "state": state}] if state is not None else []
    return pod_of(
        {
            "metadata": {
                "name": f"p{replica}-{failures}",
                "uid": f"u{replica}-{failures}",
                "creationTimestamp": "2026-01-31T11:59:59Z",
                "labels": {
                    "launch.io/role": "main",
                    "launch.io/attempt": "0",
                    "batch.kubernetes.io/job-completion-index": str(replica),
                },
                "annotations": {"batch.kubernetes.io/job-index-failure-count": str(failures)},
            },
            "spec": {"nodeName": "node"},
            "status": {"phase": phase, "containerStatuses": statuses, **status},
        }
    )


def answer(state: AppState, *pods: Any, msg: str = "<NONE>", **status: Any) -> DescribeAppResponse:
    document = {
        "metadata": {
            "name": "x--main",
            "uid": "j",
            "resourceVersion": "1",
            "labels": {"launch.io/role": "main", "launch.io/attempt": "0"},
        },
        "spec": {"completions": 2, "parallelism": 2},
        "status": status,
    }
    app = App("x", {("main", 0): job_of(document)})
    return response_from(app, PLAN, Assessment(state, msg), pods, None)


def ends_of(found: DescribeAppResponse) -> list[tuple[AppState, int | None, str | None]]:
    return [(one.state, one.exit_code, one.reason) for one in found.roles_statuses[0].replicas]


NO_SHELL = 'exec: "sh": executable file not found in $PATH'
RUNNING = {"running": {"startedAt": "2026-01-31T12:00:00Z"}}
STOPPED = {"reason": "DeadlineExceeded", "message": "too long"}


@pytest.mark.parametrize(
    ("state", "reason", "text"),
    [
        (terminated(3), None, "Main/1 failed: exit code 3"),
        (terminated(137), "SIGKILL", "Main/1 failed: ended by SIGKILL"),
        (terminated(137, "OOMKilled"), "out of memory", "Main/1 failed: out of memory (exit code 137)"),
        (
            terminated(128, "StartError", 'exec: "x": executable file not found in $PATH'),
            'exec: "x": executable file not found in $PATH',
            'Main/1 failed: it could not be started: exec: "x": executable file not found in $PATH',
        ),
    ],
)
def test_a_failure_names_role_replica_and_cause(state, reason, text):
    found = answer(
        AppState.FAILED,
        pod(0, "Failed", terminated(143), **STOPPED),
        pod(1, "Failed", state),
        failedIndexes="0,1",
        conditions=[{"type": "Failed", "status": "True"}],
    )
    code = 127 if "StartError" in str(state) else state["terminated"]["exitCode"]

    assert ends_of(found) == [(AppState.CANCELLED, 143, "stopped"), (AppState.FAILED, code, reason)]
    assert found.msg == text


EXEC = "OCI runtime create failed: runc create failed: unable to start container process: "


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (EXEC + 'exec: "nope": executable file not found in $PATH: unknown', 127),
        (EXEC + 'exec: "/nope": stat /nope: no such file or directory: unknown', 127),
        (EXEC + 'exec: "/etc/passwd": permission denied: unknown', 126),
        (EXEC + 'exec: "./no such file or directory": permission denied: unknown', 126),
        (EXEC + 'exec: "a \\" permission denied": executable file not found in $PATH: unknown', 127),
        (EXEC + "exec: stat /executable file not found: permission denied", 126),
        ("exec container process `/permission denied`: No such file or directory", 127),
        (EXEC + 'mounting "/no such file or directory": not a directory', 128),
        ("", 128),
    ],
)
def test_the_exit_code_of_a_program_that_cannot_start_is_not_read_from_its_name(message, code):
    assert pod(0, "Failed", terminated(128, "StartError", message)).exit_code == code


@pytest.mark.parametrize(
    ("text", "reply"),
    [
        ('{"message": "why"}', '{"message": "why"}'),
        ('{"message": {"message": "why", "extraInfo": {}}}', '{"message": {"message": "why", "extraInfo": {}}}'),
        ("last lines", "last lines"),
        ('{"loss": 0.3}', "<NONE>"),
        ("[1, 2]", "<NONE>"),
        ("[" * 4000, "[" * 4000),
    ],
)
def test_a_result_of_a_program_that_then_failed_is_no_error_text(text, reply):
    """Result and error are written to the same file."""
    ended = pod(0, "Failed", {"terminated": {"exitCode": 3, "reason": "Error", "message": text}})

    assert answer(AppState.FAILED, ended, failedIndexes="0").structured_error_msg == reply


def test_the_first_failure_is_the_cause_and_its_reply_is_reported():
    found = answer(
        AppState.FAILED,
        pod(0, "Failed", terminated(1, finished="2026-01-31T12:00:09Z")),
        pod(1, "Failed", terminated(2, message='{"message": "why"}')),
        failedIndexes="0,1",
    )

    assert "Main/1" in found.msg
    assert found.structured_error_msg == '{"message": "why"}'


def test_the_newest_attempt_counts():
    found = answer(
        AppState.FAILED, pod(1, "Failed", terminated(1)), pod(1, "Failed", terminated(2), failures=2), failedIndexes="1"
    )

    assert found.num_restarts == 2
    assert ends_of(found)[1] == (AppState.FAILED, 2, None)
    assert "attempt 2" in found.msg


def test_between_two_attempts_a_replica_is_running():
    found = answer(AppState.RUNNING, pod(1, "Failed", terminated(1)), active=1, failed=1)

    assert ends_of(found)[1][0] is AppState.RUNNING


def test_pods_know_earlier_than_their_job_that_something_runs():
    assert answer(AppState.PENDING, pod(0, "Running", RUNNING), active=2).state is AppState.RUNNING


@pytest.mark.parametrize(
    ("status", "state", "text"),
    [
        ({}, {"waiting": {"reason": "ImagePullBackOff", "message": "no"}}, "ImagePullBackOff: no"),
        ({}, {"waiting": {"reason": "ContainerCreating"}}, "<NONE>"),
        (
            {
                "conditions": [
                    {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"}
                ]
            },
            None,
            "Unschedulable: 0/1 nodes",
        ),
    ],
)
def test_a_waiting_pod_shows_the_reason(status, state, text):
    assert answer(AppState.PENDING, pod(0, "Pending", state, **status), active=2).msg == text


@pytest.mark.parametrize(
    "state",
    [
        terminated(128, "StartError", NO_SHELL),  # Kubernetes 1.33
        {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}},
    ],
    ids=["ended", "waiting"],
)
def test_a_pod_waits_for_a_sidecar_that_cannot_start(state):
    spec = {"initContainers": [{"name": "side", "restartPolicy": "Always"}]}
    status = {"name": "side", "state": state, "lastState": terminated(128, "StartError", NO_SHELL)}

    reason, message = wait_among(side_containers(spec, {"initContainerStatuses": [status]}, "main"))

    assert reason == next(iter(state.values()))["reason"]
    assert message == f"container 'side': {NO_SHELL}"


PULL = 'failed to pull and unpack image "{0}": failed to resolve reference "{0}": '


@pytest.mark.parametrize(
    "message",
    [
        'Back-off pulling image "127.0.0.1:9/team/authorization-service:1.0"',
        PULL.format("127.0.0.1:9/team/authorization-service:1")
        + 'failed to do request: Head "https://127.0.0.1:9/v2/team/authorization-service/manifests/1": '
        "dial tcp 127.0.0.1:9: connect: connection refused",
        PULL.format("denied:5000/not-found:1") + "dial tcp: lookup denied on 10.96.0.10:53: server misbehaving",
        PULL.format("unauthorized.example/x:1") + "dial tcp: lookup unauthorized.example: no such host",
        "initializing source docker://reg:1/denied:unauthorized: pinging container registry reg:1: i/o timeout",
        "unexpected status code 503 Service Unavailable",
        "denied:latest: i/o timeout",
        "tag unauthorized: i/o timeout",
        "dial unix /run/containerd/containerd.sock: connect: permission denied",
    ],
)
def test_an_outage_of_the_registry_is_waited_for_whatever_the_image_is_called(message):
    assert not is_refused_pull(message)
    waiting = pod(0, "Pending", {"waiting": {"reason": "ErrImagePull", "message": message}})
    assert not answer(AppState.PENDING, waiting, active=2).is_stuck


@pytest.mark.parametrize(
    "message",
    [
        PULL.format("docker.io/library/nope:1") + "docker.io/library/nope:1: not found",
        PULL.format("docker.io/team/authorization-service:1")
        + "pull access denied, repository does not exist or may require authorization: server message: "
        "insufficient_scope: authorization failed",
        PULL.format("reg.example/x:1")
        + "unexpected status from HEAD request to https://reg.example/v2: 401 Unauthorized",
        "reading manifest 1 in docker.io/library/nope: manifest unknown",
        "no match for platform in manifest: not found",
        "Error response from daemon: pull access denied for app, repository does not exist",
        "Error response from daemon: pull access denied for denied, repository does not exist",
        PULL.format("reg.example/denied/x:1") + "requested access to the resource is denied",
        PULL.format("reg.example/not/found:1") + "reg.example/not/found:1: not found",
        PULL.format("reg.example/unauthorized/x:1") + "unexpected status: 401 Unauthorized",
        PULL.format("ghcr.io/x/y:1") + "failed to authorize: unexpected status from GET request: 403 Forbidden",
    ],
)
def test_an_image_that_is_refused_is_stuck(message):
    assert is_refused_pull(message)
    waiting = pod(0, "Pending", {"waiting": {"reason": "ErrImagePull", "message": message}})
    assert answer(AppState.PENDING, waiting, active=2).is_stuck
    beside = answer(AppState.RUNNING, waiting, pod(1, "Running", RUNNING), active=2, ready=1)
    assert beside.is_stuck, "the replica that runs waits for it"


@pytest.mark.parametrize("piece", ["x", "/", '"', "a/", "x ", "denied ", '"x" ', "lookup ", "denied for "])
def test_a_message_of_megabytes_costs_as_much_as_its_start(piece):
    """A registry, a webhook or a node writes it, and parsing it delayed the polls of all apps."""
    began = time.process_time()
    for reason in ("ErrImagePull", "CreateContainerConfigError"):
        waiting = pod(0, "Pending", {"waiting": {"reason": reason, "message": piece * 1_000_000}})
        assert len(waiting.message) <= 4096
        found = answer(AppState.PENDING, waiting, active=2)
        assert found.is_stuck is (reason != "ErrImagePull" or "denied" in piece)
    is_refused_pull(piece * 1_000_000)

    assert time.process_time() - began < 5


@pytest.mark.parametrize(
    ("reason", "lost"),
    [
        ('FailedMount: MountVolume.SetUp failed for volume "creds" : secret "gone" not found', True),
        ('FailedMount: MountVolume.SetUp failed for volume "c" : configmap "gone" not found', True),
        ('FailedMount: MountVolume.SetUp failed for volume "c" : references non-existent secret key: KEY', True),
        ("FailedMount: Unable to attach or mount volumes: timed out waiting for the condition", False),
        (
            'FailedCreate: pods "x" is forbidden: exceeded quota: q, requested: pods=1, used: pods=0, limited: pods=0',
            False,
        ),
    ],
)
def test_a_lost_secret_is_not_waited_for(reason, lost):
    assert is_missing_source(reason) is lost


def test_replicas_whose_pods_are_gone_are_known_from_the_job():
    found = answer(AppState.RUNNING, completedIndexes="0", active=1)

    assert ends_of(found) == [(AppState.SUCCEEDED, 0, None), (AppState.PENDING, None, None)]
    assert [state for state, _, _ in ends_of(answer(AppState.CANCELLED))] == [AppState.CANCELLED] * 2


@pytest.mark.parametrize(("fails", "text"), [(False, ", and will restart"), (True, "")])
def test_a_disruption_that_fails_the_app_promises_no_restart(fails, text):
    disrupted = [{"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}]
    lost = pod(0, "Failed", terminated(137), conditions=disrupted)
    plan = replace(PLAN, fails_on_disruption=fails)

    assert incidents(App("x"), plan, {("main", 0): lost}) == f"Main/0 was preempted (EvictionByEvictionAPI){text}"


def test_a_disruption_that_counts_as_failure_is_reported():
    condition = {
        "type": "Failed",
        "status": "True",
        "reason": "PodFailurePolicy",
        "message": "Pod has condition DisruptionTarget matching FailJob rule",
    }
    assert answer(AppState.FAILED, conditions=[condition]).msg.startswith("Main failed: preempted")


@pytest.mark.parametrize(("text", "numbers"), [("", []), ("0", [0]), ("1,3-5,7", [1, 3, 4, 5, 7])])
def test_lists_of_indexes(text, numbers):
    found = answer(AppState.RUNNING, completedIndexes=text)

    assert [k for k, one in enumerate(found.roles_statuses[0].replicas) if one.exit_code == 0] == [
        k for k in numbers if k < 2
    ]


@pytest.mark.parametrize(("beside", "size", "limit"), [(2, 4095, 0), (5, 2000, 0), (5, 2048, 2048), (11, 1024, 1024)])
def test_a_result_that_was_cut_is_an_error_with_its_limit(beside, size, limit):
    """The kubelet divides 12 KiB among the containers of a pod."""
    document = '"' + "x" * (size - 2) + '"'
    whole = pod(0, "Succeeded", terminated(0, "Completed", document))
    found = replace(
        whole, others=tuple(SideContainer(f"c{n}", True, False, False, 0, "", "", None, None) for n in range(beside))
    )
    if not limit:
        assert result_in(found) == "x" * (size - 2)
        return
    with pytest.raises(InvalidAppError, match=f"keeps {limit} bytes from each of the {beside + 1} containers"):
        result_in(found)

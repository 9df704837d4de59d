"""Tables of Batch's answers with the state, message and next step."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_launch.schedulers.aws_batch import catalog
from airflow_provider_launch.schedulers.aws_batch.catalog import CachedApp
from airflow_provider_launch.schedulers.aws_batch.jobs import job_page, other_pages, replicas_of
from airflow_provider_launch.schedulers.aws_batch.options import AwsBatchConnection, AwsBatchOpts
from airflow_provider_launch.schedulers.aws_batch.request import AwsBatchRequest, build_request
from airflow_provider_launch.schedulers.aws_batch.scheduler import AwsBatchScheduler
from airflow_provider_launch.schedulers.aws_batch.status import CANCELLED, Action, Decision, decide, response_from
from airflow_provider_launch.specs import AppDef, Resource, Role
from airflow_provider_launch.specs.errors import SchedulerRejectedError, SchedulerUnavailableError
from airflow_provider_launch.specs.states import AppState

ROOM = Resource(1, 0, 64)


def request(*counts: int, max_retries: int = 0, max_disruptions: int | None = None, **how: Any) -> AwsBatchRequest:
    roles = [
        Role(f"r{n}", "image", entrypoint="x", num_replicas=count, max_retries=max_retries, resource=ROOM)
        for n, count in enumerate(counts)
    ]
    roles[0].max_disruptions = max_disruptions
    return build_request(AppDef("app", roles), AwsBatchOpts(queue="q", **how), "app-1", {})


def job(status: str, job_id: str = "j", code: int | None = None, **more: Any) -> dict[str, Any]:
    container = {"logStreamName": f"s-{job_id}", **({} if code is None else {"exitCode": code})}
    return {"jobId": job_id, "status": status, "createdAt": 1_000_000, "container": container, "attempts": [], **more}


def decided(
    one: AwsBatchRequest, parent: dict[str, Any], *parts: dict[str, Any], attempt: int = 0, **how: Any
) -> Decision:
    replicas = replicas_of(one, parent, {part["jobId"]: part for part in parts})
    known: dict[str, Any] = {"now": 1001.0, "cancelled": False, **how}
    return decide(one, attempt, parent, replicas, known.pop("now"), **known)


@pytest.mark.parametrize(
    ("parent", "state", "words"),
    [
        (job("SUBMITTED"), AppState.PENDING, ""),
        (
            job("RUNNABLE", statusReason="MISCONFIGURATION:JOB_RESOURCE_REQUIREMENT - too large"),
            AppState.PENDING,
            "MISCONF",
        ),
        (job("STARTING"), AppState.PENDING, ""),
        (job("RUNNING"), AppState.RUNNING, ""),
        (job("RUNNABLE", attempts=[{"container": {"exitCode": 1}}]), AppState.RUNNING, ""),
        (job("SUCCEEDED", code=0), AppState.SUCCEEDED, ""),
        (job("FAILED", code=3), AppState.FAILED, "r0/0 failed: exit code 3"),
        (job("FAILED", code=137), AppState.FAILED, "SIGKILL"),
        (job("FAILED", isTerminated=True, statusReason=CANCELLED), AppState.CANCELLED, ""),
        (job("FAILED", isTerminated=True, statusReason="by hand"), AppState.FAILED, "stopped from outside (by hand)"),
        (job("FAILED", isCancelled=True, statusReason="by hand"), AppState.FAILED, "stopped from outside (by hand)"),
        (
            job("FAILED", isTerminated=True, statusReason="launch: time limit of 5 s"),
            AppState.FAILED,
            "time limit of 5 s",
        ),
        (job("FAILED", statusReason="Job attempt duration exceeded timeout"), AppState.FAILED, "time limit"),
        (job("FAILED", statusReason="Host EC2 (instance i-1) terminated."), AppState.FAILED, "preempted (Host EC2"),
        (
            job(
                "FAILED",
                container={"exitCode": 137, "reason": "OutOfMemoryError: Container killed due to memory usage"},
            ),
            AppState.FAILED,
            "out of memory",
        ),
        (
            job("FAILED", container={"reason": "CannotPullContainerError: no such image"}),
            AppState.FAILED,
            "r0/0 failed: it could not be started: CannotPullContainerError",
        ),
        (
            job("FAILED", container={"reason": "CannotPullContainerError: pull of reg/OutOfMemoryError:1 denied"}),
            AppState.FAILED,
            "r0/0 failed: it could not be started: CannotPullContainerError",
        ),
        (job("A_NEW_STATE"), AppState.PENDING, ""),
    ],
)
def test_states_of_a_single_job(parent, state, words) -> None:
    found = decided(request(1), parent)

    assert found.state is state
    assert words in found.msg
    assert found.action is Action.NOTHING


def test_a_failed_replica_ends_the_others_and_stays_the_cause() -> None:
    one = request(1, 2)
    nodes = [job("RUNNING", "j#0"), job("RUNNING", "j#1"), job("FAILED", "j#2", 3, stoppedAt=1_000_500)]
    live = decided(one, job("RUNNING"), *nodes)

    assert (live.state, live.action) == (AppState.RUNNING, Action.TERMINATE)
    assert live.reason == "launch: failed [2] r1/1 failed: exit code 3"
    stopped = {"isTerminated": True, "stoppedAt": 1_000_900}
    nodes = [job("FAILED", "j#0", 143, **stopped), job("FAILED", "j#1", 143, **stopped), nodes[2]]
    ended = decided(one, job("FAILED", isTerminated=True, statusReason=live.reason), *nodes)
    shown = response_from(one, 0, ended)

    assert (ended.state, ended.action, ended.culprit) == (AppState.FAILED, Action.NOTHING, 2)
    assert [one.state for role in shown.roles_statuses for one in role.replicas] == [
        AppState.CANCELLED,
        AppState.CANCELLED,
        AppState.FAILED,
    ]


def test_a_child_that_a_user_ends_is_the_cause() -> None:
    """TerminateJob of one child in the console: the app has failed, and the message has the reason that was given."""
    one = request(3)
    children = [job("RUNNING", "j:0"), job("FAILED", "j:1", 143, isTerminated=True, statusReason="too slow")]
    live = decided(one, job("RUNNING"), *children)

    assert (live.action, live.reason) == (
        Action.TERMINATE,
        "launch: failed [1] r0/1 failed: stopped from outside (too slow) before its program was done, exit code 143",
    )
    ended = decided(one, job("FAILED", isTerminated=True, statusReason=live.reason), *children)
    assert (ended.state, ended.culprit) == (AppState.FAILED, 1)
    assert "stopped from outside (too slow)" in ended.msg


def test_nodes_that_a_user_ends_are_not_submitted_again() -> None:
    one = request(1, 1, max_retries=2)
    nodes = [job("FAILED", "j#0", 143, isTerminated=True), job("FAILED", "j#1", 143, isTerminated=True)]
    found = decided(one, job("FAILED", isTerminated=True, statusReason="by hand"), *nodes)

    assert (found.state, found.action) == (AppState.FAILED, Action.NOTHING)
    assert found.msg == "stopped from outside (by hand)"


def test_a_failure_of_nodes_is_answered_by_another_job_as_often_as_was_asked_for() -> None:
    one = request(1, 1, max_retries=2)
    reason = "launch: failed [1] r1/0 failed: exit code 3"
    parent = job("FAILED", isTerminated=True, statusReason=reason)
    nodes = [job("FAILED", "j#0", 143, isTerminated=True), job("FAILED", "j#1", 3)]

    for attempt, action, state in (
        (0, Action.RESUBMIT, AppState.RUNNING),
        (1, Action.RESUBMIT, AppState.RUNNING),
        (2, Action.NOTHING, AppState.FAILED),
    ):
        found = decided(one, parent, *nodes, attempt=attempt)
        assert (found.action, found.state) == (action, state)
    assert decided(one, parent, *nodes, cancelled=True).state is AppState.CANCELLED


HOST_LOST = "Host EC2 (instance i-1) terminated."
_BY_PEER = job("FAILED", isTerminated=True, statusReason="launch: failed [1] r1/0 failed: exit code 1")
_BY_HOST = job("FAILED", isTerminated=True, statusReason=f"launch: failed [0] r0/0 failed: preempted ({HOST_LOST})")


@pytest.mark.parametrize(
    ("parent", "first"),
    [
        (job("FAILED", statusReason=HOST_LOST), job("FAILED", "j#0", statusReason=HOST_LOST)),
        (_BY_HOST, job("FAILED", "j#0", 143, isTerminated=True)),
        # The other node loses its peer, and AWS reports the loss of the host later.
        (_BY_PEER, job("FAILED", "j#0", statusReason=HOST_LOST)),
    ],
    ids=["of the main node", "that the observer has seen", "after the failure of a peer"],
)
def test_the_loss_of_a_host_submits_the_nodes_again_without_a_retry(parent, first) -> None:
    one, other = request(1, 1, max_disruptions=2), job("FAILED", "j#1", 1)
    for attempt, disrupted, action in (
        (0, 0, Action.RESUBMIT),
        (1, 1, Action.RESUBMIT),
        (2, 2, Action.NOTHING),
    ):
        assert decided(one, parent, first, other, attempt=attempt, disrupted=disrupted).action is action
    with_retry = request(1, 1, max_disruptions=1, max_retries=1)
    assert decided(with_retry, parent, first, other, attempt=1, disrupted=1).action is Action.RESUBMIT
    assert decided(with_retry, parent, first, other, attempt=2, disrupted=1).action is Action.NOTHING


def test_a_failure_of_nodes_is_not_taken_for_the_loss_of_a_host() -> None:
    one = request(1, 1, max_disruptions=2)
    nodes = [job("FAILED", "j#0", 143, isTerminated=True), job("FAILED", "j#1", 3)]

    assert decided(one, _BY_PEER, *nodes).action is Action.NOTHING


def test_nodes_that_batch_stops_when_the_main_node_has_ended_make_the_app_fail() -> None:
    main = job("SUCCEEDED", "j#0", 0, stoppedAt=1_000_500)
    late = job("FAILED", "j#1", 143, stoppedAt=1_000_700)
    found = decided(request(1, 1), job("SUCCEEDED"), main, late)

    assert found.state is AppState.FAILED
    assert "linger_s" in found.msg
    assert "'r1' replica 0" in found.msg


def test_the_time_limit_and_a_cancel_are_kept_by_the_observer() -> None:
    one = request(1, time_limit_s=5)

    assert decided(one, job("RUNNING"), now=1004.0).action is Action.NOTHING
    late = decided(one, job("RUNNING"), now=1006.0)
    assert (late.action, late.reason) == (Action.TERMINATE, "launch: time limit of 5 s")
    assert decided(one, job("RUNNING"), cancelled=True).reason == CANCELLED


def test_the_console_has_pages_of_job_definition_queue_and_log() -> None:
    arn = "arn:aws:batch:eu-west-1:123456789012"
    one = job("RUNNING", jobQueue=f"{arn}:job-queue/q", jobDefinition=f"{arn}:job-definition/launch-app-1:1")
    one["container"]["logConfiguration"] = {"options": {"awslogs-group": "/my/group", "awslogs-region": "us-east-1"}}
    home = "https://console.aws.amazon.com/batch/home?region=eu-west-1"

    assert job_page("eu-west-1", one) == f"{home}#jobs/detail/j"
    assert other_pages("eu-west-1", one) == {
        "job definition": f"{home}#job-definition/detail/{arn}:job-definition/launch-app-1:1",
        "queue": f"{home}#queues/detail/{arn}:job-queue/q",
        "log": "https://console.aws.amazon.com/cloudwatch/home?region=us-east-1#logsV2:log-groups/log-group/"
        "$252Fmy$252Fgroup$3FlogStreamNameFilter$3Dlaunch-app-1",
    }
    assert job_page("cn-north-1", one).startswith("https://console.amazonaws.cn/")


def test_attempts_are_counted_and_their_logs_follow_each_other() -> None:
    attempts = [
        {"container": {"exitCode": 1, "logStreamName": f"s-{n}"}, "startedAt": n * 1000, "stoppedAt": n * 1000 + 500}
        for n in (1, 2)
    ]
    one = request(1)
    running = job("RUNNING", attempts=attempts[:1], container={"logStreamName": "s-2"})
    (live,) = replicas_of(one, running, {})
    (ended,) = replicas_of(one, job("FAILED", attempts=attempts, container={"exitCode": 1, "logStreamName": "s-2"}), {})

    assert (live.restarts, [log.stream for log in live.logs]) == (1, ["s-1", "s-2"])
    assert [log.ended_at for log in live.logs] == [1.5, None]
    (late,) = replicas_of(one, job("RUNNING", attempts=attempts, container={"logStreamName": "s-2"}), {})
    assert late.restarts == 1  # its last attempt has ended, and the state does not show it yet
    assert (ended.restarts, [log.ended_at for log in ended.logs]) == (1, [1.5, 2.5])


@pytest.mark.parametrize(
    ("reason", "is_stuck"),
    [
        ("MISCONFIGURATION:JOB_RESOURCE_REQUIREMENT - too large", True),
        ("CAPACITY:INSUFFICIENT_INSTANCE_CAPACITY - later", False),
        (None, False),
    ],
)
def test_a_job_that_only_a_user_can_fix_is_stuck(reason, is_stuck) -> None:
    one = request(1)
    found = response_from(one, 0, decided(one, job("RUNNABLE", statusReason=reason)))

    assert found.state is AppState.PENDING
    assert found.is_stuck is is_stuck
    retried = job("RUNNABLE", attempts=[{"container": {"exitCode": 1}}], statusReason=reason)
    found = response_from(one, 0, decided(one, retried))

    assert (found.state, found.is_stuck) == (AppState.RUNNING, is_stuck)
    assert (reason or "") in found.msg


@pytest.mark.parametrize("number", ["99", "1", "9" * 5000, "-1"])
def test_a_reason_that_names_no_replica_is_one_of_another_user(number) -> None:
    """Any user who may terminate a job chooses its reason."""
    found = decided(request(1), job("FAILED", code=3, statusReason=f"launch: failed [{number}] x"))

    assert (found.state, found.culprit, found.msg) == (AppState.FAILED, 0, "r0/0 failed: exit code 3")


def test_an_app_that_cannot_be_described_hides_no_other_in_the_list(monkeypatch) -> None:
    """Sweeps, clean-up and reconciliation of the connection use the list."""
    scheduler = AwsBatchScheduler("test", AwsBatchConnection(), lambda _: None)
    running, failed = job("RUNNING"), job("FAILED", code=3, statusReason="launch: failed [99] x")
    apps = {name: CachedApp(name, request(1), jobs={0: one}) for name, one in (("by", running), ("failed", failed))}
    # The user may not end this job, and this one has a time in words.
    apps["denied"] = CachedApp("denied", request(1), cancelled=True, jobs={0: running})
    apps["wrong"] = CachedApp("wrong", request(1, time_limit_s=60), jobs={0: {**running, "startedAt": "x"}})
    monkeypatch.setattr(scheduler._catalog, "every", lambda: ([*apps], ["damaged"]))
    monkeypatch.setattr(scheduler._catalog, "refresh", lambda ids: {name: apps[name] for name in ids})
    monkeypatch.setattr(type(scheduler.aws), "region", None)
    monkeypatch.setattr(scheduler, "_error_texts", lambda *_: {})

    def terminate(*_: object) -> None:
        raise SchedulerRejectedError("AWS does not allow TerminateJob")

    monkeypatch.setattr(scheduler.aws, "terminate", terminate)

    rows = {row.app_id: row.state for row in scheduler.list()}
    assert rows == {
        "by": AppState.RUNNING, "failed": AppState.FAILED, "denied": AppState.UNKNOWN, "wrong": AppState.UNKNOWN,
        "damaged": AppState.UNKNOWN,
    }  # fmt: skip

    def outage(*_: object) -> None:
        raise SchedulerUnavailableError("AWS is unreachable")

    monkeypatch.setattr(scheduler.aws, "terminate", outage)
    with pytest.raises(SchedulerUnavailableError):
        scheduler.list()


def test_apps_that_are_no_longer_read_leave_the_cache(monkeypatch) -> None:
    """A triggerer runs for months, and reads each app of the account once a minute."""
    monkeypatch.setattr(catalog, "_KEPT_APPS", 3)
    for step in ("_poll", "_find"):
        monkeypatch.setattr(catalog.Catalog, step, lambda *_: None)
    none: Any = None
    made = catalog.Catalog(none, none)
    for number in range(10):
        made._apps[f"app-{number}"] = CachedApp(f"app-{number}", request(1), jobs={0: job("RUNNING")})

    assert [*made.refresh([f"app-{number}" for number in range(8)])] == [f"app-{number}" for number in range(8)]
    assert len(made._apps) == 8, "those of one poll stay"
    assert [*made.refresh(["app-2"])] == ["app-2"]
    assert [*made._apps] == ["app-6", "app-7", "app-2"]


# ---- services --------------------------------------------------------------------------------------------------------


def nodes(first: str, *others: str, service: int, parent: dict[str, Any] | None = None) -> Decision:
    """Return the decision about an app of one replica in each of its roles, one of which is a service."""
    roles = [
        Role(f"r{n}", "image", entrypoint="x", resource=ROOM, service=n == service) for n in range(1 + len(others))
    ]
    one = build_request(AppDef("app", roles), AwsBatchOpts(queue="q"), "app-1", {})
    parts = [
        job(status, f"j#{n}", stoppedAt=1_000_500 if status in {"SUCCEEDED", "FAILED"} else None)
        for n, status in enumerate((first, *others))
    ]
    return decided(one, parent or job("RUNNING"), *parts)


@pytest.mark.parametrize("service", [0, 1])
def test_services_are_ended_when_the_others_have_succeeded(service: int) -> None:
    statuses = ["SUCCEEDED", "SUCCEEDED", "SUCCEEDED"]
    statuses[service] = "RUNNING"
    found = nodes(*statuses, service=service)

    assert (found.state, found.action) == (AppState.RUNNING, Action.TERMINATE)
    assert found.msg.endswith(f"; stopping r{service}")


def test_an_app_whose_services_were_ended_has_succeeded() -> None:
    reason = nodes("RUNNING", "SUCCEEDED", service=0).reason
    parent = job("FAILED", isTerminated=True, statusReason=reason)
    found = nodes("FAILED", "SUCCEEDED", service=0, parent=parent)

    assert found.state is AppState.SUCCEEDED
    assert [one.phase.value for one in found.replicas] == ["stopped", "succeeded"]


def test_the_end_of_the_main_node_ends_its_services() -> None:
    """Batch stops the other nodes then, which count as failed."""
    found = nodes("SUCCEEDED", "FAILED", service=1, parent=job("SUCCEEDED"))

    assert found.state is AppState.SUCCEEDED


def test_a_service_that_fails_ends_the_app() -> None:
    found = nodes("RUNNING", "FAILED", service=1)

    assert (found.action, found.reason) == (Action.TERMINATE, "launch: failed [1] r1/0 failed: no reason is known")

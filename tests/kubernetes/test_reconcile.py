"""The state and next step of an app, decided from Jobs and record. No cluster is needed."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_launch.schedulers.kubernetes.manifests import plan_text
from airflow_provider_launch.schedulers.kubernetes.objects import App, job_of
from airflow_provider_launch.schedulers.kubernetes.options import KubernetesOpts
from airflow_provider_launch.schedulers.kubernetes.reconcile import (
    CANCEL,
    LEADER,
    OWN,
    PEER,
    RESTART,
    STRAY,
    TIME,
    Assessment,
    assess,
)
from airflow_provider_launch.schedulers.kubernetes.record import AppRecord, Plan, PlannedRole, plan_in
from airflow_provider_launch.schedulers.kubernetes.request import build_request
from airflow_provider_launch.schedulers.retry import RolePolicy
from airflow_provider_launch.specs import AppDef, Role
from airflow_provider_launch.specs.errors import InvalidAppError
from airflow_provider_launch.specs.states import AppState

NOW = 1_700_000_000.0
STARTED = "2023-11-14T22:13:00Z"  # 20 s before

RUNS = {"active": 1, "ready": 1, "startTime": STARTED}
STARTS = {"active": 1, "startTime": STARTED}
DONE = {
    "succeeded": 1,
    "completedIndexes": "0",
    "startTime": STARTED,
    "conditions": [{"type": "Complete", "status": "True"}],
}
FAILS = {"active": 1, "ready": 1, "failed": 1, "failedIndexes": "1", "startTime": STARTED}


def failed(reason: str = "FailedIndexes") -> dict[str, Any]:
    condition = {"type": "Failed", "status": "True", "reason": reason, "message": "m"}
    return {"failed": 1, "failedIndexes": "0", "startTime": STARTED, "conditions": [condition]}


def plan(*policies: str, retries: int = 0, limit: float | None = None, services: str = "", **how: Any) -> Plan:
    names = "ab"[: len(policies)]
    has_leader = how.get("leader", False)
    roles = (
        PlannedRole(name, name, 2, RolePolicy(policy, retries, name in services or (has_leader and name != "a")))
        for name, policy in zip(names, policies, strict=True)
    )
    how = {"queue": False, "leader": False, "ttl_s": None, **how}
    return Plan(tuple(roles), limit, 10, **how)


ONE, TWO = plan("APPLICATION"), plan("APPLICATION", "APPLICATION")
KEPT = plan("APPLICATION", "APPLICATION", ttl_s=60)
"""Observers set the TTL of an ended Job."""


def job(role: str, status: dict[str, Any], attempt: int = 0, **fields: Any) -> Any:
    spec = {"suspend": fields.get("suspend", False), "parallelism": fields.get("parallelism", 2), "completions": 2}
    spec |= {"ttlSecondsAfterFinished": fields["ttl_s"]} if "ttl_s" in fields else {}
    notes = {"launch.io/ended": fields["ended"]} if "ended" in fields else {}
    return job_of(
        {
            "metadata": {
                "name": f"x--{role}-r{attempt}",
                "uid": fields.get("uid", f"{role}{attempt}"),
                "resourceVersion": "1",
                "labels": {"launch.io/role": role, "launch.io/attempt": str(attempt)},
                "annotations": notes,
            },
            "spec": spec,
            "status": status,
        }
    )


def record(attempt: int = 0, committed: str | None = "ab", *, released: bool = True, **notes: str) -> AppRecord:
    known = {"launch.io/spec-hash": "h", "launch.io/attempt": str(attempt)}
    if committed is not None:
        known[f"launch.io/uids-{attempt}"] = json.dumps({role: f"{role}{attempt}" for role in committed})
    if released:
        known["launch.io/released"] = str(attempt)
    known |= {f"launch.io/{name}": text for name, text in notes.items()}
    return AppRecord("x", "u", known, (), False)


def app(found: AppRecord | None, *jobs: Any) -> App:
    return App("x", {(one.role, one.attempt): one for one in jobs}, found)


def steps(assessment: Assessment) -> list[Any]:
    """Return the next step as a short text."""
    found: list[Any] = [(one.role, one.attempt, why) for one, why in assessment.end]
    found += [f"restart {assessment.restart}"] if assessment.restart else []
    found += ["settle"] if assessment.settle_failure else []
    found += ["create"] if assessment.create else []
    found += [("release", *(one.role for one in assessment.release))] if assessment.release is not None else []
    found += ["settle end"] if assessment.settle_end else []
    found += [("expire", *(f"{one.role}{one.attempt}" for one in assessment.expire))] if assessment.expire else []
    return found


# ---- without the record: one list of Jobs for all apps ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("jobs", "state"),
    [
        ([job("a", STARTS), job("b", STARTS)], AppState.PENDING),
        ([job("a", RUNS), job("b", STARTS)], AppState.RUNNING),
        ([job("a", DONE), job("b", STARTS)], AppState.RUNNING),
        ([job("a", {"startTime": STARTED, "failed": 1}), job("b", STARTS)], AppState.RUNNING),
        ([job("a", DONE), job("b", DONE)], AppState.SUCCEEDED),
        # A Job that was resumed keeps its condition, as false.
        ([job("a", RUNS | {"conditions": [{"type": "Failed", "status": "False"}]}), job("b", RUNS)], AppState.RUNNING),
    ],
)
def test_states_that_are_clear_from_the_jobs_alone(jobs, state):
    assessment = assess(app(None, *jobs), TWO, NOW)

    assert (assessment.state, assessment.unclear, assessment.settled) == (state, False, True)


@pytest.mark.parametrize(
    "jobs",
    [
        [],
        [job("a", RUNS)],
        [job("a", RUNS), job("b", {}, suspend=True)],
        [job("a", RUNS), job("b", FAILS)],
        [job("a", RUNS), job("b", failed())],
        [job("a", RUNS), job("b", RUNS, ended=CANCEL)],
        # It was cancelled too late, which is not the end that its record would tell a week later.
        [job("a", DONE), job("b", DONE, ended=CANCEL)],
        [job("a", RUNS, 1), job("b", RUNS, 1), job("a", RUNS, 0)],
    ],
)
def test_everything_else_needs_the_record(jobs):
    assert assess(app(None, *jobs), TWO, NOW).unclear


def test_a_time_limit_that_is_over_needs_the_record():
    jobs = [job("a", RUNS), job("b", RUNS)]

    assert assess(app(None, *jobs), plan("REPLICA", "REPLICA", limit=10.0), NOW).unclear
    assert not assess(app(None, *jobs), plan("REPLICA", "REPLICA", limit=30.0), NOW).unclear


# ---- the states, and what to do --------------------------------------------------------------------------------------

TABLE: dict[str, tuple[Plan, App, AppState, list[Any]]] = {
    "a submitter died before its Jobs": (TWO, app(record(0, None, released=False)), AppState.SUBMITTED, []),
    "a submitter died before the release": (
        TWO,
        app(record(released=False), job("a", {}, suspend=True), job("b", {}, suspend=True)),
        AppState.SUBMITTED,
        [],
    ),
    "held by a queue": (
        plan("REPLICA", queue=True),
        app(record(0, "a"), job("a", {}, suspend=True)),
        AppState.PENDING,
        [],
    ),
    "runs": (TWO, app(record(), job("a", RUNS), job("b", RUNS)), AppState.RUNNING, []),
    "one has failed: the others end": (
        TWO,
        app(record(), job("a", RUNS), job("b", FAILS)),
        AppState.RUNNING,
        [("a", 0, PEER), ("b", 0, OWN)],
    ),
    "one is failing, before its condition": (
        TWO,
        app(record(), job("a", RUNS), job("b", RUNS | {"conditions": [{"type": "FailureTarget", "status": "True"}]})),
        AppState.RUNNING,
        [("a", 0, PEER), ("b", 0, OWN)],
    ),
    "one has failed, the other ends": (
        TWO,
        app(record(), job("a", RUNS, ended=PEER), job("b", failed(), ended=OWN)),
        AppState.RUNNING,
        [("a", 0, PEER)],
    ),
    "all have ended": (
        TWO,
        app(record(), job("a", failed(), ended=PEER), job("b", failed(), ended=OWN)),
        AppState.FAILED,
        [],
    ),
    "failed and then cancelled stays failed": (
        TWO,
        app(record(cancelled="true"), job("a", failed(), ended=PEER), job("b", failed(), ended=OWN)),
        AppState.FAILED,
        [],
    ),
    "cancelled": (
        TWO,
        app(record(cancelled="true"), job("a", RUNS), job("b", STARTS)),
        AppState.RUNNING,
        [("a", 0, CANCEL), ("b", 0, CANCEL)],
    ),
    "cancelled before its release": (
        TWO,
        app(record(released=False, cancelled="true"), job("a", {}, suspend=True), job("b", {}, suspend=True)),
        AppState.SUBMITTED,
        [("a", 0, CANCEL), ("b", 0, CANCEL)],
    ),
    "cancelled before a pod started, which its Job counts as failed": (
        ONE,
        app(record(0, "a", cancelled="true"), job("a", {"startTime": STARTED, "failed": 1}, ended=CANCEL)),
        AppState.PENDING,
        [("a", 0, CANCEL)],
    ),
    "cancelled after a replica has failed": (
        plan("REPLICA"),
        app(record(0, "a", cancelled="true"), job("a", {"startTime": STARTED, "failed": 1})),
        AppState.RUNNING,
        [("a", 0, CANCEL)],
    ),
    "cancelled before its Jobs": (TWO, app(record(0, None, cancelled="true")), AppState.CANCELLED, []),
    "cancelled in a queue": (
        plan("REPLICA", queue=True),
        app(record(0, "a", cancelled="true"), job("a", {}, suspend=True, parallelism=0, ended=CANCEL)),
        AppState.CANCELLED,
        [],
    ),
    "cancelled and ended": (
        TWO,
        app(
            record(cancelled="true"),
            job("a", failed(), ended=CANCEL),
            job("b", failed("DeadlineExceeded"), ended=CANCEL),
        ),
        AppState.CANCELLED,
        [],
    ),
    "cancelled too late": (
        TWO,
        app(record(cancelled="true"), job("a", DONE), job("b", DONE, ended=CANCEL)),
        AppState.SUCCEEDED,
        [],
    ),
    "one succeeded, the other was cancelled": (
        TWO,
        app(record(cancelled="true"), job("a", DONE), job("b", failed(), ended=CANCEL)),
        AppState.CANCELLED,
        [],
    ),
    "time limit": (
        plan("REPLICA", limit=10.0),
        app(record(0, "a"), job("a", RUNS)),
        AppState.RUNNING,
        [("a", 0, TIME)],
    ),
    "time limit, all ended": (
        plan("REPLICA", limit=10.0),
        app(record(0, "a"), job("a", failed(), ended=TIME)),
        AppState.FAILED,
        [],
    ),
    "time limit, kept by Kubernetes": (
        plan("REPLICA", limit=10.0),
        app(record(0, "a"), job("a", failed("DeadlineExceeded"))),
        AppState.FAILED,
        [],
    ),
    "time limit, kept by Kubernetes, and seen before the last pod was gone": (
        plan("REPLICA", limit=10.0),
        app(record(0, "a"), job("a", failed("DeadlineExceeded"), ended=OWN)),
        AppState.FAILED,
        [],
    ),
    "a failure that restarts the app": (
        plan("REPLICA", "APPLICATION", retries=1),
        app(record(), job("a", RUNS), job("b", FAILS)),
        AppState.RUNNING,
        ["restart b"],
    ),
    "a failure for good goes before it": (
        plan("REPLICA", "APPLICATION", retries=1),
        app(record(), job("a", failed()), job("b", FAILS)),
        AppState.RUNNING,
        [("b", 0, OWN)],
    ),
    "the old attempt ends first": (
        plan("APPLICATION", "APPLICATION", retries=1),
        app(record(1, None), job("a", RUNS), job("b", failed())),
        AppState.RUNNING,
        [("a", 0, RESTART)],
    ),
    "then the new one is created": (
        plan("APPLICATION", "APPLICATION", retries=1),
        app(record(1, None), job("a", failed(), ended=RESTART), job("b", failed())),
        AppState.RUNNING,
        ["create"],
    ),
    "and released": (
        plan("APPLICATION", retries=1),
        app(record(1, "a", released=False), job("a", failed()), job("a", {}, 1, suspend=True)),
        AppState.RUNNING,
        [("release", "a")],
    ),
    "the last attempt fails: that is settled first": (
        plan("APPLICATION", retries=1),
        app(record(1, "a"), job("a", failed()), job("a", failed(), 1)),
        AppState.RUNNING,
        ["settle"],
    ),
    "the last attempt has failed": (
        plan("APPLICATION", retries=1),
        app(record(1, "a", result="FAILED"), job("a", failed()), job("a", failed(), 1)),
        AppState.FAILED,
        [],
    ),
    "cancelled between two attempts": (
        plan("APPLICATION", retries=1),
        app(record(1, None, cancelled="true"), job("a", failed())),
        AppState.CANCELLED,
        [],
    ),
    "the leader is done, and the others of its role are being killed": (
        plan("APPLICATION", leader=True),
        app(record(0, "a"), job("a", FAILS | {"completedIndexes": "0"})),
        AppState.RUNNING,
        [],
    ),
    "the leader is done": (
        plan("APPLICATION", "APPLICATION", leader=True),
        app(record(), job("a", DONE), job("b", RUNS)),
        AppState.RUNNING,
        [("b", 0, LEADER)],
    ),
    "the leader is done, and the other role is stopped": (
        plan("APPLICATION", "APPLICATION", leader=True),
        app(record(), job("a", DONE), job("b", failed("DeadlineExceeded"), ended=LEADER)),
        AppState.SUCCEEDED,
        [],
    ),
    "a replica failed before the leader was done": (
        plan("APPLICATION", leader=True),
        app(record(0, "a"), job("a", FAILS)),
        AppState.RUNNING,
        [("a", 0, OWN)],
    ),
    "all but the services are done": (
        plan("APPLICATION", "APPLICATION", services="b"),
        app(record(), job("a", DONE), job("b", RUNS)),
        AppState.RUNNING,
        [("b", 0, LEADER)],
    ),
    "all but the services are done, and these are stopped": (
        plan("APPLICATION", "APPLICATION", services="b"),
        app(record(), job("a", DONE), job("b", failed("DeadlineExceeded"), ended=LEADER)),
        AppState.SUCCEEDED,
        [],
    ),
    "a service has failed after the others were done": (
        plan("APPLICATION", "APPLICATION", services="b"),
        app(record(), job("a", DONE), job("b", failed())),
        AppState.SUCCEEDED,
        [],
    ),
    "a service has failed before": (
        plan("APPLICATION", "APPLICATION", services="b"),
        app(record(), job("a", RUNS), job("b", failed())),
        AppState.RUNNING,
        [("a", 0, PEER)],
    ),
    "a service is done before the others": (
        plan("APPLICATION", "APPLICATION", services="b"),
        app(record(), job("a", RUNS), job("b", DONE)),
        AppState.RUNNING,
        [],
    ),
    "without a leader the one role waits for the other": (
        TWO,
        app(record(), job("a", DONE), job("b", RUNS)),
        AppState.RUNNING,
        [],
    ),
    "a stalled observer made a Job": (
        ONE,
        app(record(0, "a"), job("a", {}, suspend=True, uid="other")),
        AppState.UNKNOWN,
        [("a", 0, STRAY)],
    ),
    "a Job was removed from outside": (TWO, app(record(), job("a", RUNS)), AppState.RUNNING, []),
    "a Job was removed, the other has ended": (TWO, app(record(), job("a", DONE)), AppState.UNKNOWN, []),
    "a Job has ended before the app: it stays": (
        KEPT,
        app(record(), job("a", DONE), job("b", RUNS)),
        AppState.RUNNING,
        [],
    ),
    "the app has ended: its Jobs may go": (
        KEPT,
        app(record(), job("a", DONE), job("b", DONE)),
        AppState.SUCCEEDED,
        ["settle end", ("expire", "a0", "b0")],
    ),
    "a cancel lets what had ended go at once": (
        KEPT,
        app(record(cancelled="true"), job("a", DONE), job("b", RUNS)),
        AppState.RUNNING,
        [("b", 0, CANCEL), ("expire", "a0")],
    ),
    "the cancel has let all go": (
        KEPT,
        app(record(cancelled="true"), job("a", DONE, ttl_s=60), job("b", failed(), ended=CANCEL, ttl_s=60)),
        AppState.CANCELLED,
        ["settle end"],
    ),
    "another observer has released one of them": (
        KEPT,
        app(record(result="SUCCEEDED"), job("a", DONE, ttl_s=60), job("b", DONE)),
        AppState.SUCCEEDED,
        [("expire", "b0")],
    ),
    "a Job was removed, the others may go as well": (
        KEPT,
        app(record(), job("a", DONE)),
        AppState.UNKNOWN,
        [("expire", "a0")],
    ),
    "the Jobs of all attempts may go": (
        plan("APPLICATION", retries=1, ttl_s=60),
        app(record(1, "a", result="FAILED"), job("a", failed()), job("a", failed(), 1)),
        AppState.FAILED,
        [("expire", "a0", "a1")],
    ),
    "it succeeded, and one Job has gone": (
        KEPT,
        app(record(result="SUCCEEDED"), job("b", DONE, ttl_s=60)),
        AppState.SUCCEEDED,
        [],
    ),
    "it was cancelled, and all Jobs have gone": (
        KEPT,
        app(record(result="CANCELLED", cancelled="true")),
        AppState.CANCELLED,
        [],
    ),
    "it failed, and the Job that failed has gone": (
        KEPT,
        app(record(result="FAILED"), job("b", failed(), ended=PEER, ttl_s=60)),
        AppState.FAILED,
        [],
    ),
}


@pytest.mark.parametrize("name", TABLE)
def test_state_and_next_step(name):
    known, given, state, todo = TABLE[name]
    assessment = assess(given, known, NOW)

    assert (assessment.state, steps(assessment)) == (state, todo)


def test_the_success_of_an_app_lets_its_jobs_go_without_the_record():
    """One list of Jobs is enough to see that no step is due."""
    first = assess(app(None, job("a", DONE), job("b", DONE)), KEPT, NOW)
    again = assess(app(None, job("a", DONE, ttl_s=60), job("b", DONE, ttl_s=60)), KEPT, NOW)

    assert (first.state, steps(first)) == (AppState.SUCCEEDED, [("expire", "a0", "b0")])
    assert (again.state, steps(again)) == (AppState.SUCCEEDED, [])


def test_the_cause_of_a_failure_outlives_the_job_that_failed():
    noted = record(result="FAILED", **{"why-0": "a/0 failed: exit code 3"})
    given = app(noted, job("b", failed(), ended=PEER, ttl_s=60))

    assert assess(given, KEPT, NOW).msg == "a/0 failed: exit code 3"


def test_only_a_submitter_starts_an_app():
    """Describing an app whose submitter died must not start it, because the task may be gone."""
    made = app(record(0, None, released=False))
    waits = app(record(released=False), job("a", {}, suspend=True), job("b", {}, suspend=True))

    assert steps(assess(made, TWO, NOW, submitted=True)) == ["create"]
    assert steps(assess(waits, TWO, NOW, submitted=True)) == [("release", "a", "b")]


def disrupted(kind: str = "TerminationTarget") -> dict[str, Any]:
    text = f"Pod n/p has condition {kind} matching FailJob rule at index 1"
    condition = {"type": "Failed", "status": "True", "reason": "PodFailurePolicy", "message": text}
    return {"failed": 1, "startTime": STARTED, "conditions": [condition]}


def test_an_app_that_its_queue_evicts_is_pending():
    """It ran, so its Job counts pods; all observers agree, whether they saw it run or not."""
    stopped = job("a", {"startTime": None, "failed": 1}, suspend=True)

    assert assess(app(record(0, "a"), stopped), plan("REPLICA", queue=True), NOW).state is AppState.PENDING


def test_a_job_that_was_completed_in_its_queue_has_not_succeeded():
    ended = {"conditions": [{"type": "Complete", "status": "True"}]}
    given = app(record(0, "a", cancelled="true"), cancelled_in_a_queue(ended))

    assert assess(given, plan("REPLICA", queue=True), NOW).state is AppState.CANCELLED


def cancelled_in_a_queue(status):
    return job("a", status, suspend=True, parallelism=0, ended=CANCEL)


@pytest.mark.parametrize("kind", ["TerminationTarget", "DisruptionTarget"])
@pytest.mark.parametrize("disruptions", [0, 5])
def test_a_disrupted_group_restarts_and_is_not_charged(kind, disruptions):
    group = plan("APPLICATION", "APPLICATION", group="retry")
    given = app(
        record(disruptions, disrupted=str(disruptions)),
        job("a", disrupted(kind), disruptions),
        job("b", RUNS, disruptions),
    )
    found = assess(given, group, NOW)

    assert (found.state, found.restart, found.disrupted) == (AppState.RUNNING, "a", True)


@pytest.mark.parametrize(
    ("group", "other"), [("fail", disrupted()), ("retry", failed())], ids=["unwanted", "a program failed too"]
)
def test_a_group_fails_with_its_program_or_where_the_user_wants_it(group, other):
    given = app(record(), job("a", disrupted()), job("b", other))

    assert assess(given, plan("APPLICATION", "APPLICATION", group=group), NOW).state is AppState.FAILED


def test_each_attempt_of_a_group_waits_in_the_queue_again():
    given = app(record(1, disrupted="1"), job("a", STARTS, 1), job("b", STARTS, 1))

    assert assess(given, plan("APPLICATION", "APPLICATION", group="retry"), NOW).state is AppState.PENDING


# ---- a bound of disruptions -----------------------------------------------------------------------------------------


def bounded(*bounds: int | None, retries: int = 0) -> Plan:
    known = plan(*["APPLICATION"] * len(bounds), retries=retries)
    roles = [replace(role, max_disruptions=bound) for role, bound in zip(known.roles, bounds, strict=True)]
    return replace(known, roles=tuple(roles))


def seen(pods_of: str, *jobs: Any, attempt: int = 0, before: int = 0) -> App:
    found = app(record(attempt, disrupted=str(before)), *jobs)
    found.disrupted = frozenset(pods_of)
    return found


@pytest.mark.parametrize(
    ("known", "given"),
    {
        "the Job knows it": (bounded(1, None), seen("", job("a", disrupted("DisruptionTarget")), job("b", RUNS))),
        "a peer has failed": (bounded(1, None), seen("", job("a", disrupted("DisruptionTarget")), job("b", failed()))),
        "its pod has not ended yet": (bounded(1, None), seen("a", job("a", RUNS), job("b", failed()))),
        "its own peer has failed": (bounded(1, None), seen("a", job("a", failed()), job("b", RUNS))),
        "one of two": (bounded(2, None), seen("a", job("a", failed(), 1), job("b", RUNS, 1), attempt=1, before=1)),
    }.values(),
)
def test_a_disruption_restarts_the_app_without_a_charge(known, given) -> None:
    """Ranks fail when they lose a peer, often before the pod of the peer has ended."""
    found = assess(given, known, NOW)

    assert (found.state, found.restart, found.disrupted) == (AppState.RUNNING, "a", True)


@pytest.mark.parametrize(
    ("known", "given"),
    {
        "none is allowed": (bounded(0, None), seen("a", job("a", disrupted()), job("b", RUNS))),
        "no more is allowed": (bounded(1), seen("a", job("a", disrupted(), 1), attempt=1, before=1)),
        "a program failed": (bounded(1), seen("", job("a", failed()))),
        "it is another role": (bounded(1, None), seen("b", job("a", RUNS), job("b", failed()))),
    }.values(),
)
def test_other_failures_end_the_app(known, given) -> None:
    found = assess(given, known, NOW)

    assert found.restart is None
    assert not found.disrupted


def test_a_disruption_above_the_bound_uses_up_a_retry() -> None:
    """Attempt 1 came after a disruption, so both retries are left."""
    known = bounded(1, retries=1)
    charged = assess(seen("a", job("a", disrupted(), 1), attempt=1, before=1), known, NOW)
    over = assess(seen("a", job("a", disrupted(), 2), attempt=2, before=1), known, NOW)

    assert (charged.restart, charged.disrupted) == ("a", False)
    assert over.restart is None


def test_the_plan_stores_the_bounds() -> None:
    trainer = Role("trainer", "i", entrypoint="x", max_disruptions=2)
    request = build_request(AppDef("x", [trainer, Role("ps", "i", entrypoint="x")]), KubernetesOpts(), "app-1", {})
    found = plan_in(plan_text(request))

    assert found.max_disruptions == {request.roles[0].slug: 2}
    assert found.restarts
    assert request.restarts


def test_the_plan_stores_the_services() -> None:
    """Observers of other processes read it; without it an app whose roles have all succeeded waits for its services."""
    board = Role("board", "i", entrypoint="x", service=True)
    request = build_request(AppDef("x", [Role("trainer", "i", entrypoint="x"), board]), KubernetesOpts(), "app-1", {})

    assert [role.policy.is_service for role in plan_in(plan_text(request)).roles] == [False, True]


@pytest.mark.parametrize(
    ("replicas", "text"), [(1, "head: 1 of 1 succeeded; stop"), (2, "head/0: 1 of 1 succeeded; stop")]
)
def test_with_a_leader_all_other_roles_are_services(replicas, text):
    """One rule for `success_policy` and `service=True`, and the same line in the log."""
    roles = [Role("head", "i", entrypoint="x", num_replicas=replicas), Role("worker", "i", entrypoint="x")]
    request = build_request(AppDef("x", roles), KubernetesOpts(success_policy="leader"), "app-1", {})
    known = plan_in(plan_text(request))
    head, worker = (role.slug for role in request.roles)
    jobs = job(head, DONE, uid="h"), job(worker, RUNS, uid="w")
    noted = record(committed=None)
    noted.annotations["launch.io/uids-0"] = json.dumps({head: "h", worker: "w"})
    found = assess(app(noted, *jobs), known, NOW)

    assert [role.policy.is_service for role in known.roles] == [False, True]
    assert [one.role for one, _ in found.end] == [worker]
    assert found.msg == f"{text}ping worker"


def test_a_leader_is_not_a_service():
    roles = [Role("head", "i", entrypoint="x", service=True), Role("worker", "i", entrypoint="x")]
    with pytest.raises(InvalidAppError, match=r"role 'head' is a service"):
        build_request(AppDef("x", roles), KubernetesOpts(success_policy="leader"), "app-1", {})


def test_a_queue_lets_go_by_itself():
    given = app(record(0, "a", released=False), job("a", {}, suspend=True))

    assert steps(assess(given, plan("REPLICA", queue=True), NOW, submitted=True)) == [("release",)]


def test_the_limit_is_reported():
    _, given, _, _ = TABLE["time limit, kept by Kubernetes"]

    assert "time limit of 10 s" in assess(given, plan("REPLICA", limit=10.0), NOW).msg


@pytest.mark.parametrize(
    ("ended", "at", "told"), [(None, STARTED, True), (OWN, "2099-01-01T00:00:00Z", True), (OWN, STARTED, False)]
)
def test_a_time_limit_that_kubernetes_has_kept_is_named(ended, at, told) -> None:
    """A poll while the last pod ends makes no difference."""
    status = failed("DeadlineExceeded")
    status["conditions"][0]["lastTransitionTime"] = at
    found = app(record(0, "a"), job("a", status, **({"ended": ended} if ended else {})))

    assert ("time limit of 10 s" in assess(found, plan("REPLICA", limit=10.0), 1000.0).msg) is told


def test_services_are_stopped_only_with_the_record() -> None:
    """The list of Jobs is enough while the others run, and while the app has no services."""
    services = plan("APPLICATION", "APPLICATION", services="b")
    running = assess(app(None, job("a", RUNS), job("b", RUNS)), services, NOW)
    done = assess(app(None, job("a", DONE), job("b", RUNS)), services, NOW)

    assert (running.state, running.unclear) == (AppState.RUNNING, False)
    assert done.unclear
    assert assess(app(record(), job("a", DONE), job("b", RUNS)), services, NOW).msg == "a: 2 of 2 succeeded; stopping b"

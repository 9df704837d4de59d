"""The next step of an app, decided from its current state, the same for all backends."""

from __future__ import annotations

import pytest

from airflow_provider_launch.schedulers.retry import Phase, ReplicaAttempt, RetryAction, RolePolicy, decide

NONE = RolePolicy("APPLICATION", 0)
APP = RolePolicy("APPLICATION", 2)
REP = RolePolicy("REPLICA", 2)


def at(phase: str, attempt: int = 0, k: int = 0, role: str = "r", ended_at: float = 0.0) -> ReplicaAttempt:
    return ReplicaAttempt(role, k, attempt, Phase(phase), ended_at)


@pytest.mark.parametrize(
    ("policy", "app_attempt", "replicas", "expected", "start"),
    [
        (NONE, 0, [at("waiting"), at("waiting", k=1)], RetryAction.CONTINUE, (("r", 0, 0), ("r", 1, 0))),
        (NONE, 0, [at("running"), at("succeeded", k=1)], RetryAction.CONTINUE, ()),
        (NONE, 0, [at("succeeded"), at("succeeded", k=1)], RetryAction.SUCCEED, ()),
        (NONE, 0, [at("failed"), at("running", k=1)], RetryAction.FAIL, ()),
        (NONE, 0, [at("stopped"), at("succeeded", k=1)], RetryAction.CONTINUE, ()),
        (REP, 0, [at("failed", 0), at("running", k=1)], RetryAction.CONTINUE, (("r", 0, 1),)),
        (REP, 0, [at("failed", 1), at("running", k=1)], RetryAction.CONTINUE, (("r", 0, 2),)),
        (REP, 0, [at("failed", 2), at("running", k=1)], RetryAction.FAIL, ()),
        (REP, 5, [at("failed", 1)], RetryAction.CONTINUE, (("r", 0, 2),)),
        (APP, 0, [at("failed"), at("running", k=1)], RetryAction.RESTART_APP, ()),
        (APP, 1, [at("failed"), at("stopped", k=1)], RetryAction.RESTART_APP, ()),
        (APP, 2, [at("failed"), at("stopped", k=1)], RetryAction.FAIL, ()),
    ],
)
def test_next_step(policy, app_attempt, replicas, expected, start) -> None:
    decision = decide({"r": policy}, app_attempt, replicas)

    assert (decision.next, decision.start) == (expected, start)


def test_a_failure_without_retries_ends_the_app_whatever_other_roles_may_do() -> None:
    replicas = [at("failed", role="a", ended_at=1), at("failed", role="b", ended_at=2)]
    decision = decide({"a": REP, "b": NONE}, 0, replicas)

    assert (decision.next, decision.cause) == (RetryAction.FAIL, replicas[1])


def test_the_first_failure_is_the_cause() -> None:
    """Later failures are usually caused by the loss of a peer."""
    replicas = [at("failed", k=0, ended_at=5), at("failed", k=1, ended_at=3)]

    assert decide({"r": NONE}, 0, replicas).cause == replicas[1]


def test_restart_of_the_app_goes_before_restart_of_a_replica() -> None:
    decision = decide({"a": APP, "b": REP}, 0, [at("failed", role="a"), at("failed", role="b")])

    assert decision.next is RetryAction.RESTART_APP


SERVICE = RolePolicy("REPLICA", 2, is_service=True)


@pytest.mark.parametrize(
    ("phases", "service", "expected"),
    [
        (("succeeded", "succeeded"), "running", RetryAction.SUCCEED),
        (("succeeded", "succeeded"), "waiting", RetryAction.SUCCEED),
        (("succeeded", "succeeded"), "stopped", RetryAction.SUCCEED),
        (("succeeded", "succeeded"), "failed", RetryAction.SUCCEED),
        (("succeeded", "running"), "running", RetryAction.CONTINUE),
        (("succeeded", "running"), "succeeded", RetryAction.CONTINUE),
        (("succeeded", "running"), "failed", RetryAction.CONTINUE),
        (("succeeded", "failed"), "running", RetryAction.FAIL),
    ],
)
def test_an_app_does_not_wait_for_its_services(phases, service, expected) -> None:
    replicas = [at(phase, k=k) for k, phase in enumerate(phases)] + [at(service, role="ps")]

    assert decide({"r": NONE, "ps": SERVICE}, 0, replicas).next is expected


def test_a_service_without_retries_left_fails_the_app() -> None:
    policies = {"r": NONE, "ps": RolePolicy("APPLICATION", 0, is_service=True)}
    decision = decide(policies, 0, [at("running"), at("failed", role="ps")])

    assert (decision.next, decision.cause) == (RetryAction.FAIL, at("failed", role="ps"))

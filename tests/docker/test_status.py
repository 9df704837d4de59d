"""The state table: what the engine shows, the state in the launcher, and the next step of an observer."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from airflow_provider_launch.schedulers.docker.containers import (
    App,
    Container,
    DamagedError,
    Detail,
    Plan,
    apps_in,
    container_in,
    discarded_name,
    readable,
    start_error,
    taken_name,
)
from airflow_provider_launch.schedulers.docker.creation import blamed
from airflow_provider_launch.schedulers.docker.naming import Kind, Label
from airflow_provider_launch.schedulers.docker.reconcile import Assessment, assess, is_lasting
from airflow_provider_launch.schedulers.docker.status import response_from
from airflow_provider_launch.schedulers.responses import DescribeAppResponse
from airflow_provider_launch.schedulers.retry import Phase
from airflow_provider_launch.specs import AppState
from airflow_provider_launch.specs.errors import SchedulerRejectedError

S = 1_000_000_000
NOW = 1000.0


class Engine:
    """Rows of a list, and the details of an inspection, as the engine returns them."""

    def __init__(
        self, *roles: tuple[str, int, str, int], time_limit_s: float | None = None, services: tuple[str, ...] = ()
    ) -> None:
        plan = {"roles": [list(role) for role in roles], "time_limit_s": time_limit_s, "services": [*services]}
        self.rows: list[dict[str, Any]] = []
        self.details: dict[str, Detail] = {}
        self.containers: dict[str, Container] = {}
        self.apps: dict[str, App] = {}
        self.plan = json.dumps(plan)
        self.add(Kind.APP, "created", created=100, labels={})

    def add(
        self,
        kind: str,
        state: str,
        *,
        code: int | None = None,
        created: float = 101,
        finished: float = 0,
        error: str = "",
        name: str = "",
        made: str = "",
        labels: dict[str, str],
    ) -> None:
        number = len(self.rows)
        status = {"exited": f"Exited ({code}) 2 seconds ago", "created": "Created"}.get(state, "Up 2 seconds")
        self.rows.append(
            {
                "Id": f"id{number}",
                "Names": [f"/{name or f'c{number}'}"],
                "ImageID": "image",
                "State": state,
                "Status": status,
                "Created": int(created),
                "Labels": {
                    Label.APP_ID: "app",
                    Label.NAME: made or (name or f"c{number}").partition(".")[0],
                    Label.KIND: kind,
                    Label.PLAN: self.plan,
                    **labels,
                },
            }
        )
        started = int(created * S) if state != "created" else 0
        self.details[f"id{number}"] = Detail(int(created * S), started, int(finished * S), code or 0, error, False)

    def replica(
        self, role: str, k: int, state: str, code: int | None = None, at: tuple[int, int] = (0, 0), **how: Any
    ) -> None:
        labels = {Label.ROLE: role, Label.REPLICA: str(k), Label.APP_ATTEMPT: str(at[0]), Label.ATTEMPT: str(at[1])}
        self.add(Kind.REPLICA, state, code=code, labels=labels, **how)

    def mark(self, name: str, created: float, **labels: str) -> None:
        self.add(Kind.MARK, "created", created=created, labels={Label.MARK: name, **labels})

    def app(self) -> App:
        # Like repeated polls: unchanged apps are reused from the previous poll.
        containers = [container_in(row, self.containers) for row in self.rows]
        self.containers = {container.id: container for container in containers}
        self.apps = apps_in(containers, self.apps.get)
        return self.apps["app"]

    def answer(self) -> DescribeAppResponse:
        return response_from(self.app(), self.assess(), self.details, "host", None)

    def assess(self, now: float = NOW, *, submitted: bool = False) -> Assessment:
        app = self.app()
        return assess(app, Plan.of(app), self.details, now, submitted=submitted)


def one(policy: str = "REPLICA", retries: int = 0, replicas: int = 1, **how: Any) -> Engine:
    return Engine(("main", replicas, policy, retries), **how)


@pytest.mark.parametrize(
    ("state", "code", "expected", "phase"),
    [
        ("created", None, AppState.SUBMITTED, Phase.WAITING),
        ("restarting", None, AppState.PENDING, Phase.RUNNING),
        ("running", None, AppState.RUNNING, Phase.RUNNING),
        ("paused", None, AppState.RUNNING, Phase.RUNNING),
        ("exited", 0, AppState.SUCCEEDED, Phase.SUCCEEDED),
        ("exited", 3, AppState.FAILED, Phase.FAILED),
        ("dead", None, AppState.FAILED, Phase.FAILED),
    ],
)
def test_state_of_one_container(state: str, code: int | None, expected: AppState, phase: Phase) -> None:
    engine = one()
    engine.replica("main", 0, state, code, finished=200)
    assessment = engine.assess()

    assert (assessment.state, assessment.phases["main", 0], assessment.settled) == (expected, phase, True)


def test_an_app_without_containers_is_being_submitted() -> None:
    assert one().assess().state is AppState.SUBMITTED
    assert one().assess().settled
    assert one(replicas=2).assess(submitted=True).create == [("main", 0, 0, 0), ("main", 1, 0, 0)]


def test_only_the_submitter_starts_an_app() -> None:
    engine = one()
    engine.replica("main", 0, "created")

    assert engine.assess().start == []
    assert [c.id for c in engine.assess(submitted=True).start] == ["id1"]


def test_a_started_attempt_is_completed_by_any_observer() -> None:
    engine = one(replicas=2)
    engine.replica("main", 0, "running")
    engine.replica("main", 1, "created")

    assert [c.id for c in engine.assess().start] == ["id2"]


def test_a_container_that_could_not_start_has_failed() -> None:
    engine = one()
    engine.replica("main", 0, "created", error="no such program")

    assert engine.assess(submitted=True).state is AppState.FAILED
    assert "main/0 failed: it could not be started: no such program" in engine.assess().msg


@pytest.mark.parametrize("error", ["context canceled", "Canceled: context canceled", "Context cancelled"])
def test_a_start_that_the_engine_cancelled_is_started_again(error: str) -> None:
    """Its client disconnected, so nothing ran: engines since 26.1 leave exit code 128 and such a message."""
    state = {"Status": "created", "ExitCode": 128, "Error": error, "StartedAt": "0001-01-01T00:00:00Z"}
    document = {"Created": "2026-11-01T10:00:00Z", "State": {**state, "FinishedAt": "0001-01-01T00:00:00Z"}}
    engine = one()
    engine.replica("main", 0, "created")
    engine.details["id1"] = Detail.of(document)

    assert engine.assess().state is AppState.SUBMITTED
    assert [c.id for c in engine.assess(submitted=True).start] == ["id1"]


def test_what_ran_keeps_the_text_of_its_cancelled_stop() -> None:
    assert start_error({"Status": "exited", "Error": "context canceled"}) == "context canceled"
    assert start_error({"Status": "created", "Error": "no such program"}) == "no such program"
    named = 'exec: "/opt/context canceled.sh": permission denied'
    assert start_error({"Status": "created", "Error": named}) == named


def test_a_refusal_is_not_about_an_option_that_a_quoted_name_contains() -> None:
    quoted = 'exec: "/opt/network-train": permission denied'
    assert blamed(SchedulerRejectedError(quoted)) == f"its container: {quoted}"
    assert blamed(SchedulerRejectedError('network "a" is wrong')).startswith("option network: ")


def test_a_removed_container_is_lost_and_never_run_again() -> None:
    engine = one(replicas=2, retries=3)
    engine.replica("main", 0, "running")
    assessment = engine.assess()
    assert (assessment.state, assessment.phases["main", 1], assessment.settled) == (AppState.RUNNING, None, True)

    engine = one(replicas=2, retries=3)
    engine.replica("main", 0, "exited", 0, finished=200)
    assert engine.assess().state is AppState.UNKNOWN
    assert "lost" in engine.assess().msg


def test_a_container_that_was_seen_to_run_is_lost_though_it_was_the_only_one() -> None:
    """If it counted as not started, its follower would wait for ever, and a submission would run it again."""
    engine = one(retries=3)
    engine.replica("main", 0, "running")
    engine.assess()
    engine.rows.pop()

    assert engine.assess().state is AppState.UNKNOWN
    assert engine.assess().msg == "lost: the container of main/0 was removed from outside"
    assert engine.assess(submitted=True).create == []
    assert one(retries=3).assess().state is AppState.SUBMITTED


def test_an_id_that_is_used_again_is_not_lost() -> None:
    engine = one()
    engine.replica("main", 0, "exited", 0, finished=200)
    engine.assess()
    del engine.rows[1:]
    engine.rows[0]["Id"] = "another"

    assert engine.assess().state is AppState.SUBMITTED
    assert engine.assess(submitted=True).create == [("main", 0, 0, 0)]


def test_a_removed_container_is_lost_also_if_one_of_an_earlier_attempt_was_discarded() -> None:
    """A discarded container was not run; one of another attempt of the app does not matter for this attempt."""
    engine = Engine(("a", 1, "APPLICATION", 1), ("b", 1, "REPLICA", 0))
    engine.replica("a", 0, "exited", 1, finished=200)
    engine.replica("b", 0, "created", name="c2.void-1")
    engine.replica("a", 0, "running", at=(1, 0), created=202)
    assessment = engine.assess()

    assert (assessment.phases["b", 0], assessment.create) == (None, [])
    assert assessment.msg.startswith("lost: ")


@pytest.mark.parametrize(
    ("code", "state", "phase", "msg"),
    [
        (0, AppState.SUCCEEDED, Phase.SUCCEEDED, ""),
        (3, AppState.FAILED, Phase.FAILED, "main/0 failed: exit code 3"),
        (None, AppState.UNKNOWN, None, "deleting: the container of main/0 is being removed"),
    ],
)
def test_a_container_that_is_being_removed_ended_as_it_had_ended(code, state, phase, msg) -> None:
    """It has no processes, so an ended app does not run again while it is deleted."""
    engine = one()
    engine.replica("main", 0, "removing", code, finished=200 if code is not None else 0)
    assessment = engine.assess()

    assert (assessment.state, assessment.phases["main", 0], assessment.settled) == (state, phase, True)
    assert msg in assessment.msg
    (status,) = engine.answer().roles_statuses[0].replicas
    assert status.exit_code == code
    assert str(status.reason).startswith("deleting")


@pytest.mark.parametrize(("removing", "expected"), [(True, AppState.UNKNOWN), (False, AppState.FAILED)])
def test_a_container_that_was_removed_alive_is_lost(removing: bool, expected: AppState) -> None:
    """A forced removal kills it: that is not a failure for a retry."""
    engine = one(retries=int(removing))
    engine.replica("main", 0, "removing", 137, finished=200)
    engine.details["id1"] = dataclasses.replace(engine.details["id1"], removing=removing)

    assert (engine.assess().state, engine.assess().settled) == (expected, True)


def test_a_container_that_is_being_removed_is_not_stopped() -> None:
    engine = one(replicas=2)
    engine.replica("main", 0, "removing", 0, finished=301)
    engine.replica("main", 1, "running")
    engine.mark("cancel", 300)
    assert [c.id for c in engine.assess().stop] == ["id2"]

    engine.rows[2].update(State="removing", Status="Removal In Progress")
    assert (engine.assess().state, engine.assess().settled) == (AppState.CANCELLED, True)


def test_a_discarded_container_that_is_being_removed_is_gone() -> None:
    """It may be a duplicate of an attempt that runs with another name."""
    engine = one()
    engine.replica("main", 0, "removing", name="c.void-1")
    engine.replica("main", 0, "running", name="c.by-2")
    assert [container.id for container in engine.app().replicas()] == ["id2"]

    engine.rows.pop()
    assert engine.app().discarded == frozenset()


def test_of_two_containers_for_one_attempt_that_which_stays_counts() -> None:
    engine = one()
    engine.replica("main", 0, "removing", name="c", created=101)
    engine.replica("main", 0, "running", name="c.by-2", created=102)

    assert [container.id for container in engine.app().replicas()] == ["id2"]


def test_a_replica_is_retried_by_a_new_container() -> None:
    engine = one(retries=1)
    engine.replica("main", 0, "exited", 1, finished=200)
    assessment = engine.assess()
    assert (assessment.state, assessment.create) == (AppState.RUNNING, [("main", 0, 0, 1)])
    assert "main/0 failed: exit code 1, started again" in assessment.msg

    engine.replica("main", 0, "exited", 1, at=(0, 1), finished=300)
    assert (engine.assess().state, engine.assess().settled) == (AppState.FAILED, True)


def test_a_failure_stops_the_others_after_the_decision_is_written_down() -> None:
    engine = Engine(("a", 1, "REPLICA", 0), ("b", 1, "REPLICA", 5))
    engine.replica("a", 0, "exited", 1, finished=200)
    engine.replica("b", 0, "running")
    assessment = engine.assess()
    assert assessment.mark is not None
    assert (assessment.mark.decision, assessment.stop) == ("fail", [])

    engine.mark("end-0", 201, **{Label.DECISION: "fail", Label.CAUSE: "a/0 failed: exit code 1"})
    assert [c.id for c in engine.assess().stop] == ["id2"]

    engine.rows[2].update(State="exited", Status="Exited (143) now")
    engine.details["id2"] = Detail(101 * S, 102 * S, 203 * S, 143, "", False)
    assessment = engine.assess()
    assert (assessment.state, assessment.msg) == (AppState.FAILED, "a/0 failed: exit code 1")
    assert assessment.phases == {("a", 0): Phase.FAILED, ("b", 0): Phase.STOPPED}


def test_the_app_is_restarted_when_all_of_the_attempt_has_ended() -> None:
    engine = Engine(("a", 1, "APPLICATION", 1), ("b", 1, "REPLICA", 0))
    engine.replica("a", 0, "exited", 1, finished=200)
    engine.replica("b", 0, "running")
    assert engine.assess().mark is not None

    engine.mark("end-0", 201, **{Label.DECISION: "restart", Label.CAUSE: "a/0"})
    engine.rows[2].update(State="exited", Status="Exited (143) now")
    engine.details["id2"] = Detail(101 * S, 102 * S, 203 * S, 143, "", False)
    assessment = engine.assess()
    assert assessment.state is AppState.RUNNING
    assert assessment.create == [("a", 0, 1, 0), ("b", 0, 1, 0)]

    engine.replica("a", 0, "created", at=(1, 0))
    assert (engine.assess().create, engine.assess().start) == ([("b", 0, 1, 0)], [])
    engine.replica("b", 0, "created", at=(1, 0))
    assert [c.id for c in engine.assess().start] == ["id4", "id5"]


@pytest.mark.parametrize("created", [None, "c3.void-1", "c3"])
def test_an_attempt_of_the_app_that_could_not_be_created_ends_it(created: str | None) -> None:
    """None of its containers exist, or some that were never started."""
    engine = Engine(("a", 1, "APPLICATION", 1), ("b", 1, "REPLICA", 0))
    engine.replica("a", 0, "exited", 1, finished=200)
    engine.replica("b", 0, "exited", 143, finished=203)
    engine.mark("end-0", 201, **{Label.DECISION: "restart", Label.CAUSE: "a/0"})
    if created:
        engine.replica("b", 0, "created", at=(1, 0), created=204, name=created)
    engine.mark("end-1", 205, **{Label.DECISION: "fail", Label.CAUSE: "a/0 could not be started again"})
    assessment = engine.assess()
    if created == "c3":
        assert ([c.id for c in assessment.discard], assessment.create) == (["id4"], [])
        return

    assert (assessment.state, assessment.settled) == (AppState.FAILED, True)
    assert assessment.msg == "a/0 could not be started again"
    assert assessment.phases == {("a", 0): Phase.FAILED, ("b", 0): Phase.STOPPED}


def test_unstarted_containers_are_discarded_before_the_end_is_reported() -> None:
    """Their creator may have polled before the failure, and start them after it."""
    engine = Engine(("a", 1, "REPLICA", 0), ("b", 1, "REPLICA", 5))
    engine.replica("a", 0, "exited", 1, finished=200)
    engine.replica("b", 0, "exited", 1, finished=150)
    engine.replica("b", 0, "created", at=(0, 1), created=160)
    assessment = engine.assess()
    assert (assessment.state, [c.id for c in assessment.discard]) == (AppState.RUNNING, ["id3"])

    engine.rows[3]["Names"] = ["/c3.void-1"]
    assert (engine.assess().state, engine.assess().settled) == (AppState.FAILED, True)


def test_a_container_made_after_the_end_does_not_bring_the_app_back() -> None:
    """Its creator polls again before it starts anything, and sees the failure."""
    engine = Engine(("a", 1, "REPLICA", 0), ("b", 1, "REPLICA", 5))
    engine.replica("a", 0, "exited", 1, finished=200)
    engine.replica("b", 0, "exited", 1, finished=150)
    engine.replica("b", 0, "created", at=(0, 1), created=200.5)

    assert (engine.assess().state, engine.assess().settled) == (AppState.FAILED, True)


@pytest.mark.parametrize(
    ("code", "finished", "expected"),
    [
        (143, 301, AppState.CANCELLED),
        (0, 301, AppState.CANCELLED),  # it obeyed TERM
        (0, 299, AppState.SUCCEEDED),  # it had ended before
        (1, 299, AppState.FAILED),
    ],
)
def test_what_ended_before_the_cancel_ended_by_itself(code: int, finished: float, expected: AppState) -> None:
    engine = one()
    engine.replica("main", 0, "exited", code, finished=finished)
    engine.mark("cancel", 300)

    assert (engine.assess().state, engine.assess().settled) == (expected, True)


def test_cancel_stops_running_replicas_discards_waiting_ones_and_retries_nothing() -> None:
    engine = one(retries=3, replicas=3)
    engine.replica("main", 0, "running")
    engine.replica("main", 1, "created")
    engine.replica("main", 2, "exited", 1, finished=200)
    engine.mark("cancel", 300)
    assessment = engine.assess(submitted=True)

    assert assessment.state is AppState.RUNNING
    assert ([c.id for c in assessment.stop], [c.id for c in assessment.discard]) == (["id1"], ["id2"])
    assert (assessment.create, assessment.start) == ([], [])


def test_cancel_before_the_start_leaves_nothing_to_start() -> None:
    engine = one()
    engine.replica("main", 0, "created", name="c.void-1")
    engine.mark("cancel", 300)

    assert (engine.assess(submitted=True).state, engine.assess(submitted=True).settled) == (AppState.CANCELLED, True)


def test_the_time_limit_ends_an_app_and_reports_it() -> None:
    engine = one(time_limit_s=60)
    engine.replica("main", 0, "running")
    assert engine.assess(now=159).settled

    assessment = engine.assess(now=161)
    assert assessment.mark is not None
    assert "time limit of 60 s" in assessment.mark.cause


def test_a_late_poll_does_not_fail_what_had_succeeded() -> None:
    engine = one(time_limit_s=60)
    engine.replica("main", 0, "exited", 0, finished=120)

    assert engine.assess(now=10_000).state is AppState.SUCCEEDED


def test_an_app_whose_record_was_pruned_is_decided_by_its_replicas_and_not_restarted() -> None:
    engine = one(retries=1, replicas=2)
    engine.replica("main", 0, "running")
    engine.replica("main", 1, "exited", 0, finished=150)
    engine.rows.pop(0)
    assert engine.assess().state is AppState.RUNNING

    engine.rows[0].update(State="exited", Status="Exited (0) now")
    assert engine.assess().state is AppState.SUCCEEDED

    engine.rows[0].update(Status="Exited (1) now")
    assessment = engine.assess()
    assert (assessment.state, assessment.settled) == (AppState.FAILED, True)
    assert "the record of the app was removed" in assessment.msg


def test_after_a_failed_start_unstarted_siblings_are_discarded_before_the_end_is_reported() -> None:
    """The time of its failure is unknown, so none of them counts as created later; their creators may start them."""
    engine = Engine(("a", 1, "REPLICA", 0), ("b", 1, "REPLICA", 0))
    engine.replica("a", 0, "created", error="no such program")
    engine.replica("b", 0, "created")
    assessment = engine.assess(submitted=True)

    assert (assessment.state, [c.id for c in assessment.discard]) == (AppState.RUNNING, ["id2"])


def test_a_failed_start_of_the_first_attempt_is_retried() -> None:
    engine = one(retries=1)
    engine.replica("main", 0, "created", error="no such program")

    assert engine.assess().create == [("main", 0, 0, 1)]


def test_of_two_containers_for_one_attempt_one_counts() -> None:
    """A creator that died before it could remove its copy must not restart the app."""
    engine = one()
    engine.replica("main", 0, "exited", 0, finished=150, name="c.by-1", created=101)
    engine.replica("main", 0, "created", name="c", created=102)

    assert (engine.assess().state, engine.assess(submitted=True).start) == (AppState.SUCCEEDED, [])
    assert [container.id for container in engine.app().replicas()] == ["id1"]


@pytest.mark.parametrize("word", [".void-", ".by-"])
def test_names_of_apps_and_roles_may_hold_the_words_of_the_protocol(word: str) -> None:
    """Only the suffix of the name shows that a container is discarded or was taken over."""
    engine = one()
    engine.replica("main", 0, "created", name=f"c{word}1", made=f"c{word}1")
    (container,) = engine.app().replicas()
    assert not container.discarded
    assert not container.taken
    assert [c.id for c in engine.assess(submitted=True).start] == ["id1"]

    taken = taken_name(container, "2")
    assert taken == f"c{word}1.by-2"
    engine.rows[1]["Names"] = [f"/{taken}"]
    (container,) = engine.app().replicas()
    assert container.taken
    assert taken_name(container, "3") == f"c{word}1.by-3"

    engine.rows[1]["Names"] = [f"/{discarded_name(container, '4')}"]
    assert engine.app().replicas() == []


def test_the_name_of_a_container_is_kept_once() -> None:
    engine = one()
    engine.replica("main", 0, "running")
    (container,) = engine.app().replicas()

    assert container.made is container.name


def test_without_its_record_nothing_of_an_app_is_started() -> None:
    engine = one()
    engine.replica("main", 0, "created")
    engine.rows.pop(0)

    assert engine.assess(submitted=True).start == []


def test_a_container_made_from_an_image_of_ours_is_not_ours() -> None:
    engine = one()
    engine.replica("main", 0, "exited", 1, finished=150)
    engine.replica("main", 0, "running", created=300)
    engine.rows[2]["Names"] = ["/somebodys"]

    assert engine.assess().state is AppState.FAILED


def test_a_cancelled_container_without_its_detail_was_stopped() -> None:
    engine = one()
    engine.replica("main", 0, "exited", 143, finished=301)
    engine.mark("cancel", 300)
    del engine.details["id1"]

    assert engine.assess().state is AppState.CANCELLED


def test_an_app_is_built_again_only_when_its_list_has_changed() -> None:
    engine = Engine(("a", 2, "REPLICA", 0))
    engine.replica("a", 0, "running")
    engine.replica("a", 1, "running")
    before = engine.app()

    assert engine.app() is before
    engine.rows[2].update(Status="Up 3 seconds")
    assert engine.app() is before
    engine.rows[2].update(State="exited", Status="Exited (0) now")
    assert engine.app() is not before
    before = engine.app()
    engine.rows[2]["Names"] = ["/c2.by-another"]
    assert engine.app() is not before
    before = engine.app()
    engine.rows.pop()
    assert engine.app() is not before


@pytest.mark.parametrize(
    ("limit_s", "change", "lasting"),
    [(None, None, True), (9.0, None, False), (None, ("exited", 1), False), (None, ("created", None), False)],
)
def test_an_answer_is_repeated_only_while_nothing_can_change_it(limit_s, change, lasting) -> None:
    """A time limit passes without a change of the list, and failed or unstarted containers may change later."""
    engine = Engine(("a", 1, "REPLICA", 1), time_limit_s=limit_s)
    engine.replica("a", 0, *(change or ("running",)))

    assert is_lasting(engine.app()) is lasting
    engine.mark("cancel", created=200)
    assert not is_lasting(engine.app())


@pytest.mark.parametrize(
    "change",
    [{"services": "main"}, {"services": {"main": 1}}, {"roles": []}, {"roles": [["main", -1, "REPLICA", 0]]}],
    ids=str,
)
def test_a_plan_with_wrong_values_is_damaged(change: dict[str, Any]) -> None:
    """Another program may have written the label; a text as services would contain each role whose name is in it."""
    engine = one()
    engine.plan = json.dumps({**json.loads(engine.plan), **change})
    engine.rows[0]["Labels"][Label.PLAN] = engine.plan

    with pytest.raises(DamagedError, match=f"label {Label.PLAN} of container 'c0' cannot be read"):
        Plan.of(engine.app())


@pytest.mark.parametrize("error", [ValueError, KeyError, TypeError, AttributeError, OverflowError])
def test_any_error_about_an_unexpected_value_is_damage(error: type[Exception]) -> None:
    text = rf"the record cannot be read \({error.__name__}: .*why"
    with pytest.raises(DamagedError, match=text) as caught, readable("the record"):
        raise error("why")

    assert isinstance(caught.value.__cause__, error)


@pytest.mark.parametrize("label", [Label.REPLICA, Label.APP_ATTEMPT, Label.ATTEMPT])
def test_a_container_whose_labels_are_not_numbers_is_damaged(label: str) -> None:
    engine = one()
    engine.replica("a", 0, "running")
    engine.rows[-1]["Labels"][label] = "x"
    found = container_in(engine.rows[-1], {})

    assert (found.replica, found.app_attempt, found.attempt) == (0, 0, 0)
    assert (
        found.damage
        == f"the labels of container {found.name!r} cannot be read ('x' is not an integer of at most 19 digits)"
    )


# ---- services --------------------------------------------------------------------------------------------------------


def with_service(state: str, code: int | None = None, **how: Any) -> Engine:
    engine = Engine(("t", 1, "APPLICATION", 0), ("ps", 1, "APPLICATION", 0), services=("ps",))
    engine.replica("t", 0, "exited", 0, finished=200)
    engine.replica("ps", 0, state, code, **how)
    return engine


def test_a_service_is_stopped_when_the_others_have_succeeded() -> None:
    assessment = with_service("running").assess()

    assert (assessment.state, assessment.msg) == (AppState.RUNNING, "t: 1 of 1 succeeded; stopping ps")
    assert [container.role for container in assessment.stop] == ["ps"]


@pytest.mark.parametrize("code", [0, 7, 137, 143])
def test_the_end_of_a_service_does_not_matter_then(code: int) -> None:
    found = with_service("exited", code, finished=201).answer()
    (ps,) = found.roles_statuses[1].replicas

    assert found.state is AppState.SUCCEEDED
    assert ps.state is (AppState.SUCCEEDED if code == 0 else AppState.CANCELLED)


def test_a_service_that_was_not_started_yet_is_discarded() -> None:
    assessment = with_service("created").assess()

    assert assessment.state is AppState.RUNNING
    assert [container.role for container in assessment.discard] == ["ps"]


def test_a_service_that_fails_before_the_others_fails_the_app() -> None:
    engine = Engine(("t", 1, "APPLICATION", 0), ("ps", 1, "APPLICATION", 0), services=("ps",))
    engine.replica("t", 0, "running")
    engine.replica("ps", 0, "exited", 7, finished=201)

    assert "ps/0 failed: exit code 7" in engine.assess().msg


def test_a_cancel_while_services_are_stopped_comes_too_late() -> None:
    engine = with_service("running")
    engine.mark("cancel", created=300)

    assert engine.assess().msg == "t: 1 of 1 succeeded; stopping ps"

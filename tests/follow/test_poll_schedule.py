"""When apps are asked for, on a clock that the test sets."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest

from airflow_provider_launch.follow.poll_schedule import PollSchedule
from airflow_provider_launch.schedulers.responses import Answer, DescribeAppResponse
from airflow_provider_launch.specs.errors import SchedulerUnavailableError
from airflow_provider_launch.specs.states import AppState


def hear(_answer: Answer) -> None:
    """Take an answer."""


def answer_of(state: AppState, **how: object) -> Callable[[str, float], Answer]:
    return lambda app_id, _now: DescribeAppResponse(app_id, state, **how)


class Asked:
    """The polls of a schedule, each answered at once.

    Args:
        schedule: the schedule to drive.
        answer: gives what the scheduler knows of an app at a time.
        took_s: seconds that each answer takes.
    """

    def __init__(self, schedule: PollSchedule, answer: Callable[[str, float], Answer], took_s: float = 0.0) -> None:
        self.schedule = schedule
        self.answer = answer
        self.took_s = took_s
        self.now = 0.0
        self.questions: list[tuple[float, list[str]]] = []

    def add(self, *app_ids: str, interval_s: float | None = None) -> None:
        for app_id in app_ids:
            self.schedule.add(app_id, hear, interval_s, self.now, is_new=True)

    def until(self, end: float) -> None:
        while (moment := max(self.now, self.schedule.next_at())) <= end:
            self.now = moment
            asked, is_round = self.schedule.take(moment)
            if asked:
                self.questions.append((moment, asked))
                answers = {app_id: self.answer(app_id, moment) for app_id in asked}
                is_down = any(isinstance(answer, SchedulerUnavailableError) for answer in answers.values())
                self.now += self.took_s
                self.schedule.note(answers, moment, self.now, is_round=is_round, is_down=is_down)
        self.now = end

    def between(self, begin: float, end: float) -> list[float]:
        return [moment for moment, _ in self.questions if begin <= moment < end]


@pytest.mark.parametrize(
    ("interval_s", "most"),
    [(0.5, 50), (2.0, 40), (5.0, 40), (10.0, 40)],
    ids=["docker", "kubernetes", "slurm", "batch"],
)
def test_a_waiting_app_is_asked_for_more_and_more_rarely(interval_s: float, most: int) -> None:
    """A queue may take days, and each worker that waits in it asks."""
    asked = Asked(PollSchedule(interval_s), answer_of(AppState.PENDING))
    asked.add("a")
    asked.until(1200)

    assert len(asked.between(0, 60)) <= most
    assert len(asked.between(60, 120)) <= 12
    assert len(asked.between(1140, 1200)) == 4


def test_a_running_app_is_polled_as_often_as_before() -> None:
    asked = Asked(PollSchedule(2.0), answer_of(AppState.PENDING))
    asked.add("a", "b")
    asked.until(600)
    asked.answer = lambda app_id, _: DescribeAppResponse(app_id, AppState[{"a": "PENDING", "b": "RUNNING"}[app_id]])
    asked.until(1200)

    assert len(asked.between(1100, 1160)) == 30, "b runs"


def test_a_short_app_is_not_waited_for() -> None:
    """The end of an app is known an eighth of its age late at most, or an interval."""
    asked = Asked(PollSchedule(5.0), answer_of(AppState.RUNNING))
    asked.add("a")
    asked.until(100)
    moments = asked.between(0, 100)

    assert all(later - moment <= max(0.125 * moment, 0.13) + 1e-9 for moment, later in pairwise(moments[:20]))
    assert len(asked.between(50, 100)) == 10


def test_a_change_makes_polls_frequent_again() -> None:
    asked = Asked(
        PollSchedule(5.0),
        lambda app_id, now: DescribeAppResponse(app_id, AppState.RUNNING if now >= 100 else AppState.PENDING),
    )
    asked.add("a")
    asked.until(140)
    seen = min(asked.between(100, 140))

    assert len(asked.between(seen, seen + 5)) > 10
    assert len(asked.between(120, 140)) < 10


def test_many_new_apps_are_polled_only_together() -> None:
    asked = Asked(PollSchedule(5.0), answer_of(AppState.RUNNING))
    asked.add(*(f"app-{number}" for number in range(1000)))
    asked.until(60)

    assert [(moment, len(apps)) for moment, apps in asked.questions] == [(5.0 * at, 1000) for at in range(13)]


def test_an_app_added_between_two_rounds_is_polled_alone() -> None:
    asked = Asked(PollSchedule(10.0, adapts=False), answer_of(AppState.RUNNING))
    asked.add("a", interval_s=10.0)
    asked.until(3)
    asked.add("b", interval_s=10.0)
    asked.until(25)

    assert asked.questions == [(0, ["a"]), (3, ["b"]), (10, ["a", "b"]), (20, ["a", "b"])]


def test_the_most_impatient_one_sets_the_interval() -> None:
    asked = Asked(PollSchedule(10.0), answer_of(AppState.PENDING))
    asked.add("a", interval_s=8.0)
    asked.add("b", interval_s=4.0)
    asked.until(600)

    assert len(asked.questions) == 151


def test_after_an_end_the_state_is_asked_for_some_times() -> None:
    """The log shows an end before the state does."""
    asked = Asked(PollSchedule(5.0, adapts=False), answer_of(AppState.RUNNING))
    asked.add("a", interval_s=5.0)
    asked.until(6)
    asked.schedule.recheck("a", asked.now)
    asked.until(9)

    assert asked.between(5.5, 9) == pytest.approx([6.0, 6.15, 6.5, 7.2])


def test_the_ends_of_many_replicas_are_asked_for_together() -> None:
    asked = Asked(PollSchedule(600.0, adapts=False), answer_of(AppState.RUNNING))
    asked.add("a", interval_s=600.0)
    for number in range(1000):
        asked.until(1 + number / 100)
        asked.schedule.recheck("a", asked.now)
    asked.until(20)

    assert 30 < len(asked.between(1, 11)) <= 90
    assert len(asked.between(11.3, 20)) <= 3, "no more than after one end"


def test_an_app_that_needs_an_observer_is_asked_for_in_time() -> None:
    """If the log reports the ends, rounds are rare, and a time limit falls between two of them."""

    def limited(app_id: str, now: float) -> Answer:
        return DescribeAppResponse(app_id, AppState.RUNNING, act_in_s=32.5 - now if now < 32.5 else None)

    asked = Asked(PollSchedule(2.0), limited)
    asked.add("a")
    asked.schedule.set_ends_reported("a", True, 0.0)
    asked.until(60)

    assert asked.between(31, 34) == [32.5]
    assert len(asked.between(40, 60)) == 4


def test_a_server_that_does_not_answer_is_asked_less_and_less() -> None:
    """When it comes up again it must not meet all that has waited for it."""
    asked = Asked(PollSchedule(2.0), lambda *_: SchedulerUnavailableError("no route"))
    asked.add("a")
    asked.until(100)
    moments = asked.between(0, 100)

    assert [later - moment for moment, later in pairwise(moments)] == [4.0, 8.0, *[15.0] * (len(moments) - 3)]


def test_a_slow_server_has_a_pause() -> None:
    asked = Asked(PollSchedule(1.0), answer_of(AppState.RUNNING), took_s=10.0)
    asked.add("a")
    asked.until(100)

    assert [later - moment for moment, later in pairwise(asked.between(0, 100))] == pytest.approx([10.2] * 9)


def test_a_question_that_is_wanted_while_another_is_under_way_is_asked() -> None:
    schedule = PollSchedule(10.0, adapts=False)
    schedule.add("a", hear, 10.0, 0.0, is_new=False)
    assert schedule.take(0.0) == (["a"], True)
    schedule.want("a", 0.5)
    schedule.note({"a": None}, 0.0, 1.0, is_round=True, is_down=False)

    assert schedule.take(1.0) == (["a"], False)
    assert schedule.next_at() == 10.0


def test_an_app_without_subscribers_is_not_polled() -> None:
    asked = Asked(PollSchedule(10.0), answer_of(AppState.RUNNING))
    asked.add("a", "b")
    asked.until(1)
    asked.schedule.recheck("b", 1.0)
    asked.schedule.remove("b", hear)
    asked.until(30)

    assert {app_id for moment, apps in asked.questions if moment > 1 for app_id in apps} == {"a"}

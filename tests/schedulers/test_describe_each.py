"""One unreadable app among many does not hide the others, and is found with few calls."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from airflow_provider_launch.schedulers.responses import DescribeAppResponse, describe_each
from airflow_provider_launch.specs.errors import AppUnavailableError, LaunchError, SchedulerUnavailableError

NAMES = [f"n{number}" for number in range(64)]


class Describe:
    """Describes every app except "gone", unless `fail` raises for the apps of a call."""

    def __init__(self, fail: Callable[[list[str]], None] = lambda _ids: None) -> None:
        self.fail = fail
        self.calls: list[list[str]] = []

    def __call__(self, ids: list[str]) -> dict[str, DescribeAppResponse]:
        self.calls.append(ids)
        if len(self.calls) > 5000:
            pytest.fail("it is called without an end")  # no Exception, which would be an answer
        self.fail(ids)
        return {app_id: DescribeAppResponse(app_id) for app_id in ids if app_id != "gone"}


def fails_for(*bad: str, error: Exception) -> Callable[[list[str]], None]:
    def fail(ids: list[str]) -> None:
        if {*bad} & {*ids}:
            raise error

    return fail


def readable(answers: dict) -> list[str]:
    return [app_id for app_id, answer in answers.items() if isinstance(answer, DescribeAppResponse)]


def test_all_apps_are_described_with_one_call() -> None:
    describe = Describe()

    answers = describe_each(describe, iter(["a", "gone", "b"]))

    assert [*answers] == ["a", "gone", "b"]
    assert answers["gone"] is None
    assert readable(answers) == ["a", "b"]
    assert describe.calls == [["a", "gone", "b"]]


@pytest.mark.parametrize("error", [AppUnavailableError("damaged"), KeyError("state")], ids=["of one app", "any cause"])
def test_an_app_that_the_error_does_not_name_is_found_by_halves(error) -> None:
    describe = Describe(fails_for("n5", error=error))

    answers = describe_each(describe, NAMES)

    assert [*answers] == NAMES
    assert answers.pop("n5") is error
    assert readable(answers) == [*answers]
    assert len(describe.calls) == 1 + 2 * 6


def test_apps_that_the_error_names_are_left_out_of_the_next_call() -> None:
    def fail(ids: list[str]) -> None:
        if texts := {name: f"{name} is damaged" for name in ("n5", "n9") if name in ids}:
            raise AppUnavailableError("n5 is damaged", texts=texts)

    describe = Describe(fail)

    answers = describe_each(describe, NAMES)

    assert [*answers] == NAMES
    assert [str(answers.pop(name)) for name in ("n5", "n9")] == ["n5 is damaged", "n9 is damaged"]
    assert readable(answers) == [*answers]
    assert len(describe.calls) == 2


def test_a_plug_in_may_name_each_of_many_apps_with_its_own_error() -> None:
    names = [f"bad{number}" for number in range(2000)]

    def fail(ids: list[str]) -> None:
        if name := next((name for name in ids if name.startswith("bad")), ""):
            raise AppUnavailableError("damaged", texts={name: f"{name} is damaged"})

    answers = describe_each(Describe(fail), [*names, "n1"])

    assert readable(answers) == ["n1"]
    assert {str(answers[name]) for name in names} == {f"{name} is damaged" for name in names}


def test_an_error_that_names_only_other_apps_names_none_of_these() -> None:
    """A plug-in that answers so must not be called without end."""
    error = AppUnavailableError("other is damaged", texts={"other": "damaged"})
    describe = Describe(fails_for("b", error=error))

    answers = describe_each(describe, ["a", "b"])

    assert readable(answers) == ["a"]
    assert answers["b"] is error


@pytest.mark.parametrize("ids", [["a"], ["a", "b", "c"]], ids=["one", "three"])
def test_an_outage_is_the_answer_for_all_after_one_call(ids) -> None:
    error = SchedulerUnavailableError("no connection")
    describe = Describe(fails_for("a", error=error))

    assert describe_each(describe, ids) == dict.fromkeys(ids, error)
    assert len(describe.calls) == 1


def test_an_outage_between_two_calls_keeps_the_answers_before_it() -> None:
    outage = SchedulerUnavailableError("no connection")

    def fail(ids: list[str]) -> None:
        if len(ids) == 4:
            raise TypeError("damaged")
        if "c" in ids:
            raise outage

    assert describe_each(Describe(fail), ["a", "b", "c", "d"]) == {
        "a": DescribeAppResponse("a"),
        "b": DescribeAppResponse("b"),
        "c": outage,
        "d": outage,
    }


def test_an_error_that_is_not_to_be_caught_is_raised_at_once() -> None:
    describe = Describe(fails_for("b", error=KeyError("state")))

    with pytest.raises(KeyError):
        describe_each(describe, ["a", "b"], LaunchError)
    assert len(describe.calls) == 1


def test_no_apps_need_no_call() -> None:
    describe = Describe()

    assert describe_each(describe, []) == {}
    assert describe.calls == []

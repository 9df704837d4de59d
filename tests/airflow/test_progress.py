"""Stored progress of an app, which users can edit in an XCom and in the triggers of the database."""

from __future__ import annotations

import pytest

from airflow_provider_launch._task.progress import FollowProgress, pack, unpack
from airflow_provider_launch.specs.roles import MAX_REPLICAS


@pytest.mark.parametrize(
    ("stored", "roles"),
    [
        ({"a": 1, "b": 0, "c": MAX_REPLICAS - 2}, {"a": 1, "b": 0, "c": MAX_REPLICAS - 2}),
        ({"a": MAX_REPLICAS + 1}, {}),
        ({"a": 10**9, "b": 2}, {"b": 2}),
        ({"a": -1, "b": True, "c": "3", "d": 2.0}, {}),
        ({"a": MAX_REPLICAS, "b": 1, "c": 0}, {"a": MAX_REPLICAS}),
        ([["a", 1]], {}),
    ],
)
def test_an_app_has_no_more_replicas_than_apps_have(stored: object, roles: dict[str, int]) -> None:
    """Each of them takes memory in the worker or triggerer that reads it."""
    assert FollowProgress.from_json({"roles": stored}).roles == roles


def test_many_roles_are_no_more_than_replicas() -> None:
    stored = {str(number): 0 for number in range(MAX_REPLICAS + 1000)}

    assert len(FollowProgress.from_json({"roles": stored}).roles) == MAX_REPLICAS


@pytest.mark.parametrize("value", [float("inf"), float("nan"), 10**400, -(10**400), "1", True, None])
def test_an_invalid_time_is_none(value: object) -> None:
    found = FollowProgress.from_json({"began": value, "deadline": value, "since": value})

    assert (found.began, found.deadline, found.since) == (None, None, None)


@pytest.mark.parametrize(
    "cursors", [{"a": [[]] * 600_000}, {"a": [1] * 600_000}, {"a": "x" * 5_000_000}], ids=["lists", "numbers", "text"]
)
def test_cursors_that_would_take_much_memory_are_left_out(cursors: dict[str, object]) -> None:
    """A few kilobytes in an argument of a trigger, which users can edit, may expand to millions of values."""
    assert unpack(pack(cursors)) == {}


def test_the_cursors_of_the_largest_app_are_read() -> None:
    cursors = {
        f"worker/{k}": {"at": [0, 1], "stdout": [k * 7919, k * 104_729, k * 3, k], "stderr": [k * 31, 0, 0, 0]}
        for k in range(10_000)
    }
    assert unpack(pack(cursors)) == cursors

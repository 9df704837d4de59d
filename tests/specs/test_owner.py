"""The task of an app; any user can write a label."""

from __future__ import annotations

import pytest

from airflow_provider_launch.specs.owner import OWNER, TaskKey, owner_from, owner_of, task_of

KEY = {"dag_id": "d", "run_id": "r", "task_id": "t"}


def test_an_owner_names_its_task():
    assert task_of(KEY) == TaskKey("d", "r", "t")
    assert task_of({**KEY, "map_index": "3", "run_id": "r" * 250}) == TaskKey("d", "r" * 250, "t", 3)


@pytest.mark.parametrize(
    "wrong",
    [
        {"dag_id": ""},
        {"run_id": "r" * 251},
        {"task_id": "t" * 60_000},
        {"map_index": "9" * 5000},
        {"map_index": "x"},
        {"map_index": str(2**31)},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_ids_that_airflow_cannot_have_name_no_task(wrong):
    assert task_of({**KEY, **wrong}) is None


@pytest.mark.parametrize("text", ["{", "[1]", "null", "NaN", "[" * 2000, '{"dag_id": "' + "d" * 100_000 + '"}', None])
def test_a_label_that_is_not_an_owner_has_no_fields(text):
    assert owner_from(text) == {}


@pytest.mark.parametrize("found", [None, "text", ["dag_id"]])
def test_metadata_without_an_owner_has_no_fields(found):
    assert owner_of({OWNER: found}) == {}

"""Labels that other tools use to select objects."""

from __future__ import annotations

import re

import pytest

from airflow_provider_launch.schedulers._kit.naming import safe_label, safe_label_name, task_labels

SAFE = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?")


@pytest.mark.parametrize("value", ["", "a", "A.b_c-d", "9" * 63])
def test_a_value_that_is_taken_stays(value):
    assert safe_label(value) == value


@pytest.mark.parametrize(
    "value", ["a" * 64, "manual__2026-01-01T00:00:00+00:00", "größe", "日本", " ", "-a-", "a\n", "_" * 90]
)
def test_any_other_is_made_safe_and_stays_one_of_a_kind(value):
    found = safe_label(value)

    assert SAFE.fullmatch(found)
    assert found
    assert found != safe_label(f"{value}!")
    assert found == safe_label(value)


@pytest.mark.parametrize("name", ["team", "example.com/team", "kueue.x-k8s.io/priority-class", "a" * 63])
def test_a_name_that_is_taken_stays(name):
    assert safe_label_name(name) == name


@pytest.mark.parametrize(
    "name", ["", "/", "cost centre", "größe", "a" * 64, "a/b/c", "Example.com/team", "ex ample/team", "example.com/"]
)
def test_any_other_name_is_made_safe_and_stays_one_of_a_kind(name):
    prefix, _, rest = safe_label_name(name).rpartition("/")

    assert prefix in {"", "example.com"} or name == "a/b/c"
    assert SAFE.fullmatch(rest)
    assert rest
    assert safe_label_name(name) != safe_label_name(f"{name}!")
    assert safe_label_name(name) == safe_label_name(name)


def test_a_task_that_is_not_mapped_has_no_map_index():
    owner = {"dag_id": "d", "run_id": "r", "task_id": "t", "map_index": -1, "try_number": 1}

    assert list(task_labels({"airflow": owner})) == ["dag_id", "task_id", "run_id", "try_number"]
    assert task_labels({"airflow": {**owner, "map_index": 3}})["map_index"] == "3"
    assert task_labels({}) == {}

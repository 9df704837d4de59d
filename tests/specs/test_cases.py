"""Two spellings of one name."""

from __future__ import annotations

import pytest

from airflow_provider_launch.specs.cases import camel_to_snake, is_spelling_of, snake_to_camel


@pytest.mark.parametrize(("snake", "camel"), [("cluster_name", "clusterName"), ("name", "name"), ("a_b_c", "aBC")])
def test_snake_becomes_camel(snake, camel):
    assert snake_to_camel(snake) == camel


@pytest.mark.parametrize(("camel", "snake"), [("clusterName", "cluster_name"), ("name", "name"), ("v1Beta", "v1_beta")])
def test_camel_becomes_snake(camel, snake):
    assert camel_to_snake(camel) == snake


@pytest.mark.parametrize(
    ("word", "name", "is_same"),
    [
        ("childGroup.someVal", "child_group.some_val", True),
        ("childGroup.some_val", "child_group.some_val", True),
        ("child_group", "child_group.some_val", False),
        ("other", "name", False),
    ],
)
def test_parts_of_a_dotted_name_are_spelt_on_their_own(word, name, is_same):
    assert is_spelling_of(word, name) is is_same

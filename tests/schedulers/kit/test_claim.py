"""One app id has one owner."""

from __future__ import annotations

import itertools

import pytest

from airflow_provider_launch.schedulers._kit.claim import Candidate, elect, refuse_other_spec
from airflow_provider_launch.specs import AppConflictError


def test_all_who_list_the_same_candidates_elect_the_same_one() -> None:
    found = [Candidate(2, "a"), Candidate(1, "c"), Candidate(1, "b")]

    assert {elect(order) for order in itertools.permutations(found)} == {Candidate(1, "b")}
    assert elect([]) is None


def test_only_the_same_definition_is_adopted() -> None:
    refuse_other_spec("mine", "app-1", "abc", "abc")

    for other in ("abd", None):
        with pytest.raises(AppConflictError, match="'mine' has an app 'app-1' with another definition; nothing was"):
            refuse_other_spec("mine", "app-1", "abc", other)

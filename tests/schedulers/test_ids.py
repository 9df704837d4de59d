"""Ids of apps: random, or derived from a key."""

from __future__ import annotations

import os
import random
import re

import pytest

from airflow_provider_launch.schedulers import ids


def test_digits_are_written_lowest_first(monkeypatch):
    monkeypatch.setattr(os, "urandom", lambda count: bytes(range(count)))

    assert ids.random_uint64() == 0x0001020304050607
    assert ids.random_id() == "fzfjxlmln9"
    assert ids.random_id(3) == "fzf"
    assert ids.make_unique("job") == "job-fzfjxlmln9"
    assert ids.make_unique("job", string_length=4) == "job-fzfj"


@pytest.mark.parametrize("length", [0, -1])
def test_no_length_gives_no_text(length):
    assert ids.random_id(length) == ""


def test_ids_start_with_a_letter_and_do_not_repeat():
    made = {ids.random_id() for _ in range(200)}

    assert len(made) == 200
    assert all(re.fullmatch(f"[{ids.START_CANDIDATES}][{ids.END_CANDIDATES}]*", text) for text in made)


def test_ids_do_not_follow_the_random_module():
    """A DAG that seeds `random` would otherwise give each run the same app id."""
    random.seed(1)
    first = ids.make_unique("job")
    random.seed(1)

    assert ids.make_unique("job") != first


def test_a_stable_id_is_the_same_in_every_process():
    """An app is found by it, also by a newer version, so it may never change."""
    assert ids.make_stable("train", "run-1") == "train-gljlmr0wbk95gc"


def test_a_stable_id_depends_on_name_and_key():
    made = {ids.make_stable(name, key) for name, key in [("a", "b"), ("a", "c"), ("ab", ""), ("", "ab")]}

    assert len(made) == 4


@pytest.mark.parametrize("length", [1, 5, 13, 14, 15, 20, 63])
def test_a_stable_id_loses_the_end_of_its_name_first(length):
    first = ids.make_stable("a-very-long-name-" * 5 + "x", "key", length)
    second = ids.make_stable("a-very-long-name-" * 5 + "y", "key", length)

    assert 0 < len(first) <= length
    assert not first.startswith("-")
    if length >= 5:
        assert first != second

"""Names that native systems accept, and suggestions for misspelt names."""

from __future__ import annotations

import pytest

from airflow_provider_launch.util.strings import closest, normalize_str


@pytest.mark.parametrize(
    ("text", "name"), [("_-Job!", "job"), ("Train_Model-1", "trainmodel-1"), ("job-", "job-"), ("é", "")]
)
def test_names_keep_only_characters_that_every_system_accepts(text, name):
    assert normalize_str(text) == name


@pytest.mark.parametrize(("word", "found"), [("partion", "partition"), ("TIME", "time"), ("zzz", None)])
def test_the_closest_word_is_proposed(word, found):
    assert closest(word, ["partition", "time"]) == found

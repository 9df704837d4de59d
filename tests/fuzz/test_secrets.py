"""Masking of any text: it raises nothing, and each hidden part is a part of the text."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_launch.specs.secret_names import is_ordinary, kind_of
from airflow_provider_launch.specs.secrets import (
    MASK,
    hidden_in_args,
    hidden_in_document,
    hidden_in_env,
    hidden_in_text,
    masked_args,
    masked_document,
    masked_env,
    masked_error,
    masked_text,
)
from tests.fuzz.test_untrusted import fuzzed

MARKER = "hunter2"
PARTS = st.sampled_from([
    "password", "token", "AUTH", "--token", "-p", "name", "value", "key", "Cookie", "X-Api-Key", "Authorization", "sig",
    MARKER, "word", "Bearer", "null", "=", ": ", ":", "?", "&", ";", ",", " ", "  ", "\n", "\n- ", "\t", "|-", ">", "#",
    "'", '"', '\\"', "\\", "\\n", "[", "]", "{", "}", "(", ")", "$", "${", ":-", "!!str ", "://", "@", "/", "-----",
    "-----BEGIN PRIVATE KEY-----", "-----END", "M" * 50, "\0", "\ud800", "ä", "1",
])  # fmt: skip
TEXTS = st.lists(PARTS, max_size=14).map("".join)


@fuzzed
@given(text=TEXTS, name=TEXTS)
def test_any_text_is_masked(text: str, name: str) -> None:
    kind_of(name)
    is_ordinary(name, text)
    masked_error(text)
    shown = masked_text(text)
    for hidden in hidden_in_text(text):
        assert hidden in text
        assert shown != text
    assert masked_env({name: text})[name] in (shown, MASK)
    for hidden in hidden_in_env({name: text}):
        assert hidden in text
    document = {name: text, "list": [text, name], "pair": {"name": name, "value": text}}
    masked_document(document, by_name=True)
    assert all(hidden in text or hidden in name for hidden in hidden_in_document(document, by_name=True))


@fuzzed
@given(args=st.lists(TEXTS, max_size=4))
def test_any_arguments_are_masked(args: list[str]) -> None:
    assert len(masked_args(args)) == len(args)
    for hidden in hidden_in_args(args):
        assert any(hidden in arg for arg in args)


@fuzzed
@given(before=TEXTS, between=st.sampled_from([" ", "\n", ";", " && ", "\n  "]), after=TEXTS)
def test_a_plain_assignment_is_hidden_between_any_texts(before: str, between: str, after: str) -> None:
    """Unless a quote or a value of the text before is open."""
    text = f"{before}{between}export DB_PASS={MARKER}{between}{after}"
    if not any(mark in before for mark in ("'", '"', "\\", MARKER)) and MARKER not in after:
        assert MARKER not in masked_text(text)

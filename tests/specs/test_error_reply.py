"""A program's report of its failure is shown to users, and stored in a database."""

from __future__ import annotations

import json

import pytest

from airflow_provider_launch.specs.failures import ErrorReply


@pytest.mark.parametrize("text", ["boom\0", "boom\ud800"])
def test_letters_that_databases_refuse_are_replaced(text):
    """The text of the file has an escape for such a letter, not the letter itself."""
    reply = ErrorReply.parse(json.dumps({"message": text}))

    assert reply is not None
    assert reply.error_text == "boom\ufffd"


def test_a_long_word_takes_little_time():
    """The search once restarted at each letter, which took minutes for a text of this size."""
    reply = ErrorReply.parse(json.dumps({"message": "x" * 500_000}))

    assert reply is not None
    assert len(reply.error_text) == 500_000


def test_the_prefix_of_an_rpc_layer_is_left_out():
    reply = ErrorReply.parse(json.dumps({"message": "a b.RuntimeError('On WorkerInfo(id=1):\nboom\n') c"}))

    assert reply is not None
    assert reply.error_text.startswith("RuntimeError('On WorkerInfo(id=1):\nboom")

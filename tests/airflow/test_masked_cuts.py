"""Secrets where the text of a program is cut: pieces of long lines, last lines in errors, unfinished lines."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from airflow_provider_launch._task.progress import FollowProgress
from airflow_provider_launch._task.task_log import PIECE_BYTES, TaskLog, pieces
from airflow_provider_launch.follow.events import LogLines, Unfinished
from airflow_provider_launch.schedulers.logs import LogLine, Stream

SECRET = "hunter2-very-secret-0123456789"
PARTS = [SECRET[:8], SECRET[-8:]]


@pytest.fixture(params=["of the app", "of Airflow"])
def log(request, monkeypatch) -> TaskLog:
    """A log that masks the secret, as a triggerer does or as Airflow does."""
    log = TaskLog(logging.getLogger("app"), "x", FollowProgress())
    if request.param == "of the app":
        log.hide([SECRET, "another-secret"])
    else:
        monkeypatch.setattr("airflow_provider_launch._airflow.redact", lambda text: str(text).replace(SECRET, "***"))
    return log


@pytest.fixture
def written(caplog) -> Any:
    caplog.set_level(logging.INFO, "app")
    return lambda: [record.getMessage() for record in caplog.records if record.name == "app"]


def line(text: str) -> LogLine:
    return LogLine(text, Stream.STDOUT)


@pytest.mark.parametrize("shift", [1, 7, len(SECRET) - 1])
def test_a_secret_between_two_pieces_of_a_long_line_is_hidden_in_both(log, written, shift):
    log.write_event(LogLines("r", 0, [line("x" * (PIECE_BYTES - shift) + SECRET + "y" * 100 + "\n")]))
    first, second = (text for text in written() if "/2]" in text)

    assert first.endswith("xx***")
    assert second == "[r/0 2/2] ***" + "y" * 100


def test_the_pieces_are_the_same_with_and_without_masks(log):
    """Another process may continue at one of them."""
    text = "é" * 20_000 + SECRET * 3 + "z" * 50_000

    assert len(log.cut(text)) == len(pieces(text))
    assert "".join(log.cut("x" * 100_000)) == "x" * 100_000


def test_a_secret_longer_than_a_piece_is_hidden():
    log = TaskLog(logging.getLogger("app"), "x", FollowProgress())
    secret = "s" * (2 * PIECE_BYTES)
    log.hide([secret])
    text = "x" * 100 + secret + "y" * 100

    assert [part.strip("xy") for part in log.cut(text)] == ["***", "***", "***"]


@pytest.mark.parametrize("shift", [1, 7, len(SECRET) - 1])
def test_a_secret_at_the_cut_of_a_last_line_is_hidden(log, shift):
    """They stand in events, errors and mails."""
    log.write_event(LogLines("r", 0, [line("x" * (500 - shift) + SECRET + "\n")]))

    assert log.tails["r/0"] == ["x" * (500 - shift) + "***"]
    assert not [part for part in PARTS if part in log.masked_tails()["r/0"][0]]


def test_a_secret_at_the_start_of_an_unfinished_line_is_hidden(log, written):
    """Only its end was read, so its start may be the rest of a secret."""
    log.write_event(Unfinished("r", 0, line((SECRET + "z" * 4080)[-4096:])))
    log.write_event(Unfinished("r", 0, line("a" * (3072 - 8) + SECRET + "z" * (1024 - len(SECRET) + 8))))

    assert not [part for part in PARTS if part in " ".join(written())]
    assert written()[-1] == "[r/0 ...] ***" + "z" * (1024 - len(SECRET) + 8)

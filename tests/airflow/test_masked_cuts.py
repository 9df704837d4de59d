"""Secrets where the text of a program is cut: pieces of long lines, last lines in errors, unfinished lines."""

from __future__ import annotations

import logging
import random
import time
from typing import Any

import pytest

from airflow_provider_launch._task.log_limit import LogLimit
from airflow_provider_launch._task.progress import FollowProgress
from airflow_provider_launch._task.secrets import hidden
from airflow_provider_launch._task.task_log import PIECE_BYTES, Pieces, TaskLog
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


def shown(log: TaskLog, written: Any, text: str, *, first: int = 0) -> list[str]:
    """Return the pieces of a long line from this one on, as they are written in separate turns."""
    parts = Pieces(text)
    for number in range(first, len(parts)):
        log.write_piece("r/0", line(text), parts, number)
    return [each.partition("] ")[2] for each in written() if each.startswith("[r/0 ")]


def test_a_secret_that_is_repeated_over_all_cuts_is_hidden_in_each_piece(log, written):
    """Each piece is masked when it is written; another process may have written the earlier ones."""
    text = SECRET * 4000 + "end"
    found = shown(log, written, text, first=1)

    assert len(found) == len(Pieces(text)) - 1
    assert all(SECRET[:8] not in part.replace(SECRET, "") for part in found)
    assert all(SECRET[-8:] not in part.replace(SECRET, "") for part in found)
    assert found[-1].replace(SECRET, "***").endswith("***end")


def test_a_secret_longer_than_a_piece_is_hidden(written):
    log = TaskLog(logging.getLogger("app"), "x", FollowProgress())
    secret = "s" * (2 * PIECE_BYTES)
    log.hide([secret])

    parts = shown(log, written, "x" * 100 + secret + "y" * 100)
    assert parts == ["x" * 100 + "***", "***", "***" + "y" * 100]


@pytest.mark.parametrize("offset", [1, 20, 39, 45])
def test_secrets_that_overlap_at_a_cut_are_hidden(written, offset):
    """A search for all of them at once finds only the first."""
    log = TaskLog(logging.getLogger("app"), "x", FollowProgress())
    secrets = ["a" * 20 + "b" * 20, "b" * 20 + "c" * 20]
    log.hide(secrets)
    text = "x" * (PIECE_BYTES - offset) + "a" * 20 + "b" * 20 + "c" * 20 + "y"

    first, second = shown(log, written, text)
    assert first.strip("x").strip("*") in {"", "a" * 20}
    assert second.strip("y").strip("*") in {"", "c" * 20}


def test_many_long_secrets_cost_the_time_of_their_letters(written, monkeypatch):
    """Around each cut all secrets were searched within three times the longest one: 11 s for a line of 16 MB."""
    monkeypatch.setattr("airflow_provider_launch._airflow.redact", str)
    log = TaskLog(logging.getLogger("app"), "x", FollowProgress())
    letters = random.Random(1)
    log.hide(["".join(letters.choices("abcdefgh", k=size)) for size in (16_000, *[100] * 127)])
    monkeypatch.setattr(TaskLog, "_hidden", lambda _self, piece: piece)
    text = "".join(letters.choices("abcdefgh", k=64 * PIECE_BYTES))

    started_at = time.process_time()
    assert "".join(shown(log, written, text)) == text
    assert time.process_time() - started_at < 0.7


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


@pytest.mark.parametrize(
    ("text", "values", "expected"),
    [
        ("pw=Xk9-adm", ["Xk9-admin-Qz7"], "pw=***"),
        # A whole value that ends as another one, or itself, starts.
        ("pw=acme-prod-2024", ["acme-prod-2024", "prod-2024-key-77"], "pw=***"),
        ("pw=Zebra-41-fox-Zebra-41", ["Zebra-41-fox-Zebra-41"], "pw=***"),
        ("pw=Xk9-admin-Qz7\nnext", ["Xk9-admin-Qz7", "n-Qz7-rest"], "pw=***\nnext"),
        ("pw=Xk9-adm\nnext", ["Xk9-admin-Qz7"], "pw=***\nnext"),
        ("pw=abcabcabc", ["abcabcabcabc"], "pw=***"),
        ("pw=Xk9-admi", ["n-Qz7", "admin", "Xk9-admin-Qz7"], "pw=***"),
        ("pw=SuperSecre", ["SuperSecretPassphrase"], "pw=***"),
        # Words, which are in many lines.
        ("invalid token", ["token ghp_11ABC"], "invalid token"),
        ("wrong password", ["password-of-db-1"], "wrong password"),
        ("no driver for postgresql", ["postgresql://me:pw@host/db"], "no driver for postgresql"),
        (22 * "-", ["-----BEGIN PRIVATE KEY-----"], 22 * "-"),
        ("pw=Xk9-", ["Xk9-admin-Qz7"], "pw=Xk9-"),
    ],
)
def test_the_start_of_a_secret_at_the_end_of_a_line_is_hidden(text: str, values: list[str], expected: str) -> None:
    assert hidden(text, values, is_cut=True) == expected


@pytest.mark.parametrize("shift", [0, 5, 10, 20])
@pytest.mark.parametrize("cut", [SECRET[:-1], SECRET, f"{SECRET}{SECRET[:9]}"], ids=["start", "whole", "both"])
def test_a_long_line_without_an_end_shows_no_start_of_a_secret(written, cut: str, shift: int) -> None:
    log = TaskLog(logging.getLogger("app"), "x", FollowProgress())
    log.hide([SECRET])
    text = "x" * (PIECE_BYTES - shift) + cut
    log.write_event(LogLines("r", 0, [line(text)]))
    at_once = [each.partition("] ")[2] for each in written() if each.startswith("[r/0 ")]
    one_by_one = shown(log, written, text)[len(at_once) :]

    for pieces in (at_once, one_by_one):
        assert len(pieces) == len(Pieces(text))
        assert "".join(pieces).strip("*x") == ""


_AT_THE_CUT = {
    "piece": (PIECE_BYTES, LogLines),
    "last lines": (500, LogLines),
    "without an end": (PIECE_BYTES + 500, LogLines),
    "unfinished": (3072, Unfinished),
}


@pytest.mark.parametrize("where", _AT_THE_CUT)
def test_a_chain_of_secrets_that_overlap_is_hidden_at_a_cut(written, where: str) -> None:
    """A run may give the next value, which needs only the last letter of the secret."""
    log = TaskLog(logging.getLogger("app"), "x", FollowProgress())
    log.hide([SECRET, f"{SECRET[-1]}ZZZZZ1", "ZZZZZ12345678"])
    at, kind = _AT_THE_CUT[where]
    text = "x" * (at - len(SECRET) - 3) + SECRET + "ZZZZZ1" + ("" if where == "without an end" else "q" * 1021)
    event: Any = Unfinished("r", 0, line(text)) if kind is Unfinished else LogLines("r", 0, [line(text)])
    log.write_event(event)

    assert PARTS[0] not in f"{written()}{log.tails}"


@pytest.mark.parametrize("length", [6, 15, 25])
def test_a_last_line_that_is_cut_twice_shows_no_start_of_a_secret(length: int) -> None:
    """At its limit, and where the program has ended."""
    log = TaskLog(logging.getLogger("app"), "x", FollowProgress())
    log.hide([SECRET])
    log.write_event(LogLines("r", 0, [line("x" * (500 - length) + SECRET[:-1])]))

    assert log.tails["r/0"] == ["x" * (500 - length) + "***"]


@pytest.mark.parametrize("shift", [1, 7, len(SECRET) - 1])
def test_a_limit_of_the_log_shows_no_half_of_a_secret(written, shift: int) -> None:
    log = TaskLog(logging.getLogger("app"), "x", FollowProgress(), limit=LogLimit(1000))
    log.hide([SECRET])
    log.write_event(LogLines("r", 0, [line("ä" * 600 + SECRET + "y" * (500 - shift))]))
    log.finish()

    assert [each for each in written() if each.endswith("yyy")] == ["[r/0] ***" + "y" * (500 - shift)]


def test_a_line_that_is_rewritten_shows_no_start_of_a_secret(written) -> None:
    log = TaskLog(logging.getLogger("app"), "x", FollowProgress())
    log.hide([SECRET])
    log.write_event(LogLines("r", 0, [line(f"50%\rpw={SECRET[:-1]}\r")]))
    log.write_event(LogLines("r", 0, [line("Traceback (most recent call last):\n"), line(f"Error: {SECRET[:-1]}")]))

    assert SECRET[:5] not in f"{written()}{log.tails}"

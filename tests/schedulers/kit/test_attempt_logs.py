"""One cursor over the logs of all attempts of a replica."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_launch.schedulers._kit.attempt_logs import (
    Attempt,
    AttemptRead,
    OpenAnswers,
    read_attempts,
    unread_attempts,
)
from airflow_provider_launch.schedulers.logs import LogLine, Stream


def attempt(number: int, *texts: str, has_log: bool = True, is_over: bool = True) -> Attempt[tuple[str, ...]]:
    return Attempt(texts, {"at": [number], "uid": f"u{number}"}, number, has_log=has_log, is_over=is_over)


def read_one(attempt: Attempt[tuple[str, ...]], state: Any) -> AttemptRead:
    """Read one line at a time."""
    begin = state.get("line", 0)
    lines = [LogLine(text, Stream.COMBINED) for text in attempt.source[begin : begin + 1]]
    done = {"done": True} if attempt.is_over and not lines else {}
    return AttemptRead(lines, {"line": begin + len(lines), **done})


def read_all(attempts: list[Attempt[tuple[str, ...]]], state: Any = None) -> tuple[list[tuple[str, int]], Any]:
    found = []
    while True:
        chunk = read_attempts(attempts, json.loads(json.dumps(state)) or {}, read_one)
        state = chunk.cursor
        if not chunk.lines:
            return found, state
        found += [(line.text, line.attempt) for line in chunk.lines]


def test_lines_come_attempt_by_attempt_each_once():
    """A reader sees why the first attempt failed before it sees the second."""
    attempts = [attempt(0, "a", "b"), attempt(1, "c")]

    assert read_all(attempts)[0] == [("a", 0), ("b", 0), ("c", 1)]


def test_a_running_attempt_is_read_on_and_the_next_waits():
    found, cursor = read_all([attempt(0, "a", is_over=False), attempt(1, "c")])

    assert found == [("a", 0)]
    assert read_all([attempt(0, "a", "b"), attempt(1, "c")], cursor)[0] == [("b", 0), ("c", 1)]


def test_an_attempt_that_never_started_is_skipped_and_a_coming_one_is_waited_for():
    attempts = [attempt(0, has_log=False), attempt(1, "b"), attempt(2, has_log=False, is_over=False)]

    found, cursor = read_all(attempts)

    assert found == [("b", 1)]
    assert cursor == {"at": [1], "uid": "u1", "line": 1, "done": True}


def test_attempts_before_the_cursor_are_not_read_again():
    """The first attempt may no longer exist in the engine, or be listed again."""
    attempts = [attempt(0, "a"), attempt(1, "b"), attempt(2, "c")]

    assert [one.number for one in unread_attempts(attempts, {"at": [1], "uid": "u1"})] == [1, 2]
    assert [one.number for one in unread_attempts(attempts, {"at": [1], "uid": "u1", "done": True})] == [2]
    assert [one.number for one in unread_attempts(attempts, {"at": [1], "uid": "else", "done": True})] == [1, 2]


@dataclass
class Answer:
    is_closed: bool = False
    response: Answer = field(init=False)

    def __post_init__(self) -> None:
        self.response = self

    def close(self) -> None:
        self.is_closed = True


def test_an_open_answer_is_found_by_its_cursor_and_only_once():
    answers: OpenAnswers[Answer] = OpenAnswers()
    kept = Answer()
    answers.keep("c", {"line": 3}, kept)

    assert answers.take("c", {"line": 2}) is None
    assert answers.take("c", {"line": 3}) is kept
    assert answers.take("c", {"line": 3}) is None
    assert not kept.is_closed


def test_the_oldest_open_answer_and_one_of_the_same_cursor_are_closed():
    """An engine has few connections for unused responses."""
    answers: OpenAnswers[Answer] = OpenAnswers(2)
    kept = [Answer() for _ in range(4)]
    for number, answer in enumerate(kept[:3]):
        answers.keep("c", {"line": number}, answer)
    answers.keep("c", {"line": 2}, kept[3])

    assert [answer.is_closed for answer in kept] == [True, False, True, False]
    answers.close()
    assert all(answer.is_closed for answer in kept)
    assert [answers.take("c", {"line": number}) for number in (1, 2)] == [None, None]

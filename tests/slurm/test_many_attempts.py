"""Logs of a replica for which the app has forged records of attempts. No cluster is needed."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_launch.schedulers.slurm.app_cache import most_attempts
from airflow_provider_launch.schedulers.slurm.log_reader import read_chunk
from airflow_provider_launch.schedulers.slurm.options import SlurmOpts
from airflow_provider_launch.schedulers.slurm.records import Attempt
from airflow_provider_launch.schedulers.slurm.request import build_request
from airflow_provider_launch.schedulers.slurm.store import FilePart
from airflow_provider_launch.specs import AppDef, Role
from airflow_provider_launch.specs.errors import AppUnavailableError


class Store:
    """Counts the requests for logs."""

    def __init__(self, attempts: list[Attempt], files: dict[str, bytes]) -> None:
        self.questions, self.asked = 0, 0
        self._attempts, self._files = attempts, files

    def logs(self, app_id: str, role: int, k: int, parts: Any) -> Any:
        assert len(parts) < 1000
        self.questions += 1
        self.asked += len(parts)
        found = {
            name: FilePart(True, self._files[name][offset : offset + limit], len(self._files[name]), 7, 0)
            for name, offset, limit in parts
            if name in self._files
        }
        return True, self._attempts, found


def read(store: Store, cursor: Any = None, most: int = 10_000) -> Any:
    return read_chunk(store, None, "app", (0, "0-r", 0), cursor, None, most_attempts=most)


def stdout(number: int) -> str:
    return f"run/0/0-r/0/{number}/stdout"


def test_records_of_many_attempts_cost_a_few_questions() -> None:
    """Two thousand of them were six thousand commands on the login node."""
    store = Store([Attempt(0, 0, 0, number, code=1) for number in range(2000)], {stdout(1999): b"last\n"})

    chunk = read(store)

    assert [(line.text, line.attempt) for line in chunk.lines] == [("last\n", 1999)]
    assert store.questions <= 25
    # And the next ones are not repeated.
    store.questions = 0
    assert read(store, chunk.cursor).lines == []
    assert store.questions == 1


def test_records_of_more_attempts_than_can_be_are_an_error_of_the_app() -> None:
    request = build_request(AppDef("a", [Role("r", "", entrypoint="x", max_retries=3)]), SlurmOpts(), "app", {})
    most = most_attempts(request, of_replica=True)
    assert 16 <= most < 2000
    store = Store([Attempt(0, 0, 0, number, code=1) for number in range(most + 1)], {})

    with pytest.raises(AppUnavailableError, match="attempts of one replica"):
        read(store, most=most)
    assert store.questions == 1


def test_many_retries_do_not_allow_any_number_of_records() -> None:
    """All records are parsed after each change, while the followers of other apps wait."""

    def most(replicas: int, max_retries: int) -> int:
        role = Role("r", "", entrypoint="x", num_replicas=replicas, max_retries=max_retries)
        return most_attempts(build_request(AppDef("a", [role]), SlurmOpts(), "app", {}))

    assert most(2, 500) < 25_000
    # Each of many replicas may be retried a few times, and one replica often.
    assert most(2000, 3) > 2000 * 4 * 4
    assert most(1, 100) > 100 * 100


def test_lines_of_each_attempt_are_read_in_order() -> None:
    files = {stdout(0): b"0\n", stdout(1): b"", stdout(2): b"2\n", stdout(120): b"120\n", stdout(249): b"no end"}
    store = Store([Attempt(0, 0, 0, number, code=1) for number in range(250)], files)

    lines, cursor = [], None
    while (chunk := read(store, cursor)).lines:
        cursor = chunk.cursor
        lines += [line.text for line in chunk.lines]

    assert lines == ["0\n", "2\n", "120\n", "no end"]

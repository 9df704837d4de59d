"""The id of an app, and the record of an attempt."""

from __future__ import annotations

import dataclasses
import math
import re

import pytest

from airflow_provider_launch._task.places import Place
from airflow_provider_launch._task.task_log import PIECE_BYTES, Pieces
from airflow_provider_launch.operators._record import KILLED, NextStep, Record, app_id_for, next_step

KEYS = {"dag_id": "My_DAG", "run_id": "r", "run_start": "s", "task_id": "Train.it", "map_index": -1, "attempt": 0}
RECORD = Record(0, "a-b", "h", "local", 0, "scheduled", "local://c/a-b", max_tries=0, retries=0)


def test_the_id_is_readable_and_stable() -> None:
    assert re.fullmatch(r"my-dag-train-it-[a-z2-7]{10}", app_id_for(**KEYS))
    assert app_id_for(**KEYS) == app_id_for(**KEYS)


@pytest.mark.parametrize(
    ("dag_id", "task_id", "readable"),
    [
        ("my_team.etl.daily_training_pipeline_v2", "preprocess.split_train_test", "my-team-etl-da-preprocess-sp"),
        ("my_team.etl.daily_training_pipeline_v2", "train", "my-team-etl-daily-trai-train"),
        ("etl", "preprocess.split_train_test_sets", "etl-preprocess-split-train-t"),
    ],
)
def test_both_names_are_in_the_id_each_with_half_of_the_room(dag_id, task_id, readable) -> None:
    assert re.fullmatch(rf"{readable}-[a-z2-7]{{10}}", app_id_for(**{**KEYS, "dag_id": dag_id, "task_id": task_id}))


@pytest.mark.parametrize(
    "change",
    [{"dag_id": "other"}, {"run_id": "r2"}, {"run_start": "t"}, {"task_id": "x"}, {"map_index": 3}, {"attempt": 1}],
)
def test_each_part_changes_the_id(change) -> None:
    assert app_id_for(**{**KEYS, **change}) != app_id_for(**KEYS)


def test_names_that_run_together_stay_apart() -> None:
    """Two tasks with one id would share an app."""
    pairs = [("a", "b|c"), ("a|b", "c"), ("a|1:b", "c"), ("ab", "c")]

    assert len({app_id_for(**{**KEYS, "run_id": one, "run_start": other}) for one, other in pairs}) == len(pairs)


@pytest.mark.parametrize(("dag_id", "task_id"), [("1", "2"), ("ü", "ö"), ("x" * 200, "y" * 200), ("-", "_"), ("", "")])
def test_every_name_gives_an_id_that_all_backends_take(dag_id, task_id) -> None:
    app_id = app_id_for(**{**KEYS, "dag_id": dag_id, "task_id": task_id})

    assert re.fullmatch(r"[a-z]([a-z0-9-]*[a-z0-9])?", app_id)
    assert "--" not in app_id
    assert len(app_id) <= 39


@pytest.mark.parametrize(
    ("record", "clear_number", "max_tries", "step"),
    [
        (None, 0, 0, NextStep.LAUNCH),
        (RECORD, 0, 0, NextStep.RESUME),
        (dataclasses.replace(RECORD, state="intent"), 0, 0, NextStep.RESUME),
        (dataclasses.replace(RECORD, state="closed"), 0, 0, NextStep.LAUNCH),
        (RECORD, 1, 1, NextStep.REPLACE),
        (dataclasses.replace(RECORD, state="closed"), 1, 1, NextStep.REPLACE),
        # Another task of the run was cleared.
        (RECORD, 1, 0, NextStep.RESUME),
        # A task that runs is cleared by a kill, and its limit stays.
        (dataclasses.replace(RECORD, state="closed"), 1, 0, NextStep.REPLACE),
        (dataclasses.replace(RECORD, outcome=KILLED), 1, 0, NextStep.REPLACE),
        (dataclasses.replace(RECORD, outcome=KILLED), 0, 0, NextStep.RESUME),
        (dataclasses.replace(RECORD, max_tries=-1), 1, 0, NextStep.REPLACE),
        # The limit is computed again from `retries`: 0 + 1 before, 1 + 0 after.
        (dataclasses.replace(RECORD, max_tries=1, retries=1), 1, 1, NextStep.REPLACE),
        (dataclasses.replace(RECORD, max_tries=1, retries=1), 0, 1, NextStep.RESUME),
    ],
)
def test_the_next_step_follows_from_the_record(record, clear_number, max_tries, step) -> None:
    assert next_step(record, clear_number, max_tries, retries=0) is step


def test_a_record_survives_the_store() -> None:
    record = dataclasses.replace(RECORD, places=[Place("main", "env", "X", 0, 5)])
    assert Record.from_json(dataclasses.asdict(RECORD)) == RECORD
    assert Record.from_json(dataclasses.asdict(record)) == record


@pytest.mark.parametrize(
    "value",
    [None, 3, "x", {}, {**dataclasses.asdict(RECORD), "attempt": "0"}, {**dataclasses.asdict(RECORD), "state": "?"}],
)
def test_an_edited_store_has_no_valid_record(value) -> None:
    assert Record.from_json(value) is None


@pytest.mark.parametrize("since", [10**400, 1e300, -1, math.nan, math.inf, True, "x"], ids=lambda each: str(each)[:5])
def test_an_edited_time_is_unknown(since) -> None:
    """The largest of them ended each try of the task with an OverflowError."""
    assert Record.from_json({**dataclasses.asdict(RECORD), "since": since}).since == 0


@pytest.mark.parametrize(
    "text", ["", "x", "x" * PIECE_BYTES, "é" * PIECE_BYTES, "a" + "☃" * 50_000, "a" + "😀" * 20_000]
)
def test_pieces_rejoin(text) -> None:
    parts = Pieces(text)

    assert "".join(parts) == text
    assert all(len(part.encode()) <= PIECE_BYTES for part in parts)

"""The logger of an app's lines writes the record that Airflow's own would, but for what no line has."""

from __future__ import annotations

import io
import json
import sys
from typing import Any

import pytest
import structlog
from airflow.sdk.bases.operator import BaseOperator
from airflow.sdk.log import configure_logging

from airflow_provider_launch._task.task_log import line_logger

TOKEN = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl"


@pytest.fixture
def records():
    before, sink = structlog.get_config(), io.BytesIO()
    configure_logging(json_output=True, output=sink, sending_to_supervisor=True)

    def read() -> list[dict[str, Any]]:
        return [json.loads(line) for line in sink.getvalue().splitlines()]

    yield read
    structlog.configure(**before)


def test_the_record_is_airflows_without_the_line_of_code(records) -> None:
    log = BaseOperator(task_id="t").log
    log.info("one line")
    line_logger(log).info("one line")
    theirs, ours = records()

    assert ours.keys() == theirs.keys() - {"filename", "lineno"}
    assert {**ours, "timestamp": ""} == {**{name: theirs[name] for name in ours}, "timestamp": ""}


def test_context_and_level_are_kept(records) -> None:
    log = line_logger(structlog.get_logger("trainer").bind(run="r1"))
    log.debug("not at this level")
    with structlog.contextvars.bound_contextvars(trigger_id="7"):
        log.warning("late")
    (record,) = records()

    assert (record["event"], record["level"], record["logger"]) == ("late", "warning", "trainer")
    assert (record["run"], record["trigger_id"]) == ("r1", "7")


def test_web_tokens_are_redacted(records) -> None:
    line_logger(BaseOperator(task_id="t").log).info(f"token={TOKEN}")

    assert TOKEN not in records()[0]["event"]


def test_processors_of_the_deployment_are_kept(records) -> None:
    def mask(_logger: Any, _method: str, record: Any) -> Any:
        record["event"] = record["event"].replace("hunter2", "***")
        return record

    processors = structlog.get_config()["processors"]
    structlog.configure(processors=[mask, *processors])
    line_logger(structlog.get_logger("trainer")).info("password hunter2")

    assert records()[0]["event"] == "password ***"


def test_percent_signs_are_text(records) -> None:
    line_logger(BaseOperator(task_id="t").log).info("100 % of %s {x}")

    assert records()[0]["event"] == "100 % of %s {x}"


def test_another_logger_is_returned_as_it_is() -> None:
    class Own:
        pass

    log = Own()
    assert line_logger(log) is log


class NotBound:
    """A logger of which only a part is that of structlog."""

    def bind(self) -> object:
        return object()


def test_a_logger_that_is_only_similar_is_returned_as_it_is() -> None:
    log = NotBound()
    assert line_logger(log) is log


def test_with_another_structlog_the_logger_is_returned_as_it_is(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "structlog.processors", None)
    log = BaseOperator(task_id="t").log

    assert line_logger(log) is log

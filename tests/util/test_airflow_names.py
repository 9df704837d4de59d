"""Names of Airflow that moved between its versions, and settings that are only for a block."""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import suppress
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from airflow_provider_launch import _airflow


def test_a_name_is_taken_from_the_first_module_that_has_it(monkeypatch) -> None:
    modules = ("surely_not_installed", "math", "json")
    monkeypatch.setattr(_airflow, "MODULES", {"JSONDecoder": modules, "Absent": modules})
    try:
        assert _airflow.JSONDecoder is json.JSONDecoder
    finally:
        vars(_airflow).pop("JSONDecoder", None)
    with pytest.raises(ImportError, match="no Absent in surely_not_installed or math or json"):
        _ = _airflow.Absent
    with pytest.raises(AttributeError, match="'Other'"):
        _ = _airflow.Other


@pytest.mark.parametrize("newer", [None, ModuleType("empty")], ids=["no module", "no class"])
def test_the_dags_are_read_by_the_module_that_this_airflow_has(monkeypatch, newer) -> None:
    older: Any = ModuleType("older")
    older.DagBag = lambda path: ("older", path)
    monkeypatch.setitem(sys.modules, "airflow.dag_processing.dagbag", newer)
    monkeypatch.setitem(sys.modules, "airflow.models.dagbag", older)

    assert _airflow.dag_bag("x.py") == ("older", "x.py")


class WithSwitch:
    render_template_as_native_obj = True


class WithoutSwitch:
    """An operator before Airflow 3.2."""

    def _render(self, template: str, context: object, dag: Any) -> object:
        return dag.render_template_as_native_obj


@pytest.mark.parametrize("fails", [False, True])
def test_an_operator_renders_as_before_after_the_block(fails) -> None:
    operators: Any = WithSwitch(), WithoutSwitch()
    for operator in operators:
        with suppress(ZeroDivisionError), _airflow.rendering(operator, native=False):
            seen = getattr(operator, "render_template_as_native_obj", None)
            assert (operator._render("", {}) if seen is None else seen) is False
            _ = 1 / (0 if fails else 1)

    assert operators[0].render_template_as_native_obj is True
    assert vars(operators[1]) == {}


def test_an_airflow_before_3_3_cancels_without_a_message(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "airflow.jobs.triggerer_job_runner", None)

    assert _airflow._message_of_user() is None


@pytest.mark.parametrize("call", [lambda: "answer", lambda: 1 / 0], ids=["answer", "error"])
def test_a_request_of_a_later_call_goes_through_the_loop_again(monkeypatch, call) -> None:
    """A thread of the pool serves many calls; only during a request it may send one itself."""
    monkeypatch.setattr(_airflow, "_on_loop", SimpleNamespace())
    with suppress(ZeroDivisionError):
        asyncio.run(_airflow.ask_from_loop(call))

    assert vars(_airflow._on_loop) == {"is_here": False}

"""Mapped tasks: which of their arguments come from a run."""

from __future__ import annotations

import functools
import inspect
import linecache
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.sdk import BaseOperator

from airflow_provider_launch._task.errors import final_errors
from airflow_provider_launch.specs.errors import InvalidAppError

if TYPE_CHECKING:
    from airflow.sdk.definitions.mappedoperator import MappedOperator, OperatorPartial


def is_from_mapped(task: object) -> bool:
    """Return whether Airflow made the task on the worker, with values of the run."""
    return bool(getattr(task, "_BaseOperator__from_mapped", False))


def input_of_run(given: Any, *, operator: type | None = None, note: Callable[[Any, Any], Any] | None = None) -> Any:
    """Return the input of a mapped task such that all values of a run count as such, and Airflow renders none of them.

    Airflow does not count texts and mappings in the output of a task that `.expand_kwargs` takes.

    Args:
        given: the input.
        operator: the class of the task. None: the input has arguments of a function, which may have any names.
        note: called with the mapped task and the value of the input, before values of the run are read; its result is
            the attribute `written`.
    """
    kind: Any = type(given)
    return _input_of_run(kind, operator, note)(given.value)


@functools.cache
def _input_of_run(base: Any, operator: type | None, note: Callable[[Any, Any], Any] | None) -> Any:
    class InputOfRun(base):  # type: ignore[misc]
        written: Any = None
        of_run: Any = None
        """The values of a run in the element; None before they are read."""

        def resolve(self, context: Mapping[str, Any]) -> tuple[Mapping[str, Any], set[int]]:
            if note is not None:
                self.written = note(context["task"], self.value)
            mapping, seen_oids = super().resolve(context)
            is_row = self.EXPAND_INPUT_TYPE == "list-of-dicts"
            is_written = isinstance(self.value, (list, tuple)) and any(mapping is each for each in self.value)
            is_of_run = {name: is_row or hasattr(self.value[name], "resolve") for name in mapping}
            self.of_run = [] if is_written else [each for name, each in mapping.items() if is_of_run[name]]
            if not is_row or is_written:
                return mapping, seen_oids
            if operator is not None:
                _check_row(mapping, operator, context["task"])
            return mapping, {*seen_oids, *map(id, mapping.values())}

    return InputOfRun


@functools.cache
def partial_class(base: type[OperatorPartial]) -> type[OperatorPartial]:
    """Return a class of partial operators whose mapped tasks know which values come from a run."""

    class Partial(base):  # type: ignore[misc, valid-type]
        __slots__ = ()

        def expand_kwargs(self, kwargs: Any, *, strict: bool = True) -> MappedOperator:
            task: MappedOperator = super().expand_kwargs(kwargs, strict=strict)
            task.expand_input = input_of_run(task.expand_input, operator=self.operator_class)
            return task

    return Partial


def refuse_component_of_run() -> NoReturn:
    """Refuse a component that a run names."""
    _refuse("component comes from a run, and the worker would import it; write it into the DAG file")


@functools.cache
def arguments_of_airflow() -> frozenset[str]:
    """Return the arguments of every operator."""
    return frozenset(inspect.signature(BaseOperator.__init__).parameters)


def _check_row(row: Mapping[str, Any], operator: type, task: Any) -> None:
    """Refuse arguments that a run must not choose."""
    if "component" in row:
        refuse_component_of_run()
    if refused := [name for name in row if name in arguments_of_airflow()]:
        _refuse(
            f"argument {refused[0]!r} of .expand_kwargs() comes from a run, which may give only those of "
            f"{operator.__name__} itself; give it to .partial()"
        )
    if "launch_conn_id" not in row:
        return
    given, dag = row["launch_conn_id"], task.get_dag()
    lines = linecache.getlines(dag.fileloc) if dag and dag.fileloc else []
    # None allows a sensor all connections.
    for conn_id in given if isinstance(given, list) and given else [given]:
        quoted = f'"{conn_id}"', f"'{conn_id}'"
        if not isinstance(conn_id, str) or not any(each in line for line in lines for each in quoted):
            _refuse(
                f"connection {conn_id!r} comes from a run in .expand_kwargs(), and the DAG file does not contain it; "
                f"write it there"
            )


def _refuse(text: str) -> NoReturn:
    with final_errors():
        raise InvalidAppError(text)

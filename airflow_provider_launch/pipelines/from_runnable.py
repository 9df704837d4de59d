"""Converts pipelines and jobs that were made with the Python SDK of runnable.

Needs no runnable itself: it reads the public attributes of its objects, which are those of 0.30 to 0.50.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from airflow_provider_launch.pipelines.problems import PipelineError, Problem
from airflow_provider_launch.pipelines.steps import (
    Conditional,
    Map,
    Parallel,
    Step,
    Stub,
    Task,
)

_LOOP = "is a loop, which Airflow cannot run; unroll it, or let one task loop"
_JOBS = ("PythonJob", "NotebookJob", "ShellJob")


def is_job(source: Any) -> bool:
    """Return whether an object is a job of runnable, which is one task."""
    return type(source).__name__ in _JOBS


def steps_of(source: Any) -> list[Step]:
    """Return the steps of a pipeline or a job of runnable.

    Raises:
        PipelineError: with all steps that have no counterpart.
    """
    problems: list[Problem] = []
    if is_job(source):
        return [_task("job", source, {}, problems)]
    found = [step for step in (_step(one, problems) for one in source.steps) if step is not None]
    if problems:
        raise PipelineError(problems)
    return found


def _step(source: Any, problems: list[Problem]) -> Step | None:
    make = _KINDS.get(type(source).__name__)
    if make is None:
        kind = type(source).__name__
        text = _LOOP if kind == "Loop" else f"is of the unknown type {kind!r}; write it as a step of this package"
        problems.append(Problem(f"step {source.name!r} {text}"))
        return None
    handler = getattr(source, "on_failure", None)
    # runnable replaces the pipeline by the name of its first step, whose steps are then steps of the whole.
    if handler is not None and not isinstance(handler, str):
        handler = handler.steps[0].name
    try:
        return make(source.name, source, {"next": source.next_node or "success", "on_failure": handler}, problems)
    except PipelineError as error:
        problems.extend(error.problems)
        return None


def _task(name: str, source: Any, ways: dict[str, Any], problems: list[Problem]) -> Task:
    fields: dict[str, Any] = {**ways, "returns": _returns(source.returns) or None, "secrets": source.secrets or None}
    if source.catalog is not None:
        fields["catalog"] = {"get": list(source.catalog.get), "put": list(source.catalog.put)}
    if getattr(source, "overrides", None):
        fields["overrides"] = dict(source.overrides)
    if getattr(source, "optional_ploomber_args", None):
        problems.append(Problem(f"task {name!r} has 'optional_ploomber_args', but ploomber does not run it here"))
    if hasattr(source, "function"):
        fields["function"] = source.function
    elif hasattr(source, "notebook"):
        fields["notebook"] = source.notebook
    else:
        fields["shell"] = source.command
    return Task(name, **fields)


def _returns(given: Iterable[Any]) -> list[dict[str, str]]:
    return [{"name": item, "kind": "json"} if isinstance(item, str) else _return(item) for item in given]


def _return(item: Any) -> dict[str, str]:
    return {"name": item.name, "kind": item.kind}


def _stub(name: str, _source: Any, ways: dict[str, Any], _problems: list[Problem]) -> Step:
    return Stub(name, **ways)


def _parallel(name: str, source: Any, ways: dict[str, Any], _problems: list[Problem]) -> Step:
    return Parallel(name, branches={key: steps_of(branch) for key, branch in source.branches.items()}, **ways)


def _conditional(name: str, source: Any, ways: dict[str, Any], _problems: list[Problem]) -> Step:
    branches = {key: steps_of(branch) for key, branch in source.branches.items()}
    return Conditional(name, parameter=source.parameter, branches=branches, **ways)


def _map(name: str, source: Any, ways: dict[str, Any], _problems: list[Problem]) -> Step:
    return Map(
        name,
        iterate_on=source.iterate_on,
        iterate_as=source.iterate_as,
        branch=steps_of(source.branch),
        reducer=source.reducer,
        **ways,
    )


_KINDS: dict[str, Callable[[str, Any, dict[str, Any], list[Problem]], Step]] = {
    **dict.fromkeys(("PythonTask", "NotebookTask", "ShellTask", "AsyncPythonTask"), _task),
    "Stub": _stub,
    "Parallel": _parallel,
    "Conditional": _conditional,
    "Map": _map,
}

"""Runs a whole pipeline as local processes, without Airflow: one step after the other, for its author.

The folder of a run holds `state.json`, with the values of the steps that succeeded, and the files of the catalog. A run
that is resumed from it runs the other steps, and the steps after them.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

from airflow_provider_launch.pipelines import parameters
from airflow_provider_launch.pipelines.apps import Inputs, build_app, code_folder, references_of
from airflow_provider_launch.pipelines.catalog import Earlier, RunCatalog, copy_project
from airflow_provider_launch.pipelines.executors import LOCAL, MOCKED, patched, placement
from airflow_provider_launch.pipelines.folders import make_dirs, remove_folder
from airflow_provider_launch.pipelines.ids import task_id_of
from airflow_provider_launch.pipelines.layers import resolve
from airflow_provider_launch.pipelines.model import (
    ConditionalStep,
    DagStep,
    ExecutorSection,
    FailStep,
    Graph,
    MapStep,
    ParallelStep,
    PipelineModel,
    Step,
    SuccessStep,
    TaskStep,
)
from airflow_provider_launch.pipelines.objects import file_of, notebook_copy, object_names, readable, reference
from airflow_provider_launch.pipelines.run_step import launched, rendered, secrets_of
from airflow_provider_launch.settings import LAUNCH_HOME
from airflow_provider_launch.specs.errors import InvalidAppError, LaunchError

_KEPT = ("env", "shell", "shell_options")
"""Settings of other executors that fit local processes, too."""
_STATE = "state.json"


@dataclass
class _State:
    """Values and files of the steps before one, on its path."""

    known: parameters.Known
    files: dict[str, Earlier] = field(default_factory=dict)
    elements: dict[str, Any] = field(default_factory=dict)
    """The element of each enclosing map."""
    scopes: tuple[str, ...] = ()
    """Catalog folders of these elements."""
    group: str = ""
    """The prefix of task ids in the innermost map."""
    is_new: bool = False
    """A step before ran in this run, so values and files may differ from those of the run that is resumed."""

    def branch(self) -> _State:
        known = parameters.Known(dict(self.known.values), dict(self.known.orders))
        return replace(self, known=known, files=dict(self.files), elements=dict(self.elements))

    def add(self, other: _State) -> None:
        self.known.add(other.known)
        self.files.update(other.files)
        self.is_new |= other.is_new


def stored_run(folder: Path) -> dict[str, Any]:
    """Return what a run stored: `parameters` and `options` that it was given, and values of `steps`."""
    file = folder / _STATE
    found: dict[str, Any] = json.loads(file.read_text()) if file.is_file() else {}
    return found


class DeskRun:
    """One run of a pipeline.

    Args:
        model: the pipeline.
        folder: the folder of the run; a step in its `state.json` runs again only after another one that does.
        show: called with each line.
        options: stored for a run that is resumed.
    """

    def __init__(
        self,
        model: PipelineModel,
        folder: Path,
        show: Callable[[str], object] = print,
        options: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._model = model
        self._folder = folder
        self._show = show
        self._order = 0
        self._tasks: dict[str, Any] = {}
        stored = stored_run(folder)
        self._done: dict[str, Any] = stored.get("steps", {})
        self._lists: dict[str, list[Any]] = stored.get("lists", {})
        self._given: dict[str, Any] = stored.get("parameters", {})
        self._options = dict(options)
        self.failed: list[str] = []
        """The steps that failed, including those whose failure was handled."""

    def run(self, values: Mapping[str, Any]) -> dict[str, Any] | None:
        """Run the pipeline, and return the parameters at its end; None if it failed.

        Args:
            values: parameters that override those of the file, the environment and the run that is resumed.
        """
        make_dirs(self._folder)
        self._given.update(values)
        self._save()
        known = parameters.of_run({**self._model.parameters, **parameters.from_environment(), **self._given})
        state = _State(known)
        is_success = self._graph(self._model.graph, "", "", state)
        return state.known.values if is_success else None

    def _save(self) -> None:
        stored = {
            "parameters": self._given, "options": self._options, "steps": self._done, "lists": self._lists
        }  # fmt: skip
        file = self._folder / _STATE
        part = file.with_suffix(".part")
        part.write_text(json.dumps(stored))
        part.replace(file)

    # ---- graphs ----------------------------------------------------------------------------------------------

    def _graph(self, graph: Graph, prefix: str, key: str, state: _State) -> bool:
        """Run the steps of a graph from its first one, and return whether it ends in a success.

        Args:
            graph: the steps.
            prefix: the prefix of the task ids.
            key: the prefix of the steps in the state of the run; it also has the numbers of elements.
            state: before the graph; after it, that at its end.
        """
        name = graph.start_at
        while True:
            step = graph.steps[name]
            if isinstance(step, (SuccessStep, FailStep)):
                return isinstance(step, SuccessStep)
            self._order += 1
            if self._step(step, f"{prefix}{task_id_of(name)}", f"{key}{task_id_of(name)}", state):
                name = step.next
            elif step.on_failure:
                name = step.on_failure
            else:
                return False

    def _step(self, step: Step, task_id: str, key: str, state: _State) -> bool:
        if isinstance(step, TaskStep):
            return self._task(step, task_id, key, state)
        if isinstance(step, DagStep):
            assert step.branch is not None
            return self._graph(step.branch, f"{task_id}.", f"{key}.", state)
        if isinstance(step, ParallelStep):
            return self._parallel(step, task_id, key, state)
        if isinstance(step, ConditionalStep):
            return self._conditional(step, task_id, key, state)
        if isinstance(step, MapStep):
            return self._map(step, task_id, key, state)
        return True

    def _parallel(self, step: ParallelStep, task_id: str, key: str, state: _State) -> bool:
        outcomes = []
        before = state.branch()
        for name, graph in step.branches.items():
            inside = before.branch()
            outcomes.append(self._graph(graph, f"{task_id}.{task_id_of(name)}.", f"{key}.{task_id_of(name)}.", inside))
            state.add(inside)
        return all(outcomes)

    def _conditional(self, step: ConditionalStep, task_id: str, key: str, state: _State) -> bool:
        value = state.known.values.get(step.parameter)
        case = parameters.chosen_case(value, step.branches)
        graph = step.default if case is None else step.branches[case]
        if graph is None:
            return self._fail(
                key, f"parameter {step.parameter!r} is {value!r}, for which there is no branch and no 'default'"
            )
        name = "default" if case is None else task_id_of(case)
        return self._graph(graph, f"{task_id}.{name}.", f"{key}.{name}.", state)

    def _map(self, step: MapStep, task_id: str, key: str, state: _State) -> bool:
        assert step.branch is not None
        order = self._order
        scope = "/".join([*state.scopes[-1:], task_id.removeprefix(state.group).replace(".", "/")])
        try:
            on = step.iterate_on
            items = list(on) if isinstance(on, tuple) else parameters.iterated(on, state.known.values)
        except InvalidAppError as error:
            return self._fail(key, error)
        before, outcomes, each = state.branch(), [], []
        old = self._renewed(key, scope, items)
        state.is_new |= old != items
        for at, item in enumerate(items):
            inside = before.branch()
            inside.is_new |= at >= len(old) or old[at] != item
            inside.known.set({step.iterate_as: item}, order)
            inside.elements[step.iterate_as] = item
            inside.scopes = (*before.scopes, f"{scope}/{at}")
            inside.group = f"{task_id}."
            outcomes.append(self._graph(step.branch, f"{task_id}.", f"{key}[{at}].", inside))
            each.append(
                {
                    name: value
                    for name, value in inside.known.values.items()
                    if inside.known.orders.get(name, -1) > order and name != step.iterate_as
                }
            )
            state.files.update(inside.files)
            state.is_new |= inside.is_new
        if not all(outcomes):
            return False
        try:
            reduced = parameters.reduced(each, step.reducer, self._model.reducer_folders(step))
        except Exception as error:  # noqa: BLE001 - a reducer of the author may raise any
            return self._fail(key, error if isinstance(error, LaunchError) else f"{type(error).__name__}: {error}")
        self._order += 1
        state.known.set(reduced, self._order)
        return True

    def _renewed(self, key: str, scope: str, items: list[Any]) -> list[Any]:
        """Store the list of a map, and return that of the run that is resumed, without elements that are gone."""
        old = self._lists.get(key, items)
        self._lists[key] = items
        for at in range(len(items), len(old)):
            for folder in self._folder.glob(f"catalog/*/run/*/{scope}/{at}"):
                remove_folder(folder)
        return old

    # ---- tasks -----------------------------------------------------------------------------------------------

    def _task(self, step: TaskStep, task_id: str, key: str, state: _State) -> bool:
        self._tasks[task_id] = SimpleNamespace(step=step)
        order = self._order
        done = None if state.is_new else self._done.get(key)
        if done is not None:
            self._show(f"== {key}: succeeded before")
            state.known.set(done, order)
            state.files[task_id] = Earlier(order)
            return True
        if self._model.executor.type == MOCKED:
            patch = patched(self._model, step)
            if patch is None:
                self._show(f"== {key}: mocked")
                return True
            step = patch
        state.is_new = True
        self._done.pop(key, None)
        self._show(f"== {key}")
        returned = self._tried(step, task_id, key, state)
        # Files of a failed step are for its handler.
        state.files[task_id] = Earlier(order)
        if returned is None:
            return False
        state.known.set(returned, order)
        self._done[key] = returned
        self._save()
        return True

    def _tried(self, step: TaskStep, task_id: str, key: str, state: _State) -> dict[str, Any] | None:
        for attempt in range(step.max_attempts or 1):
            if attempt:
                time.sleep(step.retry_delay_s or 0)
                self._show(f"== {key}: attempt {attempt + 1}")
            try:
                return self._attempt(step, task_id, state)
            except LaunchError as error:
                problem = error
        self._fail(key, problem)
        return None

    def _attempt(self, step: TaskStep, task_id: str, state: _State) -> dict[str, Any]:
        """Run a task once, and return its values.

        Raises:
            LaunchError: it failed, its files are missing, or it is invalid.
        """
        model, step = _at_desk(self._model, step)
        values = state.known.values
        objects = readable(values, self._tasks, state.scopes)
        catalog = self._catalog(task_id, state)
        folder = self._folder / "tasks" / f"{task_id}-{secrets.token_hex(4)}"
        make_dirs(folder)
        try:
            references = references_of(step)
            step, place = rendered(step, placement(model, step), values, self._folder.name)
            if step.catalog and (patterns := step.catalog.project or model.project):
                copy_project(code_folder(model, place.settings, step), patterns, folder)
            (folder / step.catalog.compute_data_folder).mkdir(parents=True, exist_ok=True)
            is_python = step.command_type in ("python", "notebook")
            catalog.get([*step.catalog.get, *(objects.files if is_python else ())], folder)
            inputs = Inputs(
                parameters=objects.values if is_python else values,
                objects=tuple(objects.names) if is_python else (),
                map_variables=state.elements,
                secrets=secrets_of(step),
                run={"LAUNCH_DAG_ID": model.name, "LAUNCH_RUN_ID": self._folder.name, "LAUNCH_TASK_ID": task_id},
                data_dir=folder,
                references=references,
            )
            app, cfg = build_app(model, step, place, inputs)
            made = [file_of(task_id, name) for name in object_names(step)]
            made += [notebook_copy(step)] if notebook_copy(step) else []
            code, result = launched(place, app, cfg, self._show)
            catalog.put(step.catalog.put, folder, is_strict=code == 0, files=made)
            if code:
                raise InvalidAppError(f"step {step.name!r} failed; its lines are above")
            names = None if step.returns is None else [item.name for item in step.returns]
            returned = parameters.returned_values(result, names, given=values, step=step.name)
            scope = (state.scopes or ("",))[-1]
            objects_made = {name: reference(task_id, name, scope) for name in object_names(step) if name in returned}
            return {**returned, **objects_made}
        finally:
            remove_folder(folder)

    def _catalog(self, task_id: str, state: _State) -> RunCatalog:
        from upath import UPath

        base = self._folder / "catalog"
        make_dirs(base)
        # The class of Airflow adds connections to this one.
        location: Any = UPath(base.as_uri())
        return RunCatalog(location, self._model.name, "run", task_id, state.scopes, state.files)

    def _fail(self, key: str, problem: object) -> bool:
        self.failed.append(key)
        self._show(f"== {key}: FAILED: {problem}")
        return False


def _at_desk(model: PipelineModel, step: TaskStep) -> tuple[PipelineModel, TaskStep]:
    """Return a pipeline and its step with local processes as the executor."""
    section = step.executor or model.executor
    if section.type == LOCAL:
        return model, step
    config: dict[str, Any] = {}
    if section.type != MOCKED:
        found = resolve(model, step, section.type, [])
        config = {name: found[name] for name in _KEPT if name in found}
    local = ExecutorSection(LOCAL, config, section.place)
    return replace(model, executor=ExecutorSection(LOCAL)), replace(step, executor=local, overrides={})


def runs_of(name: str) -> Iterator[Path]:
    """Yield the folders of the runs of a pipeline at this desk, newest first."""
    yield from sorted(LAUNCH_HOME("pipelines", "desk").glob(f"{task_id_of(name)}/*"), reverse=True)


def is_run(folder: Path) -> bool:
    """Return whether a folder is that of a run."""
    return (folder / _STATE).is_file()


def new_run(name: str) -> Path:
    """Return the folder of a new run of a pipeline; older runs but the last nine are removed."""
    for old in [*runs_of(name)][9:]:
        remove_folder(old)
    at = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%S.%f")
    return LAUNCH_HOME("pipelines", "desk") / task_id_of(name) / f"{at}-{os.getpid()}"

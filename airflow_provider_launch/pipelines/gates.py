"""Gates: tasks added by a pipeline that decide by the states of other tasks and launch nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator, TriggerRule

from airflow_provider_launch._airflow import AirflowFailException, AirflowSkipException, conf
from airflow_provider_launch.pipelines import parameters
from airflow_provider_launch.pipelines.ids import folder_of
from airflow_provider_launch.pipelines.problems import closest

if TYPE_CHECKING:
    from pathlib import Path

    from airflow.sdk import Context

PARAMETERS_KEY = "parameters"
_NEVER_RAN = ("upstream_failed", "removed")


@dataclass(frozen=True)
class Source:
    """A task that passes on parameters in its XCom."""

    task_id: str
    scope: str
    """Its mapped group; empty outside of mapped groups."""


@dataclass(frozen=True)
class Scope:
    """The maps that enclose a task, and their elements."""

    group: str = ""
    """Id of the mapped group; empty outside of mapped groups."""
    fan_out: str = ""
    """The task that returns the list of the group."""
    iterate_as: str = ""
    """Parameter that holds the element."""
    order: int = 0
    """Position of the map in the pipeline."""
    fixed: Mapping[str, tuple[Any, int]] = field(default_factory=dict)
    """Elements of maps whose list is in the file: name to value and position of the map."""
    folders: tuple[str, ...] = ()
    """Catalog folders of the elements of such maps around the mapped group."""
    inner_folders: tuple[str, ...] = ()
    """Catalog folders of the elements of such maps in the mapped group, relative to that of its element."""
    parallelism: int | None = None

    def folders_of(self, map_index: int | None) -> list[str]:
        """Return the catalog folders of a task, outermost map first; None if the task is not mapped."""
        if not self.group:
            return [*self.folders]
        element = f"{folder_of(self.fan_out)}/{map_index}"
        return [*self.folders, element, *(f"{element}/{folder}" for folder in self.inner_folders)]


def known_parameters(
    context: Context, sources: Sequence[Source], scope: Scope
) -> tuple[parameters.Known, dict[str, Any]]:
    """Return the parameters that a task sees, and the elements of the enclosing maps.

    Raises:
        AirflowFailException: Airflow cannot store a parameter of the run.
    """
    from airflow_provider_launch._task.errors import final_errors

    ti = context["ti"]
    if len(sources) > 1:
        # Where paths join. A task that ran before Clear and is skipped now still has its old values.
        sources = _of_taken_paths(ti, sources, scope)
    found = passed_on(ti, sources, scope)
    with final_errors():
        known = parameters.of_run(dict(context["params"]))
    elements: dict[str, Any] = {}
    if scope.fan_out:
        items = ti.xcom_pull(task_ids=scope.fan_out, map_indexes=-1)
        elements[scope.iterate_as] = items[ti.map_index]
        known.set({scope.iterate_as: elements[scope.iterate_as]}, scope.order)
    for name, (value, order) in scope.fixed.items():
        elements[name] = value
        known.set({name: value}, order)
    for one in found:
        known.add(one)
    return known, elements


def skipped(ti: Any, task_ids: Sequence[str], map_index: int) -> set[str]:
    """Return which tasks of this run were not started, because the run took another path."""
    if not task_ids:
        return set()
    found = ti.get_task_states(dag_id=ti.dag_id, task_ids=list(task_ids), run_ids=[ti.run_id], map_index=map_index)
    states = {name: state for run in found.values() for name, state in run.items()}
    suffix = f"_{map_index}" if map_index >= 0 else ""
    return {task_id for task_id in task_ids if states.get(f"{task_id}{suffix}") in ("skipped", *_NEVER_RAN)}


def _of_taken_paths(ti: Any, sources: Sequence[Source], scope: Scope) -> list[Source]:
    """Return the sources that ran, and instead of each other one those before it."""
    found: list[Source] = []
    waiting, seen = list(sources), set(sources)
    while waiting:
        inside = [source.task_id for source in waiting if source.scope and source.scope == scope.group]
        outside = [source.task_id for source in waiting if source.task_id not in inside]
        old = {*skipped(ti, inside, ti.map_index), *skipped(ti, outside, -1)}
        found += [source for source in waiting if source.task_id not in old]
        tasks = [ti.task.dag.task_dict.get(source.task_id) for source in waiting if source.task_id in old]
        earlier = dict.fromkeys(source for task in tasks for source in getattr(task, "sources", ()))
        waiting = [source for source in earlier if source not in seen]
        seen.update(waiting)
    return found


def passed_on(ti: Any, sources: Sequence[Source], scope: Scope) -> list[parameters.Known]:
    """Return the parameters that tasks pass on.

    A task without parameters was skipped, failed or was marked as a success: the tasks before it count instead.
    """

    def pull(source: Source) -> Any:
        index = ti.map_index if source.scope and source.scope == scope.group else -1
        return ti.xcom_pull(task_ids=source.task_id, key=PARAMETERS_KEY, map_indexes=index)

    return _nearest(ti, sources, pull)


def _nearest(ti: Any, sources: Sequence[Source], pull: Callable[[Source], Any]) -> list[parameters.Known]:
    """Return the parameters of the nearest tasks that have some, on each way back from a task."""
    found: list[parameters.Known] = []
    waiting, seen = list(sources), set()
    while waiting:
        source = waiting.pop()
        if source in seen:
            continue
        seen.add(source)
        value = pull(source)
        if isinstance(value, Mapping):
            found.append(parameters.Known.from_json(value))
        else:
            waiting += getattr(ti.task.dag.task_dict.get(source.task_id), "sources", ())
    return found


class StubOperator(BaseOperator):
    """Does nothing; Airflow's scheduler marks it as a success without a worker."""

    ui_color = "#eeeeee"
    _is_empty = True

    def execute(self, context: Context) -> None:
        """Do nothing."""


class FailOperator(BaseOperator):
    """Ends a pipeline as a failure."""

    ui_color = "#f6d5d5"

    def execute(self, context: Context) -> None:
        """Fail without retries."""
        del context
        raise AirflowFailException(f"the pipeline reached {self.task_display_name!r}")


class _Gate(BaseOperator):
    """Passes, skips the steps after it, or fails."""

    ui_color = "#f4efe0"

    def __init__(self, *, scope: Scope, **kwargs: Any) -> None:
        super().__init__(**{"retries": 0, "trigger_rule": TriggerRule.ALL_DONE, "do_xcom_push": False, **kwargs})
        self.scope = scope

    def states(self, context: Context, tasks: Sequence[str], *, mapped: bool = False) -> list[str | None]:
        """Return the states of tasks of this run; with `mapped` those of all elements."""
        ti = context["ti"]
        index = None if mapped else (ti.map_index if self.scope.group else -1)
        found = ti.get_task_states(dag_id=ti.dag_id, task_ids=list(tasks), run_ids=[ti.run_id], map_index=index)
        return [state for run in found.values() for state in run.values()]


class OutcomeGate(_Gate):
    """Passes if a step had the outcome `passes_on`, skips if it had the other one, fails if it never started.

    Args:
        passes_on: `success` or `failure`.
        entry: the first task of the step.
        exits: the tasks that all succeed if the step succeeds.
        members: all tasks of the step that run as often as this gate.
        inner: tasks that run once for each element of a map in the step.
    """

    def __init__(
        self,
        *,
        passes_on: str,
        entry: str,
        exits: Sequence[str],
        members: Sequence[str],
        inner: Sequence[str] = (),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.passes_on = passes_on
        self.entry = entry
        self.exits = tuple(exits)
        self.members = tuple(members)
        self.inner = tuple(inner)

    def execute(self, context: Context) -> None:
        """Pass, skip or fail."""
        entered = self.states(context, [self.entry])
        if not entered or entered[0] in (*_NEVER_RAN, None):
            raise AirflowFailException(f"{self.entry} did not run because an earlier task failed")
        if entered[0] == "skipped":
            raise AirflowSkipException(f"{self.entry} was skipped")
        exits = self.states(context, self.exits)
        if exits and all(state == "success" for state in exits):
            outcome = "success"
        else:
            states = self.states(context, self.members)
            if self.inner:
                states += self.states(context, self.inner, mapped=True)
            if not any(state in ("failed", *_NEVER_RAN) for state in states):
                raise AirflowSkipException("the step was skipped")
            outcome = "failure"
        if outcome != self.passes_on:
            raise AirflowSkipException(f"the step ended in {outcome}")


class JoinGate(_Gate):
    """Passes if one of several paths to a step was taken, fails if one of them failed, else skips.

    Args:
        ways: the tasks at the end of each path, which must all have succeeded.
    """

    def __init__(self, *, ways: Sequence[Sequence[str]], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.ways = tuple(tuple(way) for way in ways)

    def execute(self, context: Context) -> None:
        """Pass, skip or fail."""
        outcomes = []
        for way in self.ways:
            states = self.states(context, way)
            if any(state in ("failed", *_NEVER_RAN) for state in states):
                raise AirflowFailException(f"{', '.join(way)} failed")
            went = [state == "success" for state in states]
            if any(went) and not all(went):
                raise AirflowFailException(f"only some of {', '.join(way)} succeeded")
            outcomes.append(bool(went) and all(went))
        if not any(outcomes):
            raise AirflowSkipException("no path led here")


class CaseGate(_Gate):
    """Starts a branch of a conditional if the parameter matches its case, else skips it.

    Args:
        parameter: its name.
        case: the value, as text; None is the default branch.
        cases: all values.
        sources: tasks that pass on parameters.
    """

    def __init__(
        self, *, parameter: str, case: str | None, cases: Sequence[str], sources: Sequence[Source], **kwargs: Any
    ) -> None:
        super().__init__(**{"trigger_rule": TriggerRule.ALL_SUCCESS, **kwargs})
        self.parameter = parameter
        self.case = case
        self.cases = tuple(cases)
        self.sources = tuple(sources)

    def execute(self, context: Context) -> None:
        """Pass or skip."""
        known, _ = known_parameters(context, self.sources, self.scope)
        if self.parameter not in known.values:
            raise AirflowFailException(
                f"there is no parameter {self.parameter!r}; {closest(self.parameter, known.values)}"
            )
        value = known.values[self.parameter]
        if parameters.chosen_case(value, self.cases) != self.case:
            raise AirflowSkipException(f"{self.parameter} is {value!r}")
        self.log.info("%s is %r", self.parameter, value)


class CaseCheck(_Gate):
    """Fails if a conditional has no branch for the value of its parameter."""

    def __init__(self, *, parameter: str, cases: Sequence[str], sources: Sequence[Source], **kwargs: Any) -> None:
        super().__init__(**{"trigger_rule": TriggerRule.ALL_SUCCESS, **kwargs})
        self.parameter = parameter
        self.cases = tuple(cases)
        self.sources = tuple(sources)

    def execute(self, context: Context) -> None:
        """Pass or fail."""
        known, _ = known_parameters(context, self.sources, self.scope)
        value = known.values.get(self.parameter)
        if parameters.chosen_case(value, self.cases) is None:
            raise AirflowFailException(
                f"parameter {self.parameter!r} is {value!r}, but the conditional has only branches for "
                f"{', '.join(self.cases)} and no 'default'"
            )


class FanOut(_Gate):
    """Starts a map: returns the list to iterate over.

    Args:
        iterate_on: the parameter that holds the list, or the list.
        sources: tasks that pass on parameters.
    """

    def __init__(self, *, iterate_on: str | Sequence[Any], sources: Sequence[Source], **kwargs: Any) -> None:
        super().__init__(**{"trigger_rule": TriggerRule.ALL_SUCCESS, "do_xcom_push": True, **kwargs})
        self.iterate_on = iterate_on
        self.sources = tuple(sources)

    def execute(self, context: Context) -> list[Any]:
        """Return the list."""
        from airflow_provider_launch._task.errors import final_errors

        with final_errors():
            known, _ = known_parameters(context, self.sources, self.scope)
            on = self.iterate_on
            items = parameters.iterated(on, known.values) if isinstance(on, str) else list(on)
        self.log.info("the list has %d elements", len(items))
        limit = conf.getint("core", "max_map_length", fallback=1024)
        if len(items) > limit:
            # The API server decides, whose configuration may differ from that of this worker.
            self.log.warning(
                "Airflow maps over at most %d elements by the configuration of this worker; raise [core] max_map_length"
                " of the API server, or let each element be a part of the list",
                limit,
            )
        context["ti"].xcom_push(PARAMETERS_KEY, known.to_json({}))
        return items


class FanIn(_Gate):
    """Ends a map: reduces the values that its branches returned, name by name.

    Args:
        sources: tasks that pass on the parameters before the map.
        branches: the last sources of each branch; one list for a mapped group, or one for each element.
        reducer: the function that reduces the values.
        order: position of the map in the pipeline.
        hidden: parameters of the map that are not passed on.
        fan_out: the task that started a mapped group; empty if the list is in the file.
        folders: the folders in which the module of a reducer may be.
    """

    def __init__(
        self,
        *,
        sources: Sequence[Source],
        branches: Sequence[Sequence[Source]],
        reducer: Any,
        order: int,
        hidden: Sequence[str],
        fan_out: str = "",
        folders: Sequence[Path] = (),
        **kwargs: Any,
    ) -> None:
        super().__init__(**{"trigger_rule": TriggerRule.NONE_FAILED_MIN_ONE_SUCCESS, **kwargs})
        self.sources = tuple(sources)
        self.branches = tuple(tuple(branch) for branch in branches)
        self.reducer = reducer
        self.order = order
        self.hidden = tuple(hidden)
        self.fan_out = fan_out
        self.folders = tuple(folders)

    def execute(self, context: Context) -> None:
        """Push the parameters that the steps after the map see."""
        ti = context["ti"]
        known, _ = known_parameters(context, self.sources, self.scope)
        returned = parameters.reduced(self._each(ti), self.reducer, self.folders)
        known.set(returned, self.order)
        ti.xcom_push(PARAMETERS_KEY, known.to_json(returned))

    def _each(self, ti: Any) -> list[dict[str, Any]]:
        """Return the values of each element; empty for an element that has none."""
        if not self.fan_out:
            return [self._newest(passed_on(ti, branch, self.scope)) for branch in self.branches]
        items = ti.xcom_pull(task_ids=self.fan_out, map_indexes=-1) or []

        @cache
        def all_of(task_id: str) -> dict[Any, Any]:
            # One request for all elements. It omits elements without an XCom, so each value has its index.
            values = ti.xcom_pull(task_ids=[task_id], key=PARAMETERS_KEY) or []
            return {value.get("index"): value for value in values if isinstance(value, Mapping)}

        def element(index: int) -> list[parameters.Known]:
            # The search ends at the start of the map.
            return _nearest(
                ti,
                self.branches[0],
                lambda source: {} if source.task_id == self.fan_out else all_of(source.task_id).get(index),
            )

        return [self._newest(element(index)) for index in range(len(items))]

    def _newest(self, sources: Any) -> dict[str, Any]:
        """Return the values returned within one branch, without earlier parameters and without its element."""
        known = parameters.Known()
        for one in sources:
            known.add(one)
        return {
            name: value
            for name, value in known.values.items()
            if known.orders.get(name, -1) > self.order and name not in self.hidden
        }

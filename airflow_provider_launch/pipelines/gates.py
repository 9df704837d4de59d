"""Tasks that a pipeline adds: they decide by the states of other tasks, and launch nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator, TriggerRule
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from airflow_provider_launch.pipelines import parameters

if TYPE_CHECKING:
    from airflow.sdk import Context

PARAMETERS_KEY = "parameters"
_NEVER_RAN = ("upstream_failed", "removed")


@dataclass(frozen=True)
class Source:
    """A task that leaves parameters in its XCom."""

    task_id: str
    scope: str
    """The mapped group it stands in; empty outside of all."""


@dataclass(frozen=True)
class Scope:
    """Where a task stands: the map around it, and what is known there."""

    group: str = ""
    """Id of the mapped group; empty outside of all."""
    fan_out: str = ""
    """The task whose list the group runs over."""
    iterate_as: str = ""
    """Name of the element."""
    order: int = 0
    """Place of the map in the pipeline."""
    fixed: Mapping[str, tuple[Any, int]] = field(default_factory=dict)
    """Elements of maps whose list stands in the file: name to the value, and the place of the map."""
    folders: tuple[str, ...] = ()
    """Folders in the catalog of the elements of such maps."""
    parallelism: int | None = None


def known_parameters(
    context: Context, sources: Sequence[Source], scope: Scope
) -> tuple[parameters.Known, dict[str, Any]]:
    """Return the parameters that a task sees, and the elements of the maps around it."""
    ti = context["ti"]
    found = [pulled(ti, source, scope) for source in sources]
    known = parameters.merged(dict(context["params"]), [])
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


def pulled(ti: Any, source: Source, scope: Scope) -> parameters.Known:
    """Return what a task has left for the ones after it."""
    index = ti.map_index if source.scope and source.scope == scope.group else -1
    return parameters.Known.from_json(ti.xcom_pull(task_ids=source.task_id, key=PARAMETERS_KEY, map_indexes=index))


class StubOperator(BaseOperator):
    """Does nothing; the scheduler marks it as a success without a worker."""

    ui_color = "#eeeeee"
    _is_empty = True

    def execute(self, context: Context) -> None:
        """Do nothing."""


class FailOperator(BaseOperator):
    """Ends a pipeline as a failure."""

    ui_color = "#f6d5d5"

    def execute(self, context: Context) -> None:
        """Fail, without another try."""
        del context
        raise AirflowFailException(f"the pipeline came to {self.task_display_name!r}")


class _Gate(BaseOperator):
    """Passes, skips what follows, or fails."""

    ui_color = "#f4efe0"

    def __init__(self, *, scope: Scope, **kwargs: Any) -> None:
        super().__init__(**{"retries": 0, "trigger_rule": TriggerRule.ALL_DONE, "do_xcom_push": False, **kwargs})
        self.scope = scope

    def states(self, context: Context, tasks: Sequence[str], *, mapped: bool = False) -> list[str | None]:
        """Return the states of tasks of this run; of mapped ones, unless they are in our group, those of all."""
        ti = context["ti"]
        index = None if mapped else (ti.map_index if self.scope.group else -1)
        found = ti.get_task_states(dag_id=ti.dag_id, task_ids=list(tasks), run_ids=[ti.run_id], map_index=index)
        return [state for run in found.values() for state in run.values()]


class OutcomeGate(_Gate):
    """Passes if a step has succeeded, or if it has failed; skips if it did the other; fails if it never began.

    Args:
        passes_on: `success` or `failure`.
        entry: the first task of the step.
        exits: the tasks that have all succeeded if the step has.
        members: all tasks of the step that run as often as this gate.
        inner: those that run once for each element of a map in it.
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
        begun = self.states(context, [self.entry])
        if not begun or begun[0] in (*_NEVER_RAN, None):
            raise AirflowFailException(f"{self.entry} did not run, because something before it failed")
        if begun[0] == "skipped":
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
    """Passes when one of several ways to a step was gone; fails if one of them failed; else skips.

    Args:
        ways: the tasks at the end of each way, of which all must have succeeded.
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
                raise AirflowFailException(f"{', '.join(way)} ended in part")
            outcomes.append(bool(went) and all(went))
        if not any(outcomes):
            raise AirflowSkipException("no way led here")


class CaseGate(_Gate):
    """Begins the branch of a conditional whose case a parameter matches, and skips the others.

    Args:
        parameter: its name.
        case: the value, as text; None is the default branch.
        cases: all values.
        sources: where parameters come from.
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
            there = ", ".join(sorted(known.values)) or "none"
            raise AirflowFailException(f"there is no parameter {self.parameter!r}; there are {there}")
        value = known.values[self.parameter]
        texts = {parameters.as_text(value), str(value)}
        matches = not texts & set(self.cases) if self.case is None else self.case in texts
        if not matches:
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
        if not {parameters.as_text(value), str(value)} & set(self.cases):
            raise AirflowFailException(
                f"parameter {self.parameter!r} is {value!r}, and the conditional has branches for "
                f"{', '.join(self.cases)} and no default"
            )


class FanOut(_Gate):
    """Begins a map: gives the list that it runs over.

    Args:
        iterate_on: the parameter that holds it.
        sources: where parameters come from.
    """

    def __init__(self, *, iterate_on: str, sources: Sequence[Source], **kwargs: Any) -> None:
        super().__init__(**{"trigger_rule": TriggerRule.ALL_SUCCESS, "do_xcom_push": True, **kwargs})
        self.iterate_on = iterate_on
        self.sources = tuple(sources)

    def execute(self, context: Context) -> list[Any]:
        """Return the list."""
        from airflow_provider_launch._task.errors import final_errors

        with final_errors():
            known, _ = known_parameters(context, self.sources, self.scope)
            items = parameters.iterated(self.iterate_on, known.values.get(self.iterate_on))
        self.log.info("%s has %d elements", self.iterate_on, len(items))
        context["ti"].xcom_push(PARAMETERS_KEY, known.to_json({}))
        return items


class FanIn(_Gate):
    """Ends a map: makes one value of what its branches returned by one name.

    Args:
        fan_out: the task that began it; of a map whose list stands in the file, the parameters before it.
        branches: the last sources of each branch; one list, of a mapped group, or one for each element.
        reducer: what becomes of the values.
        order: place of the map in the pipeline.
    """

    def __init__(
        self,
        *,
        before: Sequence[Source],
        branches: Sequence[Sequence[Source]],
        reducer: Any,
        order: int,
        hidden: Sequence[str],
        fan_out: str = "",
        **kwargs: Any,
    ) -> None:
        super().__init__(**{"trigger_rule": TriggerRule.NONE_FAILED_MIN_ONE_SUCCESS, **kwargs})
        self.before = tuple(before)
        self.branches = tuple(tuple(branch) for branch in branches)
        self.reducer = reducer
        self.order = order
        self.hidden = tuple(hidden)
        self.fan_out = fan_out

    def execute(self, context: Context) -> None:
        """Push the parameters that the steps after the map see."""
        ti = context["ti"]
        known, _ = known_parameters(context, self.before, self.scope)
        returned = parameters.reduced(self._each(ti), self.reducer)
        known.set(returned, self.order)
        ti.xcom_push(PARAMETERS_KEY, known.to_json(returned))

    def _each(self, ti: Any) -> list[dict[str, Any]]:
        if not self.fan_out:
            return [self._newest(pulled(ti, source, self.scope) for source in branch) for branch in self.branches]
        items = ti.xcom_pull(task_ids=self.fan_out, map_indexes=-1) or []
        by_index: list[list[parameters.Known]] = [[] for _ in items]
        for source in self.branches[0]:
            # One request for all elements; what has left nothing is missing in it, so each has its index.
            for value in ti.xcom_pull(task_ids=[source.task_id], key=PARAMETERS_KEY) or []:
                index = value.get("index") if isinstance(value, Mapping) else None
                if isinstance(index, int) and 0 <= index < len(by_index):
                    by_index[index].append(parameters.Known.from_json(value))
        return [self._newest(found) for found in by_index]

    def _newest(self, sources: Any) -> dict[str, Any]:
        """Return what was returned inside of one branch; not what was known before the map, nor its element."""
        known = parameters.Known()
        for one in sources:
            known.add(one)
        return {
            name: value
            for name, value in known.values.items()
            if known.orders.get(name, -1) > self.order and name not in self.hidden
        }

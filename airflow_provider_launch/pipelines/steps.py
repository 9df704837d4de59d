"""Steps of pipelines in Python, with the fields that they have in a file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_launch.pipelines.problems import PipelineError, Problem

if TYPE_CHECKING:
    from airflow_provider_launch.pipelines.pipeline import Pipeline


def pickled(name: str) -> dict[str, str]:
    """Return an entry of `returns` for a value that is any Python object."""
    return {"name": name, "kind": "object"}


def metric(name: str) -> dict[str, str]:
    """Return an entry of `returns` for a value that is also a metric of the attempt."""
    return {"name": name, "kind": "metric"}


class Step:
    """A step. `a >> b` lets b follow a; without it steps follow the order of the list.

    Args:
        name: the name of the step.
        next: the step that follows, or its name.
        terminate_with_success: True ends the pipeline after this step, as `next="success"`.
        terminate_with_failure: True lets it fail after this step, as `next="fail"`.
        on_failure: the step that follows a failure, its name, or a list of steps, also as a pipeline. After a list the
            pipeline fails, unless the last step of the list leads elsewhere.
        fields: the fields of the step, as in a file.
    """

    kind = ""

    def __init__(
        self,
        name: str,
        *,
        next: Step | str | None = None,  # noqa: A002 - its name in files
        on_failure: Step | str | Sequence[Step] | Pipeline | None = None,
        terminate_with_success: bool = False,
        terminate_with_failure: bool = False,
        **fields: Any,
    ) -> None:
        self.name = name
        self.next = "success" if terminate_with_success else "fail" if terminate_with_failure else next
        self.on_failure = on_failure
        self.fields = {key: value for key, value in fields.items() if value is not None}

    def __rshift__(self, other: Step) -> Step:
        if self.next is not None and self.next is not other:
            raise PipelineError(
                [Problem(f"step {self.name!r} is followed by {_name(self.next)!r} and by {other.name!r}; use Parallel")]
            )
        self.next = other
        return other

    def __lshift__(self, other: Step) -> Step:
        _ = other >> self
        return other

    def depends_on(self, other: Step) -> Step:
        """Let this step follow another one."""
        return self << other

    def terminate_with_success(self) -> Step:
        """End the pipeline after this step."""
        self.next = "success"
        return self

    def document(self) -> dict[str, Any]:
        """Return the step as it would be written in a file, without its `next`."""
        return {"type": self.kind, **self.fields}


class Task(Step):
    """Runs one of a function, a shell command, a notebook or an app.

    Args:
        name: the name of the step.
        function: a function of a module, or its name as `module.function`.
        shell: a shell command.
        notebook: path of a notebook.
        app: an `AppDef`.
        kwargs: those of `Step`, and the fields of a task in a file.
    """

    kind = "task"

    def __init__(
        self,
        name: str,
        *,
        function: Callable[..., Any] | str | None = None,
        shell: str | None = None,
        notebook: str | None = None,
        app: Any = None,
        **kwargs: Any,
    ) -> None:
        given = {"python": function, "shell": shell, "notebook": notebook, "app": app}
        kinds = [kind for kind, value in given.items() if value is not None]
        if len(kinds) > 1:
            raise PipelineError([Problem(f"task {name!r} has {' and '.join(kinds)}; name one")])
        if kinds:
            kwargs["command_type"] = kinds[0]
            if app is not None:
                kwargs["app"] = _app(app)
            else:
                kwargs["command"] = _function_name(name, function) if function is not None else shell or notebook
        super().__init__(name, **kwargs)


class Stub(Step):
    """Does nothing and succeeds."""

    kind = "stub"


class Success(Step):
    """Ends a pipeline as a success; only needed to give it another name."""

    kind = "success"


class Fail(Step):
    """Ends a pipeline as a failure; only needed to give it another name."""

    kind = "fail"


class Parallel(Step):
    """Runs branches in parallel.

    Args:
        name: the name of the step.
        branches: name to a list of steps, or to a pipeline.
        kwargs: those of `Step`.
    """

    kind = "parallel"

    def __init__(self, name: str, *, branches: Mapping[str, Pipeline | Sequence[Step]], **kwargs: Any) -> None:
        super().__init__(name, **kwargs)
        self.branches = dict(branches)

    def document(self) -> dict[str, Any]:
        """Return the step as it would be written in a file, without its `next`."""
        return {**super().document(), "branches": {key: _graph(branch) for key, branch in self.branches.items()}}


class Conditional(Parallel):
    """Runs one of its branches, chosen by the value of `parameter`; `default` is for all other values."""

    kind = "conditional"

    def __init__(
        self,
        name: str,
        *,
        parameter: str,
        branches: Mapping[str, Pipeline | Sequence[Step]],
        default: Pipeline | Sequence[Step] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(name, branches=branches, parameter=parameter, **kwargs)
        self.default = default

    def document(self) -> dict[str, Any]:
        """Return the step as it would be written in a file, without its `next`."""
        default = {} if self.default is None else {"default": _graph(self.default)}
        return {**super().document(), **default}


class Map(Step):
    """Runs a branch for each element of a list.

    Args:
        name: the name of the step.
        iterate_on: the parameter that holds the list, or the list.
        iterate_as: the parameter that holds the element.
        branch: a list of steps, or a pipeline.
        kwargs: those of `Step`, and `reducer` and `parallelism`.
    """

    kind = "map"

    def __init__(
        self,
        name: str,
        *,
        iterate_on: str | Sequence[Any],
        iterate_as: str,
        branch: Pipeline | Sequence[Step],
        **kwargs: Any,
    ) -> None:
        on = iterate_on if isinstance(iterate_on, str) else list(iterate_on)
        super().__init__(name, iterate_on=on, iterate_as=iterate_as, **kwargs)
        self.branch = branch

    def document(self) -> dict[str, Any]:
        """Return the step as it would be written in a file, without its `next`."""
        return {**super().document(), "branch": _graph(self.branch)}


class Dag(Step):
    """Runs the graph of a file, or of another pipeline.

    Args:
        name: the name of the step.
        dag_definition: path of the file, relative to the caller's.
        kwargs: those of `Step`.
    """

    kind = "dag"

    def __init__(self, name: str, *, dag_definition: str, **kwargs: Any) -> None:
        super().__init__(name, dag_definition=dag_definition, **kwargs)


def _graph(branch: Pipeline | Sequence[Step]) -> dict[str, Any]:
    return graph(list(branch)) if isinstance(branch, Iterable) else branch.graph()


def graph(steps: Sequence[Step], start_at: Step | str | None = None) -> dict[str, Any]:
    """Return steps as they would be written in a file.

    Args:
        steps: in order; each is followed by the next one unless it has its own `next`, the last by a success.
        start_at: the first step, if it is not the first of the list.

    Raises:
        PipelineError: two steps have the same name.
    """
    found: dict[str, Any] = {}
    problems: list[Problem] = []
    _add(list(steps), "success", found, problems)
    if problems:
        raise PipelineError(problems)
    first = start_at if start_at is not None else steps[0] if steps else ""
    return {"start_at": _name(first), "steps": found}


def _add(steps: list[Step], last: str, found: dict[str, Any], problems: list[Problem]) -> None:
    """Put steps into a graph, each followed by the next one; `last` follows the last."""
    for at, step in enumerate(steps):
        if step.name in found:
            problems.append(Problem(f"there are two steps {step.name!r}; rename one"))
            continue
        document = found[step.name] = step.document()
        if isinstance(step, (Success, Fail)):
            continue
        following = steps[at + 1].name if at + 1 < len(steps) else last
        document["next"] = _name(step.next) if step.next is not None else following
        handler = step.on_failure
        if isinstance(handler, (str, Step)):
            document["on_failure"] = _name(handler)
        elif handler:
            handlers = list(handler if isinstance(handler, Iterable) else handler.steps)
            document["on_failure"] = handlers[0].name
            _add(handlers, "fail", found, problems)


def _name(step: Step | str) -> str:
    return step if isinstance(step, str) else step.name


def _function_name(step: str, function: Callable[..., Any] | str) -> str:
    if isinstance(function, str):
        return function
    module, name = getattr(function, "__module__", ""), getattr(function, "__qualname__", "")
    if "<" in name or "." in name or not module or module.startswith("unusual_prefix_"):
        raise PipelineError(
            [Problem(f"task {step!r}: {name or function!r} must be a function at the top level of an imported module")]
        )
    return f"{module}.{name}"


def _app(app: Any) -> Any:
    from airflow_provider_launch.specs.app_dict import app_to_dict
    from airflow_provider_launch.specs.roles import AppDef

    return app_to_dict(app) if isinstance(app, AppDef) else dict(app)

"""`@task.launch_python`: a function of the DAG file runs as a distributed app."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, ParamSpec, TypeVar, cast, overload

from airflow.sdk.bases.decorator import DecoratedOperator, _TaskDecorator
from airflow.sdk.definitions.context import KNOWN_CONTEXT_KEYS

from airflow_provider_launch._task.errors import final_errors
from airflow_provider_launch.functions.app import role_app
from airflow_provider_launch.functions.arguments import check_json, defaults_of, parameters_of
from airflow_provider_launch.functions.quick_check import surely_travels
from airflow_provider_launch.functions.source import source_of
from airflow_provider_launch.operators.launch import LaunchAppOperator

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.bases.decorator import Task

    from airflow_provider_launch.specs.roles import AppDef

__all__ = ["launch_python_task"]

P = ParamSpec("P")
R = TypeVar("R")

_NAME = "@task.launch_python"
_REPLICA = "replica"
_OF_ROLE = (
    "image", "num_replicas", "resource", "env", "max_retries", "retry_policy", "port_map", "mounts", "metadata",
    "max_disruptions",
)  # fmt: skip
_TEXTS = frozenset(
    {"ds", "ds_nodash", "ts", "ts_nodash", "ts_nodash_with_tz", "run_id", "params", "task_instance_key_str"}
)
"""Parts of Airflow's context that JSON can hold, and that are the same in each try."""
_OWN_KEYS = ("handle", "app", "return_value")
_NOT_TAKEN = {
    "app": "the function is the app; leave `app` out",
    "component": "the function is the app; leave `component` out",
    "component_args": "the function is the app; leave `component_args` out",
    "wait": "the task returns the value of the function, so it waits; leave `wait` out, or set `deferrable`",
    "results": "use `gather=True` for the values of all replicas; leave `results` out",
    "requirements": (
        "each replica would install them in each run; build them into the image, for example by `Dockerfile.torchx` in "
        "a workspace, and leave `requirements` out"
    ),
}


class _LaunchPythonOperator(DecoratedOperator, LaunchAppOperator):
    """Launches the function, and returns its value."""

    custom_operator_name = _NAME
    _builds_app = False
    template_fields: Sequence[str] = (*DecoratedOperator.template_fields, *LaunchAppOperator.template_fields)
    template_fields_renderers: ClassVar[dict[str, str]] = {
        **DecoratedOperator.template_fields_renderers,
        **LaunchAppOperator.template_fields_renderers,
    }

    def __init__(
        self,
        *,
        python_callable: Callable[..., Any],
        python: str | None = None,
        torch: bool = False,
        gather: bool = False,
        op_args: Sequence[Any] = (),
        op_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        self._python, self._gather = python, gather
        self._named: dict[str, Any] = {}
        """Arguments from Airflow's context."""
        self._read: tuple[Mapping[str, Any], Any] | None = None
        """The last outcome and its value, so that a warning about that is logged once."""
        op_kwargs = dict(op_kwargs or {})
        with final_errors(kwargs.get("task_id", "")):
            _refuse(kwargs, op_kwargs, python_callable)
            _check_arguments(python_callable, op_args, op_kwargs)
            fields = {name: kwargs.pop(name) for name in _OF_ROLE if name in kwargs}
            app = role_app(python_callable.__name__, python=python or "python3", torch=torch, **fields)
        if _REPLICA in parameters_of(python_callable):
            # Airflow checks that all parameters have a value.
            op_kwargs[_REPLICA] = None
        super().__init__(
            python_callable=python_callable, op_args=op_args, op_kwargs=op_kwargs, app=app,
            results="all" if gather else "first", **kwargs,
        )  # fmt: skip
        self.op_kwargs = {name: value for name, value in self.op_kwargs.items() if name != _REPLICA}

    def execute(self, context: Context) -> Any:
        """Launch the function and return its value; as `LaunchAppOperator.execute`."""
        from airflow_provider_launch._task.errors import final_errors

        parameters = parameters_of(self.python_callable)
        given = {*self.op_kwargs, *parameters[: len(self.op_args)]}
        self._named = {
            name: _plain(context[name]) for name in parameters if name in _TEXTS and name not in given  # type: ignore[literal-required]
        }  # fmt: skip
        # Once more, because the frames below would be shown above the user's error.
        with final_errors():
            return super().execute(context)

    def _rendered_app(self) -> AppDef:
        from airflow_provider_launch._task.secrets import register_in_json
        from airflow_provider_launch.functions.app import with_function

        args = [_plain(each) for each in self.op_args]
        kwargs = {**self._named, **{name: _plain(each) for name, each in self.op_kwargs.items()}}
        return with_function(
            super()._rendered_app(), self.python_callable, args, kwargs,
            gather=self._gather, has_workspace=self.workspace is not None, seen=register_in_json,
        )  # fmt: skip

    def _app_for(self, app: AppDef, backend: str) -> AppDef:
        if self._python is None and backend == "local":
            import dataclasses
            import sys

            # With the modules that the worker has.
            return dataclasses.replace(app, roles=[dataclasses.replace(app.roles[0], entrypoint=sys.executable)])
        return app

    def _value_of(self, outcome: Mapping[str, Any]) -> Any:
        from airflow_provider_launch._task.outcome import MOST_RESULTS_BYTES
        from airflow_provider_launch.functions.result import value_of, values_of

        if self._read is None or self._read[0] is not outcome:
            result = outcome["result"]
            value = values_of(result or [], MOST_RESULTS_BYTES) if self._gather else value_of(result)
            if self.multiple_outputs and isinstance(value, Mapping):
                _refuse_own_keys(value)
            self._read = outcome, value
        return self._read[1]

    def dry_run(self) -> None:
        """Print the request that would be sent, with templates as they are."""
        if any(_is_later(each) for each in (*self.op_args, *self.op_kwargs.values())):
            print(f"{self.task_id}: the app is known only in a run")  # noqa: T201 - the purpose of dry_run
            return
        super().dry_run()


class _FunctionTask(_TaskDecorator[Any, Any, Any]):
    """The decorated function; also checks a mapped task, whose operator Airflow creates only in a run."""

    def _expand(self, expand_input: Any, *, strict: bool) -> Any:
        partial = self.kwargs.get("op_kwargs") or {}
        with final_errors(str(self.kwargs.get("task_id", ""))):
            value = expand_input.value
            items = [*_mapped_items(value)]
            given = {*partial, *(value if isinstance(value, Mapping) else (name for name, _, _ in items))}
            if _has_later_names(value):
                given |= {name for name in parameters_of(self.function) if name != _REPLICA}
            _refuse(self.kwargs, given, self.function)
            _check_arguments(self.function, self.kwargs.get("op_args") or (), partial)
            for _, path, each in items:
                check_json(each, path, _is_later)
        from airflow_provider_launch._task.mapped import input_of_run
        from airflow_provider_launch.operators._written import written_for_function

        return super()._expand(input_of_run(expand_input, note=written_for_function), strict=strict)


def _mapped_items(given: Any) -> Iterator[tuple[str, str, Any]]:
    """Yield the name, the path and the value of each argument of `.expand(x=[...])` or `.expand_kwargs([...])`."""
    if isinstance(given, Mapping):
        for name, values in given.items():
            if isinstance(values, Mapping):
                # Each item becomes a pair, so that its key is a value.
                yield from ((name, f"{name}, key {key!r},", key) for key in values)
                yield from ((name, f"{name}[{key!r}]", value) for key, value in values.items())
            elif _is_later(values):
                yield name, name, values
            else:
                yield from ((name, f"{name}[{at}]", value) for at, value in enumerate(values))
    elif not _is_later(given):
        for at, each in enumerate(given):
            if isinstance(each, Mapping):
                yield from ((name, f"expand_kwargs[{at}][{name!r}]", value) for name, value in each.items())


def _has_later_names(given: Any) -> bool:
    """Return whether `.expand_kwargs` gets its names only in a run."""
    return not isinstance(given, Mapping) and (_is_later(given) or any(map(_is_later, given)))


def _refuse(kwargs: Mapping[str, Any], given: Container[str], function: Callable[..., Any]) -> None:
    """Refuse options and parameters that a function cannot have; `given` are the names that get an argument."""
    from airflow_provider_launch.specs.errors import InvalidAppError

    if refused := [name for name in _NOT_TAKEN if name in kwargs]:
        raise InvalidAppError(f"{_NAME}: {_NOT_TAKEN[refused[0]]}")
    if _REPLICA in given:
        raise InvalidAppError(f"argument {_REPLICA!r} of {function.__name__!r} is given by the launcher; leave it out")
    for name in parameters_of(function):
        if name in KNOWN_CONTEXT_KEYS and name not in _TEXTS and name not in given:
            raise InvalidAppError(
                f"parameter {name!r} of {function.__name__!r} is a part of Airflow's context that stays on the "
                f"worker; pass what the function needs, for example by a template"
            )


def _refuse_own_keys(value: Mapping[str, Any]) -> None:
    """Refuse keys that Airflow would store in place of the launcher's XComs, such as the app that a sensor follows."""
    from airflow_provider_launch.specs.errors import InvalidAppError

    if taken := [name for name in value if name in _OWN_KEYS or str(name).startswith("launch_")]:
        raise InvalidAppError(
            f"the function returned {taken[0]!r}, under which the launcher stores an XCom; use another name, or "
            f"multiple_outputs=False"
        )


def _check_arguments(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Refuse arguments that JSON cannot hold, as far as they are known when the DAG is parsed."""
    names = parameters_of(function)
    for at, value in enumerate(args):
        check_json(value, names[at] if at < len(names) else f"args[{at}]", _is_later)
    for name, value in kwargs.items():
        check_json(value, name, _is_later)
    defaults_of(function)


def _is_later(value: Any) -> bool:
    """Return whether the value exists only in a run, such as the output of a task."""
    return hasattr(value, "resolve") and not hasattr(value, "__fspath__")


def _plain(value: Any) -> Any:
    """Return the value, or a list or dict for Airflow's own ones, which read their items when they are used."""
    if isinstance(value, dict) and type(value) is dict:
        return {name: _plain(each) for name, each in value.items()}
    if type(value) in (list, tuple):
        return [_plain(each) for each in value]
    if type(value).__module__.partition(".")[0] != "airflow":
        return value
    if isinstance(value, Mapping):
        return {name: _plain(value[name]) for name in value}
    return [_plain(each) for each in value] if isinstance(value, Sequence) and not isinstance(value, str) else value


@overload
def launch_python_task(python_callable: Callable[P, R]) -> Task[P, R]: ...


@overload
def launch_python_task(
    python_callable: None = None, *, multiple_outputs: bool | None = None, **kwargs: Any
) -> Callable[[Callable[P, R]], Task[P, R]]: ...


def launch_python_task(
    python_callable: Callable[..., Any] | None = None, *, multiple_outputs: bool | None = None, **kwargs: Any
) -> Any:
    """Return the decorator `@task.launch_python`.

    The function runs in each replica, on any scheduler. Its source travels with what it uses of the DAG file: imports,
    functions, classes and plain values. The image needs Python 3.8 or newer. Arguments and the returned value are JSON.
    A parameter `replica` gets a `functions.Replica`; `ds`, `ts`, `run_id`, `params` and the like get Airflow's values.

    The value of replica 0 is the task's `return_value`. XCom `app` is `{handle, state, attempts, roles}`.

    Args:
        python_callable: the function, for `@task.launch_python` without brackets.
        multiple_outputs: as for `@task`: True pushes each key of a returned dict. None: by the annotation.
        kwargs: `image`, `num_replicas`, `resource`, `env`, `max_retries`, `retry_policy`, `max_disruptions`,
            `port_map`, `mounts` and `metadata` as in `Role`; `python`, the interpreter in the image (None: `python3`,
            on local processes that of the worker); `torch=True` is `torch_env` of the role; `gather=True` returns a
            list of the values of all replicas; arguments of `LaunchAppOperator` except `app`, `component`, `wait` and
            `results`, and those of every task.

    Raises:
        InvalidAppError: at DAG parsing: the function, something that it uses, or an argument cannot travel.
    """

    def decorate(function: Callable[..., Any]) -> Any:
        with final_errors(str(kwargs.get("task_id") or getattr(function, "__name__", ""))):
            # Here, because Airflow creates the operator of a mapped task only in a run.
            has_workspace = kwargs.get("workspace") is not None
            if not surely_travels(function, has_workspace=has_workspace):
                source_of(function, has_workspace=has_workspace)
        named: dict[str, Any] = {} if multiple_outputs is None else {"multiple_outputs": multiple_outputs}
        return _FunctionTask(
            function=function, operator_class=cast("Any", _LaunchPythonOperator), kwargs=kwargs, **named,
        )  # fmt: skip

    return decorate if python_callable is None else decorate(python_callable)

"""`@task.launch`: a function that returns an app becomes the task that launches it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, ParamSpec, cast, overload

from airflow.sdk.bases.decorator import DecoratedOperator, _TaskDecorator

from airflow_provider_launch._airflow import arguments_for
from airflow_provider_launch.operators.launch import LaunchAppOperator

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.bases.decorator import Task

    from airflow_provider_launch.specs.roles import AppDef

__all__ = ["launch_task"]

P = ParamSpec("P")


class _LaunchDecoratedOperator(DecoratedOperator, LaunchAppOperator):
    """Calls the function when the task runs, and launches the returned app."""

    custom_operator_name = "@task.launch"
    # Without `app`, because Airflow would call the function during rendering, without handling timeouts and kills.
    template_fields: Sequence[str] = (
        *DecoratedOperator.template_fields,
        *(name for name in LaunchAppOperator.template_fields if name not in {"app", "component_args"}),
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {
        **DecoratedOperator.template_fields_renderers,
        **LaunchAppOperator.template_fields_renderers,
    }

    def __init__(self, *, python_callable: Callable[..., Any], **kwargs: Any) -> None:
        from airflow_provider_launch._task.errors import final_errors
        from airflow_provider_launch.specs.errors import InvalidAppError

        with final_errors():
            if given := [name for name in ("app", "component", "component_args") if name in kwargs]:
                raise InvalidAppError(f"@task.launch: the function returns the app; leave `{given[0]}` out")
            if inspect.iscoroutinefunction(python_callable):
                raise InvalidAppError(
                    f"@task.launch: {python_callable.__name__!r} is async; write `def`, the app is launched for you"
                )
        super().__init__(python_callable=python_callable, app=python_callable, **kwargs)
        self._is_app_made = True

    def execute(self, context: Context) -> Any:
        """Launch the app that the function returns; as `LaunchAppOperator.execute`."""
        from airflow_provider_launch._task.errors import final_errors

        self.app = self._returned(context)
        # Once more, because the frames below would be shown above the user's error.
        with final_errors():
            return super().execute(context)

    def _returned(self, context: Context) -> AppDef | Mapping[str, Any]:
        from airflow_provider_launch._task.errors import final_errors
        from airflow_provider_launch.specs.errors import InvalidAppError
        from airflow_provider_launch.specs.roles import AppDef

        arguments = arguments_for(self, self.python_callable, self.op_args, {**context, **self.op_kwargs})
        app = self.python_callable(*self.op_args, **arguments)
        if not isinstance(app, (AppDef, Mapping)):
            with final_errors():
                raise InvalidAppError(
                    f"@task.launch: {self.python_callable.__name__!r} must return an AppDef or a dict, "
                    f"not {type(app).__name__}"
                )
        return app


class _AppTask(_TaskDecorator[Any, Any, Any]):
    """The decorated function; knows the arguments of a mapped task that come from a run."""

    def _expand(self, expand_input: Any, *, strict: bool) -> Any:
        # Imported here, because each parse of each DAG file pays for the imports at the top.
        from airflow_provider_launch._task.mapped import input_of_run
        from airflow_provider_launch.operators._written import written_for_function

        return super()._expand(input_of_run(expand_input, note=written_for_function), strict=strict)


@overload
def launch_task(
    python_callable: Callable[P, AppDef | Mapping[str, Any]],
) -> Task[P, AppDef | Mapping[str, Any]]: ...


@overload
def launch_task(
    python_callable: None = None, *, multiple_outputs: bool = False, **kwargs: Any
) -> Callable[[Callable[P, AppDef | Mapping[str, Any]]], Task[P, AppDef | Mapping[str, Any]]]: ...


def launch_task(
    python_callable: Callable[..., Any] | None = None, *, multiple_outputs: bool | None = False, **kwargs: Any
) -> Any:
    """Return the decorator `@task.launch`.

    The function is called on the worker, in each try. It gets its arguments rendered, and parts of the context by name.
    It returns an `AppDef`, or a dict of the same form, in which templates are not rendered.

    Args:
        python_callable: the function, for `@task.launch` without brackets.
        multiple_outputs: True pushes each part of the task's result (`handle`, `state`, ...) under a key of its own.
            Not derived from the function's annotation, which is the type of the app and not of the result.
        kwargs: arguments of `LaunchAppOperator` except `app` and `component`, and those of every task.

    Raises:
        InvalidAppError: at DAG parsing: `app` or `component` is given, or the function is async.
    """

    def decorator(function: Callable[..., Any]) -> Any:
        return _AppTask(
            function=function,
            multiple_outputs=bool(multiple_outputs),
            operator_class=cast("Any", _LaunchDecoratedOperator),
            kwargs=kwargs,
        )

    return decorator if python_callable is None else decorator(python_callable)

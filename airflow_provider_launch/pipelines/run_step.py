"""Launches one step of a pipeline without a DAG, for its author."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from airflow_provider_launch.pipelines.apps import Inputs, build_app, references_of
from airflow_provider_launch.pipelines.executors import LOCAL, Placement, placement, rendered_settings
from airflow_provider_launch.pipelines.layers import ConnectionPlaceholders
from airflow_provider_launch.pipelines.model import MapStep, PipelineModel, TaskStep, steps_of
from airflow_provider_launch.pipelines.objects import file_of, object_names, reference
from airflow_provider_launch.pipelines.parameters import from_environment, returned_values
from airflow_provider_launch.pipelines.problems import PipelineError, Problem, closest
from airflow_provider_launch.runner import Runner
from airflow_provider_launch.schedulers.logs import JsonValue
from airflow_provider_launch.specs import AppDef
from airflow_provider_launch.specs.errors import InvalidAppError
from airflow_provider_launch.specs.handles import parse_app_handle
from airflow_provider_launch.specs.states import AppState


def find_step(model: PipelineModel, name: str) -> tuple[TaskStep, list[str]]:
    """Return a task, and the names of the elements of its enclosing maps.

    Args:
        model: the pipeline.
        name: the name of the task, with its parents if several tasks have that name: `split/train`.

    Raises:
        PipelineError: there is no such task, or more than one.
    """
    found = {}
    for step, around, _ in steps_of(model.graph):
        if isinstance(step, TaskStep):
            path = "/".join(part.strip() for part in (step.place.step or step.name).split(" / "))
            found[path] = (step, [one.iterate_as for one in around if isinstance(one, MapStep)])
    wanted = name.strip().replace(" / ", "/")
    chosen = [path for path in found if path == wanted or path.endswith(f"/{wanted}")]
    if len(chosen) == 1 or wanted in found:
        return found[wanted if wanted in found else chosen[0]]
    reason = f"means {', '.join(chosen)}; name one of them" if chosen else f"is not a task; {closest(name, found)}"
    raise PipelineError([Problem(f"{name!r} {reason}")])


def run_step(
    model: PipelineModel,
    step: TaskStep,
    parameters: Mapping[str, Any],
    *,
    elements: list[str],
    data_dir: Path | None = None,
    is_dry: bool = False,
    show: Callable[[str], object] = print,
) -> tuple[int, dict[str, Any] | None]:
    """Launch a task, show its lines, and return an exit code and its values.

    Args:
        model: the pipeline.
        step: the task.
        parameters: override those of the file and of the environment; elements of maps must be included.
        elements: names of the elements of the enclosing maps.
        data_dir: the folder in which a task with a catalog runs, and in which objects are; no files are copied.
        is_dry: True only shows the request.
        show: called with each line.

    Raises:
        InvalidAppError: a parameter is missing, or the step cannot be run from here.
    """
    model = replace(model, parameters={**model.parameters, **from_environment()})
    values = {**model.parameters, **parameters}
    missing = [name for name in elements if name not in values]
    if missing:
        raise InvalidAppError(f"step {step.name!r} is inside a map; set its element: --set {missing[0]}=...")
    place = placement(model, step)
    backend = place.backend
    if backend is None:
        raise InvalidAppError(f"executor {place.type!r} is a plug-in, which runs in Airflow; use airflow tasks test")
    if place.left_to_connection:
        from airflow_provider_launch.hooks.launch import LaunchHook

        found = LaunchHook.for_connection(place.conn_id).options.placeholders
        place = placement(model, step, ConnectionPlaceholders(place.conn_id, found))
    references = references_of(step)
    step, place = rendered(step, place, values, "run_step")
    data = (data_dir or Path.cwd()).resolve()
    stored = _stored_objects(model, data) if step.command_type in {"python", "notebook"} else {}
    values = {**stored, **values}
    objects = tuple(name for name in stored if values[name] is stored[name])
    folder = data if step.catalog or objects or object_names(step) else None
    inputs = Inputs(
        parameters=values,
        map_variables={name: values[name] for name in elements},
        secrets=secrets_of(step),
        data_dir=folder,
        objects=objects,
        references=references,
    )
    # A local folder is not on the volume.
    settings = replace(place.settings, data_volume="")
    app, cfg = build_app(model, step, replace(place, settings=settings), inputs)
    code, result = launched(place, app, cfg, show, is_dry=is_dry)
    if code or is_dry:
        return code, None
    names = None if step.returns is None else [item.name for item in step.returns]
    return 0, returned_values(result, names, given=values, step=step.name)


def rendered(step: TaskStep, place: Placement, values: Mapping[str, Any], run_id: str) -> tuple[TaskStep, Placement]:
    """Return a step and its settings, whose templates have what exists without Airflow: `ds`, `ts`, `run_id`, `params`.

    Raises:
        InvalidAppError: a template needs Airflow.
    """
    own = [step.command if step.template else "", step.args, step.app, place.settings, place.options]
    if not any(mark in str(own) for mark in ("{{", "{%")):
        return step, place
    import jinja2

    now = datetime.now(timezone.utc)
    day = now.date().isoformat()
    context = {"ds": day, "ds_nodash": day.replace("-", ""), "ts": now.isoformat(), "run_id": run_id, "params": values}
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined)  # noqa: S701 - commands are not HTML

    def render(value: Any) -> Any:
        if isinstance(value, str):
            return environment.from_string(value).render(context)
        if isinstance(value, Mapping):
            return {name: render(item) for name, item in value.items()}
        return [render(item) for item in value] if isinstance(value, (list, tuple)) else value

    try:
        command = render(step.command) if step.template else step.command
        step = replace(step, command=command, args=render(step.args), app=render(step.app))
        settings = replace(rendered_settings(place.settings, render), env=render(place.settings.env))
        return step, replace(place, settings=settings, options=render(place.options))
    except jinja2.UndefinedError as error:
        raise InvalidAppError(
            f"the template of step {step.name!r} needs Airflow: {error}; here are only {', '.join(context)}"
        ) from error


def secrets_of(step: TaskStep) -> dict[str, str]:
    """Return the secrets of a step, which are variables of this process without Airflow.

    Raises:
        InvalidAppError: one is not set.
    """
    missing = [name for name in step.secrets if name not in os.environ]
    if missing:
        raise InvalidAppError(
            f"step {step.name!r} needs the secrets {', '.join(missing)}; set these variables here, or use Airflow"
        )
    return {name: os.environ[name] for name in step.secrets}


def launched(
    place: Placement, app: AppDef, cfg: Mapping[str, Any], show: Callable[[str], object], *, is_dry: bool = False
) -> tuple[int, JsonValue]:
    """Launch the app of a step, show its lines, and return an exit code and its result."""
    assert place.backend is not None
    backend = place.backend
    with _runner(place) as (runner, defaults):
        info = runner.dryrun(app, backend.name, {**defaults, **cfg})
        if is_dry:
            show(str(info))
            return 0, None
        handle = runner.schedule(info)
        try:
            for role in app.roles:
                for line in runner.log_lines(handle, role.name, 0, should_tail=True):
                    show(line.rstrip("\n"))
            status = runner.wait(handle)
        except KeyboardInterrupt:
            runner.cancel(handle)
            raise
        if status is None or status.state != AppState.SUCCEEDED:
            show(f"{handle} {status.state if status else 'is unknown'}: {status.msg if status else ''}")
            return 1, None
        return 0, runner.scheduler(backend.name).result(parse_app_handle(handle).app_id)


def _stored_objects(model: PipelineModel, folder: Path) -> dict[str, Any]:
    """Return what stands for the objects that steps have written into a folder."""
    found: dict[str, Any] = {}
    for step, _, _ in steps_of(model.graph):
        for name in object_names(step) if isinstance(step, TaskStep) else ():
            if (folder / file_of(step.name, name)).is_file():
                found[name] = reference(step.name, name, "")
    return found


@contextlib.contextmanager
def _runner(place: Placement) -> Iterator[tuple[Runner, dict[str, Any]]]:
    """Yield a runner, and the options of the connection."""
    assert place.backend is not None
    if place.type == LOCAL and not place.settings.conn_id:
        # Without a connection Airflow is not needed.
        with Runner("run_step") as runner:
            yield runner, {}
        return
    from airflow_provider_launch.hooks.launch import LaunchHook

    hook = LaunchHook.for_connection(place.conn_id)
    try:
        yield hook.runner, dict(hook.options.cfg)
    finally:
        hook.close()

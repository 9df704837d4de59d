"""The request of a task: its app and its options, as they are launched."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from airflow_provider_launch._task.checkpoint_dir import (
    CHECKPOINT_DIR,
    directory_of,
    with_mounts,
    with_variables,
)
from airflow_provider_launch._task.checkpoint_dir import TRY as TRY_VARIABLE
from airflow_provider_launch._task.lineage import with_parent_run
from airflow_provider_launch._task.places import hidden_values
from airflow_provider_launch._task.secrets import register, shown_request
from airflow_provider_launch.connections.extras import refuse_locked
from airflow_provider_launch.hooks.launch import LaunchHook
from airflow_provider_launch.hooks.task_states import deployment_id
from airflow_provider_launch.operators._pod_template import BY_ROLE, with_pod_templates
from airflow_provider_launch.operators._workspace import with_workspace
from airflow_provider_launch.specs.errors import InvalidAppError, UnsupportedError
from airflow_provider_launch.specs.owner import DEPLOYMENT, LEAVE, OWNER, POLICY, TRY, TaskKey

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_launch.operators._sources import Sources
    from airflow_provider_launch.operators.launch import LaunchAppOperator
    from airflow_provider_launch.specs.roles import AppDef
    from airflow_provider_launch.specs.runopts import runopts


_BUILD_HOST, _IMAGE_REPO = "build_host", "image_repo"


def shown_dry_run(operator: LaunchAppOperator, app: AppDef) -> str:
    """Return the request of the app as text."""
    hook = LaunchHook.for_connection(operator.launch_conn_id)
    try:
        app = _with_workspace(app, operator, hook, None)
        return shown_request(hook.runner.dryrun(app, hook.options.backend, launch_options(operator, hook)))
    finally:
        hook.close()


def launch_options(
    operator: LaunchAppOperator, hook: LaunchHook, context: Context | None = None, sources: Sources | None = None
) -> dict[str, Any]:
    """Return the options of this launch: those of the connection, overridden by `cfg` and the time limit.

    Args:
        operator: the task, rendered.
        hook: connects to the scheduler.
        context: the context of the run, to render a pod template.
        sources: decides which pod templates may be read, which engine may build, and where images may be pushed.

    Raises:
        InvalidAppError: an option is unknown, locked, wrong, or given twice, or may not be named.
        UnsupportedError: the scheduler has no time limit.
    """
    schema = hook.scheduler.run_opts()
    # Cast first: a text such as the JSON of `by_role` would hide locations from the checks.
    given = with_pod_templates(hook.launch.cast_cfg(operator.cfg), operator, schema, context, sources)
    if sources is not None:
        written = operator._written  # noqa: SLF001 - part of the operator
        emptied = {schema.registered_name(name) for name in (written.emptied if written else ())}
        _check_builds(given, hook.merged_cfg(None), schema, sources, emptied)
    cfg = hook.merged_cfg(given)
    limit = operator.time_limit_s
    if limit is None:
        return cfg
    name = schema.registered_name("time_limit_s")
    if name is None:
        raise UnsupportedError(
            f"time_limit_s={limit} is set, but scheduler {hook.options.backend!r} has no such option; "
            f"leave it out, or use execution_timeout, which needs a running worker"
        )
    refuse_locked(operator.launch_conn_id, hook.options, schema, [name])
    in_cfg = given.get(name)
    if in_cfg is not None and in_cfg != limit:
        raise InvalidAppError(f"time_limit_s is {limit} at the operator and {in_cfg} in its cfg; set it once")
    return {**cfg, name: limit}


def _check_builds(
    given: Any, ours: Mapping[str, Any], schema: runopts, sources: Sources, emptied: Collection[str | None]
) -> None:
    """Refuse an engine or a repository that a run names: the workspace is sent there with the worker's logins.

    Args:
        given: the options of the task.
        ours: those of the administrator.
        schema: the options of the scheduler.
        sources: decides which addresses are allowed.
        emptied: the options that the DAG file sets to nothing.

    Raises:
        InvalidAppError: one of them is of a run.
    """
    for name, value in given.items() if isinstance(given, Mapping) else ():
        known = schema.registered_name(str(name))
        if known == BY_ROLE and isinstance(value, Mapping):
            for own in value.values():
                _check_builds(own, ours, schema, sources, emptied)
        if known not in {_BUILD_HOST, _IMAGE_REPO} or (value or None) == (ours.get(known) or None):
            continue
        if not value:
            # The worker would build on its own engine, or the image would stay there.
            if known not in emptied:
                raise InvalidAppError(
                    f"option {known} is empty, which would remove the one of the connection, and the DAG file does "
                    f"not set it to nothing; write that there, or leave the option out"
                )
            continue
        # Docker takes an address without a scheme for one of TCP. It is not a path.
        text = str(value)
        address = f"docker://{text}" if known == _IMAGE_REPO else text if "://" in text else f"tcp://{text}"
        sources.check_option(text, address, f"option {known}")


def launch_app(app: AppDef, operator: LaunchAppOperator, ti: Any, hook: LaunchHook, sources: Sources) -> AppDef:
    """Return a copy of the app with its workspace, and with the task as its owner and parent run.

    Registers the secrets of the app, so that Airflow masks them from now on.

    Args:
        app: the checked app.
        operator: the task of the DAG, rendered.
        ti: its task instance.
        hook: connects to the scheduler.
        sources: decides which directories may be mirrored.

    Raises:
        InvalidAppError: the workspace is wrong, or a role has an overlay although the connection locks options.
        UnsupportedError: the scheduler does not support workspaces.
    """
    hook.launch.refuse_overlays(app)
    stays = not operator.wait or not operator.follow_options.may_cancel
    owner = {
        **TaskKey.of(ti)._asdict(),
        TRY: ti.try_number,
        DEPLOYMENT: deployment_id(),
        POLICY: LEAVE if stays else "cancel",
    }
    # For `Runner.list`, and for the reconciler.
    app = dataclasses.replace(app, metadata={**app.metadata, OWNER: owner})
    env = {TRY_VARIABLE: str(ti.try_number)}
    if operator.checkpoint_dir:
        env[CHECKPOINT_DIR] = directory_of(operator.checkpoint_dir, TaskKey.of(ti))
        app = with_mounts(app, operator.checkpoint_dir, hook.options.backend, operator.log.warning)
    app = with_variables(app, env)
    app = with_parent_run(_with_workspace(app, operator, hook, sources), ti, operator.log.warning)
    # Before the request is shown, which may contain such values anywhere.
    register(hidden_values(app.roles, {}, ()))
    return app


def _with_workspace(app: AppDef, operator: LaunchAppOperator, hook: LaunchHook, sources: Sources | None) -> AppDef:
    dag = operator.get_dag()
    return with_workspace(app, operator.workspace, dag.fileloc if dag else None, hook.scheduler, sources)

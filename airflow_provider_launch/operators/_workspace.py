"""The workspace of a task, with paths relative to the DAG file."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_launch.schedulers.api import Capability
from airflow_provider_launch.specs.errors import InvalidAppError, UnsupportedError
from airflow_provider_launch.specs.workspaces import Workspace
from airflow_provider_launch.util.paths import expanded

if TYPE_CHECKING:
    from airflow_provider_launch.operators._sources import Sources
    from airflow_provider_launch.schedulers.api import Scheduler
    from airflow_provider_launch.specs.roles import AppDef


def workspace_from(value: Any) -> Workspace | None:
    """Return the workspace that an argument of the operator describes; None if there is none.

    Raises:
        InvalidAppError: it is not a path, a mapping of path to sub-directory, or a `Workspace`.
    """
    if value is None or isinstance(value, Workspace):
        return value or None
    if isinstance(value, Mapping):
        pairs = {str(path): "" if target is None else target for path, target in value.items()}
        if all(isinstance(target, str) for target in pairs.values()):
            return Workspace(pairs) or None
    if not isinstance(value, str):
        raise InvalidAppError(
            f"workspace must be a path, or a mapping of path to sub-directory, not {type(value).__name__} {value!r}"
        )
    try:
        return Workspace.from_str(value) or None
    except ValueError as error:
        raise InvalidAppError(str(error)) from error


def with_workspace(
    app: AppDef, value: Any, dag_file: str | None, scheduler: Scheduler[Any], sources: Sources | None = None
) -> AppDef:
    """Return the app with the workspace in its first role; the given app is not changed.

    Args:
        app: the app; roles may have workspaces of their own.
        value: argument of the operator; it replaces the workspace of the first role.
        dag_file: relative paths start in its directory.
        scheduler: must support workspaces, if there is one.
        sources: decides which directories may be mirrored. None: any.

    Raises:
        InvalidAppError: the workspace is wrong.
        UnsupportedError: the scheduler does not support workspaces.
    """
    workspace = workspace_from(value)
    if workspace is None and not any(role.workspace for role in app.roles):
        return app
    if Capability.WORKSPACE not in scheduler.capabilities:
        raise UnsupportedError(
            f"scheduler {scheduler.backend!r} does not mirror workspaces; put the code into the image"
        )
    roles = [copy.copy(role) for role in app.roles]
    if workspace is not None:
        roles[0].workspace = workspace
    for role in roles:
        if role.workspace:
            directory = Path(dag_file).parent if dag_file else Path.cwd()
            below = _below(role.workspace, directory)
            if sources is not None:
                # The argument is written in the DAG file also if a function builds the app.
                check = sources.check if workspace is None or role is not roles[0] else sources.check_option
                for path, given in below.items():
                    check(given, path, f"the workspace of role {role.name!r}")
            role.workspace = Workspace({path: role.workspace.projects[given] for path, given in below.items()})
    return dataclasses.replace(app, roles=roles)


def _below(workspace: Workspace, directory: Path) -> dict[str, str]:
    """Return the path of each directory of a workspace, and how it is written.

    Raises:
        InvalidAppError: two name the same directory.
    """
    found: dict[str, str] = {}
    for given in workspace.projects:
        path = str(directory / expanded(given))
        if path in found:
            raise InvalidAppError(
                f"the workspace names the directory {path} twice, as {found[path]!r} and {given!r}; keep one of them"
            )
        found[path] = given
    return found

# ruff: noqa: SLF001 - `_validate` is, by this name, the interface of plug-ins
"""The steps of a dry run that a scheduler does, also one of a plug-in that is older than an argument."""

from __future__ import annotations

import inspect
import warnings
from typing import TYPE_CHECKING, Any

from airflow_provider_launch.workspace.api import WorkspaceMixin

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_provider_launch.schedulers.api import Scheduler
    from airflow_provider_launch.specs.dryrun import AppDryRunInfo
    from airflow_provider_launch.specs.roles import AppDef
    from airflow_provider_launch.specs.runopts import CfgVal
    from airflow_provider_launch.specs.workspaces import Workspace


def prepare_workspaces(
    app: AppDef,
    backend: str,
    workspace: str | Workspace | None,
    scheduler: Scheduler[Any],
    cfg: Mapping[str, CfgVal],
) -> None:
    """Let the scheduler check the workspaces and prepare what it has of them; warn where it has no use for them."""
    if isinstance(scheduler, WorkspaceMixin):
        scheduler.prepare_workspaces(app.roles, cfg)
    elif workspace or any(role.workspace for role in app.roles):
        warnings.warn(
            f"{backend!r} does not mirror workspaces: the workspace is ignored, the image is used as it is",
            stacklevel=4,
        )


def validate(scheduler: Scheduler[Any], app: AppDef, backend: str, cfg: Mapping[str, CfgVal]) -> None:
    """Let the scheduler refuse the app."""
    takes = inspect.signature(scheduler._validate).parameters
    if len(takes) == len(("app", "scheduler")):
        scheduler._validate(app, backend)  # type: ignore[call-arg]  # plug-ins older than the cfg argument
    else:
        scheduler._validate(app, backend, cfg)


def submit_dryrun(
    scheduler: Scheduler[Any], app: AppDef, cfg: Mapping[str, CfgVal], app_id: str | None
) -> AppDryRunInfo[Any]:
    """Return the request of the scheduler for the app."""
    if "app_id" in inspect.signature(scheduler.submit_dryrun).parameters:
        return scheduler.submit_dryrun(app, cfg, app_id=app_id)
    return scheduler.submit_dryrun(app, cfg)

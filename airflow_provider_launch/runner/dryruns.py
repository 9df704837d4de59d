# ruff: noqa: SLF001 - plug-ins rely on the name `_validate`
"""The steps of a dry run that a scheduler does; plug-ins may have older signatures."""

from __future__ import annotations

import copy
import inspect
import warnings
from typing import TYPE_CHECKING, Any

from airflow_provider_launch.specs.check import warnings_of
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
    """Let the scheduler check and prepare the workspaces; warn if it does not support them."""
    if isinstance(scheduler, WorkspaceMixin):
        scheduler.prepare_workspaces(app.roles, cfg)
    elif workspace or any(role.workspace for role in app.roles):
        warnings.warn(
            f"{backend!r} does not support workspaces: the workspace is ignored, and the image is used as it is",
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
        info = scheduler.submit_dryrun(app, cfg, app_id=app_id)
    else:
        info = scheduler.submit_dryrun(app, cfg)
    # A plug-in may return an object of its own class.
    info.warnings = [*warnings_of(app), *getattr(info, "warnings", ())]
    return info


def built_images(backend: Any, app: AppDef, cfg: Mapping[str, CfgVal]) -> dict[tuple[str, Workspace], str]:
    """Build each workspace of the app and return (image, workspace) to the new image; the app is not changed."""
    copied = copy.deepcopy(app)
    given = [(role.image, role.workspace) for role in copied.roles]
    backend.build_workspaces(copied.roles, backend.run_opts().resolve(cfg))
    built = zip(given, copied.roles, strict=True)
    return {(image, workspace): role.image for (image, workspace), role in built if workspace}


def pin_workspace_images(app: AppDef, images: Mapping[tuple[str, Workspace], str]) -> AppDef:
    """Return a copy of the app with the images that `Runner.build_workspace` built, and without workspaces."""
    copied = copy.deepcopy(app)
    for role in copied.roles:
        if role.workspace and (built := images.get((role.image, role.workspace))):
            role.image, role.workspace = built, None
    return copied

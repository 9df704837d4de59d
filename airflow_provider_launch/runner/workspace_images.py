"""Images with the workspaces of an app: built once, and put into apps in place of the workspaces."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_provider_launch.specs.roles import AppDef
    from airflow_provider_launch.specs.runopts import CfgVal
    from airflow_provider_launch.specs.workspaces import Workspace


def built_images(backend: Any, app: AppDef, cfg: Mapping[str, CfgVal]) -> dict[tuple[str, Workspace], str]:
    """Build each workspace of the app and return (image, workspace) to the image with it; the app is not changed."""
    copied = copy.deepcopy(app)
    given = [(role.image, role.workspace) for role in copied.roles]
    backend.build_workspaces(copied.roles, backend.run_opts().resolve(cfg))
    built = zip(given, copied.roles, strict=True)
    return {(image, workspace): role.image for (image, workspace), role in built if workspace}


def pin_workspace_images(app: AppDef, images: Mapping[tuple[str, Workspace], str]) -> AppDef:
    """Return a copy of the app with images that `Runner.build_workspace` has built, and without their workspaces."""
    copied = copy.deepcopy(app)
    for role in copied.roles:
        if role.workspace and (built := images.get((role.image, role.workspace))):
            role.image, role.workspace = built, None
    return copied
